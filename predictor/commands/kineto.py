"""`predictor import kineto`: rows of profiler traces, and where the time of each went."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from predictor.commands.output import say, write_json
from predictor.hardware.catalogue import resolve_device
from predictor.traces.import_folder import SUMMARIES, check_target
from predictor.traces.import_report import ImportReport
from predictor.traces.kineto.table import summary_text
from predictor.traces.sources.kineto import SOURCE, TraceImport
from predictor.traces.sources.kineto_coverage import coverage_text
from predictor.traces.store import write_imported


def import_traces(folder: Path, out: Path, device: str | None) -> ImportReport:
    """Write the rows, print a summary of each trace and what was kept and refused.

    Args:
        folder: a trace or a folder of traces.
        out: folder to write.
        device: of traces that name none.
    """
    check_target(out)
    traces = TraceImport(data=folder, device=None if device is None else resolve_device(device).id)
    report = write_imported(SOURCE, traces.parts(), out)
    for summary, coverage in zip(traces.summaries, traces.coverage, strict=True):
        say(summary_text(summary))
        say(coverage_text(coverage))
        graph = traces.joined.get(summary.file)
        if graph is not None:
            say(f"{'sizes':<13}from the execution graph {graph}")
        say("")
    for file, reason in sorted(report.left_out.items()):
        say(f"left out {file}: {reason}")
    pairs = zip(traces.summaries, traces.coverage, strict=True)
    write_json([{**asdict(s), "rows": asdict(c)} for s, c in pairs], str(out / SUMMARIES))
    say(str(report))
    return report
