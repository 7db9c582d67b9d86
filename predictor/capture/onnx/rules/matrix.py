"""Matrix products, convolutions and attention of the standard domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.rules.einsum import einsum
from predictor.capture.onnx.rules.pointwise import elementwise
from predictor.capture.onnx.rules.windows import Window, window_of
from predictor.capture.onnx.values import Item, Value, broadcast, dense_like, numel_of


def operand(call: Call, index: int) -> Value:
    """A factor: the quantised tensor where a dequantised constant would be read."""
    value = call.value(index)
    if value.pending and value.narrow is not None and value.constant:
        return value.narrow
    return call.tape.realised(value)


def factors(call: Call, first: int, second: int) -> tuple[Value, Value, str]:
    """Both factors and the dtype of the product: narrow ones where both are quantised."""
    a, b = call.value(first), call.value(second)
    if a.narrow is not None and b.narrow is not None and a.pending and b.pending:
        return a.narrow, b.narrow, a.dtype
    return call.tape.realised(a), operand(call, second), a.dtype


def product(call: Call, a: Value, b: Value, dtype: str, bias: Value | None = None) -> Value:
    """`a @ b` as PyTorch runs it: a matrix on the right folds the batch of the left into rows.

    Raises:
        CaptureError: the shapes do not fit.
    """
    tape = call.tape
    left, right = a.shape, b.shape
    if not left or not right:
        raise call.wrong("a product of scalars")
    if len(left) == 1 or len(right) == 1:
        return _with_vector(call, a, b, dtype)
    if left[-1] != right[-2]:
        raise call.wrong(f"shapes {list(left)} and {list(right)} do not multiply")
    if len(right) == 2:
        rows = tape.reshape(a, (numel_of(left[:-1]), left[-1]))
        shape = (rows.shape[0], right[1])
        if bias is None or len(bias.shape) > 2 or bias.shape[-1:] not in ((1,), shape[1:], ()):
            out = tape.reshape(tape.one("aten.mm", (rows, b), shape, dtype), (*left[:-1], right[1]))
            return out if bias is None else elementwise(call, "add", (out, bias), dtype)
        flat = tape.one("aten.addmm", (bias, rows, b), shape, dtype)
        return tape.reshape(flat, (*left[:-1], right[1]))
    batch = broadcast((left[:-2], right[:-2]), call.node.title)
    count = numel_of(batch)
    a3 = tape.reshape(tape.expand(a, (*batch, *left[-2:])), (count, *left[-2:]))
    b3 = tape.reshape(tape.expand(b, (*batch, *right[-2:])), (count, *right[-2:]))
    flat = tape.one("aten.bmm", (a3, b3), (count, left[-2], right[-1]), dtype)
    out = tape.reshape(flat, (*batch, left[-2], right[-1]))
    return out if bias is None else elementwise(call, "add", (out, bias), dtype)


def _with_vector(call: Call, a: Value, b: Value, dtype: str) -> Value:
    if a.shape[-1] != (b.shape[-2] if len(b.shape) > 1 else b.shape[0]):
        raise call.wrong(f"shapes {list(a.shape)} and {list(b.shape)} do not multiply")
    if len(a.shape) == 1 and len(b.shape) == 1:
        return call.tape.one("aten.dot", (a, b), (), dtype)
    tape = call.tape
    if len(b.shape) == 1:
        rows = tape.reshape(a, (numel_of(a.shape[:-1]), a.shape[-1]))
        flat = tape.one("aten.mv", (rows, b), rows.shape[:1], dtype)
        return tape.reshape(flat, a.shape[:-1])
    out = product(call, tape.reshape(a, (1, a.shape[0])), b, dtype)
    return tape.reshape(out, (*out.shape[:-2], out.shape[-1]))


def matmul(call: Call) -> list[Item]:
    """`MatMul`; `bias` is what the pattern of a linear layer adds to it."""
    a, b, dtype = factors(call, 0, 1)
    bias = call.get(2)
    return [product(call, a, b, dtype, bias)]


def gemm(call: Call) -> list[Item]:
    """`Gemm`: `addmm`, transposed factors as views."""
    a, b, dtype = factors(call, 0, 1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        if call.version < 7 and len(b.shape) == 2:
            a = call.tape.reshape(a, (a.shape[0], numel_of(a.shape[1:])))
        else:
            raise call.wrong(f"shapes {list(a.shape)} and {list(b.shape)}; matrices are needed")
    if call.attr("transA", 0):
        a = call.tape.transposed(a)
    if call.attr("transB", 0):
        b = call.tape.transposed(b)
    bias = call.tape.realised(call.value(2)) if call.has(2) else None
    if bias is not None and bias.numel == 0:
        bias = None
    return [product(call, a, b, dtype, bias)]


def conv(call: Call) -> list[Item]:
    """`Conv` and its kin."""
    x, weight, dtype = factors(call, 0, 1)
    bias = call.tape.realised(call.value(2)) if call.has(2) else None
    return [convolution(call, x, weight, bias, dtype)]


def convolution(call: Call, x: Value, weight: Value, bias: Value | None, dtype: str) -> Value:
    """Record a convolution.

    Raises:
        CaptureError: the operands do not fit.
    """
    axes = len(x.shape) - 2
    if axes < 1 or len(weight.shape) != axes + 2:
        raise call.wrong(f"input {list(x.shape)} and weight {list(weight.shape)}")
    groups = call.integer("group", 1)
    if groups < 1 or x.shape[1] < 1 or x.shape[1] != weight.shape[1] * groups:
        raise call.wrong(
            f"{x.shape[1]} input channels, {groups} groups and weight {list(weight.shape)}"
        )
    window = window_of(call, x.shape[2:], weight.shape[2:])
    shape = (x.shape[0], weight.shape[0], *window.sizes(x.shape[2:]))
    return _record(call, x, weight, bias, shape, dtype, window, groups, transposed=False)


def _record(
    call: Call, x: Value, weight: Value, bias: Value | None, shape: Sequence[int], dtype: str,
    window: Window, groups: int, *, transposed: bool,
) -> Value:  # fmt: skip
    inputs = (x, weight) if bias is None else (x, weight, bias)
    attrs: dict[str, object] = {
        "stride": list(window.strides), "padding": list(window.pads[: len(window.kernel)]),
        "dilation": list(window.dilations), "transposed": transposed, "groups": groups,
    }  # fmt: skip
    if bias is None:
        attrs["bias"] = None
    return call.tape.one("aten.convolution", inputs, shape, dtype, attrs)


def conv_transpose(call: Call) -> list[Item]:
    """`ConvTranspose`: sizes from the stride, or given."""
    x, weight, dtype = factors(call, 0, 1)
    axes = len(x.shape) - 2
    if axes < 1 or len(weight.shape) != axes + 2 or x.shape[1] != weight.shape[0]:
        raise call.wrong(f"input {list(x.shape)} and weight {list(weight.shape)}")
    groups = call.integer("group", 1)
    window = window_of(call, x.shape[2:], weight.shape[2:])
    extra = call.ints("output_padding") or [0] * axes
    given = call.ints("output_shape")[-axes:]
    if len(extra) != axes or len(given) not in (0, axes):
        raise call.wrong(f"output_padding {extra}, output_shape {given} for {axes} axes")
    automatic = call.attr("auto_pad", "NOTSET").startswith("SAME")
    out: list[int] = []
    for i in range(axes):
        span = window.dilations[i] * (window.kernel[i] - 1) + 1
        size = window.strides[i] * (x.shape[2 + i] - 1) + extra[i] + span
        size -= window.pads[i] + window.pads[axes + i]
        if automatic:
            size = x.shape[2 + i] * window.strides[i]
        out.append(given[i] if given else size)
    shape = (x.shape[0], weight.shape[1] * groups, *out)
    bias = call.tape.realised(call.value(2)) if call.has(2) else None
    return [_record(call, x, weight, bias, shape, dtype, window, groups, transposed=True)]


def sdpa(
    call: Call, query: Value, key: Value, value: Value, mask: Value | None, *, causal: bool
) -> Value:
    """Record attention over `[batch, heads, length, size]` operands.

    Raises:
        CaptureError: the operands do not fit.
    """
    q, k, v = query.shape, key.shape, value.shape
    if min(len(q), len(k), len(v)) < 3 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise call.wrong(f"query {list(q)}, key {list(k)}, value {list(v)} do not fit")
    lead = broadcast((q[:-3], k[:-3], v[:-3]), call.node.title)
    attrs: dict[str, object] = {
        "batch": numel_of(lead), "heads": q[-3], "kv_heads": k[-3], "q_len": q[-2],
        "kv_len": k[-2], "head_dim": q[-1], "v_head_dim": v[-1], "causal": causal,
        "dropout_p": 0.0, "has_mask": mask is not None,
    }  # fmt: skip
    operands = [query, key, value] if mask is None else [query, key, value, mask]
    shape = (*lead, *q[-3:-1], v[-1])
    strides = dense_like(q, query.strides) if shape == q else None
    return call.tape.call("predictor.sdpa", operands, [(shape, query.dtype)], attrs, strides)[0]


def heads_of(call: Call, x: Value, heads: int) -> Value:
    """`[batch, length, hidden]` as `[batch, heads, length, size]`, a view where it can be."""
    if heads < 1 or len(x.shape) != 3 or x.shape[2] % heads:
        raise call.wrong(f"{heads} heads of a tensor of shape {list(x.shape)}")
    batch, length, hidden = x.shape.of_rank(3)
    split = call.tape.reshape(x, (batch, length, heads, hidden // heads))
    return call.tape.permute(split, (0, 2, 1, 3))


def merged(call: Call, x: Value) -> Value:
    """`[batch, heads, length, size]` back as `[batch, length, hidden]`."""
    batch, heads, length, size = x.shape.of_rank(4)
    return call.tape.reshape(call.tape.permute(x, (0, 2, 1, 3)), (batch, length, heads * size))


def attention(call: Call) -> list[Item]:
    """`Attention` of opset 23: keys and values may grow a cache, heads may be split here."""
    query, key, value = call.value(0), call.value(1), call.value(2)
    flat = len(query.shape) == 3
    if flat:
        heads = call.integer("q_num_heads", 1)
        kv_heads = call.integer("kv_num_heads", heads)
        query = heads_of(call, query, heads)
        key, value = heads_of(call, key, kv_heads), heads_of(call, value, kv_heads)
    if call.has(4) and call.has(5):
        key = _joined(call, call.value(4), key)
        value = _joined(call, call.value(5), value)
    causal = bool(call.attr("is_causal", 0))
    out = sdpa(call, query, key, value, call.get(3), causal=causal)
    results: list[Item] = [merged(call, out) if flat else out, key, value]
    if len(call.node.outputs) > 3:
        scores = (*query.shape[:-1], key.shape[-2])
        results.append(call.tape.fresh(scores, query.dtype))
    return results


def _joined(call: Call, past: Value, new: Value) -> Value:
    shape = (*new.shape[:-2], past.shape[-2] + new.shape[-2], new.shape[-1])
    return call.tape.one("aten.cat", (past, new), shape, new.dtype)


MATRIX: Mapping[str, Rule] = {
    "MatMul": matmul, "Gemm": gemm, "Conv": conv, "ConvTranspose": conv_transpose,
    "Attention": attention, "Einsum": einsum,
}  # fmt: skip
"""Rules of the standard domain."""
