"""Shapes of grouped matrix products, for the dtypes that PyTorch's own shape rule refuses.

`_grouped_mm` takes fp32 and fp16 on every device (group by group), its shape rule bf16 alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from predictor.errors import CaptureError

GROUPED_MM = "aten._grouped_mm"


def needs_shape_rule(op: str, tensors: list[torch.Tensor]) -> bool:
    """Whether a call is a grouped product that PyTorch cannot give a shape."""
    return op == GROUPED_MM and tensors[0].dtype in (torch.float32, torch.float16)


def grouped_result(operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """An empty result of `_grouped_mm`.

    Args:
        operands: both factors, and where the groups end along the axis they share, if they do.

    Raises:
        CaptureError: operands that PyTorch refuses too.
    """
    a, b, *ends = operands
    if a.dtype != b.dtype or a.shape[-1] != b.shape[-2]:
        raise CaptureError(
            f"grouped product of {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}: give "
            "operands of one dtype whose last and last but one sizes agree"
        )
    if a.dim() == 3 and b.dim() == 3:
        shape: tuple[int, ...] = (a.shape[0], a.shape[1], b.shape[2])
    elif a.dim() == 2 and b.dim() == 2 and ends:
        shape = (ends[0].shape[0], a.shape[0], b.shape[1])
    else:
        shape = (a.shape[-2], b.shape[-1])
    return a.new_empty(shape)
