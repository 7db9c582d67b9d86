"""Rows of a run's grouped cross-validation as suites of the accuracy page.

Each source gives two: its rows on devices that a fold left out, and its rows of model families and
kernel shapes that a fold left out on devices that it knew. Intervals are those of scales that the
group of a row did not fit (`predictor.fit.interval_check`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from accuracy_suites import TURNS, Scored, SuiteFacts, of_suite, with_kinds

from predictor.checkpoint import RELEASE_FOLDER
from predictor.errors import DataError
from predictor.fit.crossval import TABLES, HeldOut
from predictor.fit.data import FOLDS as SHAPE_FOLDS
from predictor.fit.interval_check import judged
from predictor.fit.train import HELD_OUT

FOLDS: Mapping[str, tuple[str, str]] = {
    "device": ("unseen-devices", "cross-validation, devices"),
    "model": ("unseen-families", "cross-validation, families and shapes"),
}
"""By kind of fold: what it adds to a source's name, and its split."""
NOT_TOLD = "–"
SHARES: Mapping[int, str] = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}
TAKEN: tuple[str, ...] = ("roofline_us", "spread_us")
"""What evaluations of the same rows tell, beside published peers: nothing of it was fitted."""
KEYS: tuple[str, ...] = ("row_id", "phase")


def read_held_out(
    run: Path, facts: Mapping[str, SuiteFacts], evaluated: Sequence[Scored] = ()
) -> list[Scored]:
    """Both kinds of held-out rows of every source.

    Args:
        run: the folder that `predictor train` wrote.
        facts: `suites.toml`.
        evaluated: what evaluations of the same suites tell of a whole step, peers among it, is
            taken over.

    Raises:
        DataError: the folder holds no finished run, or rows of a source that `facts` lack.
    """
    try:
        config = json.loads((run / RELEASE_FOLDER / "config.json").read_text(encoding="utf-8"))
        tables = {t: pd.read_parquet(run / HELD_OUT / f"{t}.parquet") for t in TABLES}
    except (OSError, ValueError) as error:  # missing, or damaged JSON or Parquet
        raise DataError(f"{run} is not the folder of a finished run ({error})") from error
    every = judged(HeldOut(**tables), float(config["calibration"]["level"]))
    found = []
    sources = sorted({s for rows in every.values() if len(rows) for s in rows["source"].unique()})
    for source in sources:
        told = of_suite(facts, source, str(run))
        for kind, (suffix, split) in FOLDS.items():
            parts = list(_rows(every, source, kind))
            if parts:
                rows = _joined(pd.concat(parts, ignore_index=True), told, evaluated)
                found.append(
                    Scored(
                        name=f"{source}-{suffix}", facts=told, split=split,
                        checkpoint=f"{config['name']}, fold networks",
                        notes=(_note(config, kind),), unscored={}, rows=with_kinds(rows),
                    )
                )  # fmt: skip
    return found


def _note(config: Mapping[str, Any], kind: str) -> str:
    """How the networks of the folds differ from the release."""
    recipe = config["training"]
    folds = recipe["calibration"]["most_folds"]
    epochs = recipe["calibration"]["epochs"] or recipe["optimizer"]["epochs"]
    share = f"a {SHARES[folds]}" if folds in SHARES else f"one in {folds}"
    what = f"about {share} of all devices, with their near-twins,"
    if kind == "model":
        what = f"about {share} of all model families, or a {SHARES[SHAPE_FOLDS]} of kernel shapes,"
    if not folds:
        what = "one group"
    return (
        f"{what} held out at once; one network of {epochs} epochs a fold, where the "
        f"release has {recipe['network']['members']} of {recipe['optimizer']['epochs']}: errors "
        "are above those of the release on a device, family or shape that alone is new"
    )


def _rows(every: Mapping[str, pd.DataFrame], source: str, kind: str) -> Iterator[pd.DataFrame]:
    """Kernels and steps of a source and kind of fold, in the columns of an evaluation."""
    for table, target in (("kernels", "kernel"), ("steps", "step")):
        rows = every[table]
        if len(rows):
            rows = rows[(rows["source"] == source) & (rows["fold_kind"] == kind)]
        if len(rows):
            yield _as_evaluated(rows, target, seen=kind == "model")


def _as_evaluated(rows: pd.DataFrame, target: str, *, seen: bool) -> pd.DataFrame:
    absent = pd.Series(np.nan, index=rows.index)
    empty = pd.Series("", index=rows.index)
    learned = rows["learned"].to_numpy(dtype=float)
    label = np.where(learned >= 1, "learned", np.where(learned <= 0, "roofline", "mixed"))
    phase = rows.get("phase", empty).fillna("").replace("", NOT_TOLD)
    if target == "step":
        facts = {"op": "step", "op_class": "all", "mode": rows["mode"]}
    else:  # ops timed inside published steps have a class of their own, and no context
        node = rows.get("node_class", absent)
        inside = rows.get("context", absent).fillna("in_step")
        facts = {"op_class": node.fillna(rows["op_class"]), "mode": inside}
    return rows.assign(
        target=target, phase=phase, flag="", label=label, part=TURNS, scored=True, trained=False,
        fitted=False, seen=seen, spread_us=absent, dtype=rows.get("dtype", empty).fillna(""),
        lower_us=rows["predicted_us"] * np.exp(-rows["below"]),
        upper_us=rows["predicted_us"] * np.exp(rows["above"]),
        roofline_us=rows.get("base_us", absent), **facts,
    )  # fmt: skip


def _joined(rows: pd.DataFrame, facts: SuiteFacts, evaluated: Sequence[Scored]) -> pd.DataFrame:
    """Rows with what evaluations of the same suite tell of whole steps."""
    for scored in evaluated:
        if scored.facts is not facts:
            continue
        names = [*TAKEN, *(f"{peer}_us" for peer in facts.peers)]
        steps = scored.rows[scored.rows["target"] == "step"]
        names = [name for name in names if name in steps.columns]
        told = steps.drop_duplicates(list(KEYS)).set_index(list(KEYS))[names]
        taken = rows[list(KEYS)].join(told, on=list(KEYS))[names]
        rows = rows.assign(**{
            name: rows[name].fillna(taken[name]) if name in rows.columns else taken[name]
            for name in names
        })  # fmt: skip
    return rows
