"""Steps of a trace: by `ProfilerStep` annotations, else by what repeats, else the whole as one.

A step of a device lasts from its first event to the first event of the next step, so that steps in
a row fill the time without gap or overlap. Which step an event belongs to is decided by when the
host launched it: a device runs behind. The last step is taken as cut off where others are there:
the profiler may have stopped before the device was done, and nothing marks its end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.traces.kineto.activity import HOST, Activity
from predictor.traces.kineto.events import EventTable
from predictor.traces.kineto.names import step_number
from predictor.traces.kineto.trace import Trace

Found: TypeAlias = Literal["annotated", "optimizer", "repetition", "whole"]
"""How steps were told apart: `ProfilerStep` annotations, ends of the optimizer's step, a repeating
sequence of kernels, or not at all."""

_OPTIMIZER = "Optimizer.step#"
_FEWEST = 3
"""Repetitions that a sequence needs to count as steps."""
_ALIKE = 0.95
"""Share of events that must be the same one period later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step on one device."""

    name: str
    host_start_ns: int
    """When the host began to launch it."""
    host_end_ns: int
    start_ns: int
    """First event on the device."""
    end_ns: int
    """First event of the next step; of the last step its own last end."""
    last: bool
    """Nothing follows it: it may be cut off."""

    @property
    def length_us(self) -> float:
        """Duration in microseconds."""
        return (self.end_ns - self.start_ns) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of one device in order."""

    found: Found
    all: tuple[Step, ...]

    def complete(self, *, keep_last: bool = False) -> tuple[Step, ...]:
        """Steps without the last one, which may be cut off; a single step stays."""
        if keep_last or len(self.all) < 2:
            return self.all
        return tuple(s for s in self.all if not s.last)

    def window(self, *, keep_last: bool = False) -> tuple[int, int]:
        """Start and end of these steps."""
        some = self.complete(keep_last=keep_last)
        return some[0].start_ns, some[-1].end_ns


def steps_of(trace: Trace, activity: Activity) -> Steps:
    """The steps of one device, by the first way that finds one in which something ran."""
    at = np.sort(activity.launch_ns)
    first, end = int(at[0]), int(at[-1]) + 1
    numbered = _annotated(trace.annotations)
    if numbered:
        steps = _between(activity, numbered, "annotated")
        if steps.all:
            return steps
    ends = _optimizer_ends(trace.annotations)
    if len(ends) >= 2:
        edges = [min(first, ends[0] - 1), *ends, *([end] if end > ends[-1] else [])]
        return _between(activity, _iterations(edges), "optimizer")
    starts = _repetition(activity)
    if starts is not None:
        edges = [*(int(at[i]) for i in starts), end]
        return _between(activity, _iterations(edges), "repetition")
    return _between(activity, [("whole trace", first, end)], "whole")


def _iterations(edges: list[int]) -> list[tuple[str, int, int]]:
    """Spans between times in a row."""
    return [(f"iteration {i}", a, b) for i, (a, b) in enumerate(pairwise(edges))]


def _annotated(spans: EventTable) -> list[tuple[str, int, int]]:
    """Name, start and end of the `ProfilerStep` annotations, each number once."""
    numbers = [step_number(name) for name in spans.names]
    found: dict[int, tuple[str, int, int]] = {}
    ends = spans.end_ns
    for i, name in enumerate(spans["name"]):
        number = numbers[name]
        if number is not None and number not in found:
            found[number] = (spans.names[name], int(spans["ts_ns"][i]), int(ends[i]))
    return sorted(found.values(), key=lambda span: span[1])


def _optimizer_ends(spans: EventTable) -> list[int]:
    """Ends of the optimizer's steps, of the optimizer that steps first where there are several."""
    marks = [name.startswith(_OPTIMIZER) for name in spans.names]
    index = [i for i, name in enumerate(spans["name"]) if marks[name]]
    if not index:
        return []
    counts = Counter(int(spans["name"][i]) for i in index)
    name = min(counts, key=lambda n: (counts[n], n))
    ends = spans.end_ns
    return [int(ends[i]) for i in index if spans["name"][i] == name]


def _repetition(activity: Activity) -> list[int] | None:
    """Where repetitions of the whole sequence of events start, in launch order; None without any.

    Every name must occur once a repetition at least (but for the cut ends): a model's layers repeat
    too, and what comes once before and after them shows that they are no steps.
    """
    names = activity.events["name"][np.argsort(activity.launch_ns, kind="stable")]
    values, counts = np.unique(names, return_counts=True)
    rarest = int(values[np.argmin(counts)])
    places = np.flatnonzero(names == rarest)
    if len(values) < 2 or len(places) < _FEWEST - 1:
        return None
    period = int(np.median(np.diff(places)))
    repetitions = len(names) / period
    if repetitions < _FEWEST or counts.min() < int(repetitions) - 1:
        return None
    alike: NDArray[np.bool_] = names[period:] == names[:-period]
    if alike.mean() < _ALIKE:
        return None
    return list(range(0, len(names), period))


def _between(activity: Activity, spans: list[tuple[str, int, int]], found: Found) -> Steps:
    """Steps by launches between the starts of host spans; a span without an event is none."""
    launched = activity.launch_ns
    starts, ends = activity.events["ts_ns"], activity.events.end_ns
    edges = np.array([start for _, start, _ in spans], dtype=np.int64)
    owner = np.searchsorted(edges, launched, side="right") - 1
    inside = (owner >= 0) & (launched < max(end for *_, end in spans))
    first = np.full(len(spans), np.iinfo(np.int64).max)
    reach = np.zeros(len(spans), dtype=np.int64)
    np.minimum.at(first, owner[inside], starts[inside])
    np.maximum.at(reach, owner[inside], ends[inside])
    filled = np.flatnonzero(reach > 0)
    if activity.device == HOST:
        first = edges
        reach = np.array([end for _, _, end in spans], dtype=np.int64)
    steps = []
    for place, i in enumerate(filled):
        following = filled[place + 1] if place + 1 < len(filled) else None
        name, host_start, host_end = spans[i]
        end = reach[i] if following is None else first[following]
        steps.append(
            Step(name=name, host_start_ns=host_start, host_end_ns=host_end, start_ns=int(first[i]),
                 end_ns=int(max(end, first[i] + 1)), last=following is None)
        )  # fmt: skip
    return Steps(found=found, all=tuple(steps))
