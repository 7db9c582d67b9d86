"""Kernels of aten calls that are matrix products, convolutions or attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from predictor.errors import CostRuleError
from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.draft import Draft, Reader, as_int, product
from predictor.lower.streaming_readers import elementwise_dims


def gemm_draft(
    op: str, a: Sequence[int], b: Sequence[int], reads: Sequence[TensorSpec], node: OpNode
) -> list[Draft]:
    """`[..., m, k] x [..., k, n]`; a product over nothing (k = 0) only writes zeros."""
    batch, m, k, n = product(a[:-2]), a[-2], a[-1], b[-1]
    if k == 0:
        dims = elementwise_dims(batch * m * n, 0, 1)
        return [Draft(op="fill", dims=dims, reads=(), writes=node.outputs)]
    dims = {"batch": batch, "m": m, "n": n, "k": k}
    return [Draft(op=op, dims=dims, reads=reads, writes=node.outputs, dtype=reads[0].dtype)]


def gemm(node: OpNode, op: str) -> list[Draft]:
    """`mm`, `bmm`, `_int_mm`, `_scaled_mm`: the first two operands are the factors."""
    a, b = node.inputs[0], node.inputs[1]
    return gemm_draft(op, a.shape, b.shape, node.inputs, node)


def gemm_plus(node: OpNode, op: str) -> list[Draft]:
    """`addmm`, `baddbmm`: an addend, then the factors (the library adds it in the epilogue)."""
    c, a, b = node.inputs[0], node.inputs[1], node.inputs[2]
    return gemm_draft(op, a.shape, b.shape, (a, b, c), node)


def linear(node: OpNode, op: str) -> list[Draft]:
    """`linear` undecomposed: `[..., k]` by a `[n, k]` weight."""
    x, w = node.inputs[0], node.inputs[1]
    rows = product(x.shape[:-1])
    name = op if len(node.inputs) > 2 else "matmul"
    return gemm_draft(name, (rows, x.shape[-1]), (w.shape[-1], w.shape[0]), node.inputs, node)


def matmul(node: OpNode, op: str) -> list[Draft]:
    """`matmul` undecomposed: vectors gain an axis, a matrix factor folds the batch into m."""
    a = node.inputs[0].shape if len(node.inputs[0].shape) > 1 else (1, *node.inputs[0].shape)
    b = node.inputs[1].shape if len(node.inputs[1].shape) > 1 else (*node.inputs[1].shape, 1)
    if len(b) == 2:
        return gemm_draft(op, (product(a[:-1]), a[-1]), b, node.inputs, node)
    batch = max(product(a[:-2]), product(b[:-2]))
    return gemm_draft("bmm", (batch, a[-2], a[-1]), b, node.inputs, node)


def vector_product(node: OpNode, op: str) -> list[Draft]:
    """`mv`, `addmv`, `dot`, `outer`: GEMMs with sides of one."""
    a, b = node.inputs[-2], node.inputs[-1]
    if len(a.shape) == 2:
        shapes: tuple[Sequence[int], Sequence[int]] = (a.shape, (b.shape[0], 1))
    elif node.outputs[0].numel == 1:
        shapes = ((1, a.numel), (b.numel, 1))
    else:
        shapes = ((a.numel, 1), (1, b.numel))
    return gemm_draft(op, *shapes, (a, b, *node.inputs[:-2]), node)


def grouped_gemm(node: OpNode, op: str) -> list[Draft]:
    """`_grouped_mm`: m counts the rows of all groups.

    `[m, k] x [g, k, n]` is a forward or dgrad product; `[m, k] x [k, n]` sums each group's share
    of k (wgrad), `[g, m, k] x [k, n]` is the transposed forward, 3-d by 3-d a plain batch. fp32
    and fp16 have no grouped kernel: PyTorch launches a product a group
    (ATen/native/cuda/GroupedBlas.cpp).
    """
    a, b = node.inputs[0], node.inputs[1]
    k, n = a.shape[-1], b.shape[-1]
    rows = a.shape[-2] * (a.shape[0] if len(a.shape) == 3 and len(b.shape) == 3 else 1)
    stacked = b if len(b.shape) == 3 else a if len(a.shape) == 3 else node.outputs[0]
    dims = {"groups": stacked.shape[0], "m": rows, "n": n, "k": k}
    launches = dims["groups"] if a.dtype in ("fp32", "fp16") else 1
    return [
        Draft(
            op=op, dims=dims, reads=node.inputs, writes=node.outputs, dtype=a.dtype,
            launches=launches,
        )
    ]  # fmt: skip


def _plane(shape: Sequence[int]) -> tuple[int, int]:
    """Spatial axes as (h, w): one axis is h, of three the first two fold into h."""
    if len(shape) == 1:
        return shape[0], 1
    return product(shape[:-1]), shape[-1]


def conv_dims(x: TensorSpec, weight: TensorSpec, out: TensorSpec) -> dict[str, int]:
    """Dimensions of the convolution that takes x to out."""
    h_in, w_in = _plane(x.shape[2:])
    h_out, w_out = _plane(out.shape[2:])
    kh, kw = _plane(weight.shape[2:])
    return {
        "batch": x.shape[0], "c_in": x.shape[1], "h_in": h_in, "w_in": w_in,
        "c_out": out.shape[1], "h_out": h_out, "w_out": w_out, "kh": kh, "kw": kw,
        "groups": x.shape[1] // max(1, weight.shape[1]),
    }  # fmt: skip


def _conv(node: OpNode, op: str, *, transposed: bool) -> list[Draft]:
    x, weight, bias = node.inputs[0], node.inputs[1], node.inputs[2:3]
    out = node.outputs[0]
    dims = conv_dims(out, weight, x) if transposed else conv_dims(x, weight, out)
    kind = "conv_dgrad" if transposed else op
    drafts = [Draft(op=kind, dims=dims, reads=(x, weight), writes=node.outputs, dtype=x.dtype)]
    if bias:
        add = elementwise_dims(out.numel, 2, 1)
        drafts.append(Draft(op="add", dims=add, reads=(out, bias[0]), writes=node.outputs))
    return drafts


def convolution(node: OpNode, op: str) -> list[Draft]:
    """A convolution, and a kernel that adds the bias (cuDNN's call does not).

    A transposed convolution is the input gradient of the convolution it transposes.
    """
    return _conv(node, op, transposed=bool(node.attrs.get("transposed", False)))


def transposed_convolution(node: OpNode, op: str) -> list[Draft]:
    """`conv_transpose*d` undecomposed."""
    return _conv(node, op, transposed=True)


def _gradients(node: OpNode) -> dict[str, TensorSpec]:
    """Outputs of `convolution_backward` by name; by shape where the mask is not given."""
    names = ("input", "weight", "bias")
    mask = node.attrs.get("output_mask")
    if isinstance(mask, (list, tuple)):
        wanted = [name for name, on in zip(names, mask, strict=True) if on]
        return dict(zip(wanted, node.outputs, strict=False))
    _, x, weight = node.inputs[:3]
    found: dict[str, TensorSpec] = {}
    for out in node.outputs:
        if out.shape == x.shape and "input" not in found:
            found["input"] = out
        elif out.shape == weight.shape and "weight" not in found:
            found["weight"] = out
        else:
            found["bias"] = out
    return found


def convolution_backward(node: OpNode, op: str) -> list[Draft]:
    """One kernel for each gradient that is asked for: input, weight, bias (a reduction)."""
    grad, x, weight = node.inputs[:3]
    transposed = bool(node.attrs.get("transposed", False))
    dims = conv_dims(grad, weight, x) if transposed else conv_dims(x, weight, grad)
    wanted = _gradients(node)
    drafts: list[Draft] = []
    if "input" in wanted:
        kind = "conv" if transposed else "conv_dgrad"
        drafts.append(Draft(op=kind, dims=dims, reads=(grad, weight), writes=(wanted["input"],)))
    if "weight" in wanted:
        drafts.append(
            Draft(op="conv_wgrad", dims=dims, reads=(grad, x), writes=(wanted["weight"],))
        )
    for draft in drafts:
        draft.dtype = x.dtype
    if "bias" in wanted:
        rows = grad.shape[1]
        sums = {"rows": rows, "cols": max(1, grad.numel // max(1, rows))}
        drafts.append(Draft(op="reduction", dims=sums, reads=(grad,), writes=(wanted["bias"],)))
    return drafts


def attention_dims(q: Sequence[int], k: Sequence[int], *, causal: bool) -> dict[str, int]:
    """Dimensions from `[batch, heads, length, head_dim]` shapes."""
    return {
        "batch": q[0], "heads": q[1], "kv_heads": k[1], "q_len": q[2], "kv_len": k[2],
        "head_dim": q[3], "causal": int(causal),
    }  # fmt: skip


def _attention(first: int) -> Callable[[OpNode, str], list[Draft]]:
    def read(node: OpNode, op: str) -> list[Draft]:
        q, k = node.inputs[first], node.inputs[first + 1]
        causal = bool(node.attrs.get("is_causal", node.attrs.get("causal", False)))
        dims = attention_dims(q.shape, k.shape, causal=causal)
        launches = 2 if first else 1
        return [
            Draft(
                op=op, dims=dims, reads=node.inputs, writes=node.outputs, dtype=q.dtype,
                launches=launches,
            )
        ]  # fmt: skip

    return read


attention: Reader = _attention(0)
"""`_scaled_dot_product_*_attention` as aten shows it: query, key, value, …."""
attention_backward: Reader = _attention(1)
"""Its backward: gradient, query, key, value, output, statistics."""


def _flash(first: int) -> Callable[[OpNode, str], list[Draft]]:
    def read(node: OpNode, op: str) -> list[Draft]:
        q, k = node.inputs[first].shape, node.inputs[first + 1].shape
        if len(q) != 4:
            raise CostRuleError(
                f"{node.op} in module {node.module!r} has sequences of different lengths in one "
                "tensor: pass a padded batch, [batch, length, heads, size]"
            )
        left = as_int(node.attrs.get("window_size_left"), -1)
        right = as_int(node.attrs.get("window_size_right"), -1)
        causal = bool(node.attrs.get("is_causal")) or (left >= 0 and right == 0)
        dims = attention_dims((q[0], q[2], q[1], q[3]), (k[0], k[2], k[1], k[3]), causal=causal)
        if left >= 0 and causal:
            dims["window"] = left + 1
        launches = 2 if first else 1
        return [
            Draft(
                op=op, dims=dims, reads=node.inputs, writes=node.outputs,
                dtype=node.inputs[first].dtype, launches=launches, name=op,
            )
        ]  # fmt: skip

    return read


flash_attention: Reader = _flash(0)
"""`_flash_attention_forward` on `[batch, length, heads, size]`, with its sliding window."""
flash_attention_backward: Reader = _flash(1)
"""Its backward: gradient, query, key, value, output, statistics."""


def fused_cell(node: OpNode, op: str) -> list[Draft]:
    """Gate arithmetic of an LSTM or GRU cell, without its products."""
    numel = max(s.numel for s in node.outputs)
    gates = as_int(node.attrs.get("gates"), 4)
    dims = elementwise_dims(numel, max(2, gates), len(node.outputs))
    return [Draft(op=op, dims=dims, reads=node.inputs, writes=node.outputs)]
