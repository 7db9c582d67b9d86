"""Operators that patterns write: PyTorch's fused attention."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.patterns.products import INTERNAL
from predictor.capture.onnx.rules.matrix import sdpa
from predictor.capture.onnx.values import Item, numel_of


def attention(call: Call) -> list[Item]:
    """Query, transposed (or plain) key, value and perhaps a mask, as exporters leave them."""
    query, key, value = call.value(0), call.value(1), call.value(2)
    if len(key.shape) < 2:
        raise call.wrong(f"a key of shape {list(key.shape)}")
    if not call.attr("plain_key", 0):
        key = call.tape.transposed(key)
    elif key.shape != (shape := (*value.shape[:-1], query.shape[-1])):
        if numel_of(shape) != key.numel:  # heads shared by groups of queries, repeated before
            raise call.wrong(f"a key of shape {list(key.shape)} for {list(shape)}")
        key = call.tape.reshape(key, shape)
    causal = bool(call.attr("causal", 0))
    if min(len(query.shape), len(key.shape), len(value.shape)) < 3:
        query, key, value = (
            call.tape.reshape(v, (1, *v.shape)) if len(v.shape) == 2 else v
            for v in (query, key, value)
        )
    mask = None if causal else call.get(3)
    return [sdpa(call, query, key, value, mask, causal=causal)]


INTERNALS: Mapping[tuple[str, str], Rule] = {(INTERNAL, "Attention"): attention}
"""Rule by domain and operator."""
