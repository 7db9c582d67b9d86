"""A suite under a split, featurised once: what the network, the trees and the tables read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.fit.baselines import BoostedTrees, fit_trees, kernel_tree_rows, op_tree_rows
from predictor.fit.data import training_rows, usable_models
from predictor.fit.model_samples import ModelSamples, banks_of, model_samples
from predictor.fit.recipe import Recipe
from predictor.fit.samples import KernelSamples, kernel_samples
from predictor.fit.splits import Split
from predictor.fit.step_samples import StepSamples, step_samples
from predictor.fit.trained_rows import trained_rows
from predictor.nn.latency import LatencyPredictor
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

Parts = NDArray[np.str_]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Measured rows, their parts, and samples of all that can be predicted."""

    data: Imported
    split: Split
    kernel_parts: Parts
    """Part of every kernel row."""
    step_parts: Parts
    """Part of every step row."""
    kernels: KernelSamples
    steps: StepSamples | None
    """Sound steps of published op graphs."""
    models: ModelSamples | None
    """Sound steps whose graph a bank holds."""
    refused: Counter[str]
    """Rows whose device has no rate for a kernel, by table and error."""

    def parts_of(self, step_ids: pd.Series[str]) -> Parts:
        """Part of steps by `row_id`."""
        return _by_id(self.data.steps, self.step_parts, step_ids)


def suite_of(data: Imported, split: Split, predictor: LatencyPredictor) -> Suite:
    """Featurise every row of a suite that has a graph or is a kernel."""
    known = predictor.networks.devices
    kernels: Counter[str] = Counter()
    models: Counter[str] = Counter()
    kernel_found = kernel_samples(data.kernels, known, kernels)
    sound = data.steps[data.steps["flag"] == ""]
    rows = usable_models(data, data.steps["device"].unique())
    depth = predictor.networks.message_layers
    return Suite(
        data=data, split=split, kernel_parts=split.parts(data.kernels, "kernels"),
        step_parts=split.parts(data.steps, "steps"), kernels=kernel_found,
        steps=step_samples(data, sound, known),
        models=model_samples(rows, banks_of(rows), known, depth, models),
        refused=Counter({
            **{f"kernel_{error}": n for error, n in kernels.items()},
            **{f"step_{error}": n for error, n in models.items()},
        }),
    )  # fmt: skip


def kernels_to_learn_from(suite: Suite, recipe: Recipe) -> Mask:
    """Kernel rows that the split lets a baseline learn from."""
    rows = suite.data.kernels
    train = np.isin(suite.kernel_parts, recipe.parts) & rows["device"].isin(list(suite.split.train))
    return np.asarray(train & ~rows["flag"].isin(recipe.exclude_flags), dtype=bool)


def steps_to_learn_from(suite: Suite, recipe: Recipe) -> Mask:
    """Published steps (those of `suite.steps`) whose ops a baseline may learn from."""
    assert suite.steps is not None
    steps = suite.steps.steps
    train = steps["device"].isin(list(suite.split.train)).to_numpy()
    return np.asarray(train & np.isin(suite.parts_of(steps["row_id"]), recipe.parts), dtype=bool)


def suite_trees(suite: Suite, recipe: Recipe) -> tuple[BoostedTrees | None, tuple[str, ...]]:
    """The gradient-boosting baseline of kernels, and why there is none.

    It learns from the split's training rows that are at hand. Whole models have trees of their
    own.
    """
    chosen = kernels_to_learn_from(suite, recipe)
    if not chosen.any():
        if suite.steps is None and not len(chosen):
            return None, ()
        note = (
            "gradient boosting left out: no training rows of split "
            f"{suite.split.name!r} in the data"
        )
        return None, (note,)
    parts = [kernel_tree_rows(suite.kernels, chosen[suite.kernels.row_N])]
    if suite.steps is not None and len(suite.steps.ops):
        ops = suite.steps.ops
        own = steps_to_learn_from(suite, recipe)[ops["graph_index"].to_numpy(dtype=np.int64)]
        parts.append(op_tree_rows(suite.steps, own & ~ops["flag"].isin(recipe.exclude_flags)))
    return fit_trees(parts), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Rows that a checkpoint was trained on."""

    kernels: Mask
    """By kernel row."""
    steps: frozenset[str]
    """`row_id` of steps."""


def trained_on(data: Imported, recipe: Recipe, split: Split | None) -> Trained:
    """Which rows of a suite a checkpoint was trained on.

    Args:
        data: the suite.
        recipe: of the checkpoint.
        split: of the checkpoint over the suite's devices; None where the suite is none of its
            sources.
    """
    if split is None:
        return Trained(kernels=np.zeros(len(data.kernels), dtype=bool), steps=frozenset())
    rows = trained_rows(training_rows(data, split, recipe.parts), recipe, split)
    return Trained(
        kernels=data.kernels["row_id"].isin(rows.kernels["row_id"]).to_numpy(),
        steps=frozenset(rows.steps["row_id"]),
    )


def _by_id(steps: pd.DataFrame, values: Parts, ids: pd.Series[str]) -> Parts:
    place = dict(zip(steps["row_id"], values, strict=True))
    return np.array([place[i] for i in ids], dtype=np.str_)
