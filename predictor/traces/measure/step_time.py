"""The time of a whole step, by phase: wall clock, nothing else running in the process."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from predictor.traces.measure.local import DeviceType
from predictor.traces.measure.program import RealProgram
from predictor.traces.measure.timer import Limits, Timing, half_width, timing_of

LEAST_STEPS = 7
WARMUP_STEPS = 2
MOST_STEPS = 200


@dataclass(slots=True)
class StepSamples:
    """Times of steps and of their phases, microseconds."""

    total_us: list[float] = field(default_factory=list)
    phases_us: dict[str, list[float]] = field(default_factory=dict)

    def timing(self) -> Timing:
        """Of the whole step."""
        return timing_of(self.total_us, 1)

    def phase_us(self, name: str) -> float:
        """Median time of a phase; NaN where the step has none."""
        found = self.phases_us.get(name)
        return timing_of(found, 1).median_us if found else float("nan")


class StepClock:
    """Runs steps and times them.

    Args:
        program: whose steps.
        device: `cpu` or `cuda`. On the latter a phase ends when the device has finished it, which
            would slow the step down: phases are then timed in steps of their own.
    """

    def __init__(self, program: RealProgram, device: DeviceType) -> None:
        self.program, self.device = program, device
        self.samples = StepSamples()

    def warm_up(self) -> None:
        """Steps that are not timed."""
        for _ in range(WARMUP_STEPS):
            self.program.step()
        self._wait()

    def sample(self) -> float:
        """One step: its time, which is kept."""
        collects = gc.isenabled()
        gc.disable()
        try:
            start = time.perf_counter_ns()
            self._step()
            self._wait()
            took = (time.perf_counter_ns() - start) * 1e-3
        finally:
            if collects:
                gc.enable()
        self.samples.total_us.append(took)
        return took

    def sample_until(self, limits: Limits, stop: float | None = None) -> None:
        """Steps until the median is known or the time is used up; at least `LEAST_STEPS`.

        Args:
            limits: when the median is known, and the time.
            stop: `time.monotonic()` at which the time is used up in any case.
        """
        left = math.inf if stop is None else stop - time.monotonic()
        deadline = time.perf_counter() + min(limits.seconds, left)
        while len(self.samples.total_us) < MOST_STEPS:
            self.sample()
            taken = self.samples.total_us
            if len(taken) < LEAST_STEPS:
                continue
            if time.perf_counter() >= deadline or half_width(taken) <= limits.target:
                break
        if self.device == "cuda" and self.program.mode == "train":
            for _ in range(LEAST_STEPS):
                self.program.step(self._mark)

    def _step(self) -> None:
        if self.device == "cuda":
            self.program.step()
        else:
            self.program.step(self._mark)

    @contextmanager
    def _mark(self, phase: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        self._wait()
        took = (time.perf_counter_ns() - start) * 1e-3
        self.samples.phases_us.setdefault(phase, []).append(took)

    def _wait(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
