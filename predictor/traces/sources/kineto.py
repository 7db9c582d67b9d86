"""Importer of profiler traces: what PyTorch's profiler (Kineto) writes, of any release.

A trace gives a row a kernel (context `step`: device time alone of what a call launched, inside the
running step) and a row for its steps. Rules and flags stand in `datasets/kineto/README.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import DataError
from predictor.traces.cells import ABOVE_PEAK, flag_where
from predictor.traces.kineto.execution_graph import ExecutionGraph, is_execution_graph, read_graph
from predictor.traces.kineto.reading import TraceReading, read_device
from predictor.traces.kineto.summary import TraceSummary
from predictor.traces.kineto.trace import Trace, read_trace
from predictor.traces.kineto.units import UnitReader
from predictor.traces.layouts import nothing_found
from predictor.traces.schema import Imported
from predictor.traces.sources.kineto_coverage import RowCoverage, row_coverage
from predictor.traces.sources.kineto_files import TraceFile, licence_of, trace_files
from predictor.traces.sources.kineto_rows import (
    TracedDevice,
    floor_share,
    kernel_rows,
    no_step_row,
    step_rows,
    traced_device,
)
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

SOURCE = "kineto"
FOLDER = "kineto"
LICENCE = "MIT"


@dataclass(slots=True, kw_only=True)
class TraceImport:
    """Reads the traces at a place, and keeps what it found besides rows."""

    data: Path
    device: str | None = None
    """Id of the device of traces that name none, or one that is not known."""
    keep_last: bool = False
    summaries: list[TraceSummary] = field(default_factory=list)
    coverage: list[RowCoverage] = field(default_factory=list)
    """Of each summary: what its rows cover."""
    joined: dict[str, str] = field(default_factory=dict)
    """Execution graph by trace that it was joined to."""
    _units: UnitReader = field(default_factory=UnitReader)

    def parts(self) -> Iterator[Imported]:
        """Rows, a part a trace.

        Raises:
            LayoutNotFoundError: there is no trace.
            DataError: a single file was given and cannot be read.
        """
        files, left_out = trace_files(self.data, FOLDER)
        if not files:
            raise nothing_found(self.data, ("*.json", "*.json.gz with trace events"))
        graphs, traces = self._graphs(files, left_out)
        for file in traces:
            try:
                trace = read_trace(file.path, file.name)
            except DataError as error:
                if self.data.is_file():
                    raise
                reason = str(error).removeprefix(f"{file.name}: ")
                logger.warning("%s: refused: %s", file.name, reason)
                left_out[file.name] = reason
                continue
            yield self._part(trace, file, graphs)
        for name in graphs:
            if name not in self.joined.values():
                left_out[name] = "an execution graph without a trace of its run"
        rest = Imported.empty(SOURCE)
        rest.left_out = left_out
        yield rest

    def _graphs(
        self, files: list[TraceFile], left_out: dict[str, str]
    ) -> tuple[dict[str, ExecutionGraph], list[TraceFile]]:
        """Execution graphs by name, and the other files."""
        graphs, others = {}, []
        for file in files:
            if not is_execution_graph(file.path):
                others.append(file)
                continue
            try:
                graphs[file.name] = read_graph(file.path, file.name)
            except DataError as error:
                left_out[file.name] = str(error).removeprefix(f"{file.name}: ")
        return graphs, others

    def _part(self, trace: Trace, file: TraceFile, graphs: dict[str, ExecutionGraph]) -> Imported:
        import pandas as pd

        out = Imported.empty(SOURCE)
        out.files = {file.name: trace.file}
        licence = licence_of(file)
        frames: dict[str, list[pd.DataFrame]] = {"kernels": [], "steps": []}
        readings: list[tuple[TraceReading, TracedDevice]] = []
        for reading in read_device(trace, self._units, graphs.values(), keep_last=self.keep_last):
            self.summaries.append(reading.summary)
            if reading.graph is not None:
                self.joined[file.name] = reading.graph
                out.files[reading.graph] = graphs[reading.graph].file
            device = traced_device(SOURCE, reading, self.device)
            readings.append((reading, device))
            common = {"source": SOURCE, "licence": licence, "file": file.name}
            frames["kernels"].append(kernel_rows(reading, device, common, out))
            frames["steps"].append(step_rows(reading, device, common))
        for table, found in frames.items():
            some = [f for f in found if len(f)]
            if some:
                setattr(out, table, pd.concat(some, ignore_index=True))
        keep_valid(out)
        kept = set(out.kernels["row"].astype(int).tolist())
        self.coverage += [
            row_coverage(
                reading, file=file.name, device=device.id or None, rows=kept, rule=device.rule,
                no_step_row=no_step_row(reading, device),
            )
            for reading, device in readings
        ]  # fmt: skip
        flag_where(out.kernels, floor_share(out.kernels) > ABOVE_PEAK, "above_peak")
        return out


def parts(data: Path) -> Iterator[Imported]:
    """Rows of the traces at `data`, a part a trace.

    Args:
        data: a trace, a folder of traces at any depth, or one that holds `kineto`.

    Raises:
        LayoutNotFoundError: there is no trace.
        DataError: a single file was given and cannot be read.
    """
    return TraceImport(data=data).parts()
