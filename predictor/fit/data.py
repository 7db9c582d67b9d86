"""From sources and a split to what one fit trains on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.errors import DataError
from predictor.fit.fitting import FitData
from predictor.fit.model_samples import banks_of, in_bank, model_samples
from predictor.fit.recipe import Recipe
from predictor.fit.samples import kernel_samples
from predictor.fit.splits import Split
from predictor.fit.step_samples import step_samples
from predictor.traces.merge import merged
from predictor.traces.schema import Imported
from predictor.traces.sources.registry import read_source

if TYPE_CHECKING:
    import pandas as pd

SAMPLE_GROUP = ("source", "device", "op", "dtype", "scheme", "framework")
"""Columns of a kernel row within whose equal values a recipe may take a sample."""
MODEL_GROUP = ("source", "device", "mode", "execution", "framework_version", "dtype", "layout")
"""The same of whole models."""
FOLDS = 5
"""Dimension-hash folds of kernel rows: a shape is in one fold on every device."""


def load_data(recipe: Recipe, folders: Sequence[Path]) -> Imported:
    """Measured data of the recipe's sources."""
    chosen = partial(_chosen, recipe) if recipe.only else None
    return merged(
        read_source(source, folders, sample_rows=recipe.sample_rows, chosen=chosen)
        for source in recipe.sources
    )


def devices_of(data: Imported) -> set[str]:
    """Devices with a kernel or step row."""
    return {*data.kernels["device"].unique(), *data.steps["device"].unique()}


def training_rows(data: Imported, split: Split, parts: Sequence[str] = ("train",)) -> Imported:
    """The rows that a split lets training see, or those of some of its parts.

    Steps of devices that only fit backward factors stay too; `fit_data` tells them apart.
    """
    kernels, steps = (
        np.isin(split.parts(getattr(data, t), t), list(parts)) for t in ("kernels", "steps")
    )
    factors = data.steps["device"].isin(list(split.backward_factors - split.train)).to_numpy()
    steps |= factors & ~in_bank(data.steps, banks_of(data.steps))
    return replace(
        data, kernels=data.kernels[kernels].reset_index(drop=True),
        steps=data.steps[steps].reset_index(drop=True),
    )  # fmt: skip


def usable_models(data: Imported, devices: Collection[str]) -> pd.DataFrame:
    """Sound step rows of `devices` whose graph stands in a graph bank."""
    rows = data.steps
    rows = rows[rows["device"].isin(list(devices)) & (rows["flag"] == "")]
    return rows[in_bank(rows, banks_of(rows))]


def training_models(data: Imported, recipe: Recipe, devices: Collection[str]) -> pd.DataFrame:
    """Whole models of `devices` that a recipe trains on: `usable_models`, its sample of them."""
    rows = usable_models(data, devices)
    most = recipe.models_per_group
    return sampled_rows(rows, most, MODEL_GROUP) if most else rows


def usable_kernels(data: Imported, recipe: Recipe, devices: Collection[str]) -> pd.DataFrame:
    """Kernel rows of `devices` that the recipe chooses, without its flags, its sample of them."""
    rows = data.kernels
    usable = rows["device"].isin(list(devices)) & ~rows["flag"].isin(recipe.exclude_flags)
    rows = rows[usable & _chosen(recipe, rows)]
    most = recipe.rows_per_group
    return sampled_rows(rows, most, SAMPLE_GROUP) if most else rows


def _chosen(recipe: Recipe, rows: pd.DataFrame) -> pd.Series[bool]:
    """Which kernel rows have the values that a recipe names."""
    import pandas as pd

    chosen = pd.Series(True, index=rows.index)
    for column, values in recipe.only.items():
        chosen &= rows[column].isin(values)
    return chosen


def sampled_rows(rows: pd.DataFrame, most: int, columns: Sequence[str]) -> pd.DataFrame:
    """At most so many rows of each group, those whose ids have the smallest hashes.

    Which rows of a group are taken does not depend on other groups.
    """
    import pandas as pd

    order = pd.Series(pd.util.hash_pandas_object(rows["row_id"], index=False), index=rows.index)
    groups = [rows[c] for c in columns]
    rank = order.groupby(groups, sort=False, observed=True).rank(method="first")
    return rows[rank <= most]


def usable_steps(data: Imported, devices: Collection[str]) -> pd.DataFrame:
    """Single-device eager step rows of `devices` that have a graph."""
    rows = data.steps
    return rows[
        rows["device"].isin(list(devices)) & (rows["flag"] == "") & rows["graph"].isin(data.graphs)
    ]


def fit_data(
    data: Imported,
    recipe: Recipe,
    devices: Collection[str],
    ratio_devices: Collection[str],
    *,
    without_models: Collection[str] = (),
    without_fold: int | None = None,
) -> FitData:
    """What a fit on `devices` sees.

    Args:
        data: all rows.
        recipe: flags and weights.
        devices: training devices.
        ratio_devices: devices whose backward-to-forward ratios may fit backward biases.
        without_models: models whose steps are held out.
        without_fold: shape fold of kernel rows held out.

    Raises:
        DataError: no rows are left.
    """
    hosts = tuple(sorted(devices))
    kernels = usable_kernels(data, recipe, devices)
    if without_fold is not None:
        kernels = kernels[shape_fold(kernels) != without_fold]
    models = training_models(data, recipe, devices)
    models = models[~models["model"].isin(list(without_models))]
    if kernels.empty and models.empty:
        raise DataError(
            f"no rows to train on of the training devices ({', '.join(hosts) or 'none'})"
        )
    steps = usable_steps(data, devices)
    steps = steps[~steps["model"].isin(list(without_models))]
    ratio_steps = usable_steps(data, ratio_devices)
    ratio_steps = ratio_steps[
        (ratio_steps["mode"] == "train") & ~ratio_steps["model"].isin(list(without_models))
    ]
    return FitData(
        hosts=hosts,
        kernels=kernel_samples(kernels, hosts),
        steps=step_samples(data, steps, hosts, recipe.exclude_flags),
        ratios=step_samples(data, ratio_steps, hosts, recipe.exclude_flags),
        models=model_samples(models, banks_of(models), hosts, recipe.network.message_layers),
    )


def shape_fold(rows: pd.DataFrame) -> pd.Series[int]:
    """Fold 0..FOLDS-1 of each kernel row by a hash of its op's dimensions, device left out."""
    import pandas as pd

    columns = [c for c in rows.columns if c.startswith("dim_")]
    folds: pd.Series[int] = (pd.util.hash_pandas_object(rows[columns], index=False) % FOLDS).astype(
        int
    )
    folds.index = rows.index
    return folds
