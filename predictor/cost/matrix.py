"""Rules of ops whose arithmetic is matrix products: matmul, convolution, attention, recurrent.

FLOPs count 2 a multiply-add. Shapes and symbols are those of `predictor.graph.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.cost.rule import INDEX_BYTES, STAT_BYTES, Dims, Formula, Number, Rule, smaller


def _exact(
    flops: Formula,
    reads: Formula,
    writes: Formula,
    *,
    other_read_bytes: Formula | None = None,
) -> Rule:
    """A rule whose convention and whose work are the same number."""
    if other_read_bytes is None:
        return Rule(flops=flops, matmul_flops=flops, reads=reads, writes=writes)
    return Rule(
        flops=flops,
        matmul_flops=flops,
        reads=reads,
        writes=writes,
        other_read_bytes=other_read_bytes,
    )


def gemm_flops(d: Dims) -> Number:
    """`[batch, m, k] x [batch, k, n]`: one multiply-add for each of batch*m*n*k products."""
    return 2 * d["batch"] * d["m"] * d["n"] * d["k"]


def _gemm_reads(d: Dims) -> Number:
    return d["batch"] * (d["m"] + d["n"]) * d["k"]


def _gemm_writes(d: Dims) -> Number:
    return d["batch"] * d["m"] * d["n"]


def _linear_reads(d: Dims) -> Number:
    """Activations of every batch row, one weight, one bias."""
    return d["batch"] * d["m"] * d["k"] + d["n"] * d["k"] + d["n"]


def sparse_mm_flops(d: Dims) -> Number:
    """CSR `[m, k]` with nnz values times dense `[k, n]`: a multiply-add a value and column.

    Not m*n*k: what is not stored is not multiplied.
    """
    return 2 * d["nnz"] * d["n"]


def _csr_index_bytes(d: Dims) -> Number:
    return (d["nnz"] + d["m"] + 1) * INDEX_BYTES


def grouped_mm_flops(d: Dims) -> Number:
    """Rows of all groups together (m) each meet one group's `[k, n]` weight."""
    return 2 * d["m"] * d["n"] * d["k"]


def conv_flops(d: Dims) -> Number:
    """Direct convolution: every output element sums `c_in / groups * kh * kw` products.

    The gradients with respect to input and weight contract the same index set (output position,
    output channel, input channel of the group, tap), so each costs the same; see Dumoulin and
    Visin, "A guide to convolution arithmetic for deep learning".
    """
    taps = d["c_in"] // d["groups"] * d["kh"] * d["kw"]
    return 2 * d["batch"] * d["h_out"] * d["w_out"] * d["c_out"] * taps


def _conv_input(d: Dims) -> Number:
    return d["batch"] * d["c_in"] * d["h_in"] * d["w_in"]


def _conv_weight(d: Dims) -> Number:
    return d["c_out"] * (d["c_in"] // d["groups"]) * d["kh"] * d["kw"]


def _conv_output(d: Dims) -> Number:
    return d["batch"] * d["c_out"] * d["h_out"] * d["w_out"]


def attention_pairs(d: Dims) -> Number:
    """Query-key pairs that a (causal) mask leaves, per head.

    Causal masks are aligned at the last query and key, so query i of q sees kv_len - q_len + i
    keys (for q_len = kv_len = S: S(S+1)/2); without a mask q_len * kv_len.
    """
    q, kv, causal = d["q_len"], d["kv_len"], d["causal"]
    rows = smaller(q, kv)
    return causal * (rows * kv - rows * (rows - 1) // 2) + (1 - causal) * q * kv


def _heads(d: Dims) -> Number:
    return d["batch"] * d["heads"] * d["head_dim"]


def attention_flops(d: Dims) -> Number:
    """Work of QK^T and PV on the pairs that the mask leaves (Dao, FlashAttention-2, section 4)."""
    return 4 * _heads(d) * attention_pairs(d)


def attention_convention(d: Dims) -> Number:
    """Published convention: 4*batch*heads*q_len*kv_len*head_dim, causal or not."""
    return 4 * _heads(d) * d["q_len"] * d["kv_len"]


def attention_backward_flops(d: Dims) -> Number:
    """Five products (QK^T again, dP, dV, dQ, dK) against the forward's two: 2.5 times its work."""
    return 10 * _heads(d) * attention_pairs(d)


def attention_backward_convention(d: Dims) -> Number:
    """Twice the forward's convention: recomputation is work, but not counted as model FLOPs."""
    return 2 * attention_convention(d)


def _attention_q(d: Dims) -> Number:
    return _heads(d) * d["q_len"]


def _attention_kv(d: Dims) -> Number:
    """Elements of K and V together: by key-value heads, not query heads."""
    return 2 * d["batch"] * d["kv_heads"] * d["kv_len"] * d["head_dim"]


def _attention_stats(d: Dims) -> Number:
    return STAT_BYTES * d["batch"] * d["heads"] * d["q_len"]


def rnn_weights(d: Dims) -> Number:
    """Elements of all weight matrices: layer 0 meets the input, later layers all directions."""
    hidden = d["hidden_size"]
    later = (d["layers"] - 1) * (d["directions"] + 1) * hidden
    return d["directions"] * d["gates"] * hidden * (d["input_size"] + hidden + later)


def rnn_flops(d: Dims) -> Number:
    """Two products a step, gate, layer and direction: input and hidden state with their weights.

    Gates: LSTM 4, GRU 3, plain RNN 1; one layer is 2*T*B*g*H*(I + H).
    """
    return 2 * d["steps"] * d["batch"] * rnn_weights(d)


def rnn_backward_flops(d: Dims) -> Number:
    """Gradients of the data and of the weights: twice the forward."""
    return 2 * rnn_flops(d)


def _rnn_biases(d: Dims) -> Number:
    return 2 * d["layers"] * d["directions"] * d["gates"] * d["hidden_size"]


def _rnn_input(d: Dims) -> Number:
    return d["steps"] * d["batch"] * d["input_size"]


def _rnn_states(d: Dims) -> Number:
    """Hidden states of every step, layer and direction."""
    return d["steps"] * d["batch"] * d["layers"] * d["directions"] * d["hidden_size"]


MATRIX_RULES: Mapping[str, Rule] = {
    "linear": _exact(gemm_flops, _linear_reads, _gemm_writes),
    "matmul": _exact(gemm_flops, _gemm_reads, _gemm_writes),
    "bmm": _exact(gemm_flops, _gemm_reads, _gemm_writes),
    "sparse_mm": _exact(
        sparse_mm_flops,
        lambda d: d["nnz"] + d["k"] * d["n"],
        lambda d: d["m"] * d["n"],
        other_read_bytes=_csr_index_bytes,
    ),
    "grouped_mm": _exact(
        grouped_mm_flops,
        lambda d: d["m"] * d["k"] + d["groups"] * d["k"] * d["n"],
        lambda d: d["m"] * d["n"],
    ),
    "conv": _exact(conv_flops, lambda d: _conv_input(d) + _conv_weight(d), _conv_output),
    "conv_dgrad": _exact(conv_flops, lambda d: _conv_output(d) + _conv_weight(d), _conv_input),
    "conv_wgrad": _exact(conv_flops, lambda d: _conv_output(d) + _conv_input(d), _conv_weight),
    "attention": Rule(
        flops=attention_flops,
        matmul_flops=attention_convention,
        reads=lambda d: _attention_q(d) + _attention_kv(d),
        writes=_attention_q,
    ),
    "attention_backward": Rule(
        flops=attention_backward_flops,
        matmul_flops=attention_backward_convention,
        reads=lambda d: 3 * _attention_q(d) + _attention_kv(d),
        writes=lambda d: _attention_q(d) + _attention_kv(d),
        other_read_bytes=_attention_stats,
    ),
    "rnn": _exact(
        rnn_flops,
        lambda d: _rnn_input(d) + rnn_weights(d) + _rnn_biases(d),
        _rnn_states,
    ),
    "rnn_backward": _exact(
        rnn_backward_flops,
        lambda d: _rnn_input(d) + rnn_weights(d) + 2 * _rnn_states(d),
        lambda d: _rnn_input(d) + rnn_weights(d) + _rnn_biases(d),
    ),
}
"""One row an op; weights count once even where a recurrent kernel re-reads them every step."""
