"""One call of `predictor measure`: the device, the files, and what is said at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import DataError
from predictor.traces.measure.conditions import (
    OTHER_SHARE,
    STOLEN,
    WINDOW_SECONDS,
    Load,
    LoadWatch,
    readings,
)
from predictor.traces.measure.flags import OTHER_LOAD
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kernels import KernelRun
from predictor.traces.measure.local import DeviceType, LocalDevice
from predictor.traces.measure.place import (
    Place,
    beside_rows,
    deadline_after,
    open_rows,
    place_at,
    positive,
)
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.timer import Limits

if TYPE_CHECKING:
    from predictor.traces.measure.plan import Plan, PlannedProgram
    from predictor.traces.measure.program import Mode
    from predictor.traces.measure.step_parts import MeasuredStep


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSession:
    """A device and the file that its rows go to."""

    out: Path
    place: Place
    limits: Limits
    deadline: float | None
    resume: bool
    load: Load | None
    """Who computed while the session began; None where it cannot be told."""

    @property
    def device(self) -> LocalDevice:
        """What is measured."""
        return self.place.device

    @classmethod
    def open(
        cls,
        out: Path,
        *,
        device: DeviceType,
        name: str | None = None,
        threads: int | None = None,
        tf32: bool = False,
        seconds: float = 0.15,
        minutes: float | None = None,
        resume: bool = False,
    ) -> MeasureSession:
        """Find the device; one that the catalogue does not know gets a file beside its rows.

        Args:
            out: file of rows.
            device: `cpu` or `cuda`.
            name: what rows call the device; an id or a device file.
            threads: of a CPU.
            tf32: allow TF32 in fp32 products (CUDA).
            seconds: sampling time of one kernel, or of a step.
            minutes: when to stop.
            resume: go on with the rows that `out` holds.

        Raises:
            DataError: seconds or minutes are no positive number; else see `place_at`.
            UnknownDeviceError, DeviceFileError: see `place_at`.
        """
        limits = Limits(seconds=positive("--seconds", seconds))
        deadline, watch = deadline_after(minutes), LoadWatch()
        beside = beside_rows(out)
        place = place_at(lambda _: beside, device, name=name, threads=threads, tf32=tf32)
        if watch.seconds() < WINDOW_SECONDS:
            time.sleep(WINDOW_SECONDS - watch.seconds())
        return cls(
            out=out, place=place, limits=limits, deadline=deadline, resume=resume,
            load=watch.look(),
        )  # fmt: skip

    @property
    def inside(self) -> Path:
        """File of the kernels inside steps."""
        return self.out.with_name(f"{self.out.stem}.kernels.parquet")

    def greeting(self) -> str:
        """What is measured, under which conditions; a second line where others compute already."""
        now = readings(self.device.type)
        facts = [
            f"{self.device.device.id} ({self.device.device.name or self.device.type})",
            numbered(self.device.threads, "thread") if self.device.type == "cpu" else "",
            f"{now.clock_mhz:.0f} MHz" if now.clock_mhz == now.clock_mhz else "clock not readable",
            f"{now.temperature_c:.0f} C" if now.temperature_c == now.temperature_c else "",
            f"limit {now.power_limit_w:.0f} W" if now.power_limit_w == now.power_limit_w else "",
            self.place.note,
            "other load not readable" if self.load is None else "",
        ]
        line = "measuring " + ", ".join(f for f in facts if f)
        if self.load is None or not self.load.disturbed:
            return line
        return (
            f"{line}\nothers keep {self.load.other_share:.0%} of the cores busy and the hypervisor "
            f"takes {self.load.stolen:.0%}: above {OTHER_SHARE:.0%} or {STOLEN:.0%} rows are "
            f"flagged {OTHER_LOAD}; better measure on a quiet machine"
        )

    def kernels(self, points: Sequence[Point], facts: Mapping[str, Any]) -> str:
        """Measure the points of a grid; what came of it in words.

        Args:
            points: what to measure.
            facts: what the file tells of them.

        Raises:
            DataError: the file is there already, or is of another device or number of threads; or
                no point gave a row.
        """
        rows = open_rows(self.out, "kernels", self.place, facts, resume=self.resume)
        whole = KernelRun(self.device, rows, self.limits, self.deadline).run(points)
        return self._summary(rows, len(points), whole)

    def program(
        self,
        target: str,
        *,
        mode: Mode,
        batch: int | None = None,
        seq: int | None = None,
        dtype: str | None = None,
        optimizer: str | None = None,
    ) -> tuple[str, MeasuredStep]:
        """Measure a program's step and the kernels inside; its key and what came of it.

        The kernels go to a file beside the steps' (`inside`).

        Raises:
            UnknownTargetError, CaptureError, CostRuleError: see `predictor capture`.
            DataError: the files are there already, with a sound time of the step; or the step is
                too long for the minutes, or its time is none to be trusted.
        """
        from predictor.traces.measure.program import real_program
        from predictor.traces.measure.steps import StepRun
        from predictor.traces.measure.tasks import keep

        steps = open_rows(self.out, "steps", self.place, resume=self.resume)
        kernels = open_rows(self.inside, "kernels", self.place, resume=self.resume)
        program = real_program(
            target, device=self.device.type, mode=mode, batch=batch, seq=seq, dtype=dtype,
            optimizer=optimizer,
        )  # fmt: skip
        if steps.sound(program.key):
            raise DataError(f"{self.out} has {program.key!r} already: name another file")
        measured = StepRun(self.device, self.limits).measure(program, stop=self.deadline)
        keep(measured, program.key, steps, kernels)
        kernels.write()
        steps.write()
        if measured.refused:
            raise DataError(f"{program.key}: {measured.refusal(self.limits)}")
        return program.key, measured

    def plan(self, plan: Plan) -> str:
        """Measure what a plan asks for: whole steps, then kernels alone; what came of it in words.

        Steps go to the file, all kernels to the one beside it (`inside`).

        Raises:
            DataError: the plan is for another device, or the files are there already, or are of
                another device or number of threads.
        """
        from predictor.traces.measure.program import real_program
        from predictor.traces.measure.steps import StepRun
        from predictor.traces.measure.tasks import Task, run_tasks

        if plan.device != self.device.device.id:
            raise DataError(
                f"the plan is for {plan.device}, this is {self.device.device.id}: measure it "
                "there, or say what this device is (--as)"
            )
        facts = {"plan": [*(p.key for p in plan.programs), *(p.key for p in plan.points)]}
        steps = open_rows(self.out, "steps", self.place, facts, resume=self.resume)
        kernels = open_rows(self.inside, "kernels", self.place, resume=self.resume)

        def task(what: PlannedProgram) -> Task:
            return Task(key=what.key, build=lambda: real_program(
                what.target, device=self.device.type, mode=what.mode, batch=what.batch,
                seq=what.seq, dtype=what.dtype, optimizer=what.optimizer,
            ))  # fmt: skip

        tasks = [task(what) for what in plan.programs]
        whole = run_tasks(
            StepRun(self.device, self.limits), tasks, steps, kernels, deadline=self.deadline
        )
        if plan.points:
            run = KernelRun(self.device, kernels, self.limits, self.deadline)
            whole = run.run(plan.points) and whole
        lines = [self._summary(steps, len(tasks), whole)] if tasks else []
        if plan.points:
            alone = sum(kernels.done(point.key) for point in plan.points)
            lines.append(f"{self.inside}: {alone} of {numbered(len(plan.points), 'kernel')} alone")
        return "\n".join(lines)

    def _summary(self, rows: RowsFile, points: int, whole: bool) -> str:
        """Rows, flags and refusals, and what can be done about them."""
        flags = rows.flags()
        loaded, sound = flags[OTHER_LOAD], flags.pop("", 0)
        kinds = [f"{n} {flag}" for flag, n in flags.most_common()]
        head = f"{numbered(rows.rows, 'row')} of {numbered(points, 'point')}"
        lines = [f"{self.out}: {head}: " + ", ".join([f"{sound} sound", *kinds])]
        if rows.refused:
            refused = ", ".join(f"{n} {reason}" for reason, n in rows.refused.most_common())
            lines.append(f"refused: {refused}")
        if 2 * loaded > rows.rows:
            lines.append(
                f"most rows are {OTHER_LOAD}: end what else computes here, and --resume measures "
                "them again"
            )
        if not whole:
            lines.append("stopped by --minutes; --resume goes on")
        if not rows.rows:
            why = "; ".join(lines[1:]) or "nothing was measured"
            raise DataError(f"{self.out}: no row of {numbered(points, 'point')}: {why}")
        return "\n".join(lines)


def numbered(count: int, noun: str) -> str:
    """A number of things: `1 thread`, `1,200 threads`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
