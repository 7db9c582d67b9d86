"""Kernels that are the same kernel at the same place of the step, counted together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.table import repeats_of
from predictor.graph.ir import Kernel, KernelGraph
from predictor.graph.ops import OPS
from predictor.nn.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelGroup:
    """Kernels of one op, dimensions, dtype, phase and label. Values are of *one* kernel.

    Where the neighbourhood makes equal kernels differ, they are averages over the group, so that
    `count` times a value is always the group's total.
    """

    name: str
    op: str
    op_class: str
    phase: str
    count: int
    """Kernels in the group; one in a loop counts each of its runs."""
    dims: Mapping[str, int]
    dtype: str
    flops: float
    bytes: float
    latency_us: float
    lower_us: float
    upper_us: float
    floor_us: float
    bound: str
    label: str
    share: float
    """Of the time of all kernels."""


def group_kernels(graph: KernelGraph, prediction: Prediction) -> tuple[KernelGroup, ...]:
    """Groups of equal kernels, the costliest first."""
    labels = prediction.label.tolist()
    bounds = prediction.bound.tolist()
    index, members = _indices(graph.kernels, labels)
    runs = repeats_of(graph)
    counts = np.bincount(index, weights=runs, minlength=len(members))

    def mean(values: NDArray[np.float64]) -> list[float]:
        sums = np.bincount(index, weights=values * runs, minlength=len(members))
        return [float(v) for v in sums / np.maximum(counts, 1)]

    latency, lower, upper, floor = (
        mean(values)
        for values in (
            prediction.kernel_us,
            prediction.kernel_lower_us,
            prediction.kernel_upper_us,
            prediction.floor_us,
        )
    )
    flops = mean(np.array([k.flops for k in graph.kernels], dtype=np.float64))
    traffic = mean(np.array([k.bytes for k in graph.kernels], dtype=np.float64))
    total_us = float((prediction.kernel_us * runs).sum())
    groups = []
    for g, first in enumerate(members):
        kernel, n = graph.kernels[first], int(counts[g])
        groups.append(
            KernelGroup(
                name=kernel.name or kernel.op,
                op=kernel.op,
                op_class=OPS[kernel.op].op_class,
                phase=kernel.phase,
                count=n,
                dims=dict(kernel.dims),
                dtype=kernel.dtype,
                flops=flops[g],
                bytes=traffic[g],
                latency_us=latency[g],
                lower_us=lower[g],
                upper_us=upper[g],
                floor_us=floor[g],
                bound=bounds[first],
                label=labels[first],
                share=n * latency[g] / total_us if total_us > 0 else 0.0,
            )
        )
    return tuple(sorted(groups, key=lambda g: -g.share))


def _indices(kernels: tuple[Kernel, ...], labels: list[str]) -> tuple[NDArray[np.int64], list[int]]:
    """Group of every kernel, and the first kernel of every group."""
    group_of: dict[tuple[object, ...], int] = {}
    members: list[int] = []
    index = np.empty(len(kernels), dtype=np.int64)
    for i, kernel in enumerate(kernels):
        key = (kernel.op, kernel.phase, kernel.dtype, labels[i], *kernel.dims.items())
        group = group_of.setdefault(key, len(members))
        if group == len(members):
            members.append(i)
        index[i] = group
    return index, members
