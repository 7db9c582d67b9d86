"""`predictor train`: a recipe and measured data to a checkpoint folder."""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from predictor.atomic import replacing_folder, write_text
from predictor.checkpoint import RELEASE_FOLDER, Release, save_release
from predictor.errors import DataError, RecipeError
from predictor.features.columns import COLUMNS, columns_hash
from predictor.features.table import OP_NAMES
from predictor.fit.calibration import calibrate
from predictor.fit.candidates import NAMED, fit_model
from predictor.fit.card import card_text
from predictor.fit.choices import check_choices
from predictor.fit.crossval import TABLES, HeldOut, cross_validate
from predictor.fit.data import devices_of, fit_data, load_data, training_rows
from predictor.fit.fitting import net_config
from predictor.fit.learned_kinds import check_weights, learned_kinds
from predictor.fit.metrics import held_out_metrics
from predictor.fit.model_choice import ModelChoice, choice_of, choose_model
from predictor.fit.ranges import training_ranges
from predictor.fit.recipe import Recipe, load_recipe
from predictor.fit.run_folder import check_folder, claim_folder
from predictor.fit.seeds import seed_spread
from predictor.fit.splits import Split, check_split, device_split
from predictor.fit.trained_rows import trained_rows
from predictor.graph.ops import OP_CLASSES, TOKENS
from predictor.nn.boosted_trees import BoostedTrees
from predictor.nn.ensemble import Ensemble
from predictor.nn.fitted_roofline import FittedRoofline
from predictor.nn.kernel_model import KernelModel
from predictor.nn.learned import by_device, entries_of
from predictor.nn.rate_roofline import RateRoofline
from predictor.nn.release_parts import BOOSTED_TREES, NETWORK, RANGES, RATES, ROOFLINE
from predictor.nn.rising import RISING
from predictor.traces.schema import Imported

logger = logging.getLogger(__name__)

CHOICE = "model_choice.json"
HELD_OUT = "held_out"
"""Folder of a run with the rows that cross-validation held out."""
AUTO = "auto"
"""In place of a kind of model: the one that does best on groups held out."""


def train(
    recipe_path: Path,
    data_dirs: Sequence[Path],
    out_dir: Path,
    overrides: Mapping[str, str] | None = None,
    *,
    progress: bool = True,
    model: str = "network",
    minutes: float | None = None,
    on_choice: Callable[[ModelChoice], None] | None = None,
) -> Release:
    """Train, cross-validate, calibrate, and write `out_dir/release`.

    A run that was stopped goes on: finished folds are kept, an unfinished fit resumes from its
    last epoch. The same recipe, data, seed and thread count give the same weights.

    Args:
        recipe_path: settings, sources and split.
        data_dirs: folders of source folders.
        out_dir: folder of the run.
        overrides: values of the recipe, by `section.key`.
        progress: whether fits show a bar.
        model: one of `predictor.fit.candidates.NAMED`, or `auto`: the kind that does best on the
            development groups of the split.
        minutes: for the comparison of `auto`.
        on_choice: told the comparison before the winner is trained.

    Raises:
        RecipeError: the recipe is wrong, names a misspelt flag, chooses no row, gives all its rows
            weight 0, or `out_dir` holds a run of another recipe or data.
        DataError: the data cannot be read, holds no training rows, or no kernel for a kind that
            needs them.
    """
    if model not in (AUTO, *NAMED):
        raise RecipeError(f"no kind of model {model!r}; known: {', '.join((AUTO, *NAMED))}")
    recipe = load_recipe(recipe_path, overrides)
    if overrides and "name" not in overrides:
        recipe = recipe.model_copy(update={"name": f"{recipe.name}-modified"})
    asked = {} if model == "network" else {"model": model}
    check_split(recipe.split)
    check_folder(out_dir, {**recipe.resolved(), **asked})
    every = load_data(recipe, data_dirs)
    check_choices(recipe, every)
    split = device_split(recipe.split, devices_of(every))
    data = training_rows(every, split, recipe.parts)
    facts = _facts(data, recipe, split)
    if model == "network":
        check_weights(recipe, facts)
    claim_folder(out_dir, {**recipe.resolved(), **asked}, facts)
    choice = _choice(out_dir, recipe, every, split, minutes) if model == AUTO else None
    if choice is not None and on_choice is not None:
        on_choice(choice)
    kind = model if choice is None else choice.winner
    del every  # the largest thing in memory, and `data` holds what trains
    start = time.monotonic()
    held_out = cross_validate(recipe, data, split, out_dir, progress=progress, kind=kind)
    _keep(held_out, out_dir)
    fitted = fit_data(data, recipe, split.train, split.backward_factors)
    trained = fit_model(kind, recipe, fitted, out_dir / "fit", progress=progress)
    ranges = tuple(torch.from_numpy(part) for part in training_ranges(fitted))
    logger.info("trained in %.0f s", time.monotonic() - start)
    found = learned_kinds(kind, recipe, data, split, fitted)
    metrics, learned = held_out_metrics(held_out), entries_of({k[:3] for k in found})
    measured = by_device({(k.token, k.dtype, k.device) for k in found if k.device in split.train})
    seeds = seed_spread(trained, data, recipe, split) if isinstance(trained, Ensemble) else []
    if seeds:
        metrics = {**metrics, "seeds": seeds}
    card = card_text(
        recipe, split, facts, learned, metrics, kind=kind, choice=choice,
        remake=_remake(recipe_path, recipe.name, overrides or {}, kind, recipe.sources),
        measured=measured,
    )  # fmt: skip
    if choice is not None:
        metrics = {**metrics, "model_choice": choice.to_json()}
    return save_release(
        out_dir / RELEASE_FOLDER,
        config=_config(_model(recipe, trained, learned, measured), recipe, held_out, facts),
        tensors={**_weights(trained), **dict(zip(RANGES, ranges, strict=True))},
        metrics=metrics, card=card, overwrite=True,
    )  # fmt: skip


def _facts(data: Imported, recipe: Recipe, split: Split) -> dict[str, dict[str, Any]]:
    """What the rows that train are, by source."""
    rows = trained_rows(data, recipe, split)
    return {source: rows.facts(source) for source in recipe.sources}


def _keep(held_out: HeldOut, out_dir: Path) -> None:
    """The rows that were held out, for whoever wants to look closer (`accuracy_report.py`)."""
    with replacing_folder(out_dir / HELD_OUT) as fresh:
        for name in TABLES:
            getattr(held_out, name).to_parquet(fresh / f"{name}.parquet")


def _choice(
    out_dir: Path, recipe: Recipe, data: Imported, split: Split, minutes: float | None
) -> ModelChoice:
    """The comparison of kinds; one that this run made before is kept."""
    path = out_dir / CHOICE
    if path.is_file():
        try:
            return choice_of(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error}): remove it to compare again") from error
    choice = choose_model(recipe, data, split, minutes=minutes)
    write_text(path, json.dumps(choice.to_json(), indent=1))
    return choice


def _remake(
    recipe_path: Path,
    name: str,
    overrides: Mapping[str, str],
    kind: str = "network",
    sources: Sequence[str] = (),
) -> str:
    """The command that trains the same checkpoint again, from the root of the project.

    A recipe that is not of the project goes by its file name alone.
    """
    own = recipe_path.absolute().parts[-3:-1] == ("training", "recipes")
    recipe = f"training/recipes/{recipe_path.name}" if own else recipe_path.name
    settings = "".join(f" --set {shlex.quote(f'{k}={v}')}" for k, v in sorted(overrides.items()))
    model = "" if kind == "network" else f" --model {kind}"
    data = " --data DIR" if set(sources) != {"own"} else ""
    data += " --data datasets" if "own" in sources else ""  # rows that come with the project
    return f"predictor train {shlex.quote(recipe)}{data} --out runs/{name}{model}{settings}"


def _weights(model: KernelModel) -> dict[str, Tensor]:
    """Tensors of a model of any kind."""
    if isinstance(model, BoostedTrees | FittedRoofline | RateRoofline):
        return model.tensors()
    assert isinstance(model, Ensemble)
    return {
        f"member{i}.{name}": value
        for i, net in enumerate(model.members)
        for name, value in net.state_dict().items()
    }


def _model(
    recipe: Recipe,
    model: KernelModel,
    learned: Sequence[Sequence[str]],
    measured: Mapping[str, Sequence[Sequence[str]]],
) -> dict[str, Any]:
    """Every value that the model is built from, by its kind."""
    shared = {"devices": list(model.devices), "learned": learned, "measured": measured}
    if isinstance(model, BoostedTrees):
        return {"kind": BOOSTED_TREES, "trees": len(model.trees.root_B), **shared}
    if isinstance(model, RateRoofline):
        return {"kind": RATES, "op_classes": list(OP_CLASSES), **shared}
    if isinstance(model, FittedRoofline):
        return {"kind": ROOFLINE, "op_classes": list(OP_CLASSES), **shared}
    network = net_config(recipe, len(model.devices))
    return {
        "kind": NETWORK,
        "network": {f: getattr(network, f) for f in network.__dataclass_fields__},
        "members": recipe.network.members,
        "ops": list(OP_NAMES),
        "rising": [] if recipe.network.message_layers else list(RISING),
        "compiled_graphs": "eager",
        **shared,
    }


def _config(
    model: Mapping[str, Any],
    recipe: Recipe,
    held_out: HeldOut,
    facts: Mapping[str, object],
) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "model": dict(model),
        "features": {"columns": list(COLUMNS), "hash": columns_hash()},
        "vocabulary": list(TOKENS),
        "calibration": calibrate(held_out, recipe.calibration.level),
        "data": dict(facts),
        "training": recipe.resolved(),
    }
