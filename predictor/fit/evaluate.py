"""`predictor evaluate`: a checkpoint on measured rows, by group, with the baselines beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.atomic import replacing_file
from predictor.calibrate.adapter import AUTO, Adapter, adapters_given
from predictor.checkpoint import Release, default_checkpoint, load_release
from predictor.errors import CheckpointError, DataError, RecipeError
from predictor.fit.adapted_rows import adapt_rows
from predictor.fit.data import devices_of
from predictor.fit.evaluation_notes import notes_of
from predictor.fit.groups import step_summary, summarise
from predictor.fit.recipe import Recipe, recipe_of
from predictor.fit.rows import ScoredRows, score
from predictor.fit.splits import check_split, device_split
from predictor.fit.suite import suite_of, suite_trees, trained_on
from predictor.hardware.catalogue import resolve_device
from predictor.nn.latency import load_predictor
from predictor.traces.progress import Progress
from predictor.traces.schema import Imported
from predictor.traces.sources import neusight
from predictor.traces.sources.registry import read_source

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

logger = logging.getLogger(__name__)

PEER_OPS: Mapping[str, Callable[[Path], pd.DataFrame]] = {"neusight": neusight.peer_ops}
SUITE_SPLITS: Mapping[str, str] = {"timm": "timm-families", "own": "own-families"}
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
    adapter: str | None = None
    """What the predictions were calibrated with."""

    def to_json(self) -> dict[str, Any]:
        """The report of DESIGN.md section 9: groups, with the excluded rows by reason."""
        return {
            "suite": self.suite, "split": self.split, "checkpoint": self.checkpoint,
            "adapter": self.adapter, "groups": self.groups, "summary": self.summary,
            "excluded": dict(self.scored.excluded), "dropped": dict(self.scored.dropped),
            "unscored": dict(self.scored.unscored), "notes": list(self.notes),
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
    checkpoint: str | Path | None = None,
    adapter: str | Path | Adapter | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Score a checkpoint on whatever part of a suite the folders hold.

    Args:
        suite: a source name.
        data_dirs: folders laid out as published; any part of the layout.
        split: names the parts in the report and decides which rows train the baselines; when not
            given, the one that the checkpoint was trained with, or the suite's own where it was
            trained on other sources.
        checkpoint: shipped name or folder; when not given, the default for the kinds of device
            among the rows (several kinds: that of GPUs).
        adapter: of a device among the rows: its folder, or as loaded, or `auto` for those of all
            devices in the user's folder. Rows that it was fitted on are not scored.
        progress: told the rows read so far.

    Raises:
        DataError: nothing of the suite is there. CheckpointError: the checkpoint is not sound.
        RecipeError: unknown split.
        AdapterError: the adapter is of no device among the rows, or of another checkpoint.
    """
    if split is not None:
        check_split(split)
    named = None if checkpoint is None else load_release(checkpoint)  # before rows are read
    if adapter != AUTO:
        adapter = next(iter(adapters_given(adapter, ())), None)
        if adapter is not None and named is not None:
            adapter.check_checkpoint(named.name, named.key)
    data = read_source(suite, data_dirs, progress=progress)
    devices = devices_of(data)
    if not devices:
        raise DataError(f"suite {suite!r}: no row to score in {', '.join(map(str, data_dirs))}")
    release = named or load_release(default_checkpoint(resolve_device(d).kind for d in devices))
    predictor = load_predictor(release)
    recipe = _recipe(release)
    adapters = adapters_given(adapter, ((device, release.name) for device in sorted(devices)))
    for one in adapters:
        one.check_checkpoint(release.name, release.key)
    logger.info(
        "read %s: %s kernel rows, %s step rows; predicting", suite, f"{len(data.kernels):,}",
        f"{len(data.steps):,}",
    )  # fmt: skip
    own = suite in recipe.sources
    usual = recipe.split if own else SUITE_SPLITS.get(suite, "all")
    name = usual if split is None else split
    parts = device_split(name, devices, partial=True)
    trained = trained_on(
        data, recipe, device_split(recipe.split, devices, partial=True) if own else None
    )
    samples = suite_of(data, parts, predictor)
    trees, left_out = suite_trees(samples, recipe)
    scored = score(
        predictor, samples, trees, lambda: _peer_ops(suite, data_dirs, data), recipe=recipe,
        trained=trained,
    )  # fmt: skip
    for one in adapters:
        scored = adapt_rows(scored, data, predictor, one)
    rows = scored.rows[scored.rows["scored"]] if len(scored.rows) else scored.rows
    return Evaluation(
        suite=suite, split=parts.name, checkpoint=release.name, scored=scored,
        groups=summarise(rows), summary=step_summary(rows),
        notes=(*left_out, *notes_of(samples, predictor, scored)),
        adapter="; ".join(one.line for one in adapters) or None,
    )  # fmt: skip


def _recipe(release: Release) -> Recipe:
    try:
        return recipe_of(release.config["training"], f"checkpoint {release.name!r}, training")
    except RecipeError as error:
        raise CheckpointError(f"{error}; evaluate it with the version that made it") from error


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
