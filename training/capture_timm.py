"""Capture every timm model of the measured tables into a graph bank.

    python training/capture_timm.py MODELS.csv --work runs/timm-graphs --out datasets/timm/graphs

MODELS.csv has the columns model, img_size, mode, family, fold, graph_group, cross_fold_twin. A
program is captured at a prime batch in every variant that the tables time, and kept in the work
folder: a run that was stopped goes on where it was. Models whose first variant is the same graph
(one architecture under several names) share all of them. `--tables DIR` (with benchmark-*.csv
files) takes what is measured first, `--write-only` makes the bank of what is there. Needs timm.

A training step is that of timm's own benchmark: forward under autocast, cross-entropy, backward,
SGD with Nesterov momentum.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
from timm_programs import (
    NOT_FOLDED,
    SAME,
    VARIANTS,
    Programs,
    Task,
    by_program,
    measured_first,
    tasks_of,
)

from predictor.atomic import replacing_file
from predictor.errors import PredictorError
from predictor.traces.batch_affine import AffineGraph
from predictor.traces.graph_bank import ANY_BATCH, REPARAM
from predictor.traces.graph_bank_files import graph_id, write_bank

FACTS = ("family", "fold", "graph_group", "cross_fold_twin")
LEAST_BATCH = 2
"""At one sample some copies and reductions fall away: graphs are exact from two on."""
FAILURES = (PredictorError, AssertionError, RuntimeError, ValueError, TypeError)


def run(given: tuple[list[Task], Path]) -> list[tuple[Task, str]]:
    """Capture the variants of a program into their files; the reason where one cannot be."""
    tasks, work = given
    torch.set_num_threads(1)
    programs: Programs | None = None
    reasons = []
    for task in sorted(tasks, key=lambda t: t.layout):
        reason = ""
        try:
            programs = programs or Programs(task)
            result: AffineGraph | str = programs.captured(task)
        except FAILURES as error:
            said = str(error).splitlines()[0][:160] if str(error) else ""
            reason = f"{type(error).__name__}: {said}"
            result = f"refused: {reason}"
        with replacing_file(task.path(work)) as fresh:
            kept = (result, -1 if programs is None else programs.parameters(task))
            fresh.write_bytes(pickle.dumps(kept))
        reasons.append((task, reason))
    return reasons


def stand_ins(every: Sequence[Task], work: Path) -> dict[Task, Task]:
    """The program that a task can be read from, where another has the same first variant."""
    first: dict[tuple[str, str], Task] = {}
    twins: dict[Task, Task] = {}
    for task in every:
        path = task.path(work)
        if (task.variant, task.layout) != VARIANTS[task.mode][0] or not path.is_file():
            continue
        result, _ = pickle.loads(path.read_bytes())
        if isinstance(result, AffineGraph):
            twins[task] = first.setdefault((task.mode, graph_id(result)), task)
    found = {}
    for task in every:
        twin = twins.get(replace(task, **dict(zip(("variant", "layout"), VARIANTS[task.mode][0],
                                                  strict=True))))  # fmt: skip
        if twin is not None and twin.model != task.model:
            found[task] = replace(task, model=twin.model, size=twin.size)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, metavar="MODELS.csv")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="capture what these time first")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, help="capture at most so many programs")
    parser.add_argument("--write-only", action="store_true", help="capture nothing")
    given = parser.parse_args(arguments)
    models = pd.read_csv(given.models)
    given.work.mkdir(parents=True, exist_ok=True)
    every = tasks_of(models)
    if not given.write_only:
        shared = stand_ins(every, given.work)
        wanted = dict.fromkeys(shared.get(t, t) for t in measured_first(every, given.tables))
        left = [t for t in wanted if not t.path(given.work).is_file()]
        capture_all(left[: given.limit], given.work, given.processes)
    write(models, every, given.work, given.out)
    return 0


def capture_all(tasks: Sequence[Task], work: Path, processes: int) -> None:
    """Capture in parallel, with a line for what is refused and every fifty programs."""
    begin, done = time.monotonic(), 0
    with get_context("spawn").Pool(processes, maxtasksperchild=100) as pool:
        groups = [(group, work) for group in by_program(tasks)]
        for reasons in pool.imap_unordered(run, groups, chunksize=1):
            for task, reason in reasons:
                done += 1
                if reason:
                    sys.stdout.write(f"{task}: {reason}\n")
                if done % 50 == 0:
                    rate = done / (time.monotonic() - begin)
                    sys.stdout.write(f"{done} of {len(tasks)}, {rate:.1f} a second\n")
            sys.stdout.flush()


def write(models: pd.DataFrame, every: Sequence[Task], work: Path, out: Path) -> None:
    """The bank of all graphs that were captured, and the list of refused programs."""
    facts = models.set_index(["model", "img_size", "mode"])[list(FACTS)].to_dict("index")
    graphs: dict[str, AffineGraph] = {}
    index, refused = [], []
    names: dict[Task, str] = {}
    shared = stand_ins(every, work)
    for task in sorted(every, key=lambda t: (t.variant, t.model, t.size, t.mode, t.layout)):
        path = task.path(work)
        if not path.is_file() and task in shared:
            path = shared[task].path(work)
        if not path.is_file():
            continue
        result, parameters = pickle.loads(path.read_bytes())
        key = {"model": task.model, "size": task.size, "mode": task.mode,
               "variant": task.variant, "layout": task.layout}  # fmt: skip
        if result == NOT_FOLDED:
            continue
        if result == SAME:
            twin = Task(**{**key, "variant": "amp"})  # type: ignore[arg-type]
            if twin not in names:
                continue
            name = names[twin]
        elif isinstance(result, str):
            refused.append({**key, "reason": result.removeprefix("refused: ")})
            continue
        else:
            name = graph_id(result)
            graphs.setdefault(name, result)
        names[task] = name
        index.append({
            **key, "batch_from": LEAST_BATCH, "batch_to": ANY_BATCH, "graph": name,
            **facts[task.model, task.size, task.mode], "parameters": parameters,
        })  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    programs = pd.DataFrame(index)
    folded = programs["variant"].str.endswith(REPARAM)
    counted = programs.groupby(["model", "size", folded])["parameters"].transform("max")
    write_bank(out, graphs, programs.assign(parameters=counted))
    listed = pd.DataFrame(refused, columns=[*Task.__slots__, "reason"])
    listed.to_csv(out / "refused.csv", index=False)
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    sys.stdout.write(
        f"{out}: {len(index):,} programs, {len(graphs):,} graphs, {len(refused):,} refused, "
        f"{size:.1f} MB\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
