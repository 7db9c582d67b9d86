"""Rules of attention: softmax attention, latent (MLA) attention, and attention with a state.

Optional dimensions: `window` (keys that a causal query sees at most) and `v_head_dim` (width of a
value head where it differs from `head_dim`); absent or below 1 means none.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.cost.rule import STAT_BYTES, Dims, Number, Rule, given_or, smaller


def _triangle(x: Number) -> Number:
    return x * (x + 1) // 2


def attention_pairs(d: Dims) -> Number:
    """Query-key pairs that a (causal) mask leaves, per head.

    Causal masks are aligned at the last query and key, so query i of q sees kv_len - q_len + i
    keys (for q_len = kv_len = S: S(S+1)/2), at most `window` of them; without a mask
    q_len * kv_len.
    """
    q, kv, causal = d["q_len"], d["kv_len"], d["causal"]
    before = kv - smaller(q, kv)  # the first query sees one key more than this
    window = given_or(d, "window", kv)
    first, last = smaller(before, window), smaller(kv, window)
    cut = (kv - last) - (before - first)  # queries that see the window alone
    seen = _triangle(last) - _triangle(first) + window * cut
    return causal * seen + (1 - causal) * q * kv


def visible_keys(d: Dims) -> Number:
    """Keys that any query sees: all, or those that a causal window reaches."""
    kv = d["kv_len"]
    window = given_or(d, "window", kv)
    return d["causal"] * smaller(kv, d["q_len"] + window - 1) + (1 - d["causal"]) * kv


def _value_dim(d: Dims) -> Number:
    return given_or(d, "v_head_dim", d["head_dim"])


def _heads(d: Dims) -> Number:
    return d["batch"] * d["heads"]


def attention_flops(d: Dims) -> Number:
    """Work of QK^T and PV on the pairs that the mask leaves (Dao, FlashAttention-2, section 4)."""
    return 2 * _heads(d) * (d["head_dim"] + _value_dim(d)) * attention_pairs(d)


def attention_convention(d: Dims) -> Number:
    """Published convention: 4*batch*heads*q_len*kv_len*head_dim, causal or not."""
    return 2 * _heads(d) * (d["head_dim"] + _value_dim(d)) * d["q_len"] * d["kv_len"]


def attention_backward_flops(d: Dims) -> Number:
    """Five products (QK^T again, dP, dV, dQ, dK) against the forward's two: 2.5 times its work."""
    return 10 * _heads(d) * d["head_dim"] * attention_pairs(d)


def attention_backward_convention(d: Dims) -> Number:
    """Twice the forward's convention: recomputation is work, but not counted as model FLOPs."""
    return 2 * attention_convention(d)


def _queries(d: Dims) -> Number:
    return _heads(d) * d["q_len"] * d["head_dim"]


def _results(d: Dims) -> Number:
    return _heads(d) * d["q_len"] * _value_dim(d)


def _keys_and_values(d: Dims) -> Number:
    """Elements of K and V together: by key-value heads, not query heads."""
    return d["batch"] * d["kv_heads"] * visible_keys(d) * (d["head_dim"] + _value_dim(d))


def _stats(d: Dims) -> Number:
    return STAT_BYTES * d["batch"] * d["heads"] * d["q_len"]


def _latents(d: Dims) -> Number:
    """One vector a cached token, shared by all heads: the values are a part of the keys."""
    return d["batch"] * d["kv_len"] * d["head_dim"]


def _state(d: Dims) -> Number:
    return _heads(d) * d["head_dim"] * d["v_head_dim"]


def delta_rule_flops(d: Dims) -> Number:
    """Gated delta rule, a token and head: read the state at k, correct it, read it at q.

    Three products of head_dim x v_head_dim (Yang, Kautz, Hatamizadeh, "Gated Delta Networks",
    equation 10); the products inside a chunk of the parallel form come on top and are not needed.
    """
    return 6 * d["q_len"] * _state(d)


def ssd_flops(d: Dims) -> Number:
    """State-space duality (Mamba-2), a token and head: add to the state, read it.

    Two products of head_dim (the state size) x v_head_dim (Dao and Gu, "Transformers are SSMs",
    section 6).
    """
    return 4 * d["q_len"] * _state(d)


def _state_inputs(d: Dims) -> Number:
    """Two vectors a key head, one a value head, and the state before."""
    keys = 2 * d["batch"] * d["q_len"] * d["kv_heads"] * d["head_dim"]
    return keys + _heads(d) * d["q_len"] * d["v_head_dim"] + _state(d)


def _state_results(d: Dims) -> Number:
    return _heads(d) * d["q_len"] * d["v_head_dim"] + _state(d)


ATTENTION_RULES: Mapping[str, Rule] = {
    "attention": Rule(
        flops=attention_flops,
        matmul_flops=attention_convention,
        reads=lambda d: _queries(d) + _keys_and_values(d),
        stored=_keys_and_values,
        writes=_results,
    ),
    "attention_backward": Rule(
        flops=attention_backward_flops,
        matmul_flops=attention_backward_convention,
        reads=lambda d: 3 * _queries(d) + _keys_and_values(d),
        writes=lambda d: _queries(d) + _keys_and_values(d),
        other_read_bytes=_stats,
    ),
    "latent_attention": Rule(
        flops=attention_flops,
        matmul_flops=attention_convention,
        reads=lambda d: _queries(d) + _latents(d),
        stored=_latents,
        writes=_results,
    ),
    "delta_rule": Rule(
        flops=delta_rule_flops,
        matmul_flops=delta_rule_flops,
        reads=_state_inputs,
        writes=_state_results,
        other_read_bytes=lambda d: 2 * _stats(d),
    ),
    "ssd": Rule(
        flops=ssd_flops,
        matmul_flops=ssd_flops,
        reads=_state_inputs,
        writes=_state_results,
        other_read_bytes=_stats,
    ),
}
"""One row an op. The gates of `delta_rule` (two) and the step of `ssd` (one) are fp32, one a token
and head."""
