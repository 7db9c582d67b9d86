"""Measuring many steps, one program after the other, into the files of a data set."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from predictor.capture.failures import PROGRAM_ERRORS, first_line
from predictor.errors import DataError
from predictor.traces.measure.flags import gravity
from predictor.traces.measure.kernels import DEAD, DEAD_REMEDY
from predictor.traces.measure.local import DeviceType
from predictor.traces.measure.program import RealProgram
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.step_parts import MeasuredStep
from predictor.traces.measure.steps import StepRun
from predictor.traces.measure.timer import SPREAD_TOO_LARGE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A step to measure; its program is built when its turn comes."""

    key: str
    build: Callable[[], RealProgram]


def run_tasks(
    run: StepRun,
    tasks: Sequence[Task],
    steps: RowsFile,
    kernels: RowsFile,
    *,
    deadline: float | None = None,
) -> bool:
    """Measure every step without a sound row, new ones first; flagged ones again, twice at most.

    Args:
        run: on the device.
        tasks: in the order of their worth.
        steps: file of steps.
        kernels: file of the kernels inside.
        deadline: `time.monotonic()` at which no further step is begun.

    Returns:
        Whether all were reached before the deadline.
    """
    tried = {t.key for t in tasks if steps.done(t.key) or t.key in steps.refused_points}
    tasks = sorted(tasks, key=lambda task: task.key in tried)
    try:
        for again in (False, True, True):
            for number, task in enumerate(tasks, 1):
                spread = steps.refused_points.get(task.key) == SPREAD_TOO_LARGE
                if steps.sound(task.key) or (again and not (steps.done(task.key) or spread)):
                    continue
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                _attempt(run, task, steps, kernels)
                logger.info("%d of %d: %s", number, len(tasks), task.key)
        return True
    finally:
        kernels.write()
        steps.write()


def _attempt(run: StepRun, task: Task, steps: RowsFile, kernels: RowsFile) -> None:
    """Measure one step and keep it; what its program raises refuses it."""
    try:
        measured = run.measure(task.build())
        release(run.device.type)
    except PROGRAM_ERRORS as error:
        logger.info("%s: %s", task.key, " ".join(str(error).split())[:200])
        steps.refuse(task.key, type(error.__cause__ or error).__name__)
        if DEAD in str(error):
            raise DataError(f"{task.key}: {DEAD_REMEDY} ({first_line(error)})") from error
        return
    keep(measured, task.key, steps, kernels)


def release(device: DeviceType) -> None:
    """Give back what the last program held."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def keep(measured: MeasuredStep, key: str, steps: RowsFile, kernels: RowsFile) -> None:
    """Put a measured step into its two files, unless an earlier time of it is as good."""
    if measured.refused:
        steps.refuse(key, measured.refused)
        return
    if steps.done(key) and gravity(str(measured.step["flag"])) >= gravity(steps.worst(key)):
        return
    facts = {k: v for k, v in asdict(measured.parts).items() if v == v}
    steps.facts.setdefault("parts", {})[key] = facts
    kernels.facts.setdefault("counts", {})[key] = list(measured.counts)
    kernels.add(key, measured.kernels)
    steps.add(key, [measured.step])
