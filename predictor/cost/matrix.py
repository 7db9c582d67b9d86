"""Rules of ops whose arithmetic is matrix products: matmul, experts, convolution, recurrent.

FLOPs count 2 a multiply-add. Shapes and symbols are those of `predictor.graph.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.cost.rule import (
    INDEX_BYTES,
    Dims,
    Formula,
    Number,
    Rule,
    given_or,
    nothing,
    smaller,
)


def _exact(
    flops: Formula,
    reads: Formula,
    writes: Formula,
    *,
    other_read_bytes: Formula = nothing,
    stored: Formula = nothing,
) -> Rule:
    """A rule whose convention and whose work are the same number."""
    return Rule(
        flops=flops,
        matmul_flops=flops,
        reads=reads,
        writes=writes,
        other_read_bytes=other_read_bytes,
        stored=stored,
    )


def gemm_flops(d: Dims) -> Number:
    """`[batch, m, k] x [batch, k, n]`: one multiply-add for each of batch*m*n*k products."""
    return 2 * d["batch"] * d["m"] * d["n"] * d["k"]


def _gemm_reads(d: Dims) -> Number:
    return d["batch"] * (d["m"] + d["n"]) * d["k"]


def _gemm_second(d: Dims) -> Number:
    return d["batch"] * d["n"] * d["k"]


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


def moe_flops(d: Dims) -> Number:
    """Gated (or plain) up and down projections of the m rows that meet this rank's experts.

    `gates` + 1 products of k x n a row: gate, up and down, or up and down.
    """
    return 2 * d["m"] * d["n"] * d["k"] * (d["gates"] + 1)


def moe_weights(d: Dims) -> Number:
    """Elements of the experts that some row meets: `active` of them where known, at most m."""
    active = given_or(d, "active", smaller(d["groups"], d["m"]))
    return active * (d["gates"] + 1) * d["k"] * d["n"]


def _moe_reads(d: Dims) -> Number:
    """The weights, and every row of the input that meets an expert here (at most m)."""
    return smaller(d["tokens"], d["m"]) * d["k"] + moe_weights(d)


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
    "linear": _exact(gemm_flops, _linear_reads, _gemm_writes, stored=lambda d: d["n"] * d["k"]),
    "matmul": _exact(gemm_flops, _gemm_reads, _gemm_writes, stored=_gemm_second),
    "bmm": _exact(gemm_flops, _gemm_reads, _gemm_writes, stored=_gemm_second),
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
        stored=lambda d: d["groups"] * d["k"] * d["n"],
    ),
    "moe": _exact(moe_flops, _moe_reads, lambda d: d["tokens"] * d["k"], stored=moe_weights),
    "conv": _exact(conv_flops, lambda d: _conv_input(d) + _conv_weight(d), _conv_output),
    "conv_dgrad": _exact(conv_flops, lambda d: _conv_output(d) + _conv_weight(d), _conv_input),
    "conv_wgrad": _exact(conv_flops, lambda d: _conv_output(d) + _conv_input(d), _conv_weight),
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
"""One row an op; weights count once even where a recurrent kernel re-reads them every step. Between
the two products of `moe` nothing needs to reach memory."""
