"""The processor at hand as the accelerator that nobody has measured, live and in one command.

    python training/live_transfer.py --out runs/live

A checkpoint that never saw this processor (`base-v2-nocpu`) says which twenty things to measure for
thirty whole steps; they are measured, an adapter is fitted, the thirty are predicted and written
down, and only then measured. None of the twenty is of a model family of the thirty. Beside the
prediction stand the roofline and a FLOPs law fitted on the same twenty rows. A run that was stopped
goes on where it was. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of each step otherwise

import numpy as np
import pandas as pd
import torch
from measure_own import STEP_LIMITS
from own_programs import FOLDS, Mode, Spec, steps

from predictor.atomic import write_text
from predictor.calibrate.adapted import AdaptedPredictor
from predictor.checkpoint import load_release
from predictor.commands.suggest_text import plan_text
from predictor.errors import PredictorError
from predictor.features.columns import node_features
from predictor.features.table import table_from_graph
from predictor.fit.adapting import fit_from_rows
from predictor.fit.measurable import (
    Wanted,
    bank_programs,
    grid_points,
    kernels_of,
    of_graph,
    small_programs,
)
from predictor.fit.pool import Context, pool_of
from predictor.fit.suggestion import suggest
from predictor.graph.ir import KernelGraph
from predictor.hardware.catalogue import adopt_device
from predictor.nn.latency import LatencyPredictor, load_predictor
from predictor.traces.measure.place import open_rows
from predictor.traces.measure.plan import Plan, read_plan
from predictor.traces.measure.rows_file import RowsFile
from predictor.traces.measure.session import MeasureSession
from predictor.traces.measure.steps import StepRun
from predictor.traces.measure.tasks import Task, run_tasks
from predictor.traces.sources.own import LICENCE
from predictor.version import code_version

logger = logging.getLogger("live_transfer")

FOLD = 0
"""Families of the steps that are predicted."""
HIDDEN_WORDS = ("llama", "mistral", "qwen", "convnext", "gru", "densenet", "deit")
"""In the name of a model that is of one of these families: it is not measured beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A whole step that is predicted, then measured."""

    spec: Spec
    mode: Mode
    dtype: str
    wanted: Wanted

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{self.spec.name} {self.mode} {self.dtype}"


def steps_to_predict(fold: int, most: int | None) -> list[Step]:
    """Steps of the families of a fold, captured."""
    chosen = [s for s in steps() if FOLDS[s[0].family] == fold][:most]
    return [
        Step(spec=spec, mode=mode, dtype=dtype,
             wanted=of_graph(spec.name, spec.graph(mode, dtype), batch=spec.batch))
        for spec, mode, dtype in chosen
    ]  # fmt: skip


def plan_for(found: Sequence[Step], context: Context, *, count: int, minutes: float) -> Plan:
    """The measurements that tell most of the steps, without models of their families."""
    dtypes = {step.dtype for step in found}
    banked = bank_programs(context.device, dtypes)
    families = {step.spec.family for step in found}
    hidden = banked["target"].map(_hidden) | banked["family"].isin(list(families))
    small = small_programs(context.device, sorted(dtypes), ("infer", "train"))
    pool = pool_of(
        context, banked=banked[~hidden],
        captured=[(p, g) for p, g in small if not _hidden(p.target)],
        points=grid_points([step.wanted for step in found]),
    )  # fmt: skip
    return suggest(
        [step.wanted for step in found], context, most=count, seconds=60 * minutes, pool=pool
    )


def _hidden(target: str) -> bool:
    return any(word in target.lower() for word in HIDDEN_WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a FLOPs law and a roofline know of a step."""

    compute_us: float
    """Time of its arithmetic at the datasheet's peaks."""
    roofline_us: float
    train: bool


def work_of(graph: KernelGraph, context: Context) -> Work:
    """Datasheet times of a step."""
    table = table_from_graph(graph)
    time = node_features(table, context.device, context.software).roofline.datasheet_us
    return Work(
        compute_us=float(time[table.flops > 0].sum()), roofline_us=float(time.sum()),
        train=graph.workload.mode == "train",
    )  # fmt: skip


def flops_law(
    known: Sequence[Work], known_us: Sequence[float], asked: Sequence[Work]
) -> np.ndarray:
    """Times by a line in logs through the arithmetic of measured steps, and training or not."""

    def facts(of: Sequence[Work]) -> np.ndarray:
        return np.array([[1.0, np.log(w.compute_us), w.train] for w in of])

    solution, *_ = np.linalg.lstsq(facts(known), np.log(known_us), rcond=None)
    return np.asarray(np.exp(facts(asked) @ solution))


def predictions(
    found: Sequence[Step], plan: Plan, session: MeasureSession, context: Context, checkpoint: str
) -> pd.DataFrame:
    """Every step by every method, before it is measured."""
    described = session.device.device
    whole = fit_from_rows(described, [session.out], checkpoint=checkpoint)
    inside = fit_from_rows(described, [session.out, session.inside], checkpoint=checkpoint)
    whole.save(session.out.with_name("adapter-steps"))
    inside.save(session.out.with_name("adapter"))
    speaks = {
        "zero_shot": context.base,
        "steps_alone": AdaptedPredictor(base=context.base, adapter=whole),
        "calibrated": AdaptedPredictor(base=context.base, adapter=inside),
    }
    measured = RowsFile(session.out, "steps", resume=True)
    known = [p for p in plan.programs if measured.done(p.key)]
    law = flops_law(
        [work_of(kernels_of(p), context) for p in known],
        [float(measured.rows_of(p.key)[0]["latency_us"]) for p in known],
        [work_of(step.wanted.graph, context) for step in found],
    )
    rows = []
    for step, flops_us in zip(found, law, strict=True):
        row: dict[str, Any] = {"step": step.key, "family": step.spec.family}
        for name, network in speaks.items():
            row |= _step(network, step, context, name)
        row["roofline"] = work_of(step.wanted.graph, context).roofline_us
        rows.append(row | {"flops_law": float(flops_us)})
    return pd.DataFrame(rows)


def _step(
    network: LatencyPredictor | AdaptedPredictor, step: Step, context: Context, name: str
) -> dict[str, float]:
    found = network.predict(step.wanted.graph, context.device, context.software).step
    return {
        name: found.latency_us,
        f"{name}_lower": found.lower_us,
        f"{name}_upper": found.upper_us,
    }


def measure(found: Sequence[Step], session: MeasureSession, path: Path) -> RowsFile:
    """The time of every step."""
    rows = open_rows(path, "steps", session.place, resume=True)
    inside = open_rows(path.with_name(f"{path.stem}.kernels.parquet"), "kernels", session.place,
                       resume=True)  # fmt: skip

    def task(step: Step) -> Task:
        return Task(key=step.key, build=lambda: step.spec.program(step.mode, step.dtype))

    run = StepRun(session.device, STEP_LIMITS)
    run_tasks(run, [task(step) for step in found], rows, inside, deadline=session.deadline)
    return rows


METHODS = {
    "zero_shot": "zero-shot, from the datasheet", "calibrated": "calibrated: the steps and kernels "
    "inside them", "steps_alone": "calibrated: the measured steps alone",
    "roofline": "roofline", "flops_law": "FLOPs law on the same steps",
}  # fmt: skip


def table(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Errors by method over the measured steps."""
    out = []
    for name, text in METHODS.items():
        off = (rows[name] / rows["measured_us"] - 1.0).abs()
        line: dict[str, Any] = {
            "method": name, "text": text, "n": len(rows), "mape": float(off.mean()),
            "median": float(off.median()), "p90": float(off.quantile(0.9)),
            "bias": float((rows[name] / rows["measured_us"] - 1.0).mean()),
        }  # fmt: skip
        if f"{name}_lower" in rows:
            inside = rows["measured_us"].between(rows[f"{name}_lower"], rows[f"{name}_upper"])
            width = np.log(rows[f"{name}_upper"] / rows[f"{name}_lower"]) / 2
            line |= {"covers": float(inside.mean()), "factor": float(np.exp(width.mean()))}
        out.append(line)
    return out


def table_text(lines: Sequence[dict[str, Any]]) -> str:
    """The table as Markdown."""
    head = f"{lines[0]['n']} whole steps, predicted before they were measured"
    columns = "n | mean error | median | p90 | bias | 90% interval covers | its half"
    out = [f"| {head} | {columns} |", "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for line in lines:
        covers = f"{line['covers']:.0%}" if "covers" in line else ""
        half = f"x {line['factor']:.2f}" if "factor" in line else ""
        numbers = " | ".join(f"{100 * line[k]:.1f}" for k in ("mape", "median", "p90"))
        out.append(f"| {line['text']} | {line['n']} | {numbers} | {100 * line['bias']:+.1f} | "
                   f"{covers} | {half} |")  # fmt: skip
    return "\n".join(out)


def card(plan: Plan, lines: Sequence[dict[str, Any]], rows: pd.DataFrame) -> str:
    """What the folder holds."""
    flags = rows.loc[rows["flag"] != "", "flag"].value_counts()
    flagged = ", ".join(f"{n} {flag}" for flag, n in flags.items()) or "none flagged"
    return "\n".join([
        f"# {plan.device}: predicted, then measured", "",
        "Made by `python training/live_transfer.py` with version "
        f"{code_version()} of this project; licence Apache-2.0. {plan.checkpoint} never saw the "
        f"processor. It suggested {len(plan.measurements)} measurements (`plan.json`: "
        f"{len(plan.programs)} whole steps, {len(plan.points)} kernels alone), none of a model "
        "family that is predicted; they are in `rows.parquet` and, kernels, in "
        "`rows.kernels.parquet`. `predictions.parquet` was written before `measured.parquet`; "
        f"`steps.parquet` holds both ({flagged}).", "", table_text(lines), "",
        "| step | measured | zero-shot | calibrated | roofline | FLOPs law |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {row['step']} | {row['measured_us'] / 1e3:.2f} ms | "
            + " | ".join(f"{100 * (row[m] / row['measured_us'] - 1):+.1f}%" for m in
                         ("zero_shot", "calibrated", "roofline", "flops_law")) + " |"
            for row in rows.to_dict("records")
        ), "",
    ])  # fmt: skip


def manifest(folder: Path) -> str:
    """Rows and hash of every file of rows."""
    files = {
        path.name: [len(pd.read_parquet(path)), hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in sorted(folder.glob("*.parquet"))
    }
    facts = {"source": "own", "origin": "training/live_transfer.py", "licence": LICENCE,
             "entry": "file: [rows, sha256]", "files": files}  # fmt: skip
    return json.dumps(facts, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--checkpoint", default="base-v2-nocpu")
    parser.add_argument("--count", type=int, default=20, help="measurements to suggest")
    parser.add_argument("--minutes", type=float, default=5.0, help="of these measurements")
    parser.add_argument("--fold", type=int, default=FOLD, help="of families to predict")
    parser.add_argument("--most", type=int, default=30, help="steps to predict")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--as", dest="name", metavar="ID|FILE", help="what rows call the device")
    parser.add_argument("--stop-after", choices=("plan", "measure", "predict"))
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("predictor").setLevel(logging.INFO)
    try:
        return _run(given)
    except PredictorError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _run(given: argparse.Namespace) -> int:
    given.out.mkdir(parents=True, exist_ok=True)
    session = MeasureSession.open(
        given.out / "rows.parquet", device="cpu", name=given.name, threads=given.threads,
        resume=True, seconds=STEP_LIMITS.seconds,
    )  # fmt: skip
    sys.stderr.write(f"{session.greeting()}\n")
    session.place.write()
    device = session.device.device
    adopt_device(device)
    context = Context(
        base=load_predictor(load_release(given.checkpoint)), device=device,
        framework_version=torch.__version__.partition("+")[0],
    )  # fmt: skip
    found = steps_to_predict(given.fold, given.most)
    path = given.out / "plan.json"
    if not path.is_file():
        plan_for(found, context, count=given.count, minutes=given.minutes).write(path)
    plan = read_plan(path)
    sys.stdout.write(f"{plan_text(plan)}\n")
    if given.stop_after == "plan":
        return 0
    sys.stdout.write(f"{session.plan(plan)}\n")
    if given.stop_after == "measure":
        return 0
    predicted = given.out / "predictions.parquet"
    if not predicted.is_file():
        predictions(found, plan, session, context, given.checkpoint).to_parquet(predicted)
    if given.stop_after == "predict":
        return 0
    rows = pd.read_parquet(predicted)
    times = measure(found, session, given.out / "measured.parquet")
    rows["measured_us"] = [
        float(times.rows_of(key)[0]["latency_us"]) if times.done(key) else np.nan
        for key in rows["step"]
    ]
    rows["flag"] = [times.worst(key) if times.done(key) else "" for key in rows["step"]]
    rows.to_parquet(given.out / "steps.parquet")
    rows = rows[rows["measured_us"].notna()]
    lines = table(rows)
    write_text(given.out / "table.json", json.dumps(lines, indent=1) + "\n")
    write_text(given.out / "README.md", card(plan, lines, rows))
    write_text(given.out / "manifest.json", manifest(given.out))
    sys.stdout.write(f"{table_text(lines)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
