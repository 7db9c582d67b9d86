"""`predictor import kineto`: rows of profiler traces, and where the time of each went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from predictor.commands.output import say, write_json
from predictor.errors import DataError
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device_file import adopt_device_file
from predictor.traces.import_folder import SUMMARIES, check_target, report_of
from predictor.traces.import_report import ImportReport
from predictor.traces.kineto.table import summary_text
from predictor.traces.schema import TABLES, Imported
from predictor.traces.sources.kineto import SOURCE, TraceImport
from predictor.traces.sources.kineto_coverage import coverage_text, remedy_of
from predictor.traces.store import write_imported


class NoRowError(DataError):
    """No row was kept, and an import with rows stands where this one would."""


def import_traces(folder: Path, out: Path, device: str | None) -> ImportReport:
    """Write the rows, print a summary of each trace and what was kept and refused.

    Args:
        folder: a trace or a folder of traces.
        out: folder to write; an import with rows there stays where no row is kept.
        device: of traces that name none: a name of the catalogue, or a device file, which is kept
            beside the rows.

    Raises:
        DataError: no row was kept: the message says what to do; the summaries are written where
            no earlier import stands.
        UnknownDeviceError, DeviceFileError: `device` is none.
    """
    check_target(out)
    traces = TraceImport(data=folder, device=None if device is None else _device(device))
    earlier = report_of(out) if out.exists() else None
    held = sum(earlier["rows"].get(table, 0) for table in TABLES) if earlier else 0
    report = None
    try:
        report = write_imported(SOURCE, _some_rows(traces, needed=held > 0), out)
    except NoRowError:
        _say_traces(traces)
    else:
        _say_traces(traces)
        for file, reason in sorted(report.left_out.items()):
            say(f"left out {file}: {reason}")
        pairs = zip(traces.summaries, traces.coverage, strict=True)
        write_json([{**asdict(s), "rows": asdict(c)} for s, c in pairs], str(out / SUMMARIES))
        say(str(report))
    if report is None or not report.devices:
        kept = f"; {out} stays as it was" if report is None else ""
        raise DataError(f"{folder}: no row was kept{kept}; {remedy_of(traces.coverage)}")
    return report


def _device(name: str) -> str:
    """Id of a device by name, or of a device file, which rows may name from then on."""
    if name.lower().endswith(".toml"):
        return adopt_device_file(Path(name)).id
    return resolve_device(name).id


def _some_rows(traces: TraceImport, *, needed: bool) -> Iterator[Imported]:
    """The parts of the traces; where rows are needed and none was kept, refused at the end."""
    kept = 0
    for part in traces.parts():
        kept += len(part.kernels) + len(part.steps)
        yield part
    if needed and not kept:
        raise NoRowError("no row was kept")


def _say_traces(traces: TraceImport) -> None:
    for summary, coverage in zip(traces.summaries, traces.coverage, strict=True):
        say(summary_text(summary))
        say(coverage_text(coverage))
        graph = traces.joined.get(summary.file)
        if graph is not None:
            say(f"{'sizes':<13}from the execution graph {graph}")
        say("")
