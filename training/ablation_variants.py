"""What an ablation takes away: settings of a recipe, columns, the physics, other devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from predictor.features.columns import COLUMNS
from predictor.features.context import NAMES as CONTEXT_NAMES
from predictor.features.issue import ISSUE_COLUMNS
from predictor.features.library import LIBRARY_COLUMNS
from predictor.features.serving import SERVING_COLUMNS
from predictor.features.streaming import STREAMING_COLUMNS
from predictor.fit.fitting import FitData
from predictor.fit.model_samples import ModelSamples
from predictor.fit.recipe import NetworkRecipe
from predictor.fit.samples import KernelSamples
from predictor.fit.step_samples import StepSamples
from predictor.fit.validation import HeldSamples

GROUPS: Mapping[str, tuple[str, ...]] = {
    "tiles": (
        "tile128_loss", "tile128x64_loss", "tile64_loss", "tile32_loss", "best_tile_loss",
        "log_tiles_per_unit", "split_k_room", "log_tiled",
    ),
    "alignment": (
        "m_odd", "n_odd", "k_odd", "m_mod32", "n_mod32", "k_mod32", "n_mod8", "k_mod8",
        "group_uneven",
    ),
    "cache and reuse": (
        "log_cache_ratio", "cache_known", "log_reuse", "log_weight_in_cache", "log_rows_in_cache",
    ),
    "power": ("boost_room", "boost_room_x_time"),
    "launch and parallelism": (
        "log_launches", "log_elements_per_unit", "log_rows_per_unit",
    ),
    "context": (
        "compiled", "channels_last", "release", "scripted_attention", *CONTEXT_NAMES,
    ),
    "library and serving": (*LIBRARY_COLUMNS, *SERVING_COLUMNS),
    "issue": ISSUE_COLUMNS,
    "streaming": STREAMING_COLUMNS,
    "roofline columns": ("log_base_us", "log_compute_over_memory"),
}  # fmt: skip
"""Columns of a mechanism, left out together."""
CONSTANT_US = 300.0
"""Base of every kernel without physics: in the middle of the times, on a logarithmic scale."""
RECIPE = "recipe"
ALONE = "each device alone"
TOGETHER_SHAPES = "all devices, shapes unseen"
ALONE_SHAPES = f"{ALONE}, shapes unseen"
PAIRS: tuple[tuple[str, str], ...] = ((RECIPE, ALONE), (TOGETHER_SHAPES, ALONE_SHAPES))
"""Networks of all devices, and of each by itself, that are judged on the same rows."""
WIDE = 10.0
"""What the ratio to a constant may be: 14 ns to 7 s, the largest that a recipe allows."""
BASES: tuple[str, ...] = ("base_us_N", "base_us_C")
FEATURES: tuple[str, ...] = ("x_NF", "x_CF")

Samples = TypeVar("Samples", KernelSamples, StepSamples, ModelSamples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to train."""

    name: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Of the recipe, as of `--set`."""
    without: tuple[str, ...] = ()
    """Groups of columns."""
    physics: bool = True
    """Whether the network learns a ratio to the roofline, or one to a constant."""
    single_device: bool = False
    """Whether each device has a network of its own."""
    shapes: bool = False
    """Whether shapes and model families of known devices judge it, where the split's development
    holds devices out: a device alone says nothing of another."""


def variants(
    network: NetworkRecipe, *, seeds: int = 1, both: bool = True, devices_held: bool = False
) -> tuple[Variant, ...]:
    """All ablations of a recipe.

    Args:
        network: of the recipe.
        seeds: how many; from the second on, each is a line of its own.
        both: whether the rows hold kernels and steps, so that one can do without the other.
        devices_held: whether the development part holds devices out.
    """
    other = {"network.message_layers": "0" if network.message_layers else "2"}
    factor = {"network.correction": "0" if network.correction else "0.3"}
    kernels = {"loss.step": "0", "loss.model": "0"}
    steps = {"loss.kernel": "0", "loss.op": "0", "loss.backward_ratio": "0"}
    priors = [name for name in ("tiled_prior", "streamed_prior") if getattr(network, name)]
    constant = {"network.ratio_limit": str(WIDE), "network.tiled_prior": "false"}
    if network.streamed_prior:
        constant["network.streamed_prior"] = "false"
    alone = (Variant(name=ALONE, single_device=True),)
    if devices_held:
        alone = (
            Variant(name=TOGETHER_SHAPES, shapes=True),
            Variant(name=ALONE_SHAPES, shapes=True, single_device=True),
        )
    read = [name for name, group in GROUPS.items() if not set(group) <= set(network.unread)]
    return (
        Variant(name=RECIPE),
        *(Variant(name=f"seed {i}", overrides={"seed": str(i)}) for i in range(1, seeds)),
        Variant(
            name="message passing " + ("off" if network.message_layers else "on"), overrides=other
        ),
        Variant(name="correction " + ("off" if network.correction else "on"), overrides=factor),
        *((Variant(name="kernels only", overrides=kernels),) if both else ()),
        *((Variant(name="steps only", overrides=steps),) if both else ()),
        *alone,
        Variant(name="no physics residual", overrides=constant, physics=False),
        *(
            Variant(name=f"no {name.replace('_', ' ')}", overrides={f"network.{name}": "false"})
            for name in priors
        ),
        *(Variant(name=f"without {group}", without=(group,)) for group in read),
    )


def varies(data: FitData, groups: Sequence[str], unread: Sequence[str] = ()) -> bool:
    """Whether any column of the groups that is read differs between the kernels that train."""
    names = [name for group in groups for name in GROUPS[group] if name not in unread]
    away = [COLUMNS.index(name) for name in names]
    for samples in (data.kernels, data.steps, data.ratios, data.models):
        for name in FEATURES:
            x = getattr(samples, name, None)
            if x is not None and len(x) and bool((x[:, away] != x[0, away]).any()):
                return True
    return False


def of_variant(samples: Samples, variant: Variant) -> Samples:
    """Samples as a variant sees them: columns that it lacks are 0, times relative to its base."""
    away = [COLUMNS.index(name) for group in variant.without for name in GROUPS[group]]
    changed = {}
    for name in type(samples).__dataclass_fields__:
        value = getattr(samples, name)
        if name in FEATURES and away:
            changed[name] = value.index_fill(1, torch.tensor(away), 0.0)
        if name in BASES and not variant.physics:
            changed[name] = torch.full_like(value, CONSTANT_US)
    return replace(samples, **changed)


def training_of(data: FitData, variant: Variant) -> FitData:
    """What a fit of the variant sees."""
    return replace(
        data,
        kernels=of_variant(data.kernels, variant),
        steps=None if data.steps is None else of_variant(data.steps, variant),
        ratios=None if data.ratios is None else of_variant(data.ratios, variant),
        models=None if data.models is None else of_variant(data.models, variant),
    )


def held_of(samples: HeldSamples, variant: Variant) -> HeldSamples:
    """What judges the variant."""
    return replace(
        samples,
        kernels=None if samples.kernels is None else of_variant(samples.kernels, variant),
        steps=None if samples.steps is None else of_variant(samples.steps, variant),
        models=None if samples.models is None else of_variant(samples.models, variant),
    )
