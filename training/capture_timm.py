"""Capture every timm model of the measured tables into a graph bank.

    python training/capture_timm.py MODELS.csv --work runs/timm-graphs --out datasets/timm/graphs

MODELS.csv has the columns model, img_size, mode, family, fold, graph_group, cross_fold_twin. Each
program is captured once a variant, at a prime batch, and kept in the work folder: a run that was
stopped goes on where it was. `--write-only` makes the bank of what is there. Needs timm.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch

from predictor.atomic import replacing_file
from predictor.capture.timm_models import TimmModel, build_timm
from predictor.errors import PredictorError
from predictor.program import capture
from predictor.traces.batch_affine import CAPTURE_BATCH, AffineGraph, affine_graph
from predictor.traces.graph_bank import ANY_BATCH
from predictor.traces.graph_bank_files import graph_id, write_bank

DTYPES = {"amp": "amp-fp16", "amp-unfused": "amp-fp16", "fp32": "fp32", "bf16": "bf16"}
PASSES: tuple[tuple[str, str, str], ...] = (
    ("infer", "amp", "nchw"), ("train", "amp-unfused", "nchw"), ("train", "amp-unfused", "nhwc"),
    ("infer", "amp", "nhwc"), ("infer", "amp-unfused", "nchw"), ("infer", "amp-unfused", "nhwc"),
    ("infer", "bf16", "nchw"), ("train", "amp", "nchw"), ("train", "amp", "nhwc"),
    ("infer", "fp32", "nchw"),
)  # fmt: skip
"""Mode, variant and layout, the most measured first."""
FACTS = ("family", "fold", "graph_group", "cross_fold_twin")
SAME = "same as fused"
"""Kept in place of a graph that a model without attention shares with its `amp` variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One program to capture."""

    model: str
    size: int
    mode: str
    variant: str
    layout: str

    def path(self, work: Path) -> Path:
        """Where its graph is kept."""
        return work / f"{self.model}@{self.size}-{self.mode}-{self.variant}-{self.layout}.pickle"


def tasks_of(models: pd.DataFrame) -> Iterator[Task]:
    """All programs, pass by pass; within a pass in an order that any prefix samples fairly."""
    for mode, variant, layout in PASSES:
        rows = models[models["mode"] == mode]
        order = sorted(
            zip(rows["model"], rows["img_size"], strict=True),
            key=lambda key: hashlib.sha256(f"{key[0]}@{key[1]}".encode()).digest(),
        )
        for model, size in order:
            yield Task(model=model, size=int(size), mode=mode, variant=variant, layout=layout)


def captured(task: Task) -> AffineGraph | str:
    """The kernels of a program at any batch, or `SAME`.

    Raises:
        PredictorError: it cannot be built, captured, or is no affine function of the batch.
    """
    found = build_timm(
        task.model, image_size=task.size, fused_attention=task.variant != "amp-unfused"
    )
    differs = task.variant != "amp-unfused" or _has_attention(task)
    if task.mode == "infer" and not differs:
        return SAME
    return affine_graph(_graph(found, task), half="fp16" if "amp" in task.variant else None)


def _has_attention(task: Task) -> bool:
    return build_timm(task.model, image_size=task.size).written_out_attention


def _graph(found: TimmModel, task: Task):  # noqa: ANN202
    module, images = found.module, found.images(CAPTURE_BATCH)
    if task.layout == "nhwc":
        module = module.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    module = module.train() if task.mode == "train" else module.eval()
    return capture(
        module, images, mode=task.mode, dtype=DTYPES[task.variant],
        optimizer="sgd" if task.mode == "train" else None,
    )  # fmt: skip


def run(given: tuple[Task, Path]) -> tuple[Task, str]:
    """Capture one program into its file; the reason where it cannot be."""
    task, work = given
    torch.set_num_threads(1)
    try:
        result: AffineGraph | str = captured(task)
        reason = ""
    except (PredictorError, AssertionError, RuntimeError, ValueError, TypeError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        result = f"refused: {reason}"
    with replacing_file(task.path(work)) as fresh:
        fresh.write_bytes(pickle.dumps(result))
    return task, reason


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, metavar="MODELS.csv")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, help="capture at most so many programs")
    parser.add_argument("--write-only", action="store_true", help="capture nothing")
    given = parser.parse_args(arguments)
    models = pd.read_csv(given.models)
    given.work.mkdir(parents=True, exist_ok=True)
    every = list(tasks_of(models))
    left = [t for t in every if not t.path(given.work).is_file()][: given.limit]
    if not given.write_only:
        begin = time.monotonic()
        with get_context("spawn").Pool(given.processes, maxtasksperchild=200) as pool:
            done = pool.imap_unordered(run, [(t, given.work) for t in left], chunksize=1)
            for i, (task, reason) in enumerate(done, 1):
                if reason:
                    sys.stdout.write(f"{task}: {reason}\n")
                if i % 50 == 0:
                    rate = i / (time.monotonic() - begin)
                    sys.stdout.write(f"{i} of {len(left)}, {rate:.1f} a second\n")
                sys.stdout.flush()
    write(models, every, given.work, given.out)
    return 0


def write(models: pd.DataFrame, every: Sequence[Task], work: Path, out: Path) -> None:
    """The bank of all graphs that were captured, and the list of refused programs."""
    facts = models.set_index(["model", "img_size", "mode"])[list(FACTS)]
    graphs: dict[str, AffineGraph] = {}
    index, refused = [], []
    names: dict[Task, str] = {}
    for task in sorted(every, key=lambda t: (t.variant, t.model, t.size, t.mode, t.layout)):
        path = task.path(work)
        if not path.is_file():
            continue
        result = pickle.loads(path.read_bytes())
        key = {"model": task.model, "size": task.size, "mode": task.mode,
               "variant": task.variant, "layout": task.layout}  # fmt: skip
        if result == SAME:
            twin = Task(**{**key, "variant": "amp"})
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
        row = facts.loc[(task.model, task.size, task.mode)]
        index.append({**key, "batch_from": 1, "batch_to": ANY_BATCH, "graph": name, **row})
    out.mkdir(parents=True, exist_ok=True)
    write_bank(out, graphs, pd.DataFrame(index))
    pd.DataFrame(refused, columns=[*Task.__slots__, "reason"]).to_csv(
        out / "refused.csv", index=False
    )
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    sys.stdout.write(
        f"{out}: {len(index):,} programs, {len(graphs):,} graphs, {len(refused):,} refused, "
        f"{size:.1f} MB\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
