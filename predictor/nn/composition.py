"""Step time from kernel times: device work, host work, whichever is later.

Legend: N kernels, G graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP_SHARPNESS = 8.0


def device_us(kernel_us_N: Tensor, weight_N: Tensor, graph_N: Tensor, graphs: int) -> Tensor:
    """(G,) busy device time: weighted sum of kernel times of each graph."""
    out_G = torch.zeros(graphs, dtype=kernel_us_N.dtype, device=kernel_us_N.device)
    return out_G.index_add(0, graph_N, kernel_us_N * weight_N)


def step_us(device_us_G: Tensor, host_us_G: Tensor) -> Tensor:
    """(G,) smooth maximum of device time and host time: the host runs ahead until it cannot."""
    p = STEP_SHARPNESS
    ratio = torch.log(device_us_G / host_us_G.clamp(min=1e-3))
    return host_us_G.clamp(min=1e-3) * torch.exp(torch.nn.functional.softplus(p * ratio) / p)
