"""`predictor evaluate`: a checkpoint on measured rows, by group, with the baselines beside it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.atomic import replacing_file
from predictor.checkpoint import load_release
from predictor.errors import CheckpointError, DataError, RecipeError
from predictor.fit.baselines import BoostedTrees, fit_trees
from predictor.fit.bootstrap import grouped_mean_interval
from predictor.fit.data import devices_of, training_rows, usable_kernels, usable_steps
from predictor.fit.metrics import ERRORS, errors
from predictor.fit.recipe import Recipe, recipe_of
from predictor.fit.rows import ScoredRows, baselines_of, score
from predictor.fit.samples import kernel_samples, step_samples
from predictor.fit.splits import Split, device_split
from predictor.nn.latency import LatencyPredictor, load_predictor
from predictor.traces.schema import Imported
from predictor.traces.sources import neusight
from predictor.traces.sources.registry import read_source

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

logger = logging.getLogger(__name__)

PEER_OPS: Mapping[str, Callable[[Path], pd.DataFrame]] = {"neusight": neusight.peer_ops}
ALL = "all"
SUITE_SPLITS: Mapping[str, str] = {"timm": "timm-families"}
"""Split of a suite for a checkpoint that was not trained on it; `all` where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scored rows and their summary."""

    suite: str
    split: str
    checkpoint: str
    scored: ScoredRows
    groups: list[dict[str, Any]]
    summary: dict[str, Any]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The report of DESIGN.md section 9: groups, with the excluded rows by reason."""
        return {
            "suite": self.suite, "split": self.split, "checkpoint": self.checkpoint,
            "adapter": None, "groups": self.groups, "summary": self.summary,
            "excluded": dict(self.scored.excluded), "notes": list(self.notes),
        }  # fmt: skip

    def write_rows(self, path: Path) -> None:
        """Every row with measured, predicted, lower, upper and each baseline (Parquet)."""
        with replacing_file(path) as fresh:
            self.scored.rows.to_parquet(fresh)

    def view(self) -> RenderableType:
        """Tables for a terminal."""
        from predictor.fit.evaluation_view import evaluation_view

        return evaluation_view(self)


def evaluate(
    suite: str,
    data_dirs: Sequence[Path],
    *,
    split: str | None = None,
    checkpoint: str | Path = "base-v1",
) -> Evaluation:
    """Score a checkpoint on whatever part of a suite the folders hold.

    Args:
        suite: a source name.
        data_dirs: folders laid out as published; any part of the layout.
        split: names the parts in the report and decides which rows train the baselines; when not
            given, the one that the checkpoint was trained with, or the suite's own where it was
            trained on other sources.
        checkpoint: shipped name or folder.

    Raises:
        DataError: nothing of the suite is there. CheckpointError: the checkpoint is not sound.
        RecipeError: unknown split.
    """
    release = load_release(checkpoint)
    predictor = load_predictor(release)
    try:
        recipe = recipe_of(release.config["training"], f"checkpoint {release.name!r}, training")
    except RecipeError as error:
        raise CheckpointError(f"{error}; evaluate it with the version that made it") from error
    data = read_source(suite, data_dirs)
    devices = devices_of(data)
    if not devices:
        raise DataError(f"suite {suite!r}: no row to score in {', '.join(map(str, data_dirs))}")
    own = recipe.split if suite in recipe.sources else SUITE_SPLITS.get(suite, "all")
    parts = device_split(split or own, devices, partial=True)
    trees, notes = _trees(data, recipe, parts)
    scored = score(predictor, data, parts, trees, lambda: _peer_ops(suite, data_dirs, data))
    rows = scored.rows[scored.rows["scored"]] if len(scored.rows) else scored.rows
    return Evaluation(
        suite=suite, split=parts.name, checkpoint=release.name, scored=scored,
        groups=summarise(rows), summary=_summary(rows, parts, predictor), notes=notes,
    )  # fmt: skip


def _trees(
    data: Imported, recipe: Recipe, parts: Split
) -> tuple[BoostedTrees | None, tuple[str, ...]]:
    """The gradient-boosting baseline, trained on the split's training rows that are at hand."""
    data = training_rows(data, parts)
    train = parts.train & set(data.kernels["device"])
    if not train and not data.graphs and data.kernels.empty:
        return None, ()  # whole models have trees of their own
    if not train:
        note = f"gradient boosting left out: no training rows of split {parts.name!r} in the data"
        return None, (note,)
    kernels = kernel_samples(usable_kernels(data, recipe, train), (), Counter())
    steps = step_samples(
        data, usable_steps(data, train), tuple(sorted(train)), recipe.exclude_flags
    )
    return fit_trees(kernels, steps), ()


def _peer_ops(suite: str, folders: Sequence[Path], data: Imported) -> pd.DataFrame:
    import pandas as pd

    parts: list[pd.DataFrame] = []
    for folder in folders if suite in PEER_OPS else ():
        try:
            parts.append(PEER_OPS[suite](folder))
        except DataError as error:
            logger.info("no published op predictions: %s", error)
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return found[found["graph"].isin(list(data.graphs))] if len(found) else found


def summarise(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Groups by device (and over all devices), target, mode, phase and op class."""
    if rows.empty:
        return []
    wide = [rows, rows.assign(device=ALL)]
    out: list[dict[str, Any]] = []
    for frame in wide:
        steps = frame[frame["target"] == "step"]
        kernels = frame[frame["target"] == "kernel"]
        for part in (steps, steps.assign(mode=ALL)):
            out += _groups(part)
        for part in (kernels, kernels.assign(op_class=ALL)):
            out += _groups(part)
    tested = rows[rows["part"] == "test"]
    if len(tested) and len(tested) < len(rows):
        for part in (tested, tested.assign(mode=ALL)):
            out += _groups(part[part["target"] == "step"].assign(device="test"))
        kernels = tested[tested["target"] == "kernel"].assign(device="test")
        for part in (kernels, kernels.assign(op_class=ALL)):
            out += _groups(part)
    return out


def _groups(rows: pd.DataFrame) -> list[dict[str, Any]]:
    rows = rows.assign(one_part=np.where(rows["device"].isin([ALL, "test"]), "", rows["part"]))
    keys = ["device", "target", "mode", "phase", "op_class", "one_part"]
    found = []
    for (device, target, mode, phase, op_class, _), group in rows.groupby(keys, sort=True):
        if op_class == "":
            continue
        found.append({
            "device": device, "target": target, "op_class": op_class, "phase": phase,
            "mode": mode, "part": _only(group["part"]), **score_group(group),
        })  # fmt: skip
    return found


def _only(values: pd.Series[str]) -> str:
    names = values.unique().tolist()
    return names[0] if len(names) == 1 else "mixed"


def score_group(rows: pd.DataFrame) -> dict[str, Any]:
    """Errors, coverage and baselines of one group.

    A baseline is scored on the rows that have it (`n`); `own_mape` is the checkpoint's error on
    just those rows.
    """
    measured = rows["measured_us"].to_numpy(dtype=float)
    predicted = rows["predicted_us"].to_numpy(dtype=float)
    good = np.isfinite(predicted)
    inside = (measured >= rows["lower_us"].to_numpy()) & (measured <= rows["upper_us"].to_numpy())
    baselines = {}
    for name in baselines_of(rows):
        values = rows[f"{name}_us"].to_numpy(dtype=float)
        have = np.isfinite(values) & (values > 0)
        if have.any():
            both = have & good
            own = errors(predicted[both], measured[both])["mape"] if both.any() else None
            baselines[name] = {
                "n": int(have.sum()), **errors(values[have], measured[have]), "own_mape": own
            }  # fmt: skip
    width = rows["upper_us"].to_numpy()[good] / rows["lower_us"].to_numpy()[good]
    return {
        "n": len(rows), "n_predicted": int(good.sum()),
        **(errors(predicted[good], measured[good]) if good.any() else dict.fromkeys(ERRORS)),
        "interval90_coverage": float(inside[good].mean()) if good.any() else None,
        "interval90_width": float(np.median(width)) if good.any() else None,
        "baselines": baselines,
    }  # fmt: skip


def _summary(rows: pd.DataFrame, parts: Split, predictor: LatencyPredictor) -> dict[str, Any]:
    """Step errors of the test part (all rows where nothing is held out), with bootstrap intervals.

    The interval draws (device, model) groups with replacement; the last entry is the difference to
    NeuSight's published predictions on the same rows (negative: smaller error here).
    """
    if rows.empty:
        return {}
    steps = rows[rows["target"] == "step"]
    if (steps["part"] == "test").any():
        steps = steps[steps["part"] == "test"]
    out: dict[str, Any] = {"devices": sorted(steps["device"].unique().tolist())}
    for phase, group in steps.groupby("phase"):
        keys = (group["device"] + "/" + group["model"]).tolist()
        own = np.abs(group["predicted_us"] / group["measured_us"] - 1.0).to_numpy()
        entry: dict[str, Any] = {
            "n": len(group),
            "mape": float(own.mean()),
            "mape90": grouped_mean_interval(own, keys),
        }
        if "neusight_us" in group.columns and group["neusight_us"].notna().all():
            peer = np.abs(group["neusight_us"] / group["measured_us"] - 1.0).to_numpy()
            entry["neusight_mape"] = float(peer.mean())
            entry["neusight_mape90"] = grouped_mean_interval(peer, keys)
            entry["difference90"] = grouped_mean_interval(own - peer, keys)
        out[str(phase)] = entry
    return out
