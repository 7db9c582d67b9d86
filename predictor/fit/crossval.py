"""Grouped cross-validation: residuals on devices never seen, and on models never seen.

Each fold is one fit; its rows are kept in the run folder, so that an interrupted run goes on
behind the last fold that was finished.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.atomic import replacing_folder
from predictor.errors import DataError
from predictor.fit.candidates import fit_model
from predictor.fit.coverage import outside_of
from predictor.fit.data import (
    FOLDS,
    fit_data,
    shape_fold,
    training_models,
    usable_kernels,
    usable_models,
    usable_steps,
)
from predictor.fit.model_samples import banks_of, family_folds, model_samples
from predictor.fit.ranges import training_ranges
from predictor.fit.recipe import Recipe
from predictor.fit.samples import kernel_samples
from predictor.fit.scoring import score_kernels, score_models, score_steps
from predictor.fit.splits import Split, device_groups
from predictor.fit.step_samples import step_samples
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

MODEL_FAMILIES = {
    "bert_large": "bert", "gpt2_large": "gpt2", "gpt3_27": "gpt3", "gpt3_xl": "gpt3",
    "opt_13": "opt", "switchxl4": "switch",
}  # fmt: skip
NODE_OP_CLASS = {
    "linear": "matmul", "batched_matmul": "matmul", "elementwise": "elementwise",
    "softmax": "softmax", "layernorm": "norm",
}  # fmt: skip
"""Vocabulary class of the classes that in-step ops are reported by."""
TABLES: tuple[str, ...] = ("kernels", "ops", "steps")
FACTS: Mapping[str, tuple[str, ...]] = {
    "kernels": ("context", "dtype", "framework"), "ops": (), "steps": ("measure", "execution"),
}  # fmt: skip
"""Columns of the data that the rows of each table take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One held-out group."""

    kind: str
    """`device` or `model`."""
    name: str
    devices: tuple[str, ...]
    """Devices trained on."""
    held_devices: tuple[str, ...]
    held_models: tuple[str, ...] = ()
    shape_fold: int | None = None


@dataclass(slots=True, kw_only=True)
class HeldOut:
    """Rows predicted by networks that saw nothing of their group.

    Besides what `predictor.fit.scoring` gives: the columns `fold_kind` and `fold`; `group`, which a
    new one must be expected to differ from as they do from one another: a device with its twins, or
    the family of a whole model where devices are seen; and those of `FACTS`.
    """

    kernels: pd.DataFrame
    ops: pd.DataFrame
    steps: pd.DataFrame


def folds(
    recipe: Recipe, split: Split, models: Collection[str], shapes: Collection[int] = ()
) -> Iterator[Fold]:
    """The folds that a recipe asks for.

    Args:
        recipe: which kinds.
        split: devices that train.
        models: whole models with rows.
        shapes: folds of `shape_fold` with kernel rows; they take turns by themselves where there
            are no families to.
    """
    devices = tuple(sorted(split.train))
    groups = _at_most(recipe.calibration.most_folds, device_groups(devices))
    if recipe.calibration.device_folds and len(groups) > 1:
        for group in groups:
            rest = tuple(d for d in devices if d not in group)
            yield Fold(kind="device", name=group[0], devices=rest, held_devices=group)
    family_of = families_of(recipe, models)
    most = recipe.calibration.most_folds
    families = _at_most(most, [(family,) for family in sorted(set(family_of.values()))])
    if recipe.calibration.model_folds and len(families) > 1:
        for i, family in enumerate(families):
            held = tuple(m for m in sorted(models) if family_of[m] in family)
            yield Fold(
                kind="model", name=family[0], devices=devices, held_devices=devices,
                held_models=held, shape_fold=i % FOLDS,
            )  # fmt: skip
    elif recipe.calibration.model_folds and len(shapes) > 1:
        for i in sorted(shapes)[: most or None]:
            yield Fold(
                kind="model", name=f"shapes-{i}", devices=devices, held_devices=devices,
                shape_fold=i,
            )  # fmt: skip


def families_of(recipe: Recipe, models: Collection[str]) -> dict[str, str]:
    """Family of every whole model: its own name where none is known."""
    known = (
        {**family_folds(recipe.sources), **MODEL_FAMILIES}
        if recipe.sources != ("neusight",)
        else MODEL_FAMILIES
    )
    return {m: known.get(m, m) for m in models}


def _at_most(most: int, groups: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The groups, every `most`-th of them together where there are more; all for `most` 0."""
    if not most or len(groups) <= most:
        return list(groups)
    return [tuple(name for group in groups[i::most] for name in group) for i in range(most)]


def _of_fold(recipe: Recipe) -> Recipe:
    """The recipe that a fold is fitted with."""
    epochs = recipe.calibration.epochs
    if not epochs:
        return recipe
    return recipe.model_copy(update={
        "network": recipe.network.model_copy(update={"members": 1}),
        "optimizer": recipe.optimizer.model_copy(update={"epochs": epochs}),
    })  # fmt: skip


def cross_validate(
    recipe: Recipe,
    data: Imported,
    split: Split,
    folder: Path,
    *,
    progress: bool,
    kind: str = "network",
) -> HeldOut:
    """Rows of all folds; `kind` as of `fit_model`.

    Raises:
        DataError: a fold that was finished by an older version, or is damaged.
    """
    found: dict[str, list[pd.DataFrame]] = {t: [] for t in TABLES}
    models = {
        *usable_steps(data, split.train)["model"], *usable_models(data, split.train)["model"]
    }  # fmt: skip
    shapes = {int(i) for i in shape_fold(usable_kernels(data, recipe, split.train)).unique()}
    family_of = families_of(recipe, models)
    device_group = {d: g[0] for g in device_groups(tuple(sorted(split.train))) for d in g}
    tables = {"kernels": data.kernels, "ops": data.steps, "steps": data.steps}
    facts = {n: tables[n].set_index("row_id")[list(FACTS[n])] for n in TABLES}
    for fold in folds(recipe, split, models, shapes):
        place = folder / "folds" / f"{fold.kind}-{fold.name}"
        if not place.is_dir():
            logger.info("fold %s: %s held out", fold.kind, fold.name)
            unfinished = place.with_name(f"{place.name}.fit")
            rows = _run(_of_fold(recipe), data, split, fold, unfinished, progress, kind)
            with replacing_folder(place) as fresh:
                for name, frame in rows.items():
                    frame.to_parquet(fresh / f"{name}.parquet")
        for name in TABLES:
            frame = _kept(place, name)
            if len(frame):
                frame = frame.join(facts[name], on="row_id")
                group = frame["device"].map(device_group)
                if fold.kind == "model" and name != "kernels":
                    group = frame["model"].map(family_of)
                found[name].append(frame.assign(fold_kind=fold.kind, fold=fold.name, group=group))
    joined = {name: _concat(parts) for name, parts in found.items()}
    return HeldOut(**joined)


def _kept(place: Path, name: str) -> pd.DataFrame:
    """A table of a fold that was finished."""
    import pandas as pd

    try:
        frame = pd.read_parquet(place / f"{name}.parquet")
    except (OSError, ValueError) as error:  # pyarrow's are of these
        raise DataError(
            f"{place} is damaged ({name}.parquet cannot be read): remove the folder, and the "
            "fold is fitted again"
        ) from error
    if len(frame) and "outside" not in frame.columns:
        raise DataError(f"{place}: rows of an older version; remove the folder")
    return frame


def _run(
    recipe: Recipe,
    data: Imported,
    split: Split,
    fold: Fold,
    place: Path,
    progress: bool,
    kind: str,
) -> dict[str, pd.DataFrame]:
    import pandas as pd

    ratio_devices = split.backward_factors - set(fold.held_devices if fold.kind == "device" else ())
    fitted = fit_data(
        data, recipe, fold.devices, ratio_devices, without_models=fold.held_models,
        without_fold=fold.shape_fold,
    )  # fmt: skip
    networks = fit_model(kind, recipe, fitted, place, progress=progress)
    kernels = usable_kernels(data, recipe, fold.held_devices)
    if fold.shape_fold is not None:
        kernels = kernels[shape_fold(kernels) == fold.shape_fold]
    outside = outside_of(*training_ranges(fitted))
    scored = pd.DataFrame()
    if len(kernels):
        scored = score_kernels(networks, kernel_samples(kernels, fitted.hosts), outside=outside)
        facts = kernels.set_index("row_id")[["device", "op"]]
        scored = scored.join(facts, on="row_id")
    ops, step_parts = pd.DataFrame(), []
    samples = step_samples(
        data, _held(usable_steps(data, fold.held_devices), fold), fitted.hosts, recipe.exclude_flags
    )
    if samples is not None:
        ops, step_rows = score_steps(networks, samples, outside=outside)
        step_parts.append(step_rows)
    rows = _held(training_models(data, recipe, fold.held_devices), fold)
    models = model_samples(rows, banks_of(rows), fitted.hosts, recipe.network.message_layers)
    if models is not None:
        step_parts.append(score_models(networks, models, outside=outside))
    return {"kernels": scored, "ops": ops, "steps": _concat(step_parts)}


def _held(steps: pd.DataFrame, fold: Fold) -> pd.DataFrame:
    if fold.kind == "device":
        return steps
    return steps[steps["model"].isin(fold.held_models)]


def _concat(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of all parts; an empty part would turn numbers into objects, so it is left out."""
    import pandas as pd

    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()
