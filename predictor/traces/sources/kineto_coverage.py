"""What the rows of a trace cover: calls and kernel time kept, and dropped by rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from predictor.traces.kineto.reading import TraceReading
from predictor.traces.kineto.table import time_text

_CUT = "in_last_step"
_REFUSED = "row_refused"
"""Calls of a row that a rule of the table refused, whichever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Some calls and the kernel time they took together."""

    calls: int = 0
    time_us: float = 0.0

    def __add__(self, other: Calls) -> Calls:
        return Calls(calls=self.calls + other.calls, time_us=self.time_us + other.time_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCoverage:
    """Calls of one device of a trace: `kept` and `dropped` together are those read."""

    file: str
    device: str | None
    """Catalogue id that the trace's device was taken for, None without."""
    rows: int
    """Kernel rows: equal calls are one."""
    kept: Calls
    dropped: Mapping[str, Calls]
    """By rule."""

    @property
    def read(self) -> Calls:
        """All calls."""
        return sum(self.dropped.values(), self.kept)

    @property
    def share(self) -> float:
        """Share of kernel time that rows cover, the last step that is left out aside; 0 to 1."""
        whole_us = self.read.time_us - self.dropped.get(_CUT, Calls()).time_us
        return self.kept.time_us / whole_us if whole_us > 0 else 0.0


def row_coverage(
    reading: TraceReading, *, file: str, device: str | None, rows: Collection[int], rule: str
) -> RowCoverage:
    """Calls of a reading that have a row, and those that do not.

    Args:
        reading: of one device of a trace.
        file: name of the trace.
        device: catalogue id, None where it is not known.
        rows: places in the file of the kernel rows that were kept.
        rule: by which all rows were refused, empty when they were not.
    """
    dropped = {
        name: Calls(calls=d.calls, time_us=sum(d.time_ns.values()) / 1000)
        for name, d in reading.measured.dropped.items()
    }
    kept, count = Calls(), 0
    for kernel in reading.measured.kernels:
        some = Calls(calls=len(kernel.times_us), time_us=sum(kernel.times_us))
        if not rule and kernel.row in rows:
            kept, count = kept + some, count + 1
        else:
            name = rule or _REFUSED
            dropped[name] = dropped.get(name, Calls()) + some
    return RowCoverage(file=file, device=device, rows=count, kept=kept, dropped=dropped)


def coverage_text(coverage: RowCoverage) -> str:
    """Lines for a reader, below the summary of the trace."""
    kept, read = coverage.kept, coverage.read
    out = sorted(coverage.dropped.items(), key=lambda item: -item[1].time_us)
    lines = [
        ("taken for", coverage.device or "no device of the catalogue: name it with --device"),
        (
            "rows",
            f"{coverage.rows:,} rows cover {coverage.share:.1%} of kernel time"
            f"{' (last step aside)' if _CUT in coverage.dropped else ''}; equal calls are one row",
        ),
        (
            "calls",
            f"{kept.calls:,} kept ({time_text(kept.time_us)}) + {read.calls - kept.calls:,} "
            f"dropped ({time_text(read.time_us - kept.time_us)}) = {read.calls:,} read",
        ),
        *(
            ("" if i else "dropped", f"{time_text(d.time_us):>9}  {d.calls:>6,} calls  {rule}")
            for i, (rule, d) in enumerate(out)
        ),
    ]
    return "\n".join(f"{name:<13}{text}" for name, text in lines)
