"""The memory format of convolutions, which meta kernels lose and cuDNN keeps.

cuDNN runs in channels_last when the input or the weight is stored so (`cudnn_conv_suggest_
memory_format` in ATen/native/ConvUtils.h), and its outputs and gradients have that format. All
other kernels keep strides on meta tensors as they do on the device.
"""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

CHANNELS_LAST = (torch.channels_last, torch.channels_last_3d)


def convolution_layout(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`out`, or its channels_last twin when the convolution runs in that format."""
    if x.dim() not in (4, 5) or x.dtype == torch.float64:
        return out
    for operand in (x, weight):
        wanted = suggest_memory_format(operand)
        if wanted in CHANNELS_LAST:
            if out.is_contiguous(memory_format=wanted):
                return out
            return torch.empty_like(out, memory_format=wanted)
    return out
