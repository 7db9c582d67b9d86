"""What CUDA autocast casts, applied to meta tensors (on which PyTorch's own has no effect).

The lists are those of ATen/autocast_mode.h (`AT_FORALL_*`); calls are named as Python sees them,
so composites whose inner ops are listed have a row of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from predictor.capture import sparse
from predictor.errors import CaptureError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER: frozenset[str] = _names(
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
    "conv_transpose3d convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear "
    "addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell "
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention "
    "scaled_dot_product_attention"
)
"""Inputs are cast to the autocast dtype."""

FP32: frozenset[str] = _names(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus "
    "layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm "
    "cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d "
    "_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
"""Inputs are cast to fp32."""

FP32_DTYPE: frozenset[str] = _names(
    "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum"
)
"""The result dtype is fp32 unless the call names one; inputs are not cast beforehand."""

FP32_APPEND: frozenset[str] = frozenset({"norm"})
"""As `FP32_DTYPE`; only the overloads without a dtype are listed."""

PROMOTE: frozenset[str] = _names(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
"""Inputs are cast to the widest of their dtypes."""

LIBRARY_LOWER: frozenset[str] = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""cuDNN's recurrent layers, cast whole (ATen/cudnn/AutocastRNN.cpp); weights are not cached."""

ALIASES: Mapping[str, str] = {
    "nll_loss_nd": "nll_loss",  # composite over nll_loss and nll_loss2d
    "__pow__": "pow",
    "__rpow__": "pow",
    "linalg_norm": "norm",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_logsumexp": "logsumexp",
    "special_softmax": "softmax",
    "special_log_softmax": "log_softmax",
    "arccos": "acos",
    "arcsin": "asin",
    "inner": "dot",
    "linalg_cross": "cross",
}
"""Names that stand for a listed op."""

BANNED = "binary_cross_entropy"

_state = threading.local()


class CastPolicy:
    """Casts arguments as CUDA autocast would where `torch.autocast("cuda")` is entered."""

    def __init__(self, amp: torch.dtype | None) -> None:
        self._amp = amp
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        """Forget cached weight casts: the outermost autocast region ended."""
        self._cache.clear()

    def dtype(self, *, recomputing: bool) -> torch.dtype | None:
        """The autocast dtype in force, or None."""
        if torch.is_autocast_enabled("cuda"):
            return torch.get_autocast_dtype("cuda")
        return self._amp if recomputing else None

    def apply(
        self, name: str, to: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments after the casts.

        Raises:
            CaptureError: the op is unsafe under autocast, as PyTorch says too.
        """
        name = ALIASES.get(name, name)
        if kwargs.get("out") is not None:
            return args, kwargs
        if name in LOWER:
            return self._cast(args, kwargs, to, cache=True)
        if name in FP32:
            return self._cast(args, kwargs, torch.float32, cache=False)
        if name in FP32_DTYPE or name in FP32_APPEND:
            return self._set_dtype(args, kwargs)
        if name in PROMOTE:
            widest = _widest((*args, *kwargs.values()), to)
            return self._cast(args, kwargs, widest, cache=False)
        if name in LIBRARY_LOWER:
            return self._cast(args, kwargs, to, cache=False)
        if name == BANNED and any(_eligible(a) for a in (*args, *kwargs.values())):
            raise CaptureError(
                "binary_cross_entropy is unsafe under autocast, and PyTorch refuses it: use "
                "binary_cross_entropy_with_logits"
            )
        return args, kwargs

    def _set_dtype(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first = args[0] if args else kwargs.get("input")
        named = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
        if not _eligible(first) or named:
            return args, kwargs
        return args, {**kwargs, "dtype": torch.float32}

    def _cast(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], to: torch.dtype, *, cache: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        cast = tuple([self._one(a, to, cache=cache) for a in args])
        return cast, {k: self._one(v, to, cache=cache) for k, v in kwargs.items()}

    def _one(self, value: Any, to: torch.dtype, *, cache: bool) -> Any:
        if isinstance(value, torch.Tensor):
            if not _eligible(value) or value.dtype is to:
                return value
            if sparse.is_sparse(value):
                return sparse.cast(value, to)
            return self._cached(value, to) if cache else value.to(to)
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            return [self._one(v, to, cache=cache) for v in value]
        return value

    def _cached(self, tensor: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        """A cast weight is kept until the outermost region ends (`cached_cast` in ATen)."""
        keeps = (
            tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not keeps:
            return tensor.to(to)
        held = self._cache.get(id(tensor))
        if held is None:
            held = self._cache[id(tensor)] = (tensor, tensor.to(to))
        return held[1]


def _eligible(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_meta
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _widest(values: tuple[Any, ...], lower: torch.dtype) -> torch.dtype:
    """fp32 when any operand is fp32, else the autocast dtype (`promote_type` in ATen)."""
    for value in values:
        inner = value if isinstance(value, (list, tuple)) else (value,)
        if any(_eligible(v) and v.dtype is torch.float32 for v in inner):
            return torch.float32
    return lower


@contextmanager
def honoured(policy: CastPolicy) -> Iterator[None]:
    """While it lasts, `torch.autocast` for cuda or meta works on a machine without CUDA.

    A program that asks whether autocast is on for the device of a tensor gets the answer of cuda.
    Only this thread is affected; the regions of the program are read by the policy.
    """
    init: Callable[..., None] = autocast.__init__
    leave: Callable[..., Any] = autocast.__exit__
    _state.active = True

    def patched_init(
        self: autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not getattr(_state, "active", False) or device_type not in ("cuda", "meta"):
            init(self, device_type, dtype, enabled, cache_enabled)
            return
        init(self, "cuda", dtype, False, cache_enabled)
        self._enabled = enabled

    def patched_exit(self: autocast, *exc: object) -> Any:
        left = leave(self, *exc)
        if getattr(_state, "active", False) and not torch.is_autocast_enabled("cuda"):
            policy.clear()
        return left

    asked, dtype_asked = torch.is_autocast_enabled, torch.get_autocast_dtype

    def enabled_for(*device: str) -> Any:
        return asked(*_real(device))

    def dtype_for(*device: str) -> Any:
        return dtype_asked(*_real(device))

    autocast.__init__, autocast.__exit__ = patched_init, patched_exit  # type: ignore[method-assign]
    torch.is_autocast_enabled = enabled_for  # type: ignore[assignment]
    torch.get_autocast_dtype = dtype_for  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.is_autocast_enabled, torch.get_autocast_dtype = asked, dtype_asked
        autocast.__init__, autocast.__exit__ = init, leave  # type: ignore[method-assign]
        _state.active = False


def _real(device: tuple[str, ...]) -> tuple[str, ...]:
    """The device type whose autocast state is asked for: cuda for tensors without a device."""
    captured = getattr(_state, "active", False)
    return tuple("cuda" if captured and name == "meta" else name for name in device)
