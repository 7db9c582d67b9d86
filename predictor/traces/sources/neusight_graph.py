"""NeuSight op graphs with edges, lowered to kernels of our vocabulary.

A published graph holds ONE transformer layer; its nodes repeat `num_layer` times. Which nodes
those are is read from the module stack of the raw graph where it is published, else from the node
names: from the first node of layer 0 up to the first node behind the layer stack. Both rules give
back NeuSight's own totals from its per-op predictions exactly. MoE graphs (`switch*`) are whole.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import DataError
from predictor.features.table import CONTEXTS, KernelTable, dims_matrix, op_index
from predictor.graph.ir import PHASES
from predictor.graph.ops import OPS
from predictor.traces.schema import MeasuredGraph
from predictor.traces.sources.neusight_ops import (
    FxNode,
    NodeKernel,
    backward_kernels,
    base_name,
    forward_kernels,
)

if TYPE_CHECKING:
    import pandas as pd

_STACK = re.compile(r"\('[\w.]*\.(?:h|layer|layers|block)\.0'")
_FIRST_LAYER = re.compile(r"(^|_)(h|layer|layers|block)_0_")
_BEHIND = re.compile(r"ln_f|final_layer_norm|pooler|cls_|lm_head|classifier|^getitem_10$|^output$")
_WHOLE = ("switch",)
_CAST_NAMES = ("to", "type_as", "float", "bool", "long")


def read_csv(path: Path) -> pd.DataFrame:
    """A CSV, gzipped or plain by its content.

    Raises:
        DataError: the file cannot be read as CSV.
    """
    import pandas as pd

    try:
        with path.open("rb") as stream:
            compressed = stream.read(2) == b"\x1f\x8b"
        return pd.read_csv(path, compression="gzip" if compressed else None)
    except (OSError, EOFError, ValueError, pd.errors.ParserError) as error:
        raise DataError(f"{path.name}: not readable as CSV ({error})") from error


def build_graph(name: str, root: Path, layers: int) -> MeasuredGraph:
    """The graph `name` of the layout below `root`, as kernels with edges and repetitions.

    Raises:
        DataError: the graph file is missing or malformed.
    """
    path = next(iter(sorted(root.glob(f"results/opgraph/{name}.csv*"))), None)
    if path is None:
        raise DataError(f"no op graph {name!r} below results/opgraph")
    graph = read_csv(path).drop_duplicates("Name").reset_index(drop=True)
    details = _details(name, root)
    nodes = [_node(row, details) for row in graph.to_dict("records")]
    names = [node.name for node in nodes]
    repeat = _repetitions(name, names, details, layers)
    train = "-train-" in f"{name}-"
    forward = [forward_kernels(node) for node in nodes]
    backward = [backward_kernels(node) if train else [] for node in nodes]
    order = [(i, k, 0) for i, ks in enumerate(forward) for k in ks]
    order += [(i, k, 1) for i in reversed(range(len(nodes))) for k in backward[i]]
    node_index = np.array([i for i, _, _ in order], dtype=np.int64)
    return MeasuredGraph(
        name=name,
        table=_table([k for _, k, _ in order], [p for _, _, p in order]),
        weight=repeat[node_index],
        node=node_index,
        nodes=tuple(names),
        node_weight=repeat,
        node_class=tuple(_node_class(n, ks) for n, ks in zip(nodes, forward, strict=True)),
        edge_index=_edges(graph, names, node_index, np.array([p for _, _, p in order])),
    )


def _literal(value: Any) -> Any:
    try:
        return ast.literal_eval(str(value))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(f"op graph: cannot read the cell {str(value)[:60]!r}") from error


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(d) for d in shape) for shape in _literal(value))


def _node(row: dict[Any, Any], details: dict[str, dict[str, Any]]) -> FxNode:
    name = str(row["Name"])
    detail = details.get(name, {})
    contiguous = detail.get("input_contiguous")
    copies = None if contiguous is None else not contiguous
    casts = None
    if base_name(name) in _CAST_NAMES and detail.get("dtype"):
        producer = details.get(detail.get("first_input", ""), {}).get("dtype")
        casts = producer is not None and producer != detail["dtype"]
    return FxNode(
        name=name, op_name=str(row["OpName"]), forward_ops=_literal(row["FwOps"]),
        backward_ops=_literal(row["BwOps"]), inputs=_shapes(row["InputShapes"]),
        output=tuple(int(d) for d in _literal(row["OutputShape"])), copies=copies, casts=casts,
    )  # fmt: skip


def _details(name: str, root: Path) -> dict[str, dict[str, Any]]:
    """Module stack, contiguity and dtype by node, from the raw graph or a label of the graph."""
    candidates = [
        *sorted(root.glob(f"results/opgraph_raw/{name}.csv*")),
        *sorted(root.glob(f"label/*/{name}.csv*")),
    ]
    if not candidates:
        return {}
    raw = read_csv(candidates[0]).drop_duplicates("Name")
    out: dict[str, dict[str, Any]] = {}
    for row in raw.to_dict("records"):
        flags = str(row.get("input_contiguous", "[]"))
        inputs = re.findall(r"(\w+): None", str(row.get("_input_nodes", "")))
        out[str(row["Name"])] = {
            "stack": bool(_STACK.search(str(row.get("meta", "")))),
            "input_contiguous": not flags.startswith("[False"),
            "dtype": str(row["dtype"]) if isinstance(row.get("dtype"), str) else "",
            "first_input": inputs[0] if inputs else "",
        }
    return out


def _repetitions(
    name: str, names: Sequence[str], details: dict[str, dict[str, Any]], layers: int
) -> NDArray[np.float64]:
    repeat = np.ones(len(names))
    if name.startswith(_WHOLE) or layers <= 1:
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
    graph: pd.DataFrame, names: Sequence[str], node: NDArray[np.int64], phase: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Data edges between kernels: published edges with views contracted, mirrored backward."""
    producers = {n: [str(p) for p in _set(v)] for n, v in zip(names, graph["Prev"], strict=True)}
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
    for i, name in enumerate(names):
        found: set[int] = set()
        for producer in producers[name]:
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


def _set(value: Any) -> set[str]:
    if str(value) == "set()":
        return set()
    found = _literal(value)
    return set(found) if isinstance(found, (set, list, tuple, dict)) else set()
