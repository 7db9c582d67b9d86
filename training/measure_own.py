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
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of each step otherwise

import pandas as pd
from own_programs import Spec, steps

from predictor.atomic import write_text
from predictor.errors import PredictorError
from predictor.graph.ops import OPS
from predictor.hardware.device import Device
from predictor.traces.measure.grid import read_grid
from predictor.traces.measure.kernels import KernelRun
from predictor.traces.measure.place import deadline_after, in_data_set, open_rows, place_at
from predictor.traces.measure.rows_file import read_rows
from predictor.traces.measure.session import numbered
from predictor.traces.measure.steps import StepRun
from predictor.traces.measure.tasks import Task, run_tasks
from predictor.traces.measure.timer import Limits
from predictor.traces.sources.own import FILES, LICENCE, SOURCE
from predictor.traces.sources.rows_files import device_files
from predictor.version import code_version

KERNEL_SHARE = 0.55
"""Share of the time that kernels may take; steps have the rest."""
KERNEL_LIMITS = Limits(seconds=0.1)
STEP_LIMITS = Limits(seconds=0.8)


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


def told(folder: Path, fact: str, otherwise: str) -> str:
    """The last that the files say of themselves, or what to say where they do not."""
    kept = (read_rows(folder / file)[1]["facts"] for file in present(folder))
    return max((str(facts[fact]) for facts in kept if fact in facts), default=otherwise)


def measured_on(folder: Path) -> str:
    """The day of the last row, as the files tell it, else as the system dates them."""
    last = max((folder / name).stat().st_mtime for name in present(folder))
    return told(folder, "measured", datetime.fromtimestamp(last, UTC).date().isoformat())


def refused(folder: Path) -> list[str]:
    """Points without a row by kind (of a step: its model) and reason, as lines of a table."""
    lines = []
    for name in present(folder):
        found = read_rows(folder / name)[1]["refused"].items()
        reasons = Counter((key.partition(" ")[0], reason) for key, reason in found)
        lines += [f"| `{name}` | {kind} | {why} | {n:,} |" for (kind, why), n in
                  reasons.most_common()]  # fmt: skip
    return lines and ["", "| file | refused | why | points |", "|---|---|---|--:|", *lines]


def by_class(rows: pd.DataFrame, title: str) -> list[str]:
    """Rows of kernels by class of op and dtype, as lines of a table."""
    classes = rows["op"].map(lambda op: OPS[op].op_class)
    lines = ["", f"| op class | dtype | {title} |", "|---|---|--:|"]
    for (op_class, dtype), group in rows.groupby([classes, "dtype"]):
        lines.append(f"| {op_class} | {dtype} | {len(group):,} |")
    return lines


def card(folder: Path, facts: Device, threads: int) -> str:
    """What the data set holds.

    Args:
        folder: of the files.
        facts: the device.
        threads: with which it was measured, where the files do not tell.
    """
    tables = {name: counted(folder / name) for name in present(folder)}
    versions = sorted({v for rows, _ in tables.values() for v in rows["framework_version"]})
    threads = int(told(folder, "threads", str(threads)))
    lines = [
        f"# {facts.id}", "",
        f"Measured by this project with `training/measure_own.py` on {facts.name}: "
        f"{facts.units:g} cores, {facts.architecture}, {facts.compute_capability}, "
        f"L2 {facts.l2_mib} MiB, last-level cache {facts.llc_mib} MiB, {facts.memory_gib} GiB; "
        f"PyTorch {', '.join(versions)}, {numbered(threads, 'thread')}; last on "
        f"{measured_on(folder)}, with version {told(folder, 'version', code_version())} of this "
        f"project. Licence {LICENCE}. Columns: docs/data.md; how it was measured: docs/measure.md.",
        "", "| file | rows | by flag |", "|---|--:|---|",
    ]  # fmt: skip
    for name, (rows, flags) in tables.items():
        by_flag = ", ".join(f"{n:,} {flag}" for flag, n in flags.most_common())
        lines.append(f"| `{name}` | {len(rows):,} | {by_flag} |")
    lines += refused(folder)
    for name, title in (("kernels.parquet", "kernels alone"), ("in_step.parquet", "inside steps")):
        if name in tables:
            lines += by_class(tables[name][0], title)
    if "steps.parquet" in tables:
        lines += ["", "| mode | dtype | steps | models |", "|---|---|--:|--:|"]
        for (mode, dtype), group in tables["steps.parquet"][0].groupby(["mode", "dtype"]):
            lines.append(f"| {mode} | {dtype} | {len(group)} | {group['model'].nunique()} |")
    lines += ["", "Not for: other processors without calibration; another number of threads. Rows "
              "with a flag are not for training (`recipe.exclude_flags`)."]  # fmt: skip
    return "\n".join(lines) + "\n"


def manifest(folder: Path) -> str:
    """Files, rows and hashes; the device file has one row, its device."""
    rows = {name: len(pd.read_parquet(folder / name)) for name in present(folder)}
    rows |= {path.name: 1 for path in device_files(folder)}
    files = {
        name: [count, hashlib.sha256((folder / name).read_bytes()).hexdigest()]
        for name, count in rows.items()
    }
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
    begin = time.monotonic()
    try:
        end = deadline_after(given.minutes)
        place = place_at(in_data_set(given.out), "cpu", threads=given.threads)
        folder = given.out / place.device.device.id
        kernels, whole, inside = (
            open_rows(folder / name, table, place, resume=True)
            for name, table in (("kernels.parquet", "kernels"), ("steps.parquet", "steps"),
                                ("in_step.parquet", "kernels"))
        )  # fmt: skip
    except PredictorError as error:
        parser.error(str(error))
    assert end is not None
    device = place.device
    sys.stderr.write(f"measuring {device.device.id}, {place.note}\n")
    points = read_grid(given.grid)
    random.Random(0).shuffle(points)  # what is measured in the time there is has all classes
    points = points[: given.points]
    run = KernelRun(device, kernels, KERNEL_LIMITS, begin + KERNEL_SHARE * (end - begin))
    done = run.run(points)
    found = tasks(given.only)
    done &= run_tasks(StepRun(device, STEP_LIMITS), found, whole, inside, deadline=end)
    if not present(folder):
        sys.stderr.write(f"{folder}: no row in the time given; give more --minutes\n")
        return 2
    write_text(folder / "README.md", card(folder, device.device, device.threads))
    write_text(folder / "manifest.json", manifest(folder))
    sys.stdout.write(
        f"{folder}: {kernels.rows} of {len(points)} kernels, {whole.rows} of {len(found)} steps, "
        f"{inside.rows} rows of kernels inside{'' if done else '; run it again to go on'}\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
