"""Ways to train on several devices: one model, device parts, weights of devices, alignment.

Legend: N kernels, M models, B rows of a batch, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from device_efficiency import LONGER, ONE, PARTS
from torch import Tensor

from predictor.fit.fitting import EpochShuffle, FitData, fit_networks
from predictor.fit.model_samples import batch_of
from predictor.fit.module import LatencyTraining
from predictor.fit.recipe import Recipe
from predictor.fit.samples import KernelSamples
from predictor.fit.step_samples import StepSamples
from predictor.nn.ensemble import Ensemble
from predictor.nn.latency_net import LatencyNet

FEW_UPDATES = 100
"""Steps of the optimizer on a handful of rows."""
ALIGNMENT = 0.1
"""Weight of the distance between the devices' hidden states."""
Nodes = TypeVar("Nodes", KernelSamples, StepSamples)
LEAST_TO_ALIGN = 3
"""Kernels of a device and a kind in a batch, below which their mean is not aligned."""


class AlignedTraining(LatencyTraining):
    """Draws the mean hidden states of the devices together, kind of kernel by kind of kernel.

    The distance of means of a linear kernel (Tzeng et al., Deep Domain Confusion, 2014), in units
    of the spread of the batch.
    """

    def _member_loss(
        self, net: LatencyNet, index_B: Tensor, models_B: Tensor, with_steps: bool
    ) -> Tensor:
        loss = super()._member_loss(net, index_B, models_B, with_steps)
        if len(index_B):
            k = self.kernels
            parts = (k.x_NF[index_B], k.token_N[index_B], k.device_N[index_B])
        elif self.models is not None and len(models_B):
            batch = batch_of(self.models, models_B)
            at = batch.index_C
            device = self.models.device_M[models_B][batch.row_C]
            parts = (self.models.x_CF[at], self.models.token_C[at], device)
        else:
            return loss
        return loss + ALIGNMENT * spread_of_means(net._encoded(*parts[:2]), parts[1], parts[2])


def spread_of_means(h_BH: Tensor, token_B: Tensor, device_B: Tensor) -> Tensor:
    """Mean squared distance of devices' mean states from their kind's, over the batch's variance.

    Only kinds of kernel that two devices have `LEAST_TO_ALIGN` rows of count.
    """
    devices = int(device_B.max()) + 1
    cell, at_B, count = torch.unique(
        token_B * devices + device_B, return_inverse=True, return_counts=True
    )
    mean_CH = h_BH.new_zeros(len(cell), h_BH.shape[1]).index_add(0, at_B, h_BH)
    mean_CH = mean_CH / count[:, None]
    enough = count >= LEAST_TO_ALIGN
    mean_CH, token_C = mean_CH[enough], (cell // devices)[enough]
    _, kind_C, shared = torch.unique(token_C, return_inverse=True, return_counts=True)
    centre = mean_CH.new_zeros(len(shared), h_BH.shape[1]).index_add(0, kind_C, mean_CH)
    centre = centre / shared[:, None]
    off_CH = (mean_CH - centre[kind_C])[shared[kind_C] > 1]
    if not len(off_CH):
        return h_BH.new_zeros(())
    return ((off_CH**2).mean(0) / h_BH.var(0).clamp(min=1e-6).detach()).mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to train on the devices so far."""

    name: str
    text: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    device_parts: bool = True
    """Whether known devices have effects (and, with `device_heads`, heads) of their own."""
    weights: str = ""
    """`rows`: every row weighs the same; `devices`: every device does, in all."""
    aligned: bool = False
    longer: bool = False
    """Whether updates grow with the number of devices, not with its root."""
    every_order: bool = False
    """Whether it is trained along every order, or by release alone."""


_PARTS = {"network.device_heads": "true", "network.hide_device": "0.4"}
VARIANTS: tuple[Variant, ...] = (
    Variant(
        name=ONE, text="one network for all devices, which it tells by datasheet columns",
        device_parts=False, every_order=True,
    ),
    Variant(
        name=PARTS, overrides=_PARTS, every_order=True,
        text="a shared trunk; a seen device has an effect a kind of kernel and a head of its own "
        "(hidden in 40% of the rows, so that the trunk serves devices that have none)",
    ),
    Variant(
        name=LONGER[ONE], device_parts=False, longer=True,
        text="one model; as many updates a device as a separate model gets",
    ),
    Variant(
        name=LONGER[PARTS], overrides=_PARTS, longer=True,
        text="device parts; as many updates a device as a separate model gets",
    ),
    Variant(
        name="equal devices", overrides=_PARTS, weights="devices",
        text="device parts; every device has the same weight in the loss",
    ),
    Variant(
        name="equal rows", overrides=_PARTS, weights="rows",
        text="device parts; every row has the same weight (the others: a row weighs one over the "
        "root of how many rows share its op and device)",
    ),
    Variant(
        name="jittered columns", overrides={**_PARTS, "network.device_jitter": "0.4"},
        text="device parts; a device's columns are shifted at random where it is hidden",
    ),
    Variant(
        name="aligned states", overrides=_PARTS, aligned=True,
        text="device parts; the mean hidden states of devices are drawn together, kind by kind",
    ),
)  # fmt: skip


def trained(recipe: Recipe, data: FitData, variant: Variant, updates: int) -> Ensemble:
    """The network of a variant; `recipe` holds the variant's overrides already."""
    seen = data if variant.device_parts else nameless(data)
    seen = weighted(seen, variant.weights)
    power = 1.0 if variant.longer else 0.5
    recipe = with_updates(recipe, data, math.ceil(updates * max(len(data.hosts), 1) ** power))
    module = AlignedTraining if variant.aligned else LatencyTraining
    nets = fit_networks(recipe, seen, None, progress=False, module=module)
    return Ensemble(members=tuple(nets), devices=seen.hosts)


def with_updates(recipe: Recipe, data: FitData, updates: int) -> Recipe:
    """The recipe with as many epochs as make so many updates, at least."""
    models = 0 if data.models is None else len(data.models)
    shuffle = EpochShuffle(len(data.kernels.measured_us_N), models, recipe.optimizer, recipe.seed)
    epochs = min(1000, math.ceil(updates / len(shuffle)))
    optimizer = recipe.optimizer.model_copy(update={"epochs": epochs})
    return recipe.model_copy(update={"optimizer": optimizer})


def nameless(data: FitData) -> FitData:
    """The same rows, of devices that have no parts of their own."""
    kernels, models = data.kernels, data.models
    return FitData(
        hosts=(), kernels=_of_no_device(kernels), steps=data.steps and _of_no_device(data.steps),
        ratios=data.ratios and _of_no_device(data.ratios),
        models=models and replace(models, device_M=torch.full_like(models.device_M, -1)),
    )  # fmt: skip


def _of_no_device(samples: Nodes) -> Nodes:
    none_N = torch.full_like(samples.device_N, -1)
    return replace(samples, device_N=none_N, host_N=none_N)


def weighted(data: FitData, weights: str) -> FitData:
    """The rows with other weights: '' as they are, else `Variant.weights`."""
    if not weights:
        return data
    models, kernels = data.models, data.kernels
    return replace(
        data,
        kernels=replace(kernels, weight_N=weights_of(kernels.device_N, kernels.weight_N, weights)),
        models=None if models is None else replace(
            models, weight_M=weights_of(models.device_M, models.weight_M, weights)
        ),
    )  # fmt: skip


def weights_of(device_N: Tensor, weight_N: Tensor, weights: str) -> Tensor:
    """(N,) weights with mean 1: the same for all rows, or with the same sum for all devices."""
    if weights == "rows" or not len(device_N):
        return torch.ones_like(weight_N)
    assert weights == "devices"
    total_D = torch.zeros(int(device_N.max()) + 1).index_add(0, device_N, weight_N)
    out_N = weight_N / total_D[device_N]
    return out_N / out_N.mean()
