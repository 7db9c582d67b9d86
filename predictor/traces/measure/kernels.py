"""Measuring the points of a grid, block by block, into a file of rows."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from predictor.capture.failures import first_line
from predictor.errors import DataError, PredictorError
from predictor.graph.ir import Kernel
from predictor.traces.measure.cases import kernel_of
from predictor.traces.measure.conditions import WINDOW_SECONDS, LoadWatch, Readings, readings
from predictor.traces.measure.flags import flag_of, gravity
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kinds import kind_of
from predictor.traces.measure.local import LocalDevice
from predictor.traces.measure.operands import Operands
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.timer import SPREAD_TOO_LARGE, Limits, Timing, time_calls, together

logger = logging.getLogger(__name__)

DEAD = "CUDA error"
"""In the message of an error after which the process can use its device no more."""
DEAD_REMEDY = "the device failed and answers no more; the rows so far are kept: run it again"
READINGS_SECONDS = 2.0
"""How old the state of the device may be that a row is given."""
REPORT_SECONDS = 30.0
BLOCK, BLOCK_SECONDS = 100, 10.0
"""Points, and their time over all passes, that are gone through before the next ones begin."""
LEAST_PASSES = 2
"""Passes that a point needs to be kept when the run ends before it has all of them."""
RETRIES = 4
"""How often a point whose passes are disturbed or disagree is visited again, after all others."""
_CASE_ERRORS = (
    RuntimeError, ValueError, TypeError, MemoryError, ArithmeticError, LookupError, AssertionError,
    PredictorError,
)  # fmt: skip
"""What making and running a call of impossible sizes may raise."""


@dataclass(slots=True, kw_only=True)
class _Visited:
    """A point under way: what its passes said so far."""

    point: Point
    layout: str = ""
    kernel: Kernel | None = None
    passes: list[Timing] = field(default_factory=list)
    quiet: list[Timing] = field(default_factory=list)
    """Passes during which nothing else was computing."""
    visits: int = 0
    """Passes that were asked for."""
    failure: str = ""
    """Why the last pass that failed did."""
    due: bool = False
    """Whether it is to be decided with the window."""

    def result(self, limits: Limits) -> tuple[Timing, str]:
        """Time and flag, from quiet passes where there are enough of them."""
        enough = len(self.quiet) * 2 > min(limits.passes, len(self.passes))
        timing = together(self.quiet if enough else self.passes)
        return timing, flag_of(timing, limits, loaded=not enough, cold=self.point.cold)


@dataclass(slots=True)
class KernelRun:
    """One run over a grid.

    Points are taken in blocks of some seconds' work; each is visited several times while its block
    is gone through again and again (`Limits.passes`), so that its passes lie seconds apart.

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
    """Points under way."""
    _finished: set[str] = field(default_factory=set)
    """Points that this run has kept or refused."""
    _said: set[str] = field(default_factory=set)
    """Points of which this run has written a row: what later passes say replaces it."""
    _again: list[Point] = field(default_factory=list)
    """Points to visit again after all others."""
    _waiting: list[tuple[_Visited, Timing]] = field(default_factory=list)
    """Passes of the window whose load is not known yet."""
    _watch: LoadWatch = field(default_factory=LoadWatch)
    _readings: Readings = field(default_factory=Readings)
    _read_at: float = float("-inf")
    _reported: float = field(default_factory=time.monotonic)
    _operands: Operands | None = None

    def run(self, points: Sequence[Point]) -> bool:
        """Measure every point that has no sound row: new ones, then refused and flagged ones.

        What this run flags is visited again at its end. A run that begins before its deadline
        decides one point at least; one that ends early keeps points of two passes.

        Returns:
            Whether all points were reached before the deadline.
        """
        self.device.set_tf32()
        left = deque(self._wanted(points))
        total = len(left)
        try:
            while left:
                if self._late():
                    return False
                block = self._begin_block(left)
                for number in range(1, self.limits.passes):
                    for point in block:
                        if self._late() and (self._finished or number >= LEAST_PASSES):
                            return False
                        self._visit(point)
                self._report(total)
            return self._visit_again(total)
        finally:
            self._settle()
            for visited in list(self._open.values()):
                if len(visited.passes) >= min(LEAST_PASSES, self.limits.passes):
                    self._keep(visited)
            self.out.write()

    def _wanted(self, points: Sequence[Point]) -> list[Point]:
        """Points without a sound row: new ones first, since others have been tried."""
        wanted = [point for point in points if not self.out.sound(point.key)]

        def tried(point: Point) -> bool:
            return self.out.done(point.key) or point.key in self.out.refused_points

        return sorted(wanted, key=tried)

    def _begin_block(self, left: deque[Point]) -> list[Point]:
        """The first pass of as many points as a block has time for; they leave `left`."""
        seconds, begin = BLOCK_SECONDS / self.limits.passes, time.monotonic()
        if self.deadline is not None:
            seconds = min(seconds, (self.deadline - begin) / (self.limits.passes + 1))
        block: list[Point] = []
        while left and len(block) < BLOCK and (not block or time.monotonic() - begin < seconds):
            block.append(left.popleft())
            self._visit(block[-1])
        return block

    def _visit_again(self, total: int) -> bool:
        """Visit what is disturbed until it is not, or has been visited often enough."""
        while True:
            if not self._again:
                self._settle()
            if not self._again:
                return True
            again, self._again = self._again, []
            for point in again:
                if self._late():
                    return False
                self._visit(point)
                self._report(total)

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _report(self, total: int) -> None:
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self._reported = time.monotonic()
            left = total - len(self._finished)
            logger.info("%d of %d points left, %d rows", left, total, self.out.rows)

    def _visit(self, point: Point) -> None:
        """Time one pass of a point; a pass that fails counts where no other succeeds."""
        if point.key in self._finished:
            return
        visited = self._open.setdefault(point.key, _Visited(point=point))
        visited.visits += 1
        visited.due = visited.visits >= self.limits.passes
        try:
            timing = self._timed(visited)
        except _CASE_ERRORS as error:
            logger.info("%s: %s", point.key, " ".join(str(error).split())[:200])
            visited.failure = type(error).__name__
            dead = DEAD in str(error)
            if dead or isinstance(error, PredictorError):  # another pass would say the same
                self._give_up(visited)
            if dead:
                raise DataError(f"{point.key}: {DEAD_REMEDY} ({first_line(error)})") from error
        else:
            if timing is None:
                visited.failure = "too_small_for_a_cold_cache"
                self._give_up(visited)
            else:
                self._waiting.append((visited, timing))
        if self._watch.seconds() >= WINDOW_SECONDS:
            self._settle()

    def _timed(self, visited: _Visited) -> Timing | None:
        """One pass; None where the operands are too small to be cold."""
        point = visited.point
        case = kind_of(point.kind).case(point.sizes, point.dtype, self.device.type)
        if visited.kernel is None:
            visited.kernel, visited.layout = kernel_of(case), case.layout
        if self._operands is None:
            self._operands = Operands(self.device.type, self.device.cache_bytes)
        if point.cold and not self._operands.can_be_cold(case):
            return None
        calls = self._operands.calls(case, cold=point.cold)
        return time_calls(calls, self.device.clock, self.limits.of_pass())

    def _give_up(self, visited: _Visited) -> None:
        """Refuse a point that no pass of succeeded."""
        taken = visited.passes or any(v is visited for v, _ in self._waiting)
        if not taken:
            self._open.pop(visited.point.key)
            self._finished.add(visited.point.key)
            self.out.refuse(visited.point.key, visited.failure)

    def _settle(self) -> None:
        """Tell the load of the window's passes; decide the points that have all of theirs."""
        due = [v for v in self._open.values() if v.due]
        if not (self._waiting or due):
            return
        missing = WINDOW_SECONDS - self._watch.seconds()
        if missing > 0:  # the system counts load in ticks: a short window says nothing
            time.sleep(missing)
        load = self._watch.look()
        for visited, timing in self._waiting:
            visited.passes.append(timing)
            if load is None or not load.disturbed:
                visited.quiet.append(timing)
        self._waiting = []
        for visited in due:
            visited.due = False
            if not visited.passes:
                self._give_up(visited)
            elif visited.visits < self.limits.passes + RETRIES and self._to_mend(visited):
                self._again.append(visited.point)
                self._say(visited)  # a run that is killed before it comes back has its flagged row
            else:
                self._keep(visited)

    def _to_mend(self, visited: _Visited) -> bool:
        """Whether more passes may give a time that can be trusted, or without its flag."""
        timing, flag = visited.result(self.limits)
        reason = timing.untrusted(self.limits, self.device.clock.resolution_us)
        return bool(gravity(flag)) if not reason else reason == SPREAD_TOO_LARGE

    def _keep(self, visited: _Visited) -> None:
        """Be done with a point: its row is written, or the reason why it has none."""
        key = visited.point.key
        self._open.pop(key)
        self._finished.add(key)
        if reason := self._say(visited):
            self.out.refuse(key, reason)

    def _say(self, visited: _Visited) -> str:
        """Write what the passes say together, unless a row of an earlier run says it better.

        Returns:
            Why it cannot be trusted and nothing is written; empty when it can.
        """
        key = visited.point.key
        timing, flag = visited.result(self.limits)
        reason = timing.untrusted(self.limits, self.device.clock.resolution_us)
        mine = key in self._said or not self.out.done(key)
        if not reason and (mine or gravity(flag) < gravity(self.out.worst(key))):
            self.out.add(key, [self._row(visited, timing, flag)])
            self._said.add(key)
        return reason

    def _row(self, visited: _Visited, timing: Timing, flag: str) -> dict[str, Any]:
        assert visited.kernel is not None
        if time.monotonic() - self._read_at >= READINGS_SECONDS:
            self._readings, self._read_at = readings(self.device.type), time.monotonic()
        return {
            **self.device.facts(), **kernel_facts(visited.kernel), "context": "isolated",
            "latency_us": timing.median_us, "spread_us": timing.spread_us,
            "repeats": timing.samples * timing.calls,
            "layout": visited.layout, "clock_mhz": self._readings.clock_mhz,
            "power_limit_w": self._readings.power_limit_w, "flag": flag,
        }  # fmt: skip


def kernel_facts(kernel: Kernel) -> Mapping[str, Any]:
    """Columns of a row that the captured kernel gives."""
    return {
        "op": kernel.op, "phase": kernel.phase, "dtype": kernel.dtype, "flops": kernel.flops,
        "read_bytes": kernel.read_bytes, "write_bytes": kernel.write_bytes,
        **{f"dim_{name}": size for name, size in kernel.dims.items()},
    }  # fmt: skip
