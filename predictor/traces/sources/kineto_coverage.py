"""What the rows of a trace cover: calls and kernel time kept, and dropped by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from predictor.traces.kineto.reading import TraceReading
from predictor.traces.kineto.table import time_text
from predictor.traces.sources.kineto_rows import OTHER_KIND

_CUT = "in_last_step"
_NAME_IT = "name it with --device, an id of `predictor devices` or a device file"
REMEDIES: Mapping[str, str] = {
    "device_not_named": _NAME_IT,
    "unknown_device": _NAME_IT,
    OTHER_KIND: "times of the host alone are of a processor, kernels are not: name the device that "
    "was traced with --device",
    "op_without_shapes": "record the trace with record_shapes=True",
    "argument_not_recorded": "record the trace with PyTorch 2.1 or newer",
    _CUT: "the last step is left out, as it may be cut off: record one step more",
    "kernel_without_op": "record the trace with activities=[CPU, CUDA], without graph replays",
}
"""What a user can do about a rule."""
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
    no_step_row: str = ""
    """Rule by which the steps have no row; empty where they have one."""

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
    reading: TraceReading, *, file: str, device: str | None, rows: Collection[int], rule: str,
    no_step_row: str,
) -> RowCoverage:  # fmt: skip
    """Calls of a reading that have a row, and those that do not.

    Args:
        reading: of one device of a trace.
        file: name of the trace.
        device: catalogue id, None where it is not known.
        rows: places in the file of the kernel rows that were kept.
        rule: by which all rows were refused, empty when they were not.
        no_step_row: rule by which the steps have no row, empty when they have one.
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
    return RowCoverage(
        file=file, device=device, rows=count, kept=kept, dropped=dropped, no_step_row=no_step_row
    )


def coverage_text(coverage: RowCoverage) -> str:
    """Lines for a reader, below the summary of the trace."""
    kept, read = coverage.kept, coverage.read
    out = sorted(coverage.dropped.items(), key=lambda item: -item[1].time_us)
    lines = [
        ("taken for", coverage.device or _no_device(coverage)),
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
        *(("step row", f"none: {coverage.no_step_row}") for _ in [0] if coverage.no_step_row),
    ]
    return "\n".join(f"{name:<13}{text}" for name, text in lines)


def _no_device(coverage: RowCoverage) -> str:
    if OTHER_KIND in coverage.dropped:
        return f"no device: {REMEDIES[OTHER_KIND]}"
    return f"no device of the catalogue: {REMEDIES['device_not_named']}"


def remedy_of(coverages: Iterable[RowCoverage]) -> str:
    """What to do about traces none of whose calls has a row: by the rule that took most time."""
    lost: Counter[str] = Counter()
    for coverage in coverages:
        for rule, calls in coverage.dropped.items():
            lost[rule] += int(calls.time_us * 1000) + calls.calls
    rule = max(lost, key=lambda name: lost[name], default="")
    return REMEDIES.get(rule, "the rules above say why (docs/kineto.md)")
