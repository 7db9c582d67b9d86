"""Calls that a CUDA device runs as one kernel and meta tensors take apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from predictor.capture.composite import apply
from predictor.capture.recorder import Recorder


def dropout(recorder: Recorder, x: torch.Tensor, p: float, train: bool) -> Any:
    """`native_dropout` where CUDA takes it (ATen/native/Dropout.cpp), else NotImplemented."""
    if train and 0 < p < 1 and x.numel() > 0 and x.is_meta:
        return torch.native_dropout(x, p, True)[0]
    return NotImplemented


def softmax(recorder: Recorder, *args: Any, log: bool, **kwargs: Any) -> Any:
    """fp16 in, fp32 out is one kernel on CUDA (ATen/native/SoftMax.cpp); else NotImplemented."""
    bound = dict(zip(("input", "dim", "dtype"), args, strict=False)) | kwargs
    x, dim = bound.get("input"), bound.get("dim")
    if not isinstance(x, torch.Tensor) or not isinstance(dim, int):
        return NotImplemented
    if x.is_meta and x.dtype is torch.float16 and bound.get("dtype") is torch.float32:
        kernel = torch._log_softmax if log else torch._softmax
        return kernel(x, dim, True)
    return NotImplemented


def rms_norm(
    recorder: Recorder,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """The fused kernel where CUDA takes it (one dtype throughout), else NotImplemented."""
    fused = hasattr(torch, "_fused_rms_norm") and input.is_meta
    if not fused or (weight is not None and weight.dtype != input.dtype):
        return NotImplemented
    shape = list(normalized_shape)
    if list(input.shape[input.dim() - len(shape) :]) != shape:
        raise RuntimeError(
            f"rms_norm over {shape} does not fit an input of shape {tuple(input.shape)}"
        )
    operands = [input] if weight is None else [input, weight]
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in operands)
    return apply(_RmsNorm, recorder, shape, trains, *operands)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, shape: list[int], trains: bool, *operands: Any
    ) -> torch.Tensor:
        x = operands[0]
        with recorder.pause():
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            rows = x.shape[: x.dim() - len(shape)]
            rstd = x.new_empty((*rows, *([1] * len(shape))), dtype=torch.float32)
        recorder.record(
            "aten._fused_rms_norm", operands, [out, rstd], {"normalized_shape": list(shape)}
        )
        ctx.recorder, ctx.shape = recorder, shape
        ctx.save_for_backward(rstd, *operands)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        recorder: Recorder = ctx.recorder
        rstd, *operands = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        with recorder.pause():
            made = [
                torch.empty_like(t) if w else None for t, w in zip(operands, needed, strict=True)
            ]
        recorder.record(
            "aten._fused_rms_norm_backward",
            [grads[0], operands[0], rstd, *operands[1:]],
            [g for g in made if g is not None],
            {"normalized_shape": list(ctx.shape), "output_mask": [bool(w) for w in needed]},
        )
        return (None, None, None, *made)
