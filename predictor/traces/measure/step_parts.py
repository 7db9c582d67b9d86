"""What came of measuring a step: its rows, the parts of its time, and why it may be refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from predictor.traces.measure.conditions import Load
from predictor.traces.measure.timer import SPREAD_TOO_LARGE, Limits

LEAST_PROFILED = 5
"""Profiled steps that made the same calls, for their kernels to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """What a step's time consists of, microseconds."""

    wall_us: float
    """Median of steps that nothing watched."""
    profiled_us: float
    """Median of steps under the profiler."""
    call_cost_us: float
    """What the profiler takes for one call."""
    calls: int
    """Calls that it saw in a step."""
    kernels_us: float
    """Captured calls that were found."""
    unmatched_us: float
    """Calls that compute and have no captured partner."""
    gap_us: float
    """All else: the host between calls, views, the profiled step's own idle time. The difference of
    medians taken apart: where kernels fill the step it may come out slightly below zero."""
    closure: float
    """(kernels + unmatched + gap) / wall - 1: what a profiled step less the profiler's time is
    longer than the step just before; NaN where the device runs beside the host."""
    captured: int
    """Captured calls that launch something."""
    matched: int
    optimizer_us: float = math.nan
    """Time of the update; NaN where the step has none."""
    tried: int = 0
    """Profiled steps that were compared with the first one."""
    alike: int = 0
    """Those that made the same calls."""
    unmatched: Mapping[str, float] = field(default_factory=dict)
    """Time of unmatched calls by name, the longest first."""
    not_seen: Mapping[str, int] = field(default_factory=dict)
    """Captured calls that the profiler did not see, by name."""

    @property
    def differs(self) -> bool:
        """Whether steps make other calls each time: which call is which cannot be told then."""
        few = self.alike < min(LEAST_PROFILED, self.tried) or 2 * self.alike <= self.tried
        return self.captured > 0 and self.tried > 0 and few


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One program's step: rows for the two tables, and its parts."""

    step: Mapping[str, Any]
    kernels: Sequence[Mapping[str, Any]]
    counts: Sequence[int]
    """How often each row of `kernels` runs in the step."""
    parts: StepParts
    refused: str = ""
    """Why the number must not be written; empty when it may."""
    load: Load | None = None
    """Who computed meanwhile; None where it cannot be told."""

    def refusal(self, limits: Limits) -> str:
        """Why the number is not written, and what to do."""
        spread = self.step["spread_us"] / self.step["latency_us"]
        why = {SPREAD_TOO_LARGE: f"its spread is {spread:.0%} of it, {limits.refused:.0%} at most"}
        others = "the load of others cannot be read"
        if self.load is not None:
            others = f"others kept {self.load.other_share:.0%} of the cores busy meanwhile"
        return (
            f"the time is not written: {why.get(self.refused, self.refused)}; {others}; "
            "measure it again on a quiet machine, or longer (--seconds)"
        )
