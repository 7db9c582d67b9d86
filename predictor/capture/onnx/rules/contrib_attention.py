"""Attention of `com.microsoft`: projections inside, caches, grouped queries, rotary positions."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.rules.matrix import heads_of, merged, product, sdpa
from predictor.capture.onnx.values import Item, Value


def projected(call: Call) -> list[Item]:
    """`Attention`, `QAttention`: one product for query, key and value, then attention.

    Raises:
        CaptureError: the operands do not fit.
    """
    x, weight = call.value(0), call.value(1)
    heads = int(call.attr("num_heads", 1))
    bias = call.get(2)
    made = product(call, x, weight, x.dtype, bias)
    given = call.ints("qkv_hidden_sizes")
    parts = given if len(given) == 3 else [made.shape[-1] // 3] * 3
    if sum(parts) != made.shape[-1] or len(made.shape) != 3:
        raise call.wrong(f"{list(made.shape)} is no query, key and value of {parts}")
    cut = [
        call.tape.view("aten.split", made, (*made.shape[:-1], part), made.strides) for part in parts
    ]
    query, key, value = (heads_of(call, part, heads) for part in cut)
    past, mask = call.get(4), call.get(3)
    if past is not None and len(past.shape) == 5:
        half = (past.shape[1:], past.strides[1:])
        key = _joined(call, call.tape.view("aten.select", past, *half), key)
        value = _joined(call, call.tape.view("aten.select", past, *half), value)
    causal = bool(call.attr("unidirectional", 0))
    kept = mask if mask is not None and len(mask.shape) > 2 else None
    out = merged(call, sdpa(call, query, key, value, kept, causal=causal))
    return [out, call.tape.fresh((2, *key.shape), key.dtype, node=key.node)]


def multi_head(call: Call) -> list[Item]:
    """`MultiHeadAttention`: query, key, value (packed or apart), bias, masks and caches."""
    query, heads = call.value(0), int(call.attr("num_heads", 1))
    key, value = call.get(1), call.get(2)
    if len(query.shape) == 5:  # [batch, length, heads, 3, size]
        b, s, n, _, h = query.shape
        strides = (query.strides[0], query.strides[2], query.strides[1], query.strides[4])
        q = k = v = call.tape.view("aten.select", query, (b, n, s, h), strides)
    else:
        q = heads_of(call, query, heads)
        k = _split(call, key, heads) if key is not None else q
        v = _split(call, value, heads) if value is not None else k
    if call.has(6) and call.has(7):
        k, v = _joined(call, call.value(6), k), _joined(call, call.value(7), v)
    causal = bool(call.attr("unidirectional", 0))
    out = merged(call, sdpa(call, q, k, v, call.get(5), causal=causal))
    return [out, k, v]


def _split(call: Call, x: Value, heads: int) -> Value:
    if len(x.shape) == 4:
        return x
    if len(x.shape) == 5:  # key and value packed: [batch, length, heads, 2, size]
        b, s, n, _, h = x.shape
        strides = (x.strides[0], x.strides[2], x.strides[1], x.strides[4])
        return call.tape.view("aten.select", x, (b, n, s, h), strides)
    return heads_of(call, x, heads)


def grouped(call: Call) -> list[Item]:
    """`GroupQueryAttention`: fewer key heads, a cache, rotary positions inside.

    The cache has the length that the file gives it; new keys go into it where it is as long as the
    whole (shared buffers), else it grows.
    """
    query, key, value = call.value(0), call.get(1), call.get(2)
    heads, kv_heads = int(call.attr("num_heads", 1)), int(call.attr("kv_num_heads", 1))
    tape = call.tape
    if key is None or value is None:
        size = query.shape[-1] // max(1, heads + 2 * kv_heads)
        cut = [heads * size, kv_heads * size, kv_heads * size]
        query, key, value = (
            tape.view("aten.split", query, (*query.shape[:-1], part), query.strides) for part in cut
        )
    q = heads_of(call, query, heads)
    k, v = heads_of(call, key, kv_heads), heads_of(call, value, kv_heads)
    if call.attr("do_rotary", 0):
        tables = [t for t in (call.get(7), call.get(8)) if t is not None]
        q, k = (tape.one("aten.mul", (t, *tables), t.shape, t.dtype) for t in (q, k))
    if call.has(3) and call.has(4):
        k, v = _joined(call, call.value(3), k), _joined(call, call.value(4), v)
    window = int(call.attr("local_window_size", -1))
    out = sdpa(call, q, k, v, None, causal=True)
    if window > 0:
        call.walk.note(f"{call.node.title}: its window of {window} is taken as the whole length")
    return [merged(call, out), k, v]


def _joined(call: Call, past: Value, new: Value) -> Value:
    if len(past.shape) != 4:
        return new
    shape = (*new.shape[:-2], past.shape[-2] + new.shape[-2], new.shape[-1])
    return call.tape.one("aten.cat", (past, new), shape, new.dtype)


def rotary(call: Call) -> list[Item]:
    """`RotaryEmbedding`: products with tables of sines and cosines."""
    x = call.value(0)
    return [call.tape.one("aten.mul", call.values(), x.shape, x.dtype)]


ATTENTION: Mapping[str, Rule] = {
    "Attention": projected, "QAttention": projected, "DecoderMaskedSelfAttention": projected,
    "MultiHeadAttention": multi_head, "DecoderMaskedMultiHeadAttention": multi_head,
    "GroupQueryAttention": grouped, "RotaryEmbedding": rotary,
}  # fmt: skip
"""Rules of the domain."""
