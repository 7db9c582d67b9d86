"""What was captured, in numbers: parameters, bytes, batch, tokens, dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from predictor.capture.specs import dtype_name
from predictor.capture.tensors import sparse_bytes
from predictor.graph.ir import Workload

_INDEX_DTYPES = (torch.int64, torch.int32)


def describe(
    *,
    name: str,
    mode: Literal["infer", "train"],
    parameters: Sequence[torch.Tensor],
    buffers: Iterable[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    amp: torch.dtype | None,
    optimizer: str | None,
    gradient_bytes: int,
    warnings: Iterable[str],
) -> Workload:
    """The record of a capture; parameters are distinct, warnings lose their repetitions."""
    tokens = token_shape(inputs)
    return Workload(
        name=name,
        mode=mode,
        parameters=sum(p.numel() for p in parameters),
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        parameters_bytes=sum(size_bytes(p) for p in parameters),
        buffers_bytes=sum(size_bytes(b) for b in buffers),
        inputs_bytes=sum(size_bytes(t) for t in inputs),
        batch=next((t.shape[0] for t in inputs if t.dim() > 0), None),
        tokens=None if tokens is None else tokens[0] * tokens[1],
        dtype=_dtype(parameters or inputs, amp),
        optimizer=optimizer,
        trainable_bytes=gradient_bytes,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def token_shape(inputs: Iterable[torch.Tensor]) -> tuple[int, ...] | None:
    """Shape of the token ids: the first two-dimensional integer input."""
    for tensor in inputs:
        if tensor.dim() == 2 and tensor.dtype in _INDEX_DTYPES:
            return tuple(tensor.shape)
    return None


def size_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements, of the stored ones when it is sparse."""
    if tensor.layout is not torch.strided:
        return sparse_bytes(tensor)
    return tensor.numel() * tensor.itemsize


def _dtype(tensors: Sequence[torch.Tensor], amp: torch.dtype | None) -> str:
    """The autocast dtype, or that of most floating-point elements."""
    if amp is not None:
        return f"amp-{dtype_name(amp)}"
    counts: dict[str, int] = {}
    for tensor in tensors:
        if tensor.is_floating_point():
            name = dtype_name(tensor.dtype)
            counts[name] = counts.get(name, 0) + tensor.numel()
    return max(counts, key=lambda name: counts[name]) if counts else "fp32"
