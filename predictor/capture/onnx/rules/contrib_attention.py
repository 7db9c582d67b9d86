"""Attention of `com.microsoft`: projections inside, caches, grouped queries, rotary positions."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.rules.matrix import heads_of, merged, product, sdpa
from predictor.capture.onnx.values import Item, Value


def projected(call: Call) -> list[Item]:
    """`Attention`: one product for query, key and value, then attention.

    Raises:
        CaptureError: the operands do not fit.
    """
    made = product(call, call.value(0), call.value(1), call.value(0).dtype, call.get(2))
    return _attended(call, made, mask=call.get(3), added=call.get(5), past=call.get(4))


def quantised(call: Call) -> list[Item]:
    """`QAttention`: an integer product; what it is scaled to is of the scales' dtype."""
    dtype = call.value(3).dtype
    made = product(call, call.value(0), call.value(1), dtype, call.get(2))
    return _attended(call, made, mask=call.get(5), added=None, past=call.get(8))


def _attended(
    call: Call, made: Value, *, mask: Value | None, added: Value | None, past: Value | None
) -> list[Item]:
    """Attention of a product that holds query, key and value side by side.

    Args:
        call: the operator.
        made: the product.
        mask: which keys count; a list of lengths costs nothing.
        added: what is added to the scores.
        past: keys and values of before.
    """
    heads = call.integer("num_heads", 1)
    given = call.ints("qkv_hidden_sizes")
    parts = given if len(given) == 3 else [made.shape[-1] // 3] * 3
    if sum(parts) != made.shape[-1] or len(made.shape) != 3:
        raise call.wrong(f"{list(made.shape)} is no query, key and value of {parts}")
    cut = [
        call.tape.view("aten.split", made, (*made.shape[:-1], part), made.strides) for part in parts
    ]
    query, key, value = (heads_of(call, part, heads) for part in cut)
    if past is not None and len(past.shape) == 5:
        half = (past.shape[1:], past.strides[1:])
        key = _joined(call, call.tape.view("aten.select", past, *half), key)
        value = _joined(call, call.tape.view("aten.select", past, *half), value)
    causal = bool(call.attr("unidirectional", 0))
    if added is None and mask is not None and len(mask.shape) > 1:
        added = mask
    out = merged(call, sdpa(call, query, key, value, added, causal=causal))
    return [out, call.tape.fresh((2, *key.shape), key.dtype, node=key.node)]


def multi_head(call: Call) -> list[Item]:
    """`MultiHeadAttention`: query, key, value (packed or apart), bias, masks and caches."""
    return _heads_apart(call, bias=call.get(3), added=call.get(5), past=(call.get(6), call.get(7)))


def one_more(call: Call) -> list[Item]:
    """`DecoderMaskedMultiHeadAttention`: as `MultiHeadAttention`, its operands in another order."""
    past = (call.get(5), call.get(6))
    return _heads_apart(call, bias=call.get(10), added=call.get(4), past=past)


def _heads_apart(
    call: Call, *, bias: Value | None, added: Value | None,
    past: tuple[Value | None, Value | None],
) -> list[Item]:  # fmt: skip
    """Attention of query, key and value as they come.

    Args:
        call: the operator.
        bias: added to all three, in a pass of its own.
        added: what is added to the scores.
        past: keys and values of before.
    """
    query, heads = call.value(0), call.integer("num_heads", 1)
    key, value = call.get(1), call.get(2)
    if bias is not None and len(query.shape) == 3:
        query = _biased(call, query, bias)
        key, value = (
            x if x is None or len(x.shape) != 3 else _biased(call, x, bias) for x in (key, value)
        )
    if len(query.shape) == 5:  # [batch, length, heads, 3, size]
        b, s, n, _, h = query.shape.of_rank(5)
        strides = (query.strides[0], query.strides[2], query.strides[1], query.strides[4])
        q = k = v = call.tape.view("aten.select", query, (b, n, s, h), strides)
    else:
        q = heads_of(call, query, heads)
        k = _split(call, key, heads) if key is not None else q
        v = _split(call, value, heads) if value is not None else k
    if past[0] is not None and past[1] is not None:
        k, v = _joined(call, past[0], k), _joined(call, past[1], v)
    causal = bool(call.attr("unidirectional", 0))
    out = merged(call, sdpa(call, q, k, v, added, causal=causal))
    return [out, k, v]


def _biased(call: Call, x: Value, bias: Value) -> Value:
    """A query, key or value with its part of the bias."""
    part = call.tape.view("aten.slice", bias, x.shape[-1:], bias.strides[-1:])
    return call.tape.one("aten.add", (x, part), x.shape, x.dtype)


def _split(call: Call, x: Value, heads: int) -> Value:
    if len(x.shape) == 4:
        return x
    if len(x.shape) == 5:  # key and value packed: [batch, length, heads, 2, size]
        b, s, n, _, h = x.shape.of_rank(5)
        strides = (x.strides[0], x.strides[2], x.strides[1], x.strides[4])
        return call.tape.view("aten.select", x, (b, n, s, h), strides)
    return heads_of(call, x, heads)


def grouped(call: Call) -> list[Item]:
    """`GroupQueryAttention`: fewer key heads, a cache, rotary positions inside.

    The cache has the length that the file gives it; new keys go into it where it is known to be as
    long as the whole (shared buffers), else it grows.
    """
    query, key, value = call.value(0), call.get(1), call.get(2)
    heads, kv_heads = call.integer("num_heads", 1), call.integer("kv_num_heads", 1)
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
        whole = call.scalar(6) if call.has(6) else None
        k, v = (_kept(call, call.value(i), x, whole) for i, x in ((3, k), (4, v)))
    window = call.integer("local_window_size", -1)
    out = sdpa(call, q, k, v, None, causal=True)
    if window > 0:
        call.walk.note(f"{call.node.title}: its window of {window} is taken as the whole length")
    return [merged(call, out), k, v]


def _joined(call: Call, past: Value, new: Value) -> Value:
    if len(past.shape) != 4:
        return new
    shape = (*new.shape[:-2], past.shape[-2] + new.shape[-2], new.shape[-1])
    return call.tape.one("aten.cat", (past, new), shape, new.dtype)


def _kept(call: Call, past: Value, new: Value, whole: int | None) -> Value:
    """Keys or values with those of before: written into a buffer that holds them, else joined."""
    if whole is None or len(past.shape) != 4 or not new.shape[-2] <= whole <= past.shape[-2]:
        return _joined(call, past, new)
    shape = (*past.shape[:-2], whole, past.shape[-1])
    own = call.tape.view("aten.slice", past, new.shape, past.strides)
    call.tape.call("aten.copy_", (own, new), [])
    return call.tape.view("aten.slice", past, shape, past.strides)


def rotary(call: Call) -> list[Item]:
    """`RotaryEmbedding`: products with tables of sines and cosines."""
    x = call.value(0)
    return [call.tape.one("aten.mul", call.values(), x.shape, x.dtype)]


ATTENTION: Mapping[str, Rule] = {
    "Attention": projected, "QAttention": quantised, "DecoderMaskedSelfAttention": projected,
    "MultiHeadAttention": multi_head, "DecoderMaskedMultiHeadAttention": one_more,
    "GroupQueryAttention": grouped, "RotaryEmbedding": rotary,
}  # fmt: skip
"""Rules of the domain."""
