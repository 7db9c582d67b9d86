"""One step of a trace, or of an execution graph, as an op graph to estimate on another device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from predictor.capture.kineto_graph import GraphWriter, NamedTensor
from predictor.errors import CaptureError, DataError
from predictor.graph.ir import OpGraph, OpNode, Workload
from predictor.lower.aten_table import launches_nothing
from predictor.traces.kineto.activity import HOST, Activity, activities
from predictor.traces.kineto.execution_graph import ExecutionGraph, is_execution_graph, read_graph
from predictor.traces.kineto.graph_steps import graph_of_execution_graph, optimizer_of
from predictor.traces.kineto.host_calls import HostCalls, host_calls
from predictor.traces.kineto.join import JoinedGraph, joined_graph
from predictor.traces.kineto.measured import measured_kernels
from predictor.traces.kineto.names import KINDS, MEMCPY
from predictor.traces.kineto.step_dtype import step_dtype
from predictor.traces.kineto.steps import Step, Steps, steps_of
from predictor.traces.kineto.table import time_text
from predictor.traces.kineto.trace import Trace, read_trace
from predictor.traces.kineto.units import Unit, UnitReader

_COMMUNICATION = KINDS.index("communication")
_NEIGHBOURS = ("*_et.json*", "*_eg.json*", "*execution_trace*.json*")
"""Names that execution graphs go by, beside a trace."""


def graph_of_trace(path: Path) -> OpGraph:
    """The framework calls of one step of a trace, or of an execution graph.

    The step is the complete one whose length is the median. Copies between host and device and
    collectives are left out, and said: an estimate holds neither. Calls that the trace does not
    tell enough about are opaque nodes. An execution graph of the same run beside the trace gives
    sizes and dependencies; without one, calls depend on each other in the order of the program.

    Args:
        path: the trace, or the execution graph.

    Raises:
        DataError: the file cannot be read, or is neither.
        CaptureError: it tells the sizes of no call at all.
    """
    if is_execution_graph(path):
        return graph_of_execution_graph(read_graph(path), UnitReader())
    trace = read_trace(path)
    joined = joined_graph(trace, _neighbours(path, trace))
    activity = activities(trace)[0]
    calls = host_calls(trace, activity)
    if joined is not None:
        calls.recorded = joined.calls_by_row
    steps = steps_of(trace, activity)
    return _Builder(trace, activity, calls, steps, joined).graph()


def _neighbours(path: Path, trace: Trace) -> list[ExecutionGraph]:
    """Execution graphs of the trace's process beside it."""
    found = []
    names = {p for pattern in _NEIGHBOURS for p in path.parent.glob(pattern) if p.is_file()}
    for file in sorted(names - {path}):
        if is_execution_graph(file):
            try:
                found.append(read_graph(file))
            except DataError:  # a neighbour that was not asked for
                continue
    return found


@dataclass(frozen=True, slots=True)
class _View:
    """A call that launches nothing."""

    start_ns: int
    node: OpNode


@dataclass(slots=True)
class _Builder:
    """The graph of one step of one device."""

    trace: Trace
    activity: Activity
    calls: HostCalls
    steps: Steps
    joined: JoinedGraph | None
    writer: GraphWriter = field(default_factory=GraphWriter)
    left_out_ns: Counter[str] = field(default_factory=Counter)
    opaque_ns: Counter[str] = field(default_factory=Counter)
    unknown_ns: int = 0
    """Of opaque calls that take no time in an estimate."""
    known_ns: int = 0

    def graph(self) -> OpGraph:
        step, start, end = self._step()
        reader = UnitReader()
        units = [
            u for u in reader.units(self.trace, self.activity, self.calls)
            if start <= u.launch_ns < end
        ]  # fmt: skip
        items: list[Unit | _View] = [*units, *self._views(start, end)]
        for item in sorted(items, key=lambda item: item.start_ns):
            if isinstance(item, Unit):
                self._add(item)
            else:
                self.writer.add([item.node], item.node.phase)
        if self.known_ns == 0:
            raise CaptureError(
                f"{self.trace.header.name} tells the sizes of no call: record it with "
                "torch.profiler.profile(record_shapes=True), or put the execution graph of the "
                "same run (torch.profiler.ExecutionTraceObserver) beside it"
            )
        measured = measured_kernels(units, self.activity, self.steps, keep_last=True)
        trains = measured.phases - {"forward"}
        workload = Workload(
            name=self.trace.header.name, mode="train" if trains else "infer", parameters=0,
            trainable_parameters=0, parameters_bytes=0, buffers_bytes=0, inputs_bytes=0,
            batch=None, tokens=None, dtype=step_dtype(measured) or "fp32",
            optimizer=optimizer_of(self.trace.annotations.names) if trains else None,
            warnings=self._warnings(step), recorded_us=self._recorded_us(step),
        )  # fmt: skip
        return OpGraph(workload=workload, nodes=tuple(self.writer.nodes))

    def _step(self) -> tuple[Step, int, int]:
        """The step that is taken, and the host's time from its start to that of the next."""
        complete = self.steps.complete()
        lengths = np.array([s.length_us for s in complete])
        step = complete[int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])]
        later = [s.host_start_ns for s in self.steps.all if s.host_start_ns > step.host_start_ns]
        end = min(later) if later else np.iinfo(np.int64).max
        return step, step.host_start_ns, int(end)

    def _add(self, unit: Unit) -> None:
        if self._leave_out(unit):
            return
        if unit.kernel is None:
            self.opaque_ns[unit.reason] += unit.time_ns
            takes_time = self.writer.add_opaque(
                unit.name, unit.call, unit.phase, unit.reason, unit.time_ns / 1000
            )
            if not takes_time:
                self.unknown_ns += unit.time_ns
            return
        self.known_ns += unit.time_ns
        if not unit.nodes:  # a further kernel of the call before
            self.writer.add_time(unit.time_ns / 1000)
            return
        node = None if self.joined is None else self.joined.nodes_by_row.get(unit.row)
        self.writer.add(
            unit.nodes, unit.phase, measured_us=unit.time_ns / 1000,
            inputs=None if node is None else [
                NamedTensor(storage=t.storage, shape=s)
                for t, s in zip(node.inputs, node.input_dims, strict=True)
            ],
            outputs=() if node is None else [
                NamedTensor(storage=t.storage, shape=s)
                for t, s in zip(node.outputs, node.output_dims, strict=True)
            ],
        )  # fmt: skip

    def _leave_out(self, unit: Unit) -> bool:
        """Whether a unit is communication, or a copy between host and device."""
        if not unit.events:
            return False
        event = unit.events[0]
        if self.activity.kind[event] == _COMMUNICATION:
            self.left_out_ns["collectives"] += unit.time_ns
            return True
        events = self.activity.events
        name = events.name_of(event)
        if events["category"][event] == MEMCPY and ("HtoD" in name or "DtoH" in name):
            self.left_out_ns["copies between host and device"] += unit.time_ns
            return True
        return False

    def _views(self, start: int, end: int) -> list[_View]:
        """Calls that launch nothing, outside of others: the host must issue them too."""
        tree = self.calls.tree
        found: list[_View] = []
        names = [
            name if name.startswith("aten::") and launches_nothing(_dotted(name)) else ""
            for name in tree.events.names
        ]
        aten = [name.startswith("aten::") for name in tree.events.names]
        low, high = np.searchsorted(tree.events["ts_ns"], (start, end))
        for op in range(int(low), int(high)):
            name = names[tree.events["name"][op]]
            parent = int(tree.parent[op])
            if not name or (parent >= 0 and aten[tree.events["name"][parent]]):
                continue
            node = OpNode(
                op=_dotted(name), phase=self.calls.phase(op), inputs=(), outputs=(),
                attrs={"view": True},
            )  # fmt: skip
            found.append(_View(int(tree.events["ts_ns"][op]), node))
        return found

    def _recorded_us(self, step: Step) -> dict[str, float]:
        """The measured step, and its kernel time by what becomes of it."""
        opaque = sum(self.opaque_ns.values()) - self.unknown_ns
        parts_ns = {
            "estimated": self.known_ns + opaque, "opaque": opaque, "unknown": self.unknown_ns,
            **self.left_out_ns,
        }  # fmt: skip
        return {"step": step.length_us, **{name: ns / 1000 for name, ns in parts_ns.items()}}

    def _warnings(self, step: Step) -> tuple[str, ...]:
        notes = [
            f"one step of the trace: {step.name}, {time_text(step.length_us)} as measured on "
            f"{self._device()}; parameters and optimizer are not in a trace: memory is that of "
            "single calls"
        ]
        if self.joined is None:
            notes.append("no tensor ids: calls depend on each other in the order of the program")
        else:
            notes.append(f"sizes and dependencies from the execution graph {self.joined.name}")
        for what, time_ns in self.left_out_ns.items():
            notes.append(f"left out: {what}, {time_text(time_ns / 1000)} in the trace")
        if self.opaque_ns:
            reasons = ", ".join(
                f"{reason} {time_text(ns / 1000)}" for reason, ns in self.opaque_ns.most_common()
            )
            notes.append(
                f"opaque calls: {time_text(sum(self.opaque_ns.values()) / 1000)} of kernel time in "
                f"the trace ({reasons})"
            )
            if self.unknown_ns:
                notes.append(
                    f"calls of which nothing is known take no time in the estimate: "
                    f"{time_text(self.unknown_ns / 1000)} in the trace"
                )
        if self.trace.sampled:
            notes.append("events were left out of the trace: the step is not whole")
        return tuple(notes)

    def _device(self) -> str:
        if self.activity.device == HOST:
            return "the host"
        return self.trace.header.device_names.get(self.activity.device, "a device without name")


def _dotted(name: str) -> str:
    return name.replace("::", ".", 1)
