"""Which kernels a node of a NeuSight op graph launches, forward and backward.

The published graphs are FX traces of Hugging Face modules: a node has a name (`addmm_3`,
`transformer_h_0_ln_1`), NeuSight's own op name, input shapes and an output shape. This module
turns such a node into rows of our vocabulary. Formulas are those of `predictor.cost`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from predictor.cost.rules import kernel_cost

Shape = tuple[int, ...]
ITEM = 4
"""Bytes of fp32: every graph of this source is fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKernel:
    """One kernel of a node."""

    op: str
    dims: Mapping[str, int]
    flops: float
    read_bytes: float
    write_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FxNode:
    """One node of a published op graph."""

    name: str
    op_name: str
    """NeuSight's name: `Linear`, `BMM`, `VECadd`, `misc`, …."""
    forward_ops: Sequence[Sequence[object]]
    """NeuSight's forward list: empty for nodes it holds free (dropout in inference)."""
    backward_ops: Sequence[Sequence[object]]
    inputs: tuple[Shape, ...]
    output: Shape
    copies: bool | None = None
    """Whether a `contiguous`/`reshape` node moves data; None when the graph does not say."""
    casts: bool | None = None
    """Whether a `to`-like node changes the dtype; None when the graph does not say."""
    scattered: tuple[bool, ...] = ()
    """Which inputs are not contiguous; empty when the graph does not say."""
    drops: bool = True
    """False for a dropout of probability 0, which launches nothing."""


_POINTWISE = {
    "add": "add", "sub": "add", "mul": "mul", "truediv": "div", "pow": "pow", "tanh": "tanh",
    "gelu": "gelu", "relu": "relu", "max": "pointwise", "min": "pointwise", "abs": "pointwise",
    "neg": "pointwise", "rsqrt": "exp", "log": "exp", "where": "where", "lt": "where",
    "gt": "where", "le": "where", "ge": "where", "eq": "where", "ne": "where",
    "masked_fill_": "where",
}  # fmt: skip
_FILLS = ("ones", "zeros", "full", "arange", "ones_like", "zeros_like", "full_like", "tensor")
_CASTS = ("to", "type_as", "float", "bool", "long")
_REDUCTIONS = ("sum", "mean", "argmax", "logsumexp", "count_nonzero")
_EMBEDDING = re.compile(r"(embeddings|embed_tokens|embedding|wte|wpe|attention_bias)$")
_ACTIVATION = re.compile(r"(activation|activation_fn|_act)$")


def numel(shape: Shape) -> int:
    """Number of elements."""
    return math.prod(shape)


def base_name(name: str) -> str:
    """Node name without FX's running number: `truediv_2` -> `truediv`."""
    return re.sub(r"_\d+$", "", name)


def pointwise(op: str, out: int, reads: Sequence[int], writes: int = 1) -> NodeKernel:
    """Elementwise kernel over `out` elements that reads tensors of the sizes `reads`."""
    dims = {"numel": out, "inputs": len(reads), "outputs": writes}
    return NodeKernel(
        op=op,
        dims=dims,
        flops=kernel_cost(op, dims, "fp32").flops,
        read_bytes=float(ITEM * sum(reads)),
        write_bytes=float(ITEM * out * writes),
    )


def by_rule(op: str, **dims: int) -> NodeKernel:
    """Kernel whose bytes and FLOPs follow from its dimensions alone."""
    cost = kernel_cost(op, dims, "fp32")
    return NodeKernel(
        op=op, dims=dims, flops=float(cost.flops), read_bytes=float(cost.read_bytes),
        write_bytes=float(cost.write_bytes),
    )  # fmt: skip


def _gemm(op: str, batch: int, m: int, n: int, k: int) -> NodeKernel:
    return by_rule(op, batch=batch, m=m, n=n, k=k)


def _sizes(entry: Sequence[object]) -> list[int]:
    dims = entry[1]
    if not isinstance(dims, (list, tuple)):
        raise ValueError(f"expected sizes, found {dims!r}")
    return [int(d) for d in dims]


def forward_kernels(node: FxNode) -> list[NodeKernel]:
    """Kernels that the forward call launches, in order; empty for views and host arithmetic."""
    base, out = base_name(node.name), numel(node.output)
    if node.op_name == "output":
        return []
    sizes = [numel(s) for s in node.inputs]
    if node.op_name == "Linear" and len(node.inputs) == 2 and len(node.inputs[1]) > 2:
        return _batched(node)
    if node.op_name == "Linear":
        m, k, n = _sizes(node.forward_ops[0])
        has_bias = not base.endswith("lm_head")
        return [_gemm("linear" if has_bias else "matmul", 1, m, n, k)]
    if node.op_name == "BMM":
        return _batched(node)
    if node.op_name == "VECln":
        cols = node.output[-1]
        return [by_rule("layer_norm", rows=out // cols, cols=cols)]
    if node.op_name == "VECsoftmax":
        cols = node.output[-1]
        return [by_rule("softmax", rows=out // cols, cols=cols)]
    if _EMBEDDING.search(base) and node.inputs:
        rows = sizes[0]
        return [by_rule("embedding", rows=rows, cols=max(out // max(rows, 1), 1))]
    if base.endswith("dropout") or base.endswith("_drop"):
        return [_dropout(out)] if node.forward_ops and node.drops else []
    if base in ("contiguous", "reshape"):
        moves = node.copies if node.copies is not None else base == "contiguous"
        return [pointwise("transpose", out, [out])] if moves else []
    if all(size == 1 for size in sizes) and out == 1:
        return []  # arithmetic of the host on sizes
    return _small_kernels(base, node, out, sizes)


def _small_kernels(base: str, node: FxNode, out: int, sizes: list[int]) -> list[NodeKernel]:
    if base in _FILLS:
        return [pointwise("fill", out, [])]
    if base == "uniform_":
        return [pointwise("random", out, [])]
    if base in _CASTS:
        changes = node.casts if node.casts is not None else base in ("float", "bool", "long")
        return [pointwise("cast", out, [out])] if changes else []
    if base == "masked_fill":
        return [pointwise("copy", out, [out]), pointwise("where", out, sizes[1:2], 1)]
    if base == "max" and len([s for s in node.inputs if s]) == 1:
        return [by_rule("reduction", rows=out, cols=max(sizes[0] // out, 1))]
    if base in _POINTWISE or _ACTIVATION.search(base):
        reads = [s for s in sizes if s > 1 or len(sizes) > 1]
        return [pointwise(_POINTWISE.get(base, "relu"), out, reads)]
    if base in _REDUCTIONS:
        return [by_rule("reduction", rows=out, cols=max(sizes[0] // out, 1))]
    if base == "cumsum":
        return [by_rule("scan", rows=max(out // node.output[-1], 1), cols=node.output[-1])]
    if base in ("clone", "cat", "repeat"):
        return [pointwise("copy", out, [min(out, sum(sizes)) if base != "repeat" else sizes[0]])]
    if base == "one_hot":
        return [pointwise("fill", out, []), pointwise("where", out, [sizes[0]])]
    if base == "setitem":
        rows = node.inputs[-1]
        return [by_rule("scatter", rows=rows[0], cols=max(numel(rows) // max(rows[0], 1), 1))]
    return []


def _dropout(out: int) -> NodeKernel:
    dims = {"numel": out, "inputs": 1, "outputs": 1}
    return NodeKernel(
        op="dropout", dims=dims, flops=kernel_cost("dropout", dims, "fp32").flops,
        read_bytes=float(ITEM * out), write_bytes=float((ITEM + 1) * out),
    )  # fmt: skip


def _batched(node: FxNode) -> list[NodeKernel]:
    """The batched product, behind copies of operands whose batch dimensions have no one stride.

    `torch.matmul` reshapes (batch, heads, rows, columns) to three dimensions. A projection that was
    split into heads cannot be viewed so unless the batch is one: it is copied.
    """
    left, right = node.inputs[0], node.inputs[1]
    batch = numel(left[:-2])
    copies = [
        pointwise("transpose", numel(shape), [numel(shape)])
        for shape, scattered in zip(node.inputs, node.scattered, strict=False)
        if scattered and sum(size > 1 for size in shape[:-2]) > 1
    ]
    return [*copies, _gemm("bmm", batch, left[-2], right[-1], left[-1])]


def backward_kernels(node: FxNode) -> list[NodeKernel]:
    """Kernels of the node's backward; gradients of parameters included, accumulation not.

    Gradients start as None (PyTorch's `zero_grad` default), so nothing is accumulated.
    """
    base, out = base_name(node.name), numel(node.output)
    forward = forward_kernels(node)
    if not forward or not (node.backward_ops or _EMBEDDING.search(base)):
        return []
    main = next((kernel for kernel in forward if kernel.op == "bmm"), forward[0])
    op, d = main.op, main.dims
    if op in ("linear", "matmul"):
        m, n, k = d["m"], d["n"], d["k"]
        grads = [_gemm("matmul", 1, m, k, n), _gemm("matmul", 1, k, n, m)]
        bias = [by_rule("reduction", rows=n, cols=m)] if op == "linear" else []
        return grads + bias
    if op == "bmm":
        b, m, n, k = d["batch"], d["m"], d["n"], d["k"]
        return [_gemm("bmm", b, m, k, n), _gemm("bmm", b, k, n, m)]
    if op == "layer_norm":
        return [by_rule("layer_norm_backward", rows=d["rows"], cols=d["cols"])]
    if op == "softmax":
        return [by_rule("softmax_backward", rows=d["rows"], cols=d["cols"])]
    if op == "embedding":
        return _embedding_backward(node, d)
    return _pointwise_backward(op, node, out)


def _embedding_backward(node: FxNode, d: Mapping[str, int]) -> list[NodeKernel]:
    table = 0
    for entry in node.backward_ops:
        shapes = entry[1]
        if isinstance(shapes, (list, tuple)) and shapes:
            table = max(table, numel(tuple(shapes[0])))
    rows, cols = d["rows"], d["cols"]
    kernels = [by_rule("embedding_backward", rows=rows, cols=cols)]
    return ([pointwise("fill", table, [])] if table > rows * cols else []) + kernels


def _pointwise_backward(op: str, node: FxNode, out: int) -> list[NodeKernel]:
    tensors = [s for s in (numel(s) for s in node.inputs) if s > 1]
    if op == "mul":
        n = max(len(tensors), 1)
        return [pointwise("mul_backward", out, [out] * (2 if n > 1 else 1)) for _ in range(n)]
    if op == "div":
        return [pointwise("div_backward", out, [out])]
    if op == "pow":
        # grad * (exponent * x ** (exponent - 1)): three launches, one row
        return [pointwise("pow_backward", out, [out] * 4, 3)]
    if op in ("gelu", "tanh", "relu"):
        return [pointwise(f"{op}_backward", out, [out, out])]
    if op == "where" and base_name(node.name) == "where":
        return [pointwise("where_backward", out, [out, out // 4])]
    if op == "dropout":
        return [pointwise("dropout_backward", out, [out, out // 4])]
    return []
