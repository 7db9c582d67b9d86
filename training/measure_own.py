"""Measure the project's own data set on the processor at hand.

    python training/measure_own.py --out datasets [--minutes 30]

Writes `datasets/<processor and cores>/`: kernels of the grid `full` alone, whole steps of the
programs of `own_programs.py`, the kernels inside these steps, the device file, and a card. A run
that was stopped goes on where it was. Run it on a machine that does nothing else: what others
compute is told from the system's counters and flagged, and flagged rows are measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of each step otherwise

import pandas as pd
from own_programs import Spec, steps

from predictor.atomic import write_text
from predictor.graph.ops import OPS
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.device_file import device_file_text
from predictor.traces.files import DEVICE_FILE
from predictor.traces.measure.grid import read_grid
from predictor.traces.measure.kernels import KernelRun
from predictor.traces.measure.local import LocalDevice, local_device
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.steps import StepRun
from predictor.traces.measure.tasks import Task, run_tasks
from predictor.traces.measure.timer import Limits
from predictor.traces.sources.own import FILES, LICENCE, SOURCE

KERNEL_SHARE = 0.55
"""Share of the time that kernels may take; steps have the rest."""
KERNEL_LIMITS = Limits(seconds=0.1)
STEP_LIMITS = Limits(seconds=0.8)


def opened(root: Path, threads: int | None) -> tuple[LocalDevice, Path]:
    """The processor, and the folder of its rows with the device file in it."""
    known = sorted(root.glob(f"*/*{DEVICE_FILE}"))
    device = local_device("cpu", threads=threads)
    folder = root / device.device.id
    beside = folder / f"{device.device.id}{DEVICE_FILE}"
    if beside in known:  # the bandwidth that was measured first stays
        device = local_device("cpu", name=beside, threads=threads)
    elif device.device.id not in load_catalogue():
        write_text(beside, device_file_text(device.device))
    return device, folder


def tasks(only: str) -> list[Task]:
    """All steps whose model's name has a word."""

    def task(spec: Spec, mode: str, dtype: str) -> Task:
        return Task(key=f"{spec.name} {mode} {dtype}", build=lambda: spec.program(mode, dtype))

    return [task(*step) for step in steps() if only in step[0].name]


def present(folder: Path) -> list[str]:
    """Files of rows that there are."""
    return [name for name in FILES if (folder / name).is_file()]


def counted(path: Path) -> tuple[pd.DataFrame, Counter[str]]:
    """Rows of a file, and how many have which flag."""
    rows = pd.read_parquet(path)
    return rows, Counter(rows["flag"].replace("", "sound"))


def card(folder: Path, device: LocalDevice) -> str:
    """What the data set holds."""
    import torch

    facts = device.device
    lines = [
        f"# {facts.id}", "",
        f"Measured by this project with `training/measure_own.py` on {facts.name}: "
        f"{facts.units:g} cores, {facts.architecture}, {facts.compute_capability}, "
        f"L2 {facts.l2_mib} MiB, last-level cache {facts.llc_mib} MiB, {facts.memory_gib} GiB; "
        f"PyTorch {torch.__version__}, {device.threads} threads. Licence {LICENCE}. "
        "Columns: docs/data.md; how it was measured: docs/measure.md.", "",
        "| file | rows | by flag |", "|---|--:|---|",
    ]  # fmt: skip
    for name in present(folder):
        rows, flags = counted(folder / name)
        by_flag = ", ".join(f"{n:,} {flag}" for flag, n in flags.most_common())
        lines.append(f"| `{name}` | {len(rows):,} | {by_flag} |")
    rows, _ = counted(folder / "kernels.parquet")
    classes = rows["op"].map(lambda op: OPS[op].op_class)
    lines += ["", "| op class | dtype | kernels alone |", "|---|---|--:|"]
    for (op_class, dtype), group in rows.groupby([classes, "dtype"]):
        lines.append(f"| {op_class} | {dtype} | {len(group):,} |")
    found, _ = counted(folder / "steps.parquet")
    lines += ["", "| mode | dtype | steps | models |", "|---|---|--:|--:|"]
    for (mode, dtype), group in found.groupby(["mode", "dtype"]):
        lines.append(f"| {mode} | {dtype} | {len(group)} | {group['model'].nunique()} |")
    lines += ["", "Not for: other processors without calibration; times under other threads. Rows "
              "with a flag are not for training (`recipe.exclude_flags`)."]  # fmt: skip
    return "\n".join(lines) + "\n"


def manifest(folder: Path) -> str:
    """Files, rows and hashes."""
    files = {
        name: [len(pd.read_parquet(folder / name)),
               hashlib.sha256((folder / name).read_bytes()).hexdigest()]
        for name in present(folder)
    }  # fmt: skip
    facts = {
        "source": SOURCE, "origin": "training/measure_own.py", "licence": LICENCE,
        "entry": "file: [rows, sha256]", "files": files,
    }  # fmt: skip
    return json.dumps(facts, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--grid", default="full", help="grid of kernels")
    parser.add_argument("--points", type=int, help="the first so many kernels only")
    parser.add_argument("--only", default="", metavar="WORD", help="models whose name has it")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("predictor").setLevel(logging.INFO)
    begin, seconds = time.monotonic(), 60.0 * given.minutes
    device, folder = opened(given.out, given.threads)
    kernels, whole, inside = (
        RowsFile(folder / name, table, resume=True)
        for name, table in (("kernels.parquet", "kernels"), ("steps.parquet", "steps"),
                            ("in_step.parquet", "kernels"))
    )  # fmt: skip
    points = read_grid(given.grid)
    random.Random(0).shuffle(points)  # what is measured in the time there is has all classes
    points = points[: given.points]
    run = KernelRun(device, kernels, KERNEL_LIMITS, begin + KERNEL_SHARE * seconds)
    done = run.run(points)
    found = tasks(given.only)
    done &= run_tasks(StepRun(device, STEP_LIMITS), found, whole, inside, deadline=begin + seconds)
    write_text(folder / "README.md", card(folder, device))
    write_text(folder / "manifest.json", manifest(folder))
    sys.stdout.write(
        f"{folder}: {kernels.rows} of {len(points)} kernels, {whole.rows} of {len(found)} steps, "
        f"{inside.rows} rows of kernels inside{'' if done else '; run it again to go on'}\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
