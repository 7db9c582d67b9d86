"""The op vocabulary: one table for training rows and captured graphs alike.

A row says which class an op belongs to, which dimensions describe it, and which learned embedding
(`token`) it shares. FLOP and byte rules stand in `predictor.cost`, one an op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OP_CLASSES: tuple[str, ...] = (
    "matmul", "conv", "attention", "grouped_matmul", "elementwise", "reduction", "softmax",
    "norm", "gather", "copy", "recurrent", "optimizer", "collective", "transfer", "opaque",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One row of the vocabulary."""

    op_class: str
    dims: tuple[str, ...]
    """Names of the integers in `Kernel.dims` that every kernel of the op has."""
    token: str
    """Ops with one token share one learned embedding: same kind of kernel inside the library."""
    forward_op: str | None = None
    """For a backward kernel: the op it belongs to."""
    optional: tuple[str, ...] = ()
    """Names of further integers that a kernel of the op may have."""


_MM = ("batch", "m", "n", "k")
_CONV = ("batch", "c_in", "h_in", "w_in", "c_out", "h_out", "w_out", "kh", "kw", "groups")
_ROWS = ("rows", "cols")
_ATT = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal")
_LATENT = ("batch", "heads", "q_len", "kv_len", "head_dim", "v_head_dim", "causal")
_STATE = ("batch", "heads", "kv_heads", "q_len", "head_dim", "v_head_dim")
_MOE = ("tokens", "groups", "m", "n", "k", "gates")
_RNN = ("steps", "batch", "input_size", "hidden_size", "layers", "directions", "gates")
_RANKS = ("numel", "ranks")
_EW = ("numel", "inputs", "outputs")


def _op(
    cls: str,
    dims: tuple[str, ...],
    token: str,
    forward_op: str | None = None,
    optional: tuple[str, ...] = (),
) -> Op:
    return Op(op_class=cls, dims=dims, token=token, forward_op=forward_op, optional=optional)


OPS: Mapping[str, Op] = {
    # matmul: [batch, m, k] x [batch, k, n]
    "linear": _op("matmul", _MM, "gemm"),  # with bias (addmm)
    "matmul": _op("matmul", _MM, "gemm"),
    "bmm": _op("matmul", _MM, "bmm"),
    "sparse_mm": _op("matmul", ("m", "n", "k", "nnz"), "sparse_mm"),
    "grouped_mm": _op("grouped_matmul", ("groups", "m", "n", "k"), "grouped_mm"),  # m: all groups
    # experts on one rank, up and down projections in one call; m: rows that meet them, n: inner
    # size of an expert here, k: hidden size; active: experts that some row meets
    "moe": _op(
        "grouped_matmul", _MOE, "grouped_mm", optional=("active", "topk", "experts", "inter_size")
    ),
    # convolution (1-d and 3-d fold their extra axes into h)
    "conv": _op("conv", _CONV, "conv"),
    "conv_dgrad": _op("conv", _CONV, "conv_dgrad", "conv"),
    "conv_wgrad": _op("conv", _CONV, "conv_wgrad", "conv"),
    # attention: one kernel a call and phase
    "attention": _op("attention", _ATT, "attention", optional=("window", "v_head_dim")),
    "attention_backward": _op(
        "attention", _ATT, "attention_backward", "attention", optional=("window",)
    ),
    # MLA with absorbed projections: one latent key a token for all heads, its values a part of it
    "latent_attention": _op("attention", _LATENT, "attention"),
    # attention with a state of head_dim x v_head_dim: gated delta rule, Mamba-2
    "delta_rule": _op("attention", _STATE, "attention"),
    "ssd": _op("attention", _STATE, "attention"),
    # elementwise: numel of the output, tensors read (broadcast operands count), tensors written
    "add": _op("elementwise", _EW, "pointwise"),
    "mul": _op("elementwise", _EW, "pointwise"),
    "div": _op("elementwise", _EW, "pointwise"),
    "pow": _op("elementwise", _EW, "pow"),
    "relu": _op("elementwise", _EW, "pointwise"),
    "gelu": _op("elementwise", _EW, "transcendental"),
    "tanh": _op("elementwise", _EW, "transcendental"),
    "exp": _op("elementwise", _EW, "transcendental"),  # exp, log, erf, sigmoid, silu, sin, cos, …
    "where": _op("elementwise", _EW, "pointwise"),  # where, masked_fill, comparisons
    "dropout": _op("elementwise", _EW, "dropout"),
    "pointwise": _op("elementwise", _EW, "pointwise"),  # any other
    "add_backward": _op("elementwise", _EW, "pointwise", "add"),
    "mul_backward": _op("elementwise", _EW, "pointwise", "mul"),
    "div_backward": _op("elementwise", _EW, "pointwise", "div"),
    "pow_backward": _op("elementwise", _EW, "pow_backward", "pow"),
    "relu_backward": _op("elementwise", _EW, "pointwise", "relu"),
    "gelu_backward": _op("elementwise", _EW, "gelu_backward", "gelu"),
    "tanh_backward": _op("elementwise", _EW, "tanh_backward", "tanh"),
    "where_backward": _op("elementwise", _EW, "pointwise", "where"),
    "dropout_backward": _op("elementwise", _EW, "pointwise", "dropout"),
    "fill": _op("elementwise", _EW, "pointwise"),
    "random": _op("elementwise", _EW, "dropout"),
    # rows x cols, reduced over cols
    "softmax": _op("softmax", _ROWS, "softmax"),
    "softmax_backward": _op("softmax", _ROWS, "softmax_backward", "softmax"),
    "cross_entropy": _op("softmax", _ROWS, "softmax"),
    "cross_entropy_backward": _op("softmax", _ROWS, "softmax_backward", "cross_entropy"),
    "layer_norm": _op("norm", _ROWS, "layer_norm"),
    "layer_norm_backward": _op("norm", _ROWS, "layer_norm_backward", "layer_norm"),
    "rms_norm": _op("norm", _ROWS, "layer_norm"),
    "rms_norm_backward": _op("norm", _ROWS, "layer_norm_backward", "rms_norm"),
    "group_norm": _op("norm", _ROWS, "layer_norm"),
    "group_norm_backward": _op("norm", _ROWS, "layer_norm_backward", "group_norm"),
    "batch_norm": _op("norm", _ROWS, "batch_norm"),
    "batch_norm_backward": _op("norm", _ROWS, "batch_norm_backward", "batch_norm"),
    "reduction": _op("reduction", _ROWS, "reduction"),
    "scan": _op("reduction", _ROWS, "reduction"),  # cumsum, cumprod
    "sort": _op("reduction", _ROWS, "sort"),  # sort, topk
    "pool": _op("reduction", ("rows", "cols"), "pool"),  # rows: outputs, cols: window
    "pool_backward": _op("reduction", ("rows", "cols"), "pool_backward", "pool"),
    # data movement
    "embedding": _op("gather", _ROWS, "gather"),  # rows gathered, row length
    "embedding_backward": _op("gather", _ROWS, "scatter", "embedding"),
    "gather": _op("gather", _ROWS, "gather"),
    "scatter": _op("gather", _ROWS, "scatter"),
    "copy": _op("copy", _EW, "copy"),  # contiguous, clone, cat, slice-copy
    "transpose": _op("copy", _EW, "transpose"),  # copy that permutes
    "cast": _op("copy", _EW, "copy"),
    "quantize": _op("copy", _ROWS, "copy"),  # to a narrow format with scales
    # recurrent: `steps` dependent launches a layer
    "rnn": _op("recurrent", _RNN, "rnn"),
    "rnn_backward": _op("recurrent", _RNN, "rnn_backward", "rnn"),
    # multi-tensor optimizer: elements updated, tensors
    "adamw": _op("optimizer", ("numel", "tensors"), "adamw"),
    "sgd": _op("optimizer", ("numel", "tensors"), "sgd"),
    "optimizer_other": _op("optimizer", ("numel", "tensors"), "adamw"),
    # collectives: numel of the larger buffer of one rank
    "collective": _op("collective", _RANKS, "collective"),  # of unknown kind
    "all_reduce": _op("collective", _RANKS, "collective"),
    "all_gather": _op("collective", _RANKS, "collective"),
    "reduce_scatter": _op("collective", _RANKS, "collective"),
    "all_to_all": _op("collective", _RANKS, "collective"),
    "send_recv": _op("collective", _RANKS, "collective"),
    "transfer": _op("transfer", ("numel",), "transfer"),
    "fft": _op("opaque", _ROWS, "opaque"),
    "opaque": _op("opaque", ("numel",), "opaque"),
}

TOKENS: tuple[str, ...] = tuple(sorted({op.token for op in OPS.values()}))
DIM_NAMES: tuple[str, ...] = tuple(
    sorted({d for op in OPS.values() for d in (*op.dims, *op.optional)})
)
"""Union of all dimension names: the integer columns of a kernel row."""
