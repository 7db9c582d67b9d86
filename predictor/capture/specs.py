"""Tensor facts: dtype names, memory layout, and the bytes that one read of a tensor touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from predictor.errors import CaptureError
from predictor.graph.ir import DTYPE_BYTES, Layout

DTYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.float8_e4m3fnuz: "fp8",
    torch.float8_e5m2fnuz: "fp8",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.uint16: "int16",
    torch.uint32: "int32",
    torch.uint64: "int64",
    torch.bool: "bool",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    **{
        getattr(torch, name): short  # newer PyTorch only
        for name, short in (("float8_e8m0fnu", "fp8"), ("float4_e2m1fn_x2", "fp4"))
        if hasattr(torch, name)
    },
}
"""The library's name of each framework dtype (unsigned integers share the signed name)."""

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
}
"""The dtypes a module can be cast to before capture."""


def dtype_name(dtype: torch.dtype) -> str:
    """The library's name of a framework dtype.

    Raises:
        CaptureError: for dtypes outside the vocabulary (quantised, sub-byte integers, complex32).
    """
    try:
        return DTYPE_NAMES[dtype]
    except KeyError:
        allowed = ", ".join(sorted(DTYPE_BYTES))
        raise CaptureError(
            f"no cost vocabulary for dtype {dtype}; allowed: {allowed}; "
            "cast the tensor, or replace the quantised module by its float version"
        ) from None


def touched_bytes(shape: Sequence[int], strides: Sequence[int], item_bytes: float) -> int:
    """Distinct bytes that reading the tensor once touches.

    Broadcast dimensions (stride 0) count once; overlapping windows count at most the span
    between the first and the last element.
    """
    distinct, span = 1, 1
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        if stride != 0:
            distinct *= size
            span += (size - 1) * abs(stride)
    return int(min(distinct, span) * item_bytes)


def layout_of(tensor: torch.Tensor) -> Layout:
    """`contiguous`, `channels_last` (4-d and 5-d) or `strided`."""
    if tensor.is_contiguous():
        return "contiguous"
    dim = tensor.dim()
    if dim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if dim == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return "channels_last"
    return "strided"
