"""Calls with the time they took: the outermost op that is one kernel of the vocabulary.

From the outside in, an op is replayed and lowered as capture would have it. Where that is one
kernel, the op with all that it launched is a unit; where it is several and as many ops inside
launched something, each of these is one; else the ops inside are asked. What is left is opaque,
with the rule that says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from predictor.capture.kineto import RENAMED, RecordedCall, Replayer, ReplayError
from predictor.errors import CostRuleError
from predictor.graph.ir import Kernel, OpGraph, OpNode, Phase, Workload
from predictor.lower.eager import lower_eager
from predictor.traces.kineto.activity import HOST, Activity
from predictor.traces.kineto.events import ABSENT
from predictor.traces.kineto.host_calls import HostCalls
from predictor.traces.kineto.names import KINDS
from predictor.traces.kineto.trace import Trace

COMMUNICATION = KINDS.index("communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Some work and the time it took."""

    name: str
    """Of the op, of the kernel where there is none."""
    row: int
    """Place of the op (or event) in the file."""
    phase: Phase
    start_ns: int
    """When the host called it."""
    launch_ns: int
    """When the host launched its first event: says which step it is of."""
    time_ns: int
    """Sum over what it launched; on a host, its duration."""
    events: tuple[int, ...]
    """Device events, empty on a host."""
    kernel: Kernel | None = None
    """What it is in the vocabulary; None when opaque."""
    nodes: tuple[OpNode, ...] = ()
    """The framework calls that it consists of, where they are known."""
    call: RecordedCall | None = None
    reason: str = ""
    """The rule by which it is opaque; empty when it is not."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A call as capture and lowering have it."""

    nodes: tuple[OpNode, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    composite: bool = False
    """Other calls do its work."""
    reason: str = ""


_NOTHING = Workload(
    name="", mode="infer", parameters=0, trainable_parameters=0, parameters_bytes=0,
    buffers_bytes=0, inputs_bytes=0, batch=None, tokens=None, dtype="fp32",
)  # fmt: skip


@dataclass(slots=True)
class UnitReader:
    """Reads units; equal calls are replayed once, also over several traces."""

    _replayer: Replayer = field(default_factory=Replayer)
    _readings: dict[RecordedCall, _Reading] = field(default_factory=dict)

    def units(self, trace: Trace, activity: Activity, calls: HostCalls) -> Iterator[Unit]:
        """All units of one device: those of ops, outermost ones in order, then events of no op."""
        walk = _Walk(self, activity, calls, activity.launch_ns)
        for outermost in calls.outermost():
            waiting = [int(outermost)]
            while waiting:
                waiting.extend(reversed(walk.visit(waiting.pop())))
            yield from walk.found
            walk.found.clear()
        for event in np.flatnonzero(calls.op_of_event == ABSENT):
            if activity.device != HOST:
                yield walk.event_unit(int(event))

    def reading(self, call: RecordedCall) -> _Reading:
        """What a call is in the vocabulary."""
        found = self._readings.get(call)
        if found is None:
            found = self._readings[call] = self._read(call)
        return found

    def _read(self, call: RecordedCall) -> _Reading:
        try:
            nodes = self._replayer.nodes(call)
        except ReplayError as error:
            return _Reading(reason=error.reason)
        name = call.name.removeprefix("aten::")
        own = {name, RENAMED[name][0]} if name in RENAMED else {name}
        composite = not any(node.op.partition(".")[2] in own for node in nodes)
        try:
            graph = lower_eager(OpGraph(workload=_NOTHING, nodes=nodes))
        except CostRuleError:
            return _Reading(nodes, composite=composite, reason="op_without_cost_rule")
        return _Reading(nodes, graph.kernels, composite)


@dataclass(slots=True)
class _Walk:
    """One way through the calls of a trace from the outside in."""

    reader: UnitReader
    activity: Activity
    calls: HostCalls
    launch_ns: NDArray[np.int64]
    found: list[Unit] = field(default_factory=list)

    def visit(self, op: int) -> list[int]:
        """Take an op as units, or give the ops inside that are to be asked instead."""
        inside = self.calls.children(op)
        call = self.calls.call(op)
        if not call.name.startswith("aten::"):
            return self._left(op, call, inside, "op_unknown")
        reading = self.reader.reading(call)
        on_host = self.activity.device == HOST
        groups = [] if on_host else self.calls.launching_inside(op)
        if len(reading.kernels) == 1 and (not reading.composite or len(groups) == 1):
            self._take(op, call, reading.kernels[0], reading.nodes, groups)
            return []
        if len(reading.kernels) == len(groups) > 1:
            for place, (group, kernel) in enumerate(zip(groups, reading.kernels, strict=True)):
                nodes = () if place else reading.nodes
                self._take(group, self.calls.call(group), kernel, nodes, [group])
            return []
        several = "several_kernels_in_one_call" if reading.kernels else reading.reason
        return self._left(op, call, inside, several)

    def _left(self, op: int, call: RecordedCall, inside: list[int], reason: str) -> list[int]:
        """What an op launched itself is opaque; the ops inside are asked."""
        on_host = self.activity.device == HOST
        events = self._computing(self.calls.launched(op))
        if events or (on_host and not inside and reason):
            self._add(op, call, events, reason=reason or "launches_without_kernel")
        return inside

    def _take(
        self, op: int, call: RecordedCall, kernel: Kernel, nodes: tuple[OpNode, ...],
        groups: Sequence[int],
    ) -> None:  # fmt: skip
        events = [e for group in groups for e in self.calls.launched(group)]
        self._add(op, call, self._computing(events), kernel=kernel, nodes=nodes)

    def _computing(self, events: Sequence[int]) -> list[int]:
        """Events without collectives, which are units of their own."""
        for event in events:
            if self.activity.kind[event] == COMMUNICATION:
                self.found.append(self.event_unit(event))
        return [e for e in events if self.activity.kind[e] != COMMUNICATION]

    def _add(
        self, op: int, call: RecordedCall, events: list[int], *, kernel: Kernel | None = None,
        nodes: tuple[OpNode, ...] = (), reason: str = "",
    ) -> None:  # fmt: skip
        ops, device = self.calls.tree.events, self.activity.events
        on_host = self.activity.device == HOST
        if not events and not on_host:
            return
        time = ops["dur_ns"][op] if on_host else device["dur_ns"][events].sum()
        start = int(ops["ts_ns"][op])
        launch = start if on_host else int(self.launch_ns[events].min())
        self.found.append(
            Unit(
                name=call.name, row=self.calls.row(op), phase=self.calls.phase(op),
                start_ns=start, launch_ns=launch, time_ns=int(time), events=tuple(events),
                kernel=kernel, nodes=nodes, call=call, reason=reason,
            )
        )  # fmt: skip

    def event_unit(self, event: int) -> Unit:
        """A device event that stands for itself: a collective, or one that no op launched."""
        events = self.activity.events
        talks = self.activity.kind[event] == COMMUNICATION
        return Unit(
            name=events.name_of(event), row=int(events["row"][event]),
            phase=self.calls.phase_of_event(event),
            start_ns=int(self.launch_ns[event]), launch_ns=int(self.launch_ns[event]),
            time_ns=int(events["dur_ns"][event]),
            events=(event,), reason="collective" if talks else "kernel_without_op",
        )  # fmt: skip
