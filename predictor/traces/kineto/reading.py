"""All that is read of a trace, device by device: summary, steps, kernels with their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from predictor.traces.kineto.activity import activities
from predictor.traces.kineto.execution_graph import ExecutionGraph
from predictor.traces.kineto.host_calls import host_calls
from predictor.traces.kineto.join import joined_graph
from predictor.traces.kineto.measured import Measured, measured_kernels
from predictor.traces.kineto.step_dtype import step_dtype
from predictor.traces.kineto.steps import Steps, steps_of
from predictor.traces.kineto.summary import TraceSummary, summary_of
from predictor.traces.kineto.trace import Trace
from predictor.traces.kineto.units import UnitReader


@dataclass(slots=True, kw_only=True)
class TraceReading:
    """One device of one trace."""

    number: str
    """Of the device in the trace."""
    summary: TraceSummary
    steps: Steps
    measured: Measured
    graph: str | None
    """Name of the execution graph that gave sizes, None without."""
    step_lengths_us: list[float]
    sampled: bool
    framework_version: str

    @property
    def mode(self) -> Literal["infer", "train"]:
        """Training where something ran in a backward pass or an optimizer."""
        return "infer" if self.measured.phases <= {"forward"} else "train"

    @property
    def step_dtype(self) -> str:
        """Dtype of the steps by that of their matrix work; empty where it is not known."""
        return step_dtype(self.measured)


def read_device(
    trace: Trace,
    reader: UnitReader,
    graphs: Iterable[ExecutionGraph] = (),
    *,
    keep_last: bool = False,
) -> Iterator[TraceReading]:
    """What was read of each device of a trace.

    Args:
        trace: as `read_trace` gave it.
        reader: replays calls; shared between traces it replays equal ones once.
        graphs: execution graphs, of which one may be of the trace's run.
        keep_last: take the last step too, though it may be cut off.
    """
    graph = joined_graph(trace, graphs)
    for activity in activities(trace):
        calls = host_calls(trace, activity)
        if graph is not None:
            calls.recorded = graph.calls_by_row
        steps = steps_of(trace, activity)
        units = reader.units(trace, activity, calls)
        yield TraceReading(
            number=activity.device, steps=steps,
            summary=summary_of(trace, activity, steps, keep_last=keep_last),
            measured=measured_kernels(units, activity, steps, keep_last=keep_last),
            graph=None if graph is None else graph.name, sampled=trace.sampled,
            step_lengths_us=[s.length_us for s in steps.complete(keep_last=keep_last)],
            framework_version=trace.header.versions.get("pytorch_version", ""),
        )  # fmt: skip
