"""PyTorch programs as XLA sees them (PyTorch/XLA): aten calls as operations that fuse.

Each kernel of the eager lowering is one operation here: elementwise work, copies and casts fuse,
norms and softmaxes are whole rows, products and convolutions take epilogues, libraries' own kernels
stay. Sizes are those of the eager tables, so that both lowerings count alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from predictor.graph.ir import OpGraph, OpNode, TensorSpec
from predictor.graph.ops import OPS
from predictor.lower.draft import Draft
from predictor.lower.eager import drafts_of
from predictor.lower.xla_ops import KERNEL

_BY_OP: Mapping[str, str] = {
    "add": "add", "mul": "multiply", "div": "divide", "pow": "power", "relu": "maximum",
    "gelu": "tanh", "tanh": "tanh", "exp": "exponential", "where": "select",
    "pointwise": "multiply", "fill": "iota", "cast": "convert", "copy": "copy",
    "transpose": "copy", "reduction": "reduce", "linear": "dot", "matmul": "dot", "bmm": "dot",
    "conv": "convolution", "conv_dgrad": "convolution", "conv_wgrad": "convolution",
    "gather": "gather", "embedding": "gather", "gelu_backward": "tanh",
    "relu_backward": "select", "tanh_backward": "multiply", "mul_backward": "multiply",
    "add_backward": "add", "div_backward": "divide", "where_backward": "select",
}  # fmt: skip
"""Operation of the fusion table by op of the vocabulary; norms and softmaxes are `whole_rows`."""
_ROWS = "stablehlo.whole_rows"
_ROW_CLASSES = frozenset({"norm", "softmax"})


def hlo_nodes(graph: OpGraph, *, whole_rows: bool, allow_opaque: bool) -> list[OpNode]:
    """One node a kernel of the eager lowering, under the name that the fusion table knows.

    Args:
        graph: a captured PyTorch program.
        whole_rows: keep norms and softmaxes whole; else they are reductions and what uses them.
        allow_opaque: see `lower_eager`.

    Raises:
        CostRuleError: a call computes something and the eager table has no row for it.
    """
    found: list[OpNode] = []
    for node in graph.nodes:
        for draft in drafts_of(node, allow_opaque=allow_opaque):
            one = _node(node, draft)
            if one.op != _ROWS or whole_rows:
                found.append(one)
            else:
                found += _passes(one, draft)
    read: set[int] = set()
    for place in range(len(found) - 1, -1, -1):
        node = found[place]
        stays = any(_outlives(s) or s.storage_id not in read for s in node.outputs)
        if stays:
            found[place] = _marked(node)
        read.update(spec.storage_id for spec in node.inputs)
    return found


def _outlives(spec: TensorSpec) -> bool:
    return spec.role in ("parameter", "buffer", "state", "gradient")


def _marked(node: OpNode) -> OpNode:
    """A result that nobody reads on leaves the program."""
    return OpNode(
        op=node.op, phase=node.phase, inputs=node.inputs, outputs=node.outputs,
        attrs={**node.attrs, "escapes": True}, deps=node.deps, module=node.module,
    )  # fmt: skip


def _node(node: OpNode, draft: Draft) -> OpNode:
    op_class = OPS[draft.op].op_class
    name = _BY_OP.get(draft.op, "whole_rows" if op_class in _ROW_CLASSES else "library_call")
    reads = _without_scalars(draft.reads)
    attrs: dict[str, object] = {KERNEL: draft.op, "dims": dict(draft.dims), "body": ["add"]}
    into = draft.writes[0] if draft.op == "copy" and len(draft.writes) == 1 else None
    if into is not None and into.touched_bytes < into.storage_bytes and reads:
        name, reads = "dynamic_update_slice", [into, *reads]
        attrs["in_place"] = True
    if name == "reduce":
        attrs["dimensions"] = [len(reads[0].shape) - 1] if reads else []
    return OpNode(
        op=f"stablehlo.{name}", phase=node.phase, inputs=tuple(reads),
        outputs=tuple(draft.writes), attrs=attrs, deps=node.deps, module=node.module,
    )  # fmt: skip


def _passes(node: OpNode, draft: Draft) -> list[OpNode]:
    """A norm or softmax as its reductions (two forward, one backward) and what uses their rows."""
    rows, cols = draft.dims["rows"], draft.dims["cols"]
    large = max(node.inputs, key=lambda s: s.numel)
    count = 1 if node.phase == "backward" else 2
    dims: dict[str, object] = {"rows": rows, "cols": cols}
    found: list[OpNode] = []
    stats: list[TensorSpec] = []
    for i in range(count):
        stat = TensorSpec(
            shape=(rows,), dtype="fp32", storage_id=-(count * node.outputs[0].storage_id + i) - 1,
            storage_bytes=4 * rows, touched_bytes=4 * rows,
        )  # fmt: skip
        attrs = {KERNEL: "reduction", "dims": dims, "body": ["add"], "dimensions": [1]}
        found.append(replace(node, op="stablehlo.reduce", inputs=(*node.inputs, *stats),
                             outputs=(stat,), attrs=attrs))  # fmt: skip
        stats.append(stat)
    elementwise = {"numel": large.numel, "inputs": len(node.inputs), "outputs": 1}
    attrs = {KERNEL: "exp", "dims": elementwise}
    name = "exponential" if "softmax" in draft.op else "multiply"
    found.append(replace(node, op=f"stablehlo.{name}", inputs=(*node.inputs, *stats), attrs=attrs))
    return found


def _without_scalars(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Operands with elements; those of one are arguments of the kernel."""
    return [s for s in specs if s.numel > 1] or list(specs)
