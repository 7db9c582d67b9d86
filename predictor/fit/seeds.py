"""How far networks of different seeds lie apart: each member of an ensemble scored alone.

They are scored on rows of the training devices and models that the recipe's samples leave out: near
the training rows, but none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from predictor.fit.data import (
    MODEL_GROUP,
    SAMPLE_GROUP,
    sampled_rows,
    training_models,
    usable_kernels,
    usable_models,
)
from predictor.fit.metrics import errors
from predictor.fit.model_samples import banks_of, model_samples
from predictor.fit.recipe import Recipe
from predictor.fit.samples import kernel_samples
from predictor.fit.scoring import score_kernels, score_models
from predictor.fit.splits import Split
from predictor.nn.ensemble import Ensemble
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

KERNELS_PER_GROUP = 100
MODELS_PER_GROUP = 30
"""Rows of a group (`SAMPLE_GROUP`, `MODEL_GROUP`) that are scored."""


def seed_spread(
    ensemble: Ensemble, data: Imported, recipe: Recipe, split: Split
) -> list[dict[str, Any]]:
    """Errors of every member and of all together, by source and target.

    Args:
        ensemble: trained members.
        data: rows that the split lets training see.
        recipe: which of them trained.
        split: training devices.

    Returns:
        Entries `source`, `target` (`kernel`, `step`), `n`, `members` (one `errors` each) and
        `together`; none for a single member, or where the recipe takes all rows.
    """
    if len(ensemble.members) < 2:
        return []
    alone = [Ensemble(members=(m,), devices=ensemble.devices) for m in ensemble.members]
    found: list[dict[str, Any]] = []
    kernels = _left_out_kernels(data, recipe, split)
    for source, rows in kernels.groupby("source", sort=True):
        samples = kernel_samples(rows, ensemble.devices)
        scored = [score_kernels(e, samples) for e in (*alone, ensemble)]
        found.append(_entry(str(source), "kernel", scored))
    models = _left_out_models(data, recipe, split)
    for source, rows in models.groupby("source", sort=True):
        whole = model_samples(rows, banks_of(rows), ensemble.devices, ensemble.message_layers)
        if whole is not None:
            scored = [score_models(e, whole) for e in (*alone, ensemble)]
            found.append(_entry(str(source), "step", scored))
    return found


def _entry(source: str, target: str, scored: list[pd.DataFrame]) -> dict[str, Any]:
    *members, together = [errors(rows["predicted_us"], rows["measured_us"]) for rows in scored]
    return {
        "source": source, "target": target, "n": len(scored[0]), "members": members,
        "together": together,
    }  # fmt: skip


def _left_out_kernels(data: Imported, recipe: Recipe, split: Split) -> pd.DataFrame:
    every = usable_kernels(data, recipe.model_copy(update={"rows_per_group": 0}), split.train)
    trained = usable_kernels(data, recipe, split.train)["row_id"]
    left = every[~every["row_id"].isin(trained)]
    return sampled_rows(left, KERNELS_PER_GROUP, SAMPLE_GROUP)


def _left_out_models(data: Imported, recipe: Recipe, split: Split) -> pd.DataFrame:
    every = usable_models(data, split.train)
    trained = training_models(data, recipe, split.train)["row_id"]
    left = every[~every["row_id"].isin(trained)]
    return sampled_rows(left, MODELS_PER_GROUP, MODEL_GROUP)
