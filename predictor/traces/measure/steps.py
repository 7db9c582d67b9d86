"""Measuring whole steps: their time, the kernels inside, and what no kernel covers.

The step's time is the wall clock of steps that nothing watches. The kernels' times come from steps
under the profiler, in turn with the others, less what the profiler takes for the calls inside each
(`profiled.call_cost_us`, measured on its own). So kernels, calls without a captured partner and the
gap between them add up to the profiled step less the profiler's time, and `closure` says how far
this is from the step that nothing watched.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.errors import DataError
from predictor.graph.ir import Kernel
from predictor.lower.eager import lower_eager
from predictor.traces.measure.conditions import (
    WINDOW_SECONDS,
    LoadWatch,
    Readings,
    readings,
)
from predictor.traces.measure.flags import NOISY, flag_of
from predictor.traces.measure.in_step import Captured, Joined, captured_calls, joined
from predictor.traces.measure.kernels import kernel_facts
from predictor.traces.measure.local import LocalDevice
from predictor.traces.measure.profiled import CallNode, Value, call_cost_us, profiled_step, value_of
from predictor.traces.measure.program import RealProgram
from predictor.traces.measure.step_parts import LEAST_PROFILED, MeasuredStep, StepParts
from predictor.traces.measure.step_time import LEAST_STEPS, StepClock
from predictor.traces.measure.timer import NORMAL_MAD, Limits, Timing

MOST_PROFILED = 25
LEAST_MEASURED = 2 * LEAST_PROFILED + 2
"""Steps that a measurement has at least once it is warm: watched, not watched, and two before."""
SHORT_US = 20_000.0
"""Steps below run once more before each that counts, watched or not: reading the profiler's events
empties the caches."""
SEVERAL = "several_kernels"
"""Flag of a row whose time is that of a call which launches more kernels than the one it names."""
CLOSED = 0.05
"""Largest `closure` of a step whose parts are taken to be its parts; above it the step is noisy."""
APART = 0.25
"""`closure` above which the times inside say nothing: no rows of them are written."""
LISTED = 20
"""Names of unmatched calls that a step tells."""


class StepRun:
    """Measures programs on one device.

    Args:
        device: what is measured, under PyTorch's own TF32 switches.
        limits: when a step's time is good enough.

    Raises:
        DataError: the device was told to allow TF32.
    """

    def __init__(self, device: LocalDevice, limits: Limits) -> None:
        if device.tf32:
            raise DataError("rows of steps cannot tell TF32: measure programs without --tf32")
        self.device, self.limits = device, limits
        self.cost_us = call_cost_us() if device.type == "cpu" else 0.0

    def measure(self, program: RealProgram, *, stop: float | None = None) -> MeasuredStep:
        """One program; a compiled one has no kernels that can be told apart by captured calls.

        Args:
            program: whose step.
            stop: `time.monotonic()` at which sampling ends early.

        Raises:
            CaptureError, CostRuleError: it cannot be captured, or fails when it runs.
            DataError: its steps are too long to be measured before `stop`.
        """
        calls: list[Captured] = []
        if not program.compiled:  # a compiler's kernels are other ones
            graph = program.graph()
            calls = captured_calls(graph, lower_eager(graph, allow_opaque=True))
        self.device.set_tf32(usual=True)
        clock, watch = StepClock(program, self.device.type), LoadWatch()
        clock.warm_up()
        first = clock.sample()
        _check_time(program.name, first * 1e-6, stop, LEAST_MEASURED)
        shaped = profiled_step(program, self.device.type, shapes=True)
        found = joined(calls, shaped)
        watch.look()
        trees, tried, excess = self._sample(clock, first, shaped, stop)
        if watch.seconds() < WINDOW_SECONDS:  # the system counts load in ticks
            time.sleep(WINDOW_SECONDS - watch.seconds())
        load, timing = watch.look(), clock.samples.timing()
        state = readings(self.device.type)
        kernels, counts, parts = self._kernels(found, shaped, trees, timing, excess)
        parts = replace(
            parts, tried=tried, alike=len(trees), optimizer_us=clock.samples.phase_us("optimizer")
        )
        flag = flag_of(timing, self.limits, loaded=load is not None and load.disturbed)
        if not flag and (parts.differs or abs(parts.closure) > CLOSED):
            flag = NOISY
        shared = {**self.device.facts(), "tf32": "", "clock_mhz": state.clock_mhz,
                  "power_limit_w": state.power_limit_w}  # fmt: skip
        rows = [
            {**shared, **k, "context": "step", "model": program.name, "flag": k["flag"] or flag}
            for k in kernels
        ]
        if abs(parts.closure) > APART or parts.differs:
            rows, counts = [], []
        return MeasuredStep(
            step=self._step_row(program, clock, timing, flag, state), kernels=rows, counts=counts,
            parts=parts, refused=timing.untrusted(self.limits, self.device.clock.resolution_us),
            load=load,
        )  # fmt: skip

    def _sample(
        self, clock: StepClock, first_us: float, like: CallNode, stop: float | None
    ) -> tuple[list[CallNode], int, float]:
        """Steps that nothing watches, and profiled ones between them.

        Returns:
            The profiled steps that made the same calls as the first, of how many, and by how much
            they are longer than the step just before, less the profiler's time: the median, as a
            share; NaN where there is none.
        """
        short = first_us < SHORT_US and self.device.type == "cpu"
        share = self.limits.seconds * 1e6 / max(1.0, first_us) / LEAST_STEPS
        wanted = int(min(MOST_PROFILED, max(LEAST_PROFILED, share)))
        names = [c.name for c in like.every()]
        trees: list[CallNode] = []
        excess: list[float] = []
        tried = 0
        while len(trees) < wanted and tried < 2 * wanted:
            if stop is not None and tried >= LEAST_PROFILED and time.monotonic() >= stop:
                break
            tried += 1
            begun = time.monotonic()
            if short:
                clock.program.step()
            plain = clock.sample()
            tree = profiled_step(clock.program, self.device.type, shapes=False, settle=short)
            if [c.name for c in tree.every()] == names:
                trees.append(tree)
                excess.append((tree.host_us - self.cost_us * tree.calls) / plain - 1)
            pair = time.monotonic() - begun  # other work may have made it longer than the first
            _check_time(clock.program.name, pair, stop, LEAST_PROFILED - tried)
        clock.sample_until(self.limits, stop)
        return trees, tried, float(np.median(excess)) if excess else math.nan

    def _kernels(
        self,
        found: Joined,
        shaped: CallNode,
        trees: Sequence[CallNode],
        timing: Timing,
        excess: float,
    ) -> tuple[list[dict[str, Any]], list[int], StepParts]:
        """Rows of the kernels inside, how often each runs, and the parts of the step."""
        value = value_of(self.device.type, self.cost_us)
        seen = [tree.every() for tree in (trees or [shaped])]
        place = {id(call): i for i, call in enumerate(shaped.every())}
        times = [_times([place[id(c)] for c in one.calls], seen, value) for one in found.captured]
        rows, counts = kernel_rows(found.captured, times)
        loose = [_times([place[id(c)]], seen, value) for c in found.unmatched]
        kernels_us = math.fsum(float(np.median(t)) for t in times if len(t))
        unmatched_us = math.fsum(float(np.median(t)) for t in loose)
        profiled = float(np.median([tree[0].host_us for tree in seen]))
        on_host = self.device.type == "cpu"
        closure = excess if on_host else math.nan
        whole = timing.median_us * (1.0 if math.isnan(closure) else 1.0 + closure)
        by_name: dict[str, float] = defaultdict(float)
        for call, spent in zip(found.unmatched, loose, strict=True):
            by_name[call.name] += float(np.median(spent))
        return rows, counts, StepParts(
            wall_us=timing.median_us, profiled_us=profiled, call_cost_us=self.cost_us,
            calls=shaped.calls, kernels_us=kernels_us, unmatched_us=unmatched_us,
            gap_us=whole - kernels_us - unmatched_us,
            closure=closure,
            captured=len(found.captured), matched=sum(bool(c.calls) for c in found.captured),
            unmatched=dict(sorted(by_name.items(), key=lambda x: -x[1])[:LISTED]),
            not_seen=dict(Counter(c.node.op for c in found.captured if not c.calls)),
        )  # fmt: skip

    def _step_row(
        self, program: RealProgram, clock: StepClock, timing: Timing, flag: str, state: Readings
    ) -> dict[str, Any]:
        facts = dict(self.device.facts())
        facts.pop("tf32")
        train = program.mode == "train"
        return {
            **facts, **program.facts, "model": program.name, "mode": program.mode,
            "execution": "compiled" if program.compiled else "eager", "dtype": program.dtype,
            "devices": 1, "micro_batch": program.facts["batch"],
            "measure": "wall", "latency_us": timing.median_us, "spread_us": timing.spread_us,
            "repeats": timing.samples, "power_limit_w": state.power_limit_w, "flag": flag,
            "forward_us": clock.samples.phase_us("forward") if train else timing.median_us,
            "backward_us": clock.samples.phase_us("backward"),
        }  # fmt: skip


def _check_time(name: str, seconds: float, stop: float | None, times: int) -> None:
    """Refuse a program whose measurement, `times` of `seconds` more, does not end before `stop`."""
    if stop is None or times <= 0:
        return
    needs, left = times * seconds, stop - time.monotonic()
    if needs > left:
        raise DataError(
            f"{name}: needs another {needs / 60:.2g} minutes ({times} times {seconds:.3g} s), of "
            f"which {max(0.0, left) / 60:.2g} are left: give more --minutes, or a smaller batch"
        )


def kernel_rows(
    captured: Sequence[Captured], times: Sequence[np.ndarray]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows of equal kernels together, and how often each runs.

    Args:
        captured: calls of the step; those without a profiled call give no row, nor do those whose
            time is all the profiler's.
        times: of each, one a profiled step.
    """
    equal: dict[tuple[object, ...], list[np.ndarray]] = defaultdict(list)
    facts: dict[tuple[object, ...], dict[str, Any]] = {}
    for one, spent in zip(captured, times, strict=True):
        if not len(spent):
            continue
        row = call_facts(one.kernels)
        key: tuple[object, ...] = tuple(sorted(row.items()))
        facts[key] = row
        equal[key].append(spent)
    rows, counts = [], []
    for key, groups in equal.items():
        every = np.concatenate(groups)
        mean = float(np.mean([np.median(g) for g in groups]))
        if mean <= 0.0:  # shorter than what the profiler took for the calls inside
            continue
        deviation = float(np.median(np.abs(every - np.median(every))))
        rows.append({
            **facts[key], "latency_us": mean, "spread_us": NORMAL_MAD * deviation,
            "repeats": len(every),
        })  # fmt: skip
        counts.append(len(groups))
    return rows, counts


def call_facts(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Columns of a call's row: its one kernel, or the costliest of several with all their work."""
    most = max(kernels, key=lambda k: (k.flops, k.bytes))
    row = dict(kernel_facts(most))
    for name in ("flops", "read_bytes", "write_bytes"):
        row[name] = math.fsum(getattr(k, name) for k in kernels)
    return {**row, "flag": SEVERAL if len(kernels) > 1 else ""}


def _times(places: Sequence[int], seen: Sequence[Sequence[CallNode]], value: Value) -> np.ndarray:
    """Time of some calls together, one a profiled step; empty where there are none."""
    if not places:
        return np.empty(0)
    return np.array([math.fsum(value(tree[i]) for i in places) for tree in seen])
