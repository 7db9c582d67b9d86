"""The table of aten calls: which op of the vocabulary each one is, and how its sizes are read.

Names are packets without overload and without the in-place underscore: `aten.add_.Tensor` is
`add`. A new call is one word in one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from predictor.lower import matrix_readers as matrix
from predictor.lower import movement_readers as movement
from predictor.lower import streaming_readers as streaming
from predictor.lower.composites import COMPOSITES
from predictor.lower.draft import Reader


class Row(NamedTuple):
    """Calls of one kind."""

    op: str
    reader: Reader
    names: str
    """Packet names, space-separated."""


ROWS: tuple[Row, ...] = (
    # matrix products
    Row("linear", matrix.gemm_plus, "addmm _addmm_activation"),
    Row("linear", matrix.linear, "linear"),
    Row("matmul", matrix.gemm, "mm _int_mm _scaled_mm _scaled_mm_v2"),
    Row("bmm", matrix.gemm, "bmm"),
    Row("bmm", matrix.gemm_plus, "baddbmm addbmm"),
    Row("matmul", matrix.matmul, "matmul"),
    Row("matmul", matrix.vector_product, "mv addmv dot vdot ger outer"),
    Row("grouped_mm", matrix.grouped_gemm, "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"),
    Row("conv", matrix.convolution,
        "convolution _convolution cudnn_convolution miopen_convolution conv1d conv2d conv3d"),
    Row("conv", matrix.transposed_convolution,
        "conv_transpose1d conv_transpose2d conv_transpose3d"),
    Row("conv", matrix.convolution_backward, "convolution_backward"),
    Row("attention", matrix.attention,
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable scaled_dot_product_attention"),
    Row("attention_backward", matrix.attention_backward,
        "_scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward"),
    Row("attention", matrix.flash_attention, "_flash_attention_forward"),
    Row("attention_backward", matrix.flash_attention_backward, "_flash_attention_backward"),
    # elementwise
    Row("add", streaming.pointwise, "add sub rsub subtract"),
    Row("mul", streaming.pointwise, "mul multiply square"),
    Row("div", streaming.pointwise, "div divide true_divide reciprocal"),
    Row("pow", streaming.pointwise, "pow float_power"),
    Row("relu", streaming.pointwise,
        "relu relu6 clamp clamp_min clamp_max clip hardtanh leaky_relu threshold hardsigmoid "
        "hardswish _prelu_kernel prelu hardshrink softshrink rrelu_with_noise "
        "rrelu_with_noise_functional"),
    Row("relu_backward", streaming.pointwise,
        "threshold_backward hardtanh_backward leaky_relu_backward hardsigmoid_backward "
        "hardswish_backward _prelu_kernel_backward hardshrink_backward softshrink_backward "
        "rrelu_with_noise_backward"),
    Row("gelu", streaming.pointwise, "gelu"),
    Row("gelu_backward", streaming.pointwise,
        "gelu_backward silu_backward mish_backward elu_backward softplus_backward "
        "log_sigmoid_backward glu_backward logit_backward"),
    Row("tanh", streaming.pointwise, "tanh"),
    Row("tanh_backward", streaming.pointwise, "tanh_backward sigmoid_backward"),
    Row("exp", streaming.pointwise,
        "exp exp2 expm1 log log2 log10 log1p sigmoid silu mish elu selu celu softplus erf erfc "
        "erfinv sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh log_sigmoid_forward "
        "glu logit sinc xlogy lgamma digamma logaddexp logaddexp2 special_expit polar hypot "
        "i0 special_i0 special_i0e special_i1 special_i1e special_erfcx special_ndtri special_entr "
        "special_log_ndtr polygamma igamma igammac affine_grid_generator"),
    Row("where", streaming.pointwise,
        "where eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf "
        "isfinite isposinf isneginf bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ "
        "__xor__ tril triu isin isclose"),
    Row("where", movement.masked_fill, "masked_fill"),
    Row("dropout", streaming.pointwise, "native_dropout dropout"),
    Row("dropout_backward", streaming.pointwise, "native_dropout_backward"),
    Row("pointwise", streaming.pointwise,
        "neg abs sign sgn floor ceil round trunc frac sqrt rsqrt maximum minimum fmax fmin fmod "
        "remainder floor_divide addcmul addcdiv lerp nan_to_num clamp_tensor copysign heaviside "
        "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __rshift __lshift "
        "bucketize searchsorted deg2rad rad2deg signbit conj_physical angle complex "
        "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward "
        "_amp_update_scale _resize_output_ cross linalg_cross quantize_per_tensor "
        "quantize_per_channel dequantize fake_quantize_per_tensor_affine_cachemask "
        "fake_quantize_per_channel_affine_cachemask"),
    Row("pointwise", matrix.fused_cell, "_thnn_fused_lstm_cell _thnn_fused_gru_cell"),
    Row("pointwise", streaming.loss,
        "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
        "binary_cross_entropy_with_logits soft_margin_loss kl_div hinge_embedding_loss"),
    Row("pointwise", streaming.pointwise,
        "mse_loss_backward l1_loss_backward smooth_l1_loss_backward huber_loss_backward "
        "binary_cross_entropy_backward soft_margin_loss_backward"),
    Row("fill", streaming.fill,
        "fill zero full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full "
        "arange linspace logspace eye scalar_tensor tril_indices triu_indices "
        "efficientzerotensor _efficientzerotensor"),
    Row("random", streaming.fill,
        "rand randn rand_like randn_like randint randint_like normal uniform bernoulli random "
        "exponential geometric log_normal cauchy normal_functional multinomial poisson"),
    # rows: reductions, softmax, norms, pooling
    Row("reduction", streaming.reduction,
        "sum mean prod amax amin max min argmax argmin any all var std var_mean std_mean norm "
        "linalg_vector_norm logsumexp count_nonzero nansum nanmean aminmax trace dist "
        "_cdist_forward _euclidean_dist _pdist_forward renorm _weight_norm_interface "
        "_weight_norm_interface_backward _cdist_backward _pdist_backward"),
    Row("reduction", streaming.trilinear, "_trilinear"),
    Row("scan", streaming.along_axis, "cumsum cumprod logcumsumexp cummax cummin nonzero"),
    Row("sort", streaming.along_axis,
        "sort topk argsort kthvalue median nanmedian mode _unique2 unique_dim unique_consecutive"),
    Row("sort", streaming.fill, "randperm"),
    Row("softmax", streaming.along_axis, "_softmax _log_softmax softmax log_softmax _safe_softmax"),
    Row("softmax_backward", streaming.along_axis,
        "_softmax_backward_data _log_softmax_backward_data"),
    Row("reduction", streaming.nll_loss, "nll_loss_forward nll_loss2d_forward nll_loss"),
    Row("scatter", movement.nll_loss_backward, "nll_loss_backward nll_loss2d_backward"),
    Row("layer_norm", streaming.layer_norm, "native_layer_norm layer_norm"),
    Row("layer_norm_backward", streaming.layer_norm_backward, "native_layer_norm_backward"),
    Row("rms_norm", streaming.layer_norm, "_fused_rms_norm rms_norm"),
    Row("rms_norm_backward", streaming.layer_norm_backward, "_fused_rms_norm_backward"),
    Row("batch_norm", streaming.batch_norm,
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "cudnn_batch_norm miopen_batch_norm _batch_norm_with_update _batch_norm_no_update "
        "_batch_norm_impl_index batch_norm instance_norm"),
    Row("batch_norm_backward", streaming.batch_norm_backward,
        "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward "
        "batch_norm_backward"),
    Row("group_norm", streaming.group_norm, "native_group_norm group_norm"),
    Row("group_norm_backward", streaming.group_norm_backward, "native_group_norm_backward"),
    Row("pool", streaming.pool,
        "max_pool2d_with_indices max_pool3d_with_indices max_pool1d max_pool2d max_pool3d "
        "avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d "
        "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d"),
    Row("pool_backward", streaming.pool_backward,
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward "
        "avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
        "adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "fractional_max_pool2d_backward fractional_max_pool3d_backward"),
    Row("pool", streaming.resample,
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d "
        "upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa "
        "_upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d"),
    Row("pool_backward", streaming.resample,
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward "
        "_upsample_nearest_exact3d_backward upsample_linear1d_backward "
        "upsample_bilinear2d_backward upsample_trilinear3d_backward upsample_bicubic2d_backward "
        "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward "
        "grid_sampler_2d_backward grid_sampler_3d_backward"),
    # data movement
    Row("embedding", movement.embedding, "embedding"),
    Row("embedding", movement.embedding_bag, "_embedding_bag _embedding_bag_forward_only"),
    Row("embedding_backward", movement.embedding_backward,
        "embedding_dense_backward _embedding_bag_dense_backward _embedding_bag_backward"),
    Row("gather", movement.gather, "index index_select gather take take_along_dim masked_select "
        "_unsafe_index unfold_copy"),
    Row("scatter", movement.scatter,
        "scatter scatter_add scatter_reduce index_put _index_put_impl _unsafe_index_put index_add "
        "index_copy index_fill index_reduce masked_scatter put bincount histc"),
    Row("copy", movement.copy,
        "clone contiguous _to_copy to type_as float half bfloat16 reshape flatten ravel"),
    Row("copy", movement.copy_into, "copy"),
    Row("copy", movement.rearrange,
        "cat concat concatenate stack hstack vstack roll flip repeat repeat_interleave "
        "pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im reflection_pad1d "
        "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
        "select_scatter slice_scatter diagonal_scatter as_strided_scatter rot90 diag_embed "
        "_pack_padded_sequence block_diag tile permute_copy transpose_copy view_copy "
        "split_with_sizes_copy "
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
        "replication_pad2d_backward replication_pad1d_backward"),
    Row("copy", movement.padded,
        "constant_pad_nd pad max_unpool2d max_unpool3d masked_scatter_backward "
        "slice_backward select_backward diagonal_backward unfold_backward "
        "as_strided_backward trace_backward"),
    Row("fft", streaming.spectral, "_fft_c2c _fft_r2c _fft_c2r"),
    # multi-tensor calls
    Row("add", movement.foreach, "_foreach_add _foreach_sub"),
    Row("mul", movement.foreach,
        "_foreach_mul _amp_foreach_non_finite_check_and_unscale _foreach_neg"),
    Row("div", movement.foreach, "_foreach_div _foreach_reciprocal"),
    Row("pow", movement.foreach, "_foreach_pow"),
    Row("exp", movement.foreach, "_foreach_exp _foreach_log _foreach_sigmoid _foreach_tanh"),
    Row("fill", movement.foreach, "_foreach_zero"),
    Row("copy", movement.foreach, "_foreach_copy"),
    Row("reduction", movement.foreach, "_foreach_norm _foreach_max"),
    Row("pointwise", movement.foreach,
        "_foreach_sqrt _foreach_rsqrt _foreach_abs _foreach_addcmul _foreach_addcdiv _foreach_lerp "
        "_foreach_maximum _foreach_minimum _foreach_clamp_min _foreach_clamp_max _foreach_sign"),
    Row("collective", movement.collective,
        "all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced "
        "reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast"),
)  # fmt: skip

_VIEWS = (
    "view _unsafe_view expand expand_as transpose permute slice select split split_with_sizes "
    "detach alias unsqueeze squeeze t as_strided unbind narrow chunk diagonal movedim swapaxes "
    "swapdims view_as view_as_real view_as_complex real imag numpy_T mT mH adjoint unfold "
    "_reshape_alias lift_fresh lift_fresh_copy positive tensor_split hsplit vsplit dsplit "
    "_conj _neg_view conj resolve_conj resolve_neg values indices crow_indices col_indices _values "
    "_indices view_dtype flatten unflatten reshape ravel squeeze_multiple"
)
_BOOKKEEPING = (
    "empty empty_like empty_strided new_empty new_empty_strided empty_permuted "
    "_local_scalar_dense item resize resize_as set is_same_size sym_size sym_stride sym_numel "
    "sym_storage_offset size stride numel dim device layout prim_layout is_contiguous "
    "is_pinned record_stream _has_compatible_shallow_copy_type _version storage_offset "
    "_assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async "
    "_functional_assert_scalar sym_constrain_range sym_constrain_range_for_size requires_grad "
    "is_leaf retain_grad output_nr _nested_tensor_size wait_tensor _wrap_tensor_autograd "
    "equal can_cast result_type promote_types _record_function_enter_new "
    "_record_function_exit is_nonzero set_data _debug_has_internal_overlap "
    "_sparse_coo_tensor_with_dims_and_tensors _coalesced embedding_sparse_backward "
    "sparse_compressed_tensor _sparse_compressed_tensor_unsafe ccol_indices row_indices"
)
MAYBE_COPY: frozenset[str] = frozenset({"reshape", "flatten", "contiguous", "to", "ravel",
    "dropout", "type_as", "float", "half", "bfloat16", "resolve_conj", "resolve_neg"})  # fmt: skip
"""Calls that are views or copies as the case may be: a result that shares storage with an operand
is a view."""

NOTHING: frozenset[str] = frozenset(f"{_VIEWS} {_BOOKKEEPING}".split())
TABLE: Mapping[str, tuple[str, Reader]] = {
    name: (row.op, row.reader) for row in ROWS for name in row.names.split()
}
"""Op and reader by packet name."""


@lru_cache(maxsize=4096)
def packet(op: str) -> str:
    """Name of a call in the table: no namespace, no overload, no in-place underscore."""
    parts = op.replace("::", ".").split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name if name.endswith("__") else name.rstrip("_")


@lru_cache(maxsize=4096)
def find(op: str) -> tuple[str, Reader] | None:
    """Op and reader of a call, None when the table has no row for it."""
    return COMPOSITES.get(op) or TABLE.get(packet(op))


@lru_cache(maxsize=4096)
def launches_nothing(op: str) -> bool:
    """Whether a call, by its name alone, never launches a kernel: views and bookkeeping.

    Calls that are views only sometimes (`reshape`, `contiguous`) need their tensors to tell.
    """
    name = packet(op)
    return op not in COMPOSITES and name in NOTHING and name not in MAYBE_COPY
