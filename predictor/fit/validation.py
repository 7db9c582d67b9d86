"""Grouped validation: what a split lets choices be made on, and how a model does there.

A fold holds out whole groups: the development part of the split (model families, shapes, devices
with their twins); for a split without one, one group of twins after the other; for a single device,
kernel shapes and model families. The test part is in no fold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import DataError
from predictor.fit.crossval import MODEL_FAMILIES
from predictor.fit.data import (
    FOLDS,
    fit_data,
    shape_fold,
    training_rows,
    usable_kernels,
    usable_models,
    usable_steps,
)
from predictor.fit.fitting import FitData
from predictor.fit.metrics import typical_factor
from predictor.fit.model_samples import ModelSamples, banks_of, family_folds, model_samples
from predictor.fit.recipe import Recipe
from predictor.fit.samples import KernelSamples, kernel_samples
from predictor.fit.scoring import score_kernels, score_models, score_steps
from predictor.fit.shape_groups import NO_GROUP, SHAPE_DIMS, shape_groups
from predictor.fit.splits import Split
from predictor.fit.step_samples import StepSamples, step_samples
from predictor.graph.ops import OPS
from predictor.nn.kernel_model import KernelModel
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

# N kernel rows

DEVELOPMENT = "development"
TARGETS: tuple[str, ...] = ("step", "op", "kernel")
"""Whole steps, ops timed inside published steps, and kernels (alone or inside a step)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentFold:
    """Rows that a fit may see, and rows of other groups that judge it."""

    name: str
    rows: Imported
    held: Imported
    devices: frozenset[str]
    """Whose rows train."""
    held_devices: frozenset[str]
    ratio_devices: frozenset[str]
    """Whose backward-to-forward ratios may be used."""

    def fit_data(self, recipe: Recipe) -> FitData:
        """What a fit of the recipe sees.

        Raises:
            DataError: nothing is left to train on.
        """
        return fit_data(self.rows, recipe, self.devices, self.ratio_devices)

    def judges(self, recipe: Recipe) -> bool:
        """Whether a row is held out that a model of the recipe has a figure for."""
        held = self.held_devices
        return bool(
            len(usable_kernels(self.held, recipe, held))
            or len(usable_models(self.held, held))
            or len(usable_steps(self.held, held))
        )

    def held_samples(self, recipe: Recipe, hosts: Sequence[str]) -> HeldSamples:
        """Samples of the rows held out.

        Rows on devices without a rate for them are left out: no model has a figure for them.

        Raises:
            DataError: none is left.
        """
        refused: Counter[str] = Counter()
        kernels = usable_kernels(self.held, recipe, self.held_devices)
        models = usable_models(self.held, self.held_devices)
        steps = usable_steps(self.held, self.held_devices)
        samples = HeldSamples(
            kernel_rows=kernels,
            kernels=kernel_samples(kernels, hosts, refused) if len(kernels) else None,
            steps=step_samples(self.held, steps, hosts, recipe.exclude_flags),
            models=model_samples(
                models, banks_of(models), hosts, recipe.network.message_layers, refused
            ),
        )
        if not samples:
            raise DataError(f"{self.name}: no device held out has a rate for its rows")
        return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSamples:
    """Samples of the rows of a fold that judge."""

    kernel_rows: pd.DataFrame
    kernels: KernelSamples | None
    steps: StepSamples | None
    models: ModelSamples | None

    def __bool__(self) -> bool:
        kernels = self.kernels is not None and len(self.kernels.row_id) > 0
        return kernels or self.steps is not None or self.models is not None


def development_folds(data: Imported, recipe: Recipe, split: Split) -> tuple[DevelopmentFold, ...]:
    """The folds to choose by.

    Args:
        data: all rows of the recipe's sources.
        recipe: its sources say which families there are.
        split: the recipe's.

    Raises:
        DataError: there is nothing to hold out.
    """
    found = []
    for part in split.developments():
        rows = training_rows(data, part)
        held = training_rows(data, part, (DEVELOPMENT,))
        if part.train and (len(held.kernels) or len(held.steps)):
            name = part.name.removeprefix(f"{split.name}/") if part is not split else DEVELOPMENT
            found.append(
                DevelopmentFold(
                    name=name, rows=rows, held=held, devices=part.train,
                    held_devices=part.train | part.development,
                    ratio_devices=part.backward_factors,
                )
            )  # fmt: skip
    found = [fold for fold in found if fold.judges(recipe)]
    folds = tuple(found) or shape_folds(data, recipe, split)
    if not folds:
        raise DataError(
            f"split {split.name!r} has nothing to choose by in these data: no development part, no "
            "second device, fewer than two kernel shapes or model families"
        )
    return folds


def shape_folds(data: Imported, recipe: Recipe, split: Split) -> tuple[DevelopmentFold, ...]:
    """Folds by kernel shape and model family, of the devices that train; none where one is all.

    Args:
        data: all rows of the recipe's sources.
        recipe: its sources say which families there are.
        split: the recipe's; rows that it lets train take part.
    """
    data = training_rows(data, split)
    kernels, steps = kernel_groups(data.kernels), step_groups(data.steps, recipe)
    folds = []
    for i in range(FOLDS):
        kernel, step = kernels == i, steps == i
        if (kernel.any() or step.any()) and not (kernel.all() and step.all()):
            folds.append(
                DevelopmentFold(
                    name=f"shapes-{i}", rows=_taken(data, ~kernel, ~step),
                    held=_taken(data, kernel, step), devices=split.train, held_devices=split.train,
                    ratio_devices=split.backward_factors,
                )
            )  # fmt: skip
    folds = [fold for fold in folds if fold.judges(recipe)]
    return tuple(folds) if len(folds) > 1 else ()


def kernel_groups(rows: pd.DataFrame) -> NDArray[np.int64]:
    """(N,) fold of every kernel row: by (n, k), attention or expert shape, else all dimensions."""
    out = shape_fold(rows).to_numpy(dtype=np.int64)
    for kind in SHAPE_DIMS:
        group = shape_groups(rows, kind, FOLDS)
        out = np.where(group == NO_GROUP, out, group)
    return np.asarray(out, dtype=np.int64)


def step_groups(rows: pd.DataFrame, recipe: Recipe) -> NDArray[np.int64]:
    """Fold of every step row: families take turns."""
    known = {**family_folds(recipe.sources), **MODEL_FAMILIES}
    family = [known.get(model, model) for model in rows["model"]]
    place = {name: i % FOLDS for i, name in enumerate(sorted(set(family)))}
    return np.array([place[name] for name in family], dtype=np.int64)


def _taken(data: Imported, kernels: NDArray[np.bool_], steps: NDArray[np.bool_]) -> Imported:
    return replace(
        data, kernels=data.kernels[kernels].reset_index(drop=True),
        steps=data.steps[steps].reset_index(drop=True),
    )  # fmt: skip


def held_rows(networks: KernelModel, samples: HeldSamples) -> pd.DataFrame:
    """One row a judged time: `target`, `op_class` (kernels), `measured_us`, `predicted_us`."""
    import pandas as pd

    parts = []
    if samples.kernels is not None and len(samples.kernels.row_id):
        rows = score_kernels(networks, samples.kernels)
        names = samples.kernel_rows["op"].to_numpy()[samples.kernels.row_N]
        rows = rows.assign(op_class=[OPS[name].op_class for name in names])
        parts.append(rows.assign(target="kernel"))
    if samples.steps is not None:
        ops, steps = score_steps(networks, samples.steps)
        if len(ops):
            parts.append(ops.assign(target="op"))
        parts.append(steps[steps["phase"] == "total"].assign(target="step"))
    if samples.models is not None:
        parts.append(score_models(networks, samples.models).assign(target="step"))
    columns = ["target", "op_class", "measured_us", "predicted_us"]
    return pd.concat([part.reindex(columns=columns) for part in parts], ignore_index=True)


def errors_by_target(rows: pd.DataFrame) -> dict[str, float]:
    """By how much the times of each target are off (`typical_factor`)."""
    return {
        target: typical_factor(group["predicted_us"], group["measured_us"])
        for target in TARGETS
        if len(group := rows[rows["target"] == target])
    }


def overall(by_target: Sequence[dict[str, float]]) -> float:
    """One figure: every fold weighs the same, and in a fold every target."""
    return float(np.mean([np.mean(list(fold.values())) for fold in by_target]))
