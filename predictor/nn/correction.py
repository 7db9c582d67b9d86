"""What the sum of kernel times misses, as a bounded score of what a step is like.

Kernels that wait for one another, operands that a neighbour left in the cache, work of the
framework between the calls and what a compiler fuses are of the step, not of any kernel. The
score is linear in a few dimensionless summaries, so each has a term that can be read off, and
`tanh` bounds the whole: a step can be corrected, not explained away.

Legend: N kernels, F features, G steps, S summaries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from predictor.features.columns import COLUMNS
from predictor.features.roofline import LAUNCH_US

CONTEXT: tuple[str, ...] = ("compiled", "channels_last", "release", "training", "kernel_sum")
"""How the step ran. `release` as in the column: tenths of minor releases from PyTorch 2.4.
`kernel_sum`: the time asked for is that of the kernels, without the host."""
PRODUCTS: tuple[tuple[str, ...], ...] = (
    ("compiled", "channels_last"), ("compiled", "release"), ("channels_last", "release"),
    ("training", "channels_last"), ("training", "release"), ("release", "release"),
    ("compiled", "channels_last", "release"), ("training", "channels_last", "release"),
)  # fmt: skip
"""Of the context: a compiler and a memory format change from release to release."""
MECHANISM: tuple[str, ...] = (
    "host_over_device", "kernels", "kernel_over_launch", "launch_bound", "cached_traffic",
    "memory_bound",
)  # fmt: skip
"""Logarithms of host over device time, of the number of kernels, and of a kernel's mean time over
a launch; shares of kernels near the launch floor, of traffic that fits the cache, and of device
time bound by memory."""
SUMMARIES: tuple[str, ...] = (
    *CONTEXT, *(" x ".join(names) for names in PRODUCTS), *MECHANISM,
)  # fmt: skip
"""Only ever appended to: a release has as many weights as there were."""
LAUNCH_BOUND = 2.5
"""Launch times below which a kernel is near the launch floor."""
LOG_HOST_RANGE = (-4.0, 2.0)
"""Of log(host / device): a host far ahead, or far behind, is told no further."""
FAR = 4.0
"""Training deviations beyond which a summary counts no more."""
LEAST_SCALE = 0.05
TINY = 1e-6
CONSTANT = "any step"
"""Name of the term that no summary decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKernels:
    """The kernels of G steps, as far as the summaries need them."""

    x_NF: Tensor
    time_N: Tensor
    """Predicted, microseconds."""
    count_N: Tensor
    graph_N: Tensor
    host_us_G: Tensor
    """0 where the host is not in the time that is asked for."""
    training_G: Tensor

    def total(self, values_N: Tensor) -> Tensor:
        """(G,) sums over the kernels of each step."""
        return torch.zeros_like(self.host_us_G).index_add(0, self.graph_N, values_N)

    def column(self, name: str) -> Tensor:
        """(N,) feature."""
        return self.x_NF[:, COLUMNS.index(name)]


def summaries(steps: StepKernels) -> Tensor:
    """(G, S) `SUMMARIES` of each step; no gradient goes through them to the kernels."""
    with torch.no_grad():
        work_N = steps.time_N * steps.count_N
        device_G = steps.total(work_N).clamp(min=1e-6)
        kernels_G = steps.total(steps.count_N).clamp(min=1.0)
        context = _context(steps, work_N, device_G)
        products = [torch.stack([context[n] for n in names]).prod(0) for names in PRODUCTS]
        bytes_N = torch.exp(4.0 * steps.column("log_bytes")) * steps.count_N
        near_N = (steps.time_N < LAUNCH_BOUND * LAUNCH_US).float() * steps.count_N
        inside_N = (steps.column("log_cache_ratio") < 0).float() * steps.column("cache_known")
        memory_N = (steps.column("log_compute_over_memory") < 0).float()
        ratio_G = torch.log(steps.host_us_G.clamp(min=1e-6) / device_G)
        mechanism = [
            ratio_G.clamp(*LOG_HOST_RANGE),
            torch.log(kernels_G),
            torch.log(device_G / kernels_G / LAUNCH_US),
            steps.total(near_N) / kernels_G,
            steps.total(bytes_N * inside_N) / steps.total(bytes_N).clamp(min=1.0),
            steps.total(work_N * memory_N) / device_G,
        ]
        return torch.stack([*context.values(), *products, *mechanism], dim=1)


def _context(steps: StepKernels, work_N: Tensor, device_G: Tensor) -> dict[str, Tensor]:
    """(G,) each of `CONTEXT`; those of the software are the same for all kernels of a step."""
    software = {
        name: steps.total(work_N * steps.column(name)) / device_G
        for name in ("compiled", "channels_last", "release")
    }
    alone_G = (steps.host_us_G <= 0).to(device_G.dtype)
    return {**software, "training": steps.training_G.to(device_G.dtype), "kernel_sum": alone_G}


def no_terms(steps: StepKernels) -> Tensor:
    """(G, S + 1) terms of a model without a correction."""
    return torch.zeros(len(steps.host_us_G), len(SUMMARIES) + 1)


def named_terms(terms_S: Tensor) -> dict[str, float]:
    """Terms of one step (the constant last) that are not zero, the largest first."""
    values = zip((*SUMMARIES, CONSTANT), terms_S.tolist(), strict=True)
    found = {name: value for name, value in values if value != 0.0}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


class StepCorrection(nn.Module):
    """`limit * tanh(score / limit)`, the score linear in scaled summaries; zero before training."""

    mean_S: Tensor
    scale_S: Tensor

    def __init__(self, limit: float) -> None:
        """`limit`: the largest |log correction|."""
        super().__init__()
        self.limit = limit
        self.register_buffer("mean_S", torch.zeros(len(SUMMARIES)))
        self.register_buffer("scale_S", torch.ones(len(SUMMARIES)))
        self.weight_S = nn.Parameter(torch.zeros(len(SUMMARIES)))
        self.bias = nn.Parameter(torch.zeros(()))

    def scale_to(self, summaries_GS: Tensor) -> None:
        """Take mean and deviation from training steps."""
        self.mean_S.copy_(summaries_GS.mean(0))
        self.scale_S.copy_(summaries_GS.std(0, correction=0))

    def terms(self, summaries_GS: Tensor) -> Tensor:
        """(G, S) what each summary adds to the score; nothing where it did not vary in training."""
        varied_S = self.scale_S > 0
        scaled_GS = (summaries_GS - self.mean_S) / self.scale_S.clamp(min=LEAST_SCALE)
        return scaled_GS.clamp(-FAR, FAR) * self.weight_S * varied_S

    def forward(self, summaries_GS: Tensor) -> Tensor:
        """(G,) log of the factor on a step's time."""
        score_G = self.bias + self.terms(summaries_GS).sum(1)
        return self.limit * torch.tanh(score_G / self.limit)

    def shrunk_terms(self, summaries_GS: Tensor) -> Tensor:
        """(G, S + 1) the terms and the constant, shrunk alike so that they add up to `forward`."""
        bias_G1 = self.bias.expand(len(summaries_GS), 1)
        terms = torch.cat([self.terms(summaries_GS), bias_G1], dim=1)
        score_G = terms.sum(1)
        bounded_G = self.limit * torch.tanh(score_G / self.limit)
        shrink_G = torch.where(score_G.abs() > TINY, bounded_G / score_G, 1.0)
        return terms * shrink_G[:, None]

    def prior(self) -> Tensor:
        """Sum of squares: without evidence a step's time is that of its kernels and its host."""
        return (self.weight_S**2).sum() + self.bias**2
