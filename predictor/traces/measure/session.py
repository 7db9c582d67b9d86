"""One call of `predictor measure`: the device, the files, and what is said at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.atomic import write_text
from predictor.errors import DataError
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.device_file import described_in, device_file_text
from predictor.hardware.probe import processor
from predictor.traces.files import DEVICE_FILE
from predictor.traces.measure.conditions import LoadWatch, readings
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kernels import KernelRun
from predictor.traces.measure.local import DeviceType, LocalDevice, local_device
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.timer import Limits

if TYPE_CHECKING:
    from predictor.traces.measure.program import Mode
    from predictor.traces.measure.step_parts import MeasuredStep


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSession:
    """A device and the file that its rows go to."""

    out: Path
    device: LocalDevice
    limits: Limits
    deadline: float | None
    resume: bool

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
        """Find the device; one that the catalogue does not know gets a file beside the rows.

        A processor that a device file of the folder describes keeps that description.

        Args:
            out: file of rows.
            device: `cpu` or `cuda`.
            name: what rows call the device; an id or a device file.
            threads: of a CPU.
            tf32: allow TF32 in fp32 products (CUDA).
            seconds: sampling time of one kernel.
            minutes: when to stop.
            resume: go on with the rows that `out` holds.

        Raises:
            UnknownDeviceError, DeviceFileError: see `local_device`.
        """
        beside = out.parent / f"{out.name.partition('.')[0]}{DEVICE_FILE}"
        known = name or (beside if beside.is_file() else None)
        if known is None and device == "cpu":  # the bandwidth that was measured first stays
            known = described_in(out.parent, processor().device_id)
        found = local_device(device, name=known, threads=threads, tf32=tf32)
        if found.device.id not in load_catalogue() and not beside.is_file():
            write_text(beside, device_file_text(found.device))
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        return cls(
            out=out, device=found, limits=Limits(seconds=seconds), deadline=deadline, resume=resume
        )

    @property
    def inside(self) -> Path:
        """File of the kernels inside steps."""
        return self.out.with_name(f"{self.out.stem}.kernels.parquet")

    def greeting(self) -> str:
        """What is measured, under which conditions."""
        now, watch = readings(self.device.type), LoadWatch()
        facts = [
            f"{self.device.device.id} ({self.device.device.name or self.device.type})",
            f"{self.device.threads} threads" if self.device.type == "cpu" else "",
            f"{now.clock_mhz:.0f} MHz" if now.clock_mhz == now.clock_mhz else "clock not readable",
            f"{now.temperature_c:.0f} C" if now.temperature_c == now.temperature_c else "",
            f"limit {now.power_limit_w:.0f} W" if now.power_limit_w == now.power_limit_w else "",
            "" if watch.readable else "other load not readable",
        ]
        return "measuring " + ", ".join(f for f in facts if f)

    def kernels(self, points: Sequence[Point], facts: Mapping[str, Any]) -> str:
        """Measure the points of a grid; what came of it in words.

        Args:
            points: what to measure.
            facts: what the file tells of them.

        Raises:
            DataError: the file is there already, or is of another device or number of threads.
        """
        rows = self._file("kernels", facts, self.out)
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
            DataError: the files are there already.
        """
        from predictor.traces.measure.program import real_program
        from predictor.traces.measure.steps import StepRun
        from predictor.traces.measure.tasks import keep

        steps = self._file("steps", {}, self.out)
        kernels = self._file("kernels", {}, self.inside)
        program = real_program(
            target, device=self.device.type, mode=mode, batch=batch, seq=seq, dtype=dtype,
            optimizer=optimizer,
        )  # fmt: skip
        if steps.done(program.key):
            raise DataError(f"{self.out} has {program.key!r} already: name another file")
        measured = StepRun(self.device, self.limits).measure(program)
        keep(measured, program.key, steps, kernels)
        kernels.write()
        steps.write()
        return program.key, measured

    def _file(self, table: str, facts: Mapping[str, Any], path: Path) -> RowsFile:
        rows = RowsFile(path, table, resume=self.resume)
        for name, here in (("device", self.device.device.id), ("threads", self.device.threads)):
            before = rows.facts.get(name, here)
            if before != here:
                raise DataError(
                    f"{path} was measured with {name} {before}, this is {here}: name another file"
                )
        now = readings(self.device.type)
        rows.facts |= {
            **facts, "device": self.device.device.id, "threads": self.device.threads,
            "clock_mhz": _known(now.clock_mhz), "temperature_c": _known(now.temperature_c),
            "power_limit_w": _known(now.power_limit_w),
            "resolution_us": self.device.clock.resolution_us,
        }  # fmt: skip
        return rows

    def _summary(self, rows: RowsFile, points: int, whole: bool) -> str:
        flags = rows.flags()
        sound = flags.pop("", 0)
        kinds = [f"{n} {flag}" for flag, n in flags.most_common()]
        lines = [f"{self.out}: {rows.rows} rows of {points} points: "
                 + ", ".join([f"{sound} sound", *kinds])]  # fmt: skip
        if rows.refused:
            refused = ", ".join(f"{n} {reason}" for reason, n in rows.refused.most_common())
            lines.append(f"refused: {refused}")
        if not whole:
            lines.append("stopped by --minutes; --resume goes on")
        return "\n".join(lines)


def _known(value: float) -> float | None:
    return value if value == value else None
