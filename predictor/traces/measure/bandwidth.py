"""The memory bandwidth of the processor at hand, measured while nothing else computes.

A device file keeps the value for good, so it is taken with all cores, in windows of which the
system says that they were quiet; the best of them counts, since whatever disturbs only slows down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from predictor.traces.measure.conditions import WINDOW_SECONDS, LoadWatch

QUIET_WINDOWS = 2
"""Quiet windows that are enough."""
MOST_WINDOWS = 8
"""Windows that are tried at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """What a streaming kernel moved."""

    gbps: float
    """1e9 bytes a second."""
    other_share: float = 0.0
    """Share of the cores that others kept busy meanwhile; 0 where the window was quiet."""


def stream_bandwidth(cache_bytes: int, *, threads: int) -> Bandwidth:
    """Best bandwidth of reading and of copying a buffer far larger than the cache (CPU).

    Args:
        cache_bytes: last-level cache.
        threads: one a core; the framework's own number is as before afterwards.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        source = torch.ones(max(2**26, 4 * cache_bytes) // 4)
        target = torch.empty_like(source)
        target.copy_(source)  # memory is the process's own once it was written
        size = source.numel() * 4
        ways: tuple[tuple[int, Callable[..., object]], ...] = (
            (size, partial(torch.sum, source)), (2 * size, partial(target.copy_, source)),
        )  # fmt: skip
        return best_window(partial(_once_gbps, ways), LoadWatch())
    finally:
        torch.set_num_threads(before)


def best_window(once: Callable[[], float], watch: LoadWatch) -> Bandwidth:
    """The best rate in a quiet window; where none is quiet, in any, with its load.

    Args:
        once: takes a rate, GB/s.
        watch: tells the load of each window.
    """
    quiet: list[float] = []
    loaded: list[Bandwidth] = []
    while len(quiet) < QUIET_WINDOWS and len(quiet) + len(loaded) < MOST_WINDOWS:
        watch.look()
        best = once()
        while watch.seconds() < WINDOW_SECONDS:
            best = max(best, once())
        load = watch.look()
        if load is None or not load.disturbed:
            quiet.append(best)
        else:
            share = load.other_share + load.stolen
            loaded.append(Bandwidth(gbps=best, other_share=share))
    return Bandwidth(gbps=max(quiet)) if quiet else max(loaded, key=lambda b: b.gbps)


def _once_gbps(ways: tuple[tuple[int, Callable[..., object]], ...]) -> float:
    """The faster of the ways, once each."""
    rates = []
    for traffic, call in ways:
        start = time.perf_counter()
        call()
        rates.append(traffic / (time.perf_counter() - start) * 1e-9)
    return max(rates)
