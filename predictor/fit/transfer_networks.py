"""Networks that never saw a device: those of a run's device folds, or a checkpoint trained without.

A run keeps its folds in `RUN/folds`: `device-NAME` when it is done, and what was fitted in
`device-NAME.fit`. No release is needed, so an unfinished run serves once its folds are there.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from predictor.checkpoint import load_release
from predictor.errors import CheckpointError, DataError
from predictor.features.columns import columns_hash
from predictor.fit.crossval import cross_validate, folds
from predictor.fit.data import devices_of, load_data, training_rows
from predictor.fit.fitting import net_config
from predictor.fit.recipe import Recipe, load_recipe, recipe_of
from predictor.fit.run_folder import RESOLVED, claim_folder
from predictor.fit.splits import device_split
from predictor.fit.trained_rows import trained_rows
from predictor.hardware.twins import twins
from predictor.nn.ensemble import Ensemble
from predictor.nn.kernel_model import KernelModel
from predictor.nn.latency import load_predictor
from predictor.nn.latency_net import LatencyNet
from predictor.nn.learned import Entry
from predictor.nn.tokens import trunk_tokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenNetworks:
    """A trained model, and which devices it never saw."""

    name: str
    fold: str
    """What was held out of it, in a run; empty of a checkpoint."""
    networks: KernelModel
    recipe: Recipe
    learned: frozenset[Entry] | None
    """Kinds of kernel that it speaks for; None for all."""
    seen: frozenset[str]
    held: frozenset[str] | None
    """Devices that were held out of it; None for all that it has not seen."""

    def never_saw(self, device: str) -> bool:
        """Whether neither the device nor, in a fold, a twin of it trained."""
        return device not in self.seen if self.held is None else device in self.held

    def twins_seen(self, device: str) -> tuple[str, ...]:
        """Near-twins that trained: the figure is then of a device that is hardly new."""
        return tuple(sorted(self.seen & twins(device)))


def of_checkpoint(checkpoint: str) -> UnseenNetworks:
    """A shipped checkpoint or the folder of one.

    Raises:
        CheckpointError: it is not sound.
    """
    release = load_release(checkpoint)
    predictor = load_predictor(release)
    return UnseenNetworks(
        name=release.name, fold="", networks=predictor.networks,
        learned=frozenset(predictor.learned),
        recipe=recipe_of(release.config["training"], f"checkpoint {release.name!r}, training"),
        seen=frozenset(predictor.networks.devices), held=None,
    )  # fmt: skip


def of_run(run: Path) -> list[UnseenNetworks]:
    """The networks of the device folds of a run.

    Raises:
        DataError: no folder of a run, or its device folds are not done or not kept.
        CheckpointError: what was fitted cannot be read.
    """
    try:
        found = json.loads((run / RESOLVED).read_text(encoding="utf-8"))
        values, facts, columns = found["recipe"], found["data"], found["features"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{run} is not the folder of a run ({error})") from error
    if columns != columns_hash():
        raise DataError(f"{run} was trained on the features of another version: train it again")
    recipe = recipe_of({k: v for k, v in values.items() if k != "model"}, str(run / RESOLVED))
    devices = {str(device) for of_source in facts.values() for device in of_source["devices"]}
    split = device_split(recipe.split, devices, partial=True)
    parts = [fold for fold in folds(recipe, split, ()) if fold.kind == "device"]
    if not parts:
        raise DataError(
            f"{run}: its recipe held out no devices (calibration.device_folds, and at least two "
            "devices that are no twins)"
        )
    out = []
    for fold in parts:
        place = run / "folds" / f"{fold.kind}-{fold.name}"
        fitted = place.with_name(f"{place.name}.fit") / "last.ckpt"
        if not place.is_dir() or not fitted.is_file():
            raise DataError(
                f"{run}: fold {place.name} is not done, or {fitted.parent.name} was removed; "
                f"remove {place} and train the run again"
            )
        out.append(
            UnseenNetworks(
                name=f"folds of {recipe.name}", fold=fold.name, recipe=recipe, learned=None,
                networks=fold_networks(recipe, fitted), seen=frozenset(fold.devices),
                held=frozenset(fold.held_devices),
            )
        )  # fmt: skip
    return out


def fold_networks(recipe: Recipe, path: Path) -> Ensemble:
    """What a fold fitted.

    Columns without bins and without a scale of their own did not vary in training: their weights
    are taken off, as the end of a fit does.

    Raises:
        CheckpointError: the file cannot be read, or does not fit the recipe.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        members = _members(recipe, state)
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be read ({reason}): fit the fold again") from error
    return Ensemble(members=tuple(members), devices=())


def _members(recipe: Recipe, state: Mapping[str, Tensor]) -> list[LatencyNet]:
    out = []
    for i in range(1 + max(int(name.split(".")[1]) for name in state)):
        own = {
            name.split(".", 2)[2]: value
            for name, value in state.items()
            if name.startswith(f"members.{i}.")
        }
        net = LatencyNet(net_config(recipe, len(own["host_device"])), trunk_tokens())
        net.load_state_dict(own)
        net.silence(torch.stack([_unvaried(net, g) for g in range(len(net.encoders))]))
        net.eval()
        out.append(net)
    return out


def _unvaried(net: LatencyNet, group: int) -> Tensor:
    """(F,) columns of an encoder that were left unscaled and got no bin."""
    encoder = net.of_group(group)
    still = encoder.x_scale_F == 1.0
    if encoder.binned is not None:
        used = encoder.binned.low_K < 1e29
        still[encoder.binned.column_K[used]] = False
    return still


def train_folds(
    recipe_path: Path,
    data_dirs: Sequence[Path],
    run: Path,
    overrides: Mapping[str, str],
    sources: Collection[str],
    *,
    progress: bool,
) -> None:
    """Fit the device folds of a recipe into a run's folder, and no release; goes on where it stood.

    Args:
        recipe_path: the recipe; its sources that are not in `sources` are left out.
        data_dirs: folders of source folders.
        run: folder of the run.
        overrides: values of the recipe.
        sources: those at hand.
        progress: whether fits show a bar.

    Raises:
        RecipeError: the recipe is wrong, or the folder holds a run of another one.
        DataError: the data cannot be read.
    """
    recipe = _folds_alone(load_recipe(recipe_path, overrides), sources)
    every = load_data(recipe, data_dirs)
    split = device_split(recipe.split, devices_of(every))
    data = training_rows(every, split, recipe.parts)
    rows = trained_rows(data, recipe, split)
    claim_folder(run, recipe.resolved(), {s: rows.facts(s) for s in recipe.sources})
    del every, rows
    logger.info("fitting networks without each device and its twins (%s)", recipe.name)
    cross_validate(recipe, data, split, run, progress=progress)


def _folds_alone(recipe: Recipe, sources: Collection[str]) -> Recipe:
    there = tuple(s for s in recipe.sources if s in sources)
    if not there:
        raise DataError(f"recipe {recipe.name!r}: none of its sources is in the data folders")
    changed: dict[str, Any] = {"device_folds": True, "model_folds": False}
    return recipe.model_copy(
        update={
            "sources": there, "calibration": recipe.calibration.model_copy(update=changed),
        }
    )  # fmt: skip
