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
from predictor.traces.measure.cases import kernel_of
from predictor.traces.measure.conditions import WINDOW_SECONDS, LoadWatch, Readings, readings
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kinds import kind_of
from predictor.traces.measure.local import LocalDevice
from predictor.traces.measure.operands import Operands
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.timer import Limits, Timing, time_calls, together

logger = logging.getLogger(__name__)

OTHER_LOAD, NOISY, COLD = "other_load", "noisy", "cold_cache"
"""Flags of measured rows, the gravest first; a row has one."""
DEAD = "CUDA error"
"""In the message of an error after which the process can use its device no more."""
READINGS_SECONDS = 2.0
"""How old the state of the device may be that a row is given."""
REPORT_SECONDS = 30.0
BLOCK = 100
"""Points that are gone through before they are visited again: some seconds' work."""
RETRIES = 4
"""How often a point whose passes are disturbed or disagree is visited again, after all others."""


@dataclass(slots=True, kw_only=True)
class _Visited:
    """A point under way: what its passes said so far."""

    point: Point
    layout: str
    kernel: Kernel
    passes: list[Timing] = field(default_factory=list)
    quiet: list[Timing] = field(default_factory=list)
    """Passes during which nothing else was computing."""
    visits: int = 0
    """Passes that were asked for."""

    def result(self, limits: Limits) -> tuple[Timing, str]:
        """Time and flag, from quiet passes where there are enough of them."""
        enough = len(self.quiet) * 2 > limits.passes
        timing = together(self.quiet if enough else self.passes)
        return timing, flag_of(timing, limits, loaded=not enough, cold=self.point.cold)


@dataclass(slots=True)
class KernelRun:
    """One run over a grid.

    Points are taken in blocks; each is visited several times while its block is gone through again
    and again (`Limits.passes`), so that its passes lie seconds apart.

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
    _open: dict[str, _Visited] = field(default_factory=dict)
    """Points with a pass, without a row."""
    _waiting: list[tuple[_Visited, Timing]] = field(default_factory=list)
    """Passes of the window whose load is not known yet."""
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
        new = [point for point in points if not self.out.done(point.key)]
        queue = deque(
            point
            for first in range(0, len(new), BLOCK)
            for _ in range(self.limits.passes)
            for point in new[first : first + BLOCK]
        )
        reported = time.monotonic()
        try:
            while queue or self._waiting:
                if self.deadline is not None and time.monotonic() >= self.deadline:
                    return False
                if queue:
                    self._visit(queue.popleft())
                if self._watch.seconds() >= WINDOW_SECONDS or not queue:
                    queue.extend(self._settle())
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    left = len({p.key for p in queue} | self._open.keys())
                    logger.info("%d of %d points left, %d rows", left, len(new), self.out.rows)
            return True
        finally:
            self._settle()
            for visited in list(self._open.values()):
                if visited.visits >= self.limits.passes and visited.passes:
                    self._keep(visited)
            self.out.write()

    def _visit(self, point: Point) -> None:
        """Time one pass of a point, or say why not."""
        if point.key in self.out.refused_points:
            return
        reason = ""
        try:
            case = kind_of(point.kind).case(point.sizes, point.dtype, self.device.type)
            visited = self._open.get(point.key) or _Visited(
                point=point, layout=case.layout, kernel=kernel_of(case)
            )
            operands = self._operands_of()
            if point.cold and not operands.can_be_cold(case):
                reason = "too_small_for_a_cold_cache"
            else:
                calls = operands.calls(case, cold=point.cold)
                timing = time_calls(calls, self.device.clock, self.limits.of_pass())
                reason = timing.untrusted(self.limits, self.device.clock.resolution_us)
        except (RuntimeError, ValueError, TypeError, MemoryError, PredictorError) as error:
            logger.info("%s: %s", point.key, " ".join(str(error).split())[:200])
            reason = type(error).__name__
            if DEAD in str(error):
                self._refuse(point, reason)
                raise
        if reason:
            self._refuse(point, reason)
            return
        visited.visits += 1
        self._open[point.key] = visited
        self._waiting.append((visited, timing))

    def _refuse(self, point: Point, reason: str) -> None:
        """Give a point up, unless earlier passes tell its time."""
        visited = self._open.get(point.key)
        if visited is None or not visited.passes:
            self._open.pop(point.key, None)
            self.out.refuse(point.key, reason)
        else:
            visited.visits += 1

    def _settle(self) -> list[Point]:
        """Tell the load of the window's passes, write what is done; the points to visit again."""
        if not self._waiting:
            return []
        load = self._watch.look()
        for visited, timing in self._waiting:
            visited.passes.append(timing)
            if load is None or not load.disturbed:
                visited.quiet.append(timing)
        ready = {id(v): v for v, _ in self._waiting if v.visits >= self.limits.passes}
        self._waiting = []
        again: list[Point] = []
        for visited in ready.values():
            _, flag = visited.result(self.limits)
            if flag in (OTHER_LOAD, NOISY) and visited.visits < self.limits.passes + RETRIES:
                again.append(visited.point)
            else:
                self._keep(visited)
        return again

    def _keep(self, visited: _Visited) -> None:
        self._open.pop(visited.point.key, None)
        timing, flag = visited.result(self.limits)
        reason = timing.untrusted(self.limits, self.device.clock.resolution_us)
        if reason:
            self.out.refuse(visited.point.key, reason)
        else:
            self.out.add(visited.point.key, [self._row(visited, timing, flag)])

    def _row(self, visited: _Visited, timing: Timing, flag: str) -> dict[str, Any]:
        if time.monotonic() - self._read_at >= READINGS_SECONDS:
            self._readings, self._read_at = readings(self.device.type), time.monotonic()
        return {
            **self.device.facts(), **kernel_facts(visited.kernel), "context": "isolated",
            "latency_us": timing.median_us, "spread_us": timing.spread_us,
            "repeats": timing.samples * timing.calls,
            "layout": visited.layout, "clock_mhz": self._readings.clock_mhz,
            "power_limit_w": self._readings.power_limit_w, "flag": flag,
        }  # fmt: skip

    def _operands_of(self) -> Operands:
        if self._operands is None:
            self._operands = Operands(self.device.type, self.device.cache_bytes)
        return self._operands


def flag_of(timing: Timing, limits: Limits, *, loaded: bool, cold: bool = False) -> str:
    """Why a row is not for every use; empty where it is.

    Args:
        timing: of the row.
        limits: what noisy means.
        loaded: whether others computed while it was taken.
        cold: whether its operands came from memory.
    """
    if loaded:
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
