"""Measure a GPU in at most eight minutes: kernels, copies, steps of bundled models, two traces.

    python training/measure_device.py --out OUT [--minutes 8] [--device cuda]

Work is ordered by its worth and stops in time; a second call with the same OUT goes on where the
first one stopped. `OUT/<device>/` is a data set of the source `own` (docs/measure.md): put it below
`datasets/`. With `--device cpu` the same parts run on small programs.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of each step otherwise

from own_programs import Mode, Spec, on_a_gpu, steps

from predictor.atomic import write_text
from predictor.errors import PredictorError
from predictor.traces.measure.conditions import readings
from predictor.traces.measure.grid import Point, read_grid
from predictor.traces.measure.kernels import KernelRun
from predictor.traces.measure.kinds import kind_of
from predictor.traces.measure.local import DeviceType, local_device
from predictor.traces.measure.place import (
    Place,
    deadline_after,
    in_data_set,
    open_rows,
    place_at,
)
from predictor.traces.measure.program import RealProgram
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.steps import StepRun
from predictor.traces.measure.tasks import Task, release, run_tasks
from predictor.traces.measure.timer import Limits
from predictor.traces.measure.trace_file import write_trace

logger = logging.getLogger("measure_device")

KERNEL_LIMITS = Limits(seconds=0.04, warmup_seconds=0.01, passes=1)
STEP_LIMITS = Limits(seconds=0.4)
RESERVE_SECONDS = 15.0
"""Kept for writing files and for the last thing begun."""
TRACED = 2
"""Programs whose trace is exported: one of text, one of images."""
TF32_KINDS = ("linear", "matmul", "matmul_dgrad", "matmul_wgrad", "bmm", "bmm_nt", "conv",
              "conv_dgrad", "conv_wgrad", "attention", "attention_backward",
              "lstm", "gru")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the work."""

    name: str
    share: float
    """Of the time, in the first round; what is left goes round again."""
    run: Callable[[float], bool]
    """Works until a deadline; whether it finished."""


class Campaign:
    """All parts on one device.

    Args:
        device: `cpu` or `cuda`.
        out: folder of the device's folder.
        limits: of kernels and of steps.
        only: word that a program's name must have.
        points: kernels of the grid at most.
        threads: of a CPU.
    """

    def __init__(
        self,
        device: str,
        out: Path,
        limits: tuple[Limits, Limits],
        *,
        only: str = "",
        points: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.type: DeviceType = "cuda" if device == "cuda" else "cpu"
        self.place = place_at(in_data_set(out), self.type, threads=threads)
        self.device = self.place.device
        self.folder = out / self.device.device.id
        self.kernel_limits, self.step_limits = limits
        self.points = read_grid("cuda" if self.type == "cuda" else "quick")[:points]
        self.steps = [s for s in self._steps() if only in s[0].name]

    def _steps(self) -> list[tuple[Spec, Mode, str]]:
        return on_a_gpu() if self.type == "cuda" else list(steps())

    def parts(self, skip: Sequence[str]) -> list[Part]:
        """The work, most valuable first."""
        found = [
            Part(name="kernels", share=0.34, run=self.kernels),
            Part(name="steps", share=0.26, run=self.eager),
            Part(name="traces", share=0.06, run=self.traces),
            Part(name="compiled", share=0.20, run=self.compiled),
        ]
        if self.type == "cuda":
            found.append(Part(name="tf32", share=0.14, run=self.tf32))
        return [part for part in found if part.name not in skip]

    def kernels(self, deadline: float) -> bool:
        """The grid, copies between host and device among it."""
        return self._grid("kernels.parquet", self.points, self.place, deadline)

    def tf32(self, deadline: float) -> bool:
        """fp32 work on matrix units, with TF32 allowed."""
        points = [p for p in self.points if p.kind in TF32_KINDS and p.dtype == "fp32"]
        allowed = replace(self.place, device=local_device("cuda", tf32=True))
        return self._grid("kernels_tf32.parquet", points, allowed, deadline)

    def _grid(self, name: str, points: Sequence[Point], place: Place, deadline: float) -> bool:
        rows = open_rows(self.folder / name, "kernels", place, resume=True)
        runs = [p for p in points if self.type in kind_of(p.kind).devices]
        return KernelRun(place.device, rows, self.kernel_limits, deadline).run(runs)

    def eager(self, deadline: float) -> bool:
        """Steps as they are, with the kernels inside."""
        return self._run(deadline, [self._task(*step) for step in self.steps])

    def compiled(self, deadline: float) -> bool:
        """Steps under `torch.compile`."""
        return self._run(deadline, [self._task(*step, compiled=True) for step in self.steps])

    def _task(self, spec: Spec, mode: Mode, dtype: str, *, compiled: bool = False) -> Task:
        def build() -> RealProgram:
            program = spec.program(mode, dtype, self.type)
            if compiled:
                program.compile()
            return program

        end = " compiled" if compiled else ""
        return Task(key=f"{spec.name} b{spec.batch} {mode} {dtype}{end}", build=build)

    def _run(self, deadline: float, tasks: Sequence[Task]) -> bool:
        whole, inside = (
            open_rows(self.folder / name, table, self.place, resume=True)
            for name, table in (("steps.parquet", "steps"), ("in_step.parquet", "kernels"))
        )
        run = StepRun(self.device, self.step_limits)
        return run_tasks(run, tasks, whole, inside, deadline=deadline)

    def traces(self, deadline: float) -> bool:
        """Profiler traces of two training steps."""
        trained = [(s, m, d) for s, m, d in self.steps if m == "train"]
        by_input = {s.takes: (s, m, d) for s, m, d in reversed(trained)}
        for spec, mode, dtype in list(by_input.values())[:TRACED]:
            if time.monotonic() >= deadline:
                return False
            name = f"{spec.name.replace(':', '-').replace('@', '-')}-{mode}-{dtype}.json.gz"
            path = self.folder / "traces" / name
            if not path.is_file():
                write_trace(spec.program(mode, dtype, self.type), self.type, path)
                release(self.type)
        return True


def work(parts: Sequence[Part], deadline: float) -> dict[str, bool]:
    """Run the parts by their shares, then those that are unfinished with what is left."""
    begin = time.monotonic()
    shares = sum(part.share for part in parts)
    done = {part.name: False for part in parts}
    until = begin
    for part in parts:
        until = max(until, time.monotonic()) + part.share / shares * (deadline - begin)
        done[part.name] = part.run(min(until, deadline))
        logger.info("%s: %s", part.name, "done" if done[part.name] else "as far as its time went")
    for part in parts:
        if not done[part.name] and time.monotonic() < deadline:
            done[part.name] = part.run(deadline)
    return done


def summary(campaign: Campaign, done: dict[str, bool]) -> str:
    """What there is, as JSON."""
    now = readings(campaign.type)
    files = {}
    for path in sorted(campaign.folder.glob("*.parquet")):
        table = "steps" if path.name == "steps.parquet" else "kernels"
        rows = RowsFile(path, table, resume=True)
        files[path.name] = {
            "rows": rows.rows, "flags": dict(rows.flags()), "refused": dict(rows.refused),
        }  # fmt: skip
    found = {
        "device": campaign.device.device.id, "finished": done, "files": files,
        "traces": sorted(p.name for p in campaign.folder.glob("traces/*.json.gz")),
        "clock_mhz": _known(now.clock_mhz), "temperature_c": _known(now.temperature_c),
        "power_limit_w": _known(now.power_limit_w),
    }  # fmt: skip
    return json.dumps(found, indent=1, allow_nan=False)


def _known(value: float) -> float | None:
    """A reading, or None where the system does not tell it."""
    return value if math.isfinite(value) else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", default="", metavar="WORD", help="programs whose name has it")
    parser.add_argument("--points", type=int, help="the first so many kernels only")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--skip", nargs="*", default=[], metavar="PART")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    try:
        end = deadline_after(given.minutes)
        assert end is not None
        campaign = Campaign(
            given.device, given.out, (KERNEL_LIMITS, STEP_LIMITS), only=given.only,
            points=given.points, threads=given.threads,
        )  # fmt: skip
    except PredictorError as error:
        parser.error(str(error))
    deadline = end - min(RESERVE_SECONDS, 0.1 * 60 * given.minutes)
    done = work(campaign.parts(given.skip), deadline)
    text = summary(campaign, done)
    write_text(campaign.folder / "summary.json", text + "\n")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
