"""Where the time of a trace went: busy, idle, communication, overlap, copies, the top kernels.

All times are of the complete steps together, divided by their number. Busy is the union over
streams, never their sum. Idle is what no stream covers, and is told apart by what was missing:

- `launch gap`: the host had not issued the next kernel yet;
- `waiting`: it had, and the kernel waited for another stream, an event or its turn;
- `unexplained`: the trace does not tell which call launched the next kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from predictor.traces.kineto.activity import HOST, Activity, activities
from predictor.traces.kineto.events import ABSENT
from predictor.traces.kineto.intervals import common_ns, covered_at_least
from predictor.traces.kineto.names import KINDS
from predictor.traces.kineto.self_time import host_kernels
from predictor.traces.kineto.steps import Found, Steps, steps_of
from predictor.traces.kineto.trace import Trace

TOP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKernel:
    """A kernel by name, over the complete steps."""

    name: str
    kind: str
    count: int
    time_us: float
    """Sum over its calls."""
    share: float
    """Of the time of all kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """One device of one trace; times are microseconds a step, means over the complete steps."""

    file: str
    device: str
    """As the trace names it: the runtime's name, `host` where the host alone was traced, empty
    where it tells none."""
    rank: int
    world_size: int
    steps_found: Found
    steps: int
    """Complete ones, over which times are averaged."""
    steps_left_out: int
    """The last one, where it may be cut off."""
    step_us: float
    """From the first event of a step to the first of the next: busy and idle time together."""
    median_step_us: float
    """Median over the steps: far from the mean, some steps are unlike the others."""
    spread_us: float
    """Standard deviation of the steps' lengths."""
    busy_us: float
    """Some stream was busy: compute, communication or copy."""
    compute_us: float
    communication_us: float
    copy_us: float
    overlap_us: float
    """Communication while something was computed."""
    exposed_communication_us: float
    """Communication while nothing else was done; the rest of it ran beside copies."""
    concurrent_us: float
    """Two streams or more were busy."""
    idle_us: float
    launch_gap_us: float
    waiting_us: float
    unexplained_us: float
    streams: Mapping[str, float]
    """Busy time by stream."""
    kernels: int
    """Events on the device, over the complete steps."""
    replayed: int
    """Of these, launched by replays of captured graphs."""
    top: tuple[TopKernel, ...]
    notes: tuple[str, ...]
    """What a reader must know."""


def summaries(trace: Trace, *, keep_last: bool = False) -> list[TraceSummary]:
    """A summary of each device of a trace.

    Args:
        trace: as `read_trace` gave it.
        keep_last: take the last step too, though it may be cut off.
    """
    return [
        summary_of(trace, activity, steps_of(trace, activity), keep_last=keep_last)
        for activity in activities(trace)
    ]


def summary_of(
    trace: Trace, activity: Activity, steps: Steps, *, keep_last: bool = False
) -> TraceSummary:
    """The summary of one device."""
    complete = steps.complete(keep_last=keep_last)
    start, end = steps.window(keep_last=keep_last)
    each = 1000 * len(complete)
    lengths = np.array([s.length_us for s in complete])
    busy = activity.union_of().within(start, end)
    compute, communication, copies = (activity.union_of(kind).within(start, end) for kind in KINDS)
    lanes = {name: u.within(start, end) for name, u in activity.by_stream().items()}
    others = covered_at_least([compute, copies], 1)
    launch_gap, waiting, unexplained = _idle_parts(activity, start, end)
    inside = (activity.events["ts_ns"] >= start) & (activity.events["ts_ns"] < end)
    return TraceSummary(
        file=trace.header.name, device=device_name(trace, activity), rank=trace.header.rank,
        world_size=trace.header.world_size, steps_found=steps.found, steps=len(complete),
        steps_left_out=len(steps.all) - len(complete),
        step_us=(end - start) / each, median_step_us=float(np.median(lengths)),
        spread_us=float(lengths.std()),
        busy_us=busy.length_ns / each, compute_us=compute.length_ns / each,
        communication_us=communication.length_ns / each, copy_us=copies.length_ns / each,
        overlap_us=common_ns(communication, compute) / each,
        exposed_communication_us=(
            communication.length_ns - common_ns(communication, others)
        ) / each,
        concurrent_us=covered_at_least(list(lanes.values()), 2).length_ns / each,
        idle_us=(end - start - busy.length_ns) / each, launch_gap_us=launch_gap / each,
        waiting_us=waiting / each, unexplained_us=unexplained / each,
        streams={name: u.length_ns / each for name, u in lanes.items()},
        kernels=int(inside.sum()), replayed=int((inside & activity.replayed).sum()),
        top=_top(trace, activity, start, end), notes=_notes(trace, steps, keep_last=keep_last),
    )  # fmt: skip


def device_name(trace: Trace, activity: Activity) -> str:
    """What the trace calls a device; empty where it does not."""
    if activity.device == HOST:
        return HOST
    names = trace.header.device_names
    same = set(names.values())
    return names.get(activity.device, same.pop() if len(same) == 1 else "")


def _idle_parts(activity: Activity, start: int, end: int) -> tuple[int, int, int]:
    """Nanoseconds of launch gaps, waiting, and gaps of unknown reason."""
    gaps = activity.union_of().gaps(start, end)
    if len(gaps.starts) == 0:
        return 0, 0, 0
    if activity.device == HOST:
        return 0, 0, gaps.length_ns
    begins = activity.events["ts_ns"]
    following = np.searchsorted(begins, gaps.ends, side="left")
    has_next = following < len(begins)
    call = np.full(len(following), ABSENT, dtype=np.int64)
    call[has_next] = activity.launch[following[has_next]]
    known = call != ABSENT
    issued = np.full(len(call), 0, dtype=np.int64)
    issued[known] = activity.launches.end_ns[call[known]]
    late = np.clip(issued, gaps.starts, gaps.ends) - gaps.starts
    length = gaps.ends - gaps.starts
    return (
        int(late[known].sum()), int((length - late)[known].sum()), int(length[~known].sum()),
    )  # fmt: skip


def _top(trace: Trace, activity: Activity, start: int, end: int) -> tuple[TopKernel, ...]:
    if activity.device == HOST:
        events, time = host_kernels(trace)
        kind = np.zeros(len(events), dtype=np.int8)
    else:
        events, kind = activity.events, activity.kind
        time = events["dur_ns"]
    inside = (events["ts_ns"] >= start) & (events["ts_ns"] < end)
    names = events["name"][inside]
    total = np.bincount(names, weights=time[inside], minlength=len(events.names))
    count = np.bincount(names, minlength=len(events.names))
    kind_of = np.zeros(len(events.names), dtype=np.int8)
    kind_of[events["name"]] = kind
    whole = float(total.sum())
    return tuple(
        TopKernel(
            name=events.names[i], kind=KINDS[kind_of[i]], count=int(count[i]),
            time_us=float(total[i]) / 1000, share=float(total[i]) / whole,
        )
        for i in np.argsort(-total, kind="stable")[:TOP]
        if count[i]
    )  # fmt: skip


def _notes(trace: Trace, steps: Steps, *, keep_last: bool) -> tuple[str, ...]:
    header, notes = trace.header, []
    if not header.tells_rank:
        notes.append("no distributedInfo: taken as rank 0 of one process")
    notes += {
        "annotated": [],
        "optimizer": ["no ProfilerStep: steps end where the optimizer's step ends"],
        "repetition": ["no ProfilerStep: steps are repetitions of the sequence of kernels"],
        "whole": ["no ProfilerStep and nothing that repeats: the whole trace as one step"],
    }[steps.found]
    if len(steps.complete(keep_last=keep_last)) < len(steps.all):
        notes.append(f"last step left out, it may be cut off: {steps.all[-1].name}")
    elif len(steps.all) == 1 and steps.found != "whole":
        notes.append("one step only: its time ends with its last event")
    if trace.sampled:
        notes.append(
            f"{trace.recorded_share:.1%} of the profiler's ops are in the file: events were left "
            "out, times are too small"
        )
    dropped = ", ".join(f"{n:,} {rule}" for rule, n in sorted(trace.dropped.items()))
    if dropped:
        notes.append(f"events dropped: {dropped}")
    if trace.mended:
        notes.append(f"{trace.mended:,} events were no JSON as written and were mended")
    return tuple(notes)
