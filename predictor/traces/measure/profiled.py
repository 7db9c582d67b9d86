"""Steps under torch.profiler, as trees of framework calls with their times.

The profiler takes time for each call that it sees, up to a microsecond. That time is spent around
the call: a call's own duration is sound, but the time of a call that makes other calls holds what
the profiler took for these. `call_cost_us` is this time a call, measured on a program of its own;
it is taken off by the number of calls inside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType as EventDevice
from torch.profiler import ProfilerActivity, profile, record_function

from predictor.traces.measure.local import DeviceType
from predictor.traces.measure.program import RealProgram

STEP = "predictor.step"
_MARK = "predictor."


@dataclass(slots=True, kw_only=True)
class CallNode:
    """One call that the profiler saw."""

    name: str
    """`aten::addmm`, `autograd::engine::evaluate_function: AddmmBackward0`, …."""
    shapes: tuple[tuple[int, ...], ...]
    """Of its tensors, in order; scalars and absent ones left out."""
    sequence: int
    """Number that a forward call shares with its backward; -1 for none."""
    host_us: float
    device_us: float
    """Time of the kernels that it and the calls inside launched."""
    inside: list[CallNode] = field(default_factory=list)
    calls: int = 0
    """Calls inside, at any depth."""
    phase: str = ""

    def every(self) -> list[CallNode]:
        """The call and all calls inside, in the order in which they began."""
        found = [self]
        for call in self.inside:
            found.extend(call.every())
        return found


def call_cost_us(pairs: int = 9) -> float:
    """What the profiler takes for one call, microseconds (CPU).

    From a chain of calls on a few numbers and its gradient, which no second thread helps with: with
    the profiler and without, in turn.

    Args:
        pairs: turns; their median counts.
    """
    start = torch.ones(8, 8, requires_grad=True)

    def run() -> float:
        before = time.perf_counter_ns()
        x = start
        for _ in range(200):
            x = (x * 1.01).relu().view(64).view(8, 8)
        x.sum().backward()
        return (time.perf_counter_ns() - before) * 1e-3

    run()
    longer, calls = [], 0
    for _ in range(pairs):
        plain = run()
        with profile(activities=[ProfilerActivity.CPU]) as watched:
            longer.append(run() - plain)
        calls = calls or len(watched.events())
    return max(0.0, float(np.median(longer))) / calls


def profiled_step(
    program: RealProgram, device: DeviceType, *, shapes: bool, settle: bool = False
) -> CallNode:
    """One step under the profiler.

    Args:
        program: whose step.
        device: `cpu` or `cuda`.
        shapes: whether to tell the shapes of operands, which takes longer.
        settle: run a step under the profiler before the one that counts: starting it empties the
            caches, which a short step feels.
    """
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=shapes) as seen:
        if settle:
            program.step()
        with record_function(STEP):
            program.step(lambda phase: record_function(_MARK + phase))
            if device == "cuda":
                torch.cuda.synchronize()
    return call_tree(seen.events())


def call_tree(events: Sequence[Any]) -> CallNode:
    """The tree below the step's own record.

    Calls of another thread (the backward pass of a CUDA program) stand inside the phase in which
    they begin.

    Args:
        events: function events of the profiler.
    """
    host = [e for e in events if e.device_type == EventDevice.CPU]
    step = next(e for e in host if e.name == STEP)
    node = _node(step, "")
    elsewhere = [
        e for e in sorted(host, key=_began)
        if e.cpu_parent is None and e is not step and e.thread != step.thread
    ]  # fmt: skip
    for marker in (e for e in step.cpu_children if e.name.startswith(_MARK)):
        phase = next(n for n in node.inside if n.name == marker.name)
        found = [e for e in elsewhere if _began(marker) <= _began(e) < float(marker.time_range.end)]
        phase.inside.extend(_node(e, phase.phase) for e in found)
        phase.calls = sum(1 + n.calls for n in phase.inside)
        phase.device_us = sum(n.device_us for n in phase.inside)
    node.calls = sum(1 + n.calls for n in node.inside)
    return node


def _node(event: Any, phase: str) -> CallNode:
    name = str(event.name)
    if name.startswith(_MARK) and name != STEP:
        phase = name.removeprefix(_MARK)
    inside = [
        _node(child, phase)
        for child in sorted(event.cpu_children, key=_began)
        if child.device_type == EventDevice.CPU
    ]
    return CallNode(
        name=name, shapes=_shapes(event.input_shapes), sequence=int(event.sequence_nr),
        host_us=float(event.time_range.elapsed_us()),
        device_us=float(getattr(event, "device_time_total", 0.0)),
        inside=inside, calls=len(inside) + sum(child.calls for child in inside), phase=phase,
    )  # fmt: skip


def _began(event: Any) -> float:
    return float(event.time_range.start)


def _shapes(given: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of tensors, those of lists of tensors too."""
    found: list[tuple[int, ...]] = []
    for shape in given or ():
        if shape and isinstance(shape[0], (list, tuple)):
            found.extend(tuple(map(int, inner)) for inner in shape if inner)
        elif shape:
            found.append(tuple(map(int, shape)))
    return tuple(found)


Value = Callable[[CallNode], float]
"""Time of a call, microseconds."""


def value_of(device: DeviceType, cost_us: float) -> Value:
    """Time of a call on a device: its kernels, or the wall clock less what the profiler took."""
    if device == "cuda":
        return lambda call: call.device_us
    return lambda call: max(0.0, call.host_us - cost_us * call.calls)
