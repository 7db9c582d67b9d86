"""Measuring the points of a grid, one after the other, into a file of rows."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from predictor.errors import PredictorError
from predictor.graph.ir import Kernel
from predictor.traces.measure.cases import Case, kernel_of
from predictor.traces.measure.conditions import WINDOW_SECONDS, Load, LoadWatch, Readings, readings
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kinds import kind_of
from predictor.traces.measure.local import LocalDevice
from predictor.traces.measure.operands import Operands
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.timer import Limits, Timing, time_calls

logger = logging.getLogger(__name__)

OTHER_LOAD, NOISY, COLD = "other_load", "noisy", "cold_cache"
"""Flags of measured rows, the gravest first; a row has one."""
DEAD = "CUDA error"
"""In the message of an error after which the process can use its device no more."""
READINGS_SECONDS = 2.0
"""How old the state of the device may be that a row is given."""
REPORT_SECONDS = 30.0
RETRIES = 2
"""How often a flagged point is measured again, after all others."""


@dataclass(slots=True, kw_only=True)
class _Measured:
    """A point that was timed and waits for the window's load to be known."""

    point: Point
    case: Case
    kernel: Kernel
    timing: Timing
    tries: int


@dataclass(slots=True)
class KernelRun:
    """One run over a grid.

    Args:
        device: what is measured.
        out: where rows go.
        limits: when a number is good enough.
    """

    device: LocalDevice
    out: RowsFile
    limits: Limits = field(default_factory=Limits)
    deadline: float | None = None
    """`time.monotonic()` at which the run stops."""
    _waiting: list[_Measured] = field(default_factory=list)
    _held: dict[str, tuple[_Measured, str]] = field(default_factory=dict)
    """Flagged measurements that stand unless a later try is better."""
    _watch: LoadWatch = field(default_factory=LoadWatch)
    _readings: Readings = field(default_factory=Readings)
    _read_at: float = float("-inf")
    _operands: Operands | None = None

    def run(self, points: Sequence[Point]) -> bool:
        """Measure every point that is not done; flagged ones again at the end.

        Returns:
            Whether all points were reached before the deadline.
        """
        self.device.set_tf32()
        queue = deque((point, 0) for point in points if not self.out.done(point.key))
        total, reported = len(queue), time.monotonic()
        try:
            while queue or self._waiting:
                if self.deadline is not None and time.monotonic() >= self.deadline:
                    return False
                if queue:
                    self._measure(*queue.popleft())
                if self._watch.seconds() >= WINDOW_SECONDS or not queue:
                    queue.extend(self._settle())
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    left = len(queue) + len(self._waiting)
                    logger.info("%d of %d points left, %d rows", left, total, self.out.rows)
            return True
        finally:
            self._settle(last=True)
            for measured, flag in list(self._held.values()):
                self._keep(measured, flag)
            self.out.write()

    def _measure(self, point: Point, tries: int) -> None:
        """Time one point, or say why not."""
        reason = ""
        try:
            case = kind_of(point.kind).case(point.sizes, point.dtype, self.device.type)
            kernel = kernel_of(case)
            operands = self._operands_of()
            if point.cold and not operands.can_be_cold(case):
                reason = "too_small_for_a_cold_cache"
            else:
                calls = operands.calls(case, cold=point.cold)
                timing = time_calls(calls, self.device.clock, self.limits)
                reason = timing.untrusted(self.limits, self.device.clock.resolution_us)
        except (RuntimeError, ValueError, TypeError, MemoryError, PredictorError) as error:
            logger.info("%s: %s", point.key, " ".join(str(error).split())[:200])
            reason = type(error).__name__
            if DEAD in str(error):
                self.out.refuse(point.key, reason)
                raise
        if reason and point.key not in self._held:
            self.out.refuse(point.key, reason)
        elif reason:
            self._keep(*self._held[point.key])
        else:
            self._waiting.append(
                _Measured(point=point, case=case, kernel=kernel, timing=timing, tries=tries)
            )

    def _settle(self, *, last: bool = False) -> list[tuple[Point, int]]:
        """Write the rows of the window, now that its load is known; the points to try again."""
        if not self._waiting:
            return []
        load = self._watch.look()
        again: list[tuple[Point, int]] = []
        for measured in self._waiting:
            flag = flag_of(measured.timing, self.limits, load, cold=measured.point.cold)
            if flag in (OTHER_LOAD, NOISY) and measured.tries < RETRIES and not last:
                self._held[measured.point.key] = measured, flag
                again.append((measured.point, measured.tries + 1))
            else:
                self._keep(measured, flag)
        self._waiting = []
        return again

    def _keep(self, measured: _Measured, flag: str) -> None:
        self._held.pop(measured.point.key, None)
        self.out.add(measured.point.key, [self._row(measured, flag)])

    def _row(self, measured: _Measured, flag: str) -> dict[str, Any]:
        if time.monotonic() - self._read_at >= READINGS_SECONDS:
            self._readings, self._read_at = readings(self.device.type), time.monotonic()
        return {
            **self.device.facts(), **kernel_facts(measured.kernel), "context": "isolated",
            "latency_us": measured.timing.median_us, "spread_us": measured.timing.spread_us,
            "repeats": measured.timing.samples * measured.timing.calls,
            "layout": measured.case.layout, "clock_mhz": self._readings.clock_mhz,
            "power_limit_w": self._readings.power_limit_w, "flag": flag,
        }  # fmt: skip

    def _operands_of(self) -> Operands:
        if self._operands is None:
            self._operands = Operands(self.device.type, self.device.cache_bytes)
        return self._operands


def flag_of(timing: Timing, limits: Limits, load: Load | None, *, cold: bool) -> str:
    """Why a row is not for every use; empty where it is.

    Args:
        timing: of the row.
        limits: what noisy means.
        load: of the window that it was taken in; None where it cannot be told.
        cold: whether its operands came from memory.
    """
    if load is not None and load.disturbed:
        return OTHER_LOAD
    if timing.noisy(limits):
        return NOISY
    return COLD if cold else ""


def kernel_facts(kernel: Kernel) -> Mapping[str, Any]:
    """Columns of a row that the captured kernel gives."""
    return {
        "op": kernel.op, "phase": kernel.phase, "dtype": kernel.dtype, "flops": kernel.flops,
        "read_bytes": kernel.read_bytes, "write_bytes": kernel.write_bytes,
        **{f"dim_{name}": size for name, size in kernel.dims.items()},
    }  # fmt: skip
