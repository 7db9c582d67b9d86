"""NeuSight op graphs with edges, lowered to kernels of our vocabulary.

A published graph holds ONE transformer layer; its nodes repeat `num_layer` times. Which nodes
those are is read from the module stack of the raw graph where it is published, else from the node
names: from the first node of layer 0 up to the first node behind the layer stack. Both rules give
back NeuSight's own totals from its per-op predictions exactly. MoE graphs (`switch*`) are whole.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import DataError
from predictor.features.table import CONTEXTS, KernelTable, dims_matrix, op_index
from predictor.graph.ir import PHASES
from predictor.graph.ops import OPS
from predictor.traces.schema import MeasuredGraph
from predictor.traces.sources.neusight_cells import (
    GraphCellError,
    Row,
    calls_cell,
    names_cell,
    shape_cell,
    shapes_cell,
)
from predictor.traces.sources.neusight_layout import Layout
from predictor.traces.sources.neusight_ops import (
    FxNode,
    NodeKernel,
    backward_kernels,
    base_name,
    forward_kernels,
)
from predictor.traces.validate import DIM_LIMIT

_STACK = re.compile(r"\('[\w.]*\.(?:h|layer|layers|block)\.0'")
_FIRST_LAYER = re.compile(r"(^|_)(h|layer|layers|block)_0_")
_BEHIND = re.compile(r"ln_f|final_layer_norm|pooler|cls_|lm_head|classifier|^getitem_10$|^output$")
_WHOLE = ("switch",)
GRAPH_COLUMNS: tuple[str, ...] = (
    "Name", "OpName", "FwOps", "BwOps", "Prev", "InputShapes", "OutputShape",
)  # fmt: skip
_NO_DROP = re.compile(r"'p': 0(\.0*)?[,}]")
_CAST_NAMES = ("to", "type_as", "float", "bool", "long")


class LayerStackError(DataError):
    """No node of an op graph is recognised as part of the repeated layer."""


def is_whole(name: str) -> bool:
    """Whether a graph holds all layers of its model (MoE), not one of them."""
    return name.startswith(_WHOLE)


def build_graph(name: str, layout: Layout, layers: int) -> MeasuredGraph:
    """The graph `name` of a layout, as kernels with edges and repetitions.

    Args:
        name: name of the step, `gpt2_large-train-1024-4`.
        layout: where its files lie.
        layers: how often the layer of the graph repeats.

    Raises:
        DataError: the graph file is missing, unreadable or lacks a column.
        GraphCellError: one of its cells is malformed.
        LayerStackError: its repeated layer is not found.
    """
    path = layout.graph(name)
    if path is None:
        raise DataError(f"no op graph {name!r} below results/opgraph")
    file = layout.reader.name(path)
    table = layout.reader.csv(path, columns=GRAPH_COLUMNS)
    graph = table.drop_duplicates("Name").reset_index(names="row")
    details = _details(name, layout)
    rows = graph.to_dict("records")
    nodes = [_node(row, details, file) for row in rows]
    names = [node.name for node in nodes]
    layout.node_shapes[name] = {str(r["Name"]): str(r["OutputShape"]) for r in rows}
    repeat = _repetitions(name, names, details, layers)
    train = "-train-" in f"{name}-"
    kernels = [_kernels(node, train, row, file) for node, row in zip(nodes, rows, strict=True)]
    forward, backward = [f for f, _ in kernels], [b for _, b in kernels]
    order = [(i, k, 0) for i, ks in enumerate(forward) for k in ks]
    order += [(i, k, 1) for i in reversed(range(len(nodes))) for k in backward[i]]
    node_index = np.array([i for i, _, _ in order], dtype=np.int64)
    producers = [names_cell(row, "Prev", file) for row in rows]
    return MeasuredGraph(
        name=name,
        table=_table([k for _, k, _ in order], [p for _, _, p in order]),
        weight=repeat[node_index],
        node=node_index,
        nodes=tuple(names),
        node_weight=repeat,
        node_class=tuple(_node_class(n, ks) for n, ks in zip(nodes, forward, strict=True)),
        edge_index=_edges(producers, names, node_index, np.array([p for _, _, p in order])),
    )


def _node(row: Row, details: Mapping[str, Mapping[str, Any]], file: str) -> FxNode:
    name = str(row["Name"])
    detail = details.get(name, {})
    contiguous = detail.get("input_contiguous")
    copies = None if contiguous is None else not contiguous
    casts = None
    if base_name(name) in _CAST_NAMES and detail.get("dtype"):
        producer = details.get(detail.get("first_input", ""), {}).get("dtype")
        casts = producer is not None and producer != detail["dtype"]
    return FxNode(
        name=name, op_name=str(row["OpName"]), forward_ops=calls_cell(row, "FwOps", file),
        backward_ops=calls_cell(row, "BwOps", file), inputs=shapes_cell(row, "InputShapes", file),
        output=shape_cell(row, "OutputShape", file), copies=copies, casts=casts,
        scattered=detail.get("scattered", ()),
        drops=bool(detail.get("drops", True)),
    )  # fmt: skip


def _kernels(
    node: FxNode, train: bool, row: Row, file: str
) -> tuple[list[NodeKernel], list[NodeKernel]]:
    """Forward and backward kernels of a node whose shapes fit its op."""
    try:
        forward, backward = forward_kernels(node), backward_kernels(node) if train else []
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        # every shape is sound, but they are not those of this op
        raise GraphCellError(file, row, "InputShapes") from error
    if any(not 0 <= d <= DIM_LIMIT for k in (*forward, *backward) for d in k.dims.values()):
        raise GraphCellError(file, row, "FwOps")
    return forward, backward


def drops(keywords: str) -> bool:
    """Whether a dropout call with these published keyword arguments drops anything."""
    return not _NO_DROP.search(keywords)


def _details(name: str, layout: Layout) -> dict[str, dict[str, Any]]:
    """Module stack, contiguity and dtype by node, from the raw graph or a label of the graph."""
    path = layout.graph_details(name)
    if path is None:
        return {}
    raw = layout.reader.csv(path, columns=("Name",)).drop_duplicates("Name")
    out: dict[str, dict[str, Any]] = {}
    for row in raw.to_dict("records"):
        flags = str(row.get("input_contiguous", "[]"))
        inputs = re.findall(r"(\w+): None", str(row.get("_input_nodes", "")))
        out[str(row["Name"])] = {
            "stack": bool(_STACK.search(str(row.get("meta", "")))),
            "input_contiguous": not flags.startswith("[False"),
            "scattered": tuple(flag == "False" for flag in re.findall(r"True|False", flags)),
            "dtype": str(row["dtype"]) if isinstance(row.get("dtype"), str) else "",
            "first_input": inputs[0] if inputs else "",
            "drops": drops(str(row.get("_kwargs", ""))),
        }
    return out


def _repetitions(
    name: str, names: Sequence[str], details: dict[str, dict[str, Any]], layers: int
) -> NDArray[np.float64]:
    repeat = np.ones(len(names))
    if is_whole(name) or layers <= 1:
        return repeat
    if any(d["stack"] for d in details.values()):
        inside = np.array([bool(details.get(n, {}).get("stack")) for n in names])
    else:
        inside = np.zeros(len(names), dtype=bool)
        first = next((i for i, n in enumerate(names) if _FIRST_LAYER.search(n)), None)
        if first is not None:
            last = max(i for i, n in enumerate(names) if _FIRST_LAYER.search(n))
            while last + 1 < len(names) and not _BEHIND.search(names[last + 1]):
                last += 1
            inside[first : last + 1] = True
    if not inside.any():
        raise LayerStackError(
            f"op graph {name!r}: no node is recognised as part of the layer that repeats {layers} "
            "times (by module stack or by a name like transformer_h_0_…)"
        )
    repeat[inside] = layers
    return repeat


def _table(kernels: Sequence[NodeKernel], phases: Sequence[int]) -> KernelTable:
    n = len(kernels)
    return KernelTable(
        op=op_index([k.op for k in kernels]),
        phase=np.array(phases, dtype=np.int8),
        dtype=np.full(n, "fp32", dtype=np.dtype("<U4")),
        dims=dims_matrix([k.dims for k in kernels]),
        flops=np.array([k.flops for k in kernels], dtype=np.float64),
        read_bytes=np.array([k.read_bytes for k in kernels], dtype=np.float64),
        write_bytes=np.array([k.write_bytes for k in kernels], dtype=np.float64),
        launches=np.ones(n, dtype=np.int64),
        context=np.full(n, CONTEXTS.index("step"), dtype=np.int8),
    )


def _node_class(node: FxNode, kernels: Sequence[NodeKernel]) -> str:
    """Reporting class: by NeuSight's own op where it has one, else by our class; '' for views."""
    if node.op_name == "Linear":
        return "linear"
    if node.op_name == "BMM":
        return "batched_matmul"
    if node.op_name == "VECln":
        return "layernorm"
    if node.op_name == "VECsoftmax":
        return "softmax"
    if node.op_name.startswith("VEC"):
        return "elementwise"
    return f"other_{OPS[kernels[0].op].op_class}" if kernels else ""


def _edges(
    producers: Sequence[Collection[str]],
    names: Sequence[str],
    node: NDArray[np.int64],
    phase: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Data edges between kernels: published edges with views contracted, mirrored backward."""
    index = {n: i for i, n in enumerate(names)}
    last_kernel: dict[int, int] = {}
    first_kernel: dict[int, int] = {}
    edges: list[tuple[int, int]] = []
    forward = np.flatnonzero(phase == PHASES.index("forward"))
    for kernel in forward:
        i = int(node[kernel])
        if i in last_kernel:
            edges.append((last_kernel[i], int(kernel)))
        first_kernel.setdefault(i, int(kernel))
        last_kernel[i] = int(kernel)
    sources: dict[int, set[int]] = {}
    for i in range(len(names)):
        found: set[int] = set()
        for producer in producers[i]:
            j = index.get(producer)
            if j is not None and j < i:
                found |= {last_kernel[j]} if j in last_kernel else sources[j]
        sources[i] = found
        if i in first_kernel:
            edges.extend((s, first_kernel[i]) for s in found)
    edges.extend(_backward_edges(node, phase))
    if not edges:
        return np.zeros((2, 0), dtype=np.int64)
    return np.array(sorted(set(edges)), dtype=np.int64).T


def _backward_edges(node: NDArray[np.int64], phase: NDArray[np.int64]) -> list[tuple[int, int]]:
    """A chain through the backward kernels, in stream order."""
    backward = np.flatnonzero(phase == PHASES.index("backward"))
    return [(int(a), int(b)) for a, b in itertools.pairwise(backward)]
