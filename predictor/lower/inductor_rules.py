"""What TorchInductor does with each kind of call, as data: the rules that `inductor` lowers by.

Read from the sources of PyTorch 2.13 (torch/_inductor: decomposition.py, lowering.py, ir.py,
scheduler.py, choices.py, codegen/simd.py and cpp.py). A call becomes loops over elements
(pointwise), loops that reduce, or a call of a library that the compiler leaves whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Backend = Literal["cuda", "cpu", "triton-on-cpu"]
"""`triton-on-cpu`: kernels as for a GPU, but choices as for tensors in the host's memory: what the
compiler can be asked for where there is no GPU."""
Recipe = Literal[
    "pointwise", "reduction", "row_norm", "channel_norm", "scaled", "row_norm_backward",
    "group_norm", "group_norm_backward", "channel_norm_backward", "softmax", "softmax_backward",
    "picked_loss", "pooling", "scattering", "embedding_gradient", "convolution", "updating",
    "library",
]  # fmt: skip
"""Names of the recipes in `predictor.lower.inductor_recipes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers by which a backend decides what is computed again and what is stored."""

    most_ops: int
    """Operations of an inlined value beyond which it is stored (`realize_opcount_threshold`)."""
    most_reads: int
    """Tensors that an inlined value may read (`realize_acc_reads_threshold`)."""
    most_reads_reused: int = 4
    """The same for a value with several readers (`realize_reads_threshold`)."""
    heavy_stored: bool = False
    """Whether exponentials and the like are stored when several calls read them."""
    bias_apart: bool = False
    """Whether a convolution's bias is added by the loops behind it."""
    one_call_between: bool = False
    """Whether all loops between two library calls are one function (C++), kernels or not."""
    cat_by_loops: bool = False
    """Whether `cat` may be computed where it is read."""
    splits: bool = False
    """Whether long reductions with few results run in two passes."""


LIMITS: Mapping[Backend, Limits] = {
    "cuda": Limits(most_ops=30, most_reads=8, bias_apart=True, cat_by_loops=True, splits=True),
    "triton-on-cpu": Limits(most_ops=50, most_reads=12, heavy_stored=True, splits=True),
    "cpu": Limits(most_ops=50, most_reads=12, heavy_stored=True, one_call_between=True),
}
LEAST_SHARED_BYTES = 10
"""`score_fusion_memory_threshold`: less shared traffic joins no kernels side by side."""
FARTHEST = 64
"""Places between two loops beyond which they are not joined side by side."""
MOST_FUSED = 64
"""`max_fusion_size`: loops in one kernel."""
MOST_WINDOW = 25
"""Elements of a pooling window beyond which the library's kernel runs."""
MOST_CAT = 8
"""`max_pointwise_cat_inputs`."""
PERSISTENT, PERSISTENT_OUTER = 1024, 64
"""Elements up to which a reduction holds its row (its column) in registers: kernels named `per`."""
UNROLLED = 8
"""`unroll_reductions_threshold`: sums of fewer elements are written out, pointwise."""

HEAVY: frozenset[str] = frozenset({
    "exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh", "gelu", "silu", "gelu_backward",
    "silu_backward", "softplus", "mish", "elu", "_softmax", "_log_softmax",
})  # fmt: skip
"""Calls with an operation that a CPU stores instead of computing twice."""
OPS_OF: Mapping[str, int] = {
    "gelu": 8, "gelu_backward": 18, "silu": 4, "silu_backward": 8, "native_dropout": 8,
    "hardswish": 8, "hardswish_backward": 12, "hardsigmoid": 7, "mish": 7, "elu": 6,
}  # fmt: skip
"""Operations that a pointwise call becomes, where they are more than `PLAIN_OPS`."""
PLAIN_OPS = 2

RECIPES: Mapping[str, Recipe] = {
    "reduction": "reduction", "softmax": "softmax", "softmax_backward": "softmax_backward",
    "cross_entropy": "softmax", "layer_norm": "row_norm", "rms_norm": "row_norm",
    "layer_norm_backward": "row_norm_backward", "rms_norm_backward": "row_norm_backward",
    "group_norm": "group_norm", "group_norm_backward": "group_norm_backward",
    "batch_norm": "channel_norm", "batch_norm_backward": "channel_norm_backward",
    "pool": "pooling", "pool_backward": "pooling", "embedding": "pointwise", "gather": "pointwise",
    "embedding_backward": "embedding_gradient", "scatter": "scattering", "conv": "convolution",
    "adamw": "updating", "sgd": "updating", "optimizer_other": "updating",
}  # fmt: skip
"""Recipe by op of the vocabulary; elementwise ops and copies are pointwise, others stay whole."""
BY_NAME: Mapping[str, Recipe] = {
    "nll_loss_forward": "picked_loss", "nll_loss2d_forward": "picked_loss",
    "nll_loss_backward": "pointwise", "nll_loss2d_backward": "pointwise",
    "_native_batch_norm_legit_no_training": "scaled", "_batch_norm_no_update": "scaled",
    "masked_fill": "pointwise", "slice_scatter": "pointwise", "select_scatter": "pointwise",
    "_embedding_bag": "library", "_embedding_bag_forward_only": "library",
    "convolution_backward": "convolution", "bernoulli": "pointwise", "multinomial": "library",
}  # fmt: skip
"""Recipe by call, where its op does not decide."""
