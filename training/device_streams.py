"""Streams of devices: measured rows of one source, in folds of shapes and models.

A stream gives each device what trains it, what judges it (rows of another fold: shapes or models
that no device trains on), and what an adapter may be fitted on.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.calibrate.readings import Readings
from predictor.fit.data import (
    FOLDS,
    MODEL_GROUP,
    SAMPLE_GROUP,
    fit_data,
    load_data,
    sampled_rows,
    usable_kernels,
    usable_models,
    usable_steps,
)
from predictor.fit.fitting import FitData
from predictor.fit.model_samples import ModelSamples, banks_of, model_samples
from predictor.fit.readings import kernel_readings, model_readings, step_readings
from predictor.fit.recipe import Recipe
from predictor.fit.samples import KernelSamples, kernel_samples
from predictor.fit.step_samples import StepSamples, step_samples
from predictor.fit.transfer_rows import every_kind
from predictor.fit.validation import kernel_groups, step_groups
from predictor.hardware.catalogue import resolve_device
from predictor.nn.ensemble import Ensemble, effect_index
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

Samples = KernelSamples | StepSamples | ModelSamples
Indices = NDArray[np.int64]
NEVER_READ = 0
"""Fold of shapes and models that neither trains nor judges here."""
JUDGED_KERNELS = 80
"""Kernel rows that judge, of one device, op and dtype at most."""
JUDGED_MODELS = 40
"""Whole models that judge, of one device in one setting at most."""
MOST_EVIDENCE = 1000
"""Rows that an adapter is fitted on, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """Which rows a stream holds."""

    name: str
    source: str
    devices: tuple[str, ...]
    """At most six: of each generation and kind that measured one or two."""
    settings: Mapping[str, str]
    """Of the recipe, as of `--set`."""
    updates: int
    """Steps of the optimizer on one device; on more, so many times the root of their number."""
    steps_train: bool = True
    """Whether steps train; else they judge, whatever their fold."""
    balanced: bool = False
    """Whether all devices measured the same rows, so that weights of devices change nothing."""


STREAMS: Mapping[str, StreamPlan] = {
    plan.name: plan
    for plan in (
        StreamPlan(
            name="gptbench", source="gptbench", settings={"models_per_group": "300"}, updates=150,
            balanced=True, devices=(
                "nvidia-p100-pcie-16gb", "nvidia-v100-sxm2-32gb", "nvidia-a100-sxm-40gb",
                "nvidia-a40", "nvidia-rtx-a6000",
            ),
        ),
        StreamPlan(
            name="deepbench", source="deepbench", settings={}, updates=250, devices=(
                "intel-xeon-phi-7250", "nvidia-p100-pcie-16gb", "amd-vega-fe", "nvidia-titan-xp",
                "nvidia-v100-sxm2-16gb", "nvidia-t4",
            ),
        ),
        StreamPlan(
            name="neusight", source="neusight", settings={"rows_per_group": "250"}, updates=150,
            steps_train=False, devices=(
                "nvidia-p100-pcie-16gb", "nvidia-t4", "nvidia-v100-pcie-32gb",
                "nvidia-a100-pcie-40gb", "amd-mi210", "nvidia-l4",
            ),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rows of one kind of one device."""

    held: Samples
    """Rows that judge."""
    known: Samples | None
    """Rows that train, as an adapter reads them; None where there are none."""

    def evidence(self) -> int:
        """How many rows an adapter may be fitted on."""
        return 0 if self.known is None else rows_of(self.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Rows of one source, by fold."""

    plan: StreamPlan
    recipe: Recipe
    train: Imported
    devices: tuple[str, ...]
    """In the order of their release, within a year by name."""
    judged: Mapping[str, Mapping[str, Judged]]
    """By device and target: `kernel`, `step`."""

    def fit_data(self, devices: Collection[str]) -> FitData:
        """What a training on some devices sees."""
        return fit_data(self.train, self.recipe, devices, devices)

    def facts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Rows that judge and rows that an adapter may read, by device and target."""
        return {
            device: {
                target: {"held": rows_of(judged.held), "known": judged.evidence()}
                for target, judged in targets.items()
            }
            for device, targets in self.judged.items()
        }

    def few(self, device: str, target: str, index_K: Indices) -> FitData | None:
        """What a training on so many rows of one device and target sees; None for op graphs."""
        known = self.judged[device][target].known
        hosts = (device,)
        if isinstance(known, KernelSamples):
            ids = [known.row_id[i] for i in index_K]
            rows = self.train.kernels
            kernels = kernel_samples(rows[rows["row_id"].isin(ids)], hosts)
            return FitData(hosts=hosts, kernels=kernels, steps=None, ratios=None)
        if not isinstance(known, ModelSamples):
            return None
        models = known.rows.iloc[index_K]
        depth = self.recipe.network.message_layers
        return FitData(
            hosts=hosts, kernels=kernel_samples(self.train.kernels.iloc[:0], hosts), steps=None,
            ratios=None, models=model_samples(models, banks_of(models), hosts, depth),
        )  # fmt: skip


def read_stream(plan: StreamPlan, recipe: Recipe, folders: Sequence[Path], fold: int) -> Stream:
    """The rows of a stream; those of `fold` judge.

    Raises:
        DataError: the source cannot be read.
    """
    data = load_data(recipe, folders)
    kernels, steps = kernel_groups(data.kernels), step_groups(data.steps, recipe)
    aside = (fold, NEVER_READ)
    learned = ~np.isin(steps, aside) if plan.steps_train else np.zeros(len(steps), dtype=bool)
    train = _rows(data, ~np.isin(kernels, aside), learned)
    judges = steps == fold if plan.steps_train else steps != NEVER_READ
    held = _rows(data, kernels == fold, judges)
    judged = {d: _spoken_for(_judged(train, held, recipe, d)) for d in plan.devices}
    return Stream(
        plan=plan, recipe=recipe, train=train, devices=by_release(judged), judged=judged
    )  # fmt: skip


def by_release(devices: Collection[str]) -> tuple[str, ...]:
    """Devices by the year of their release, within a year by name; unknown years last."""
    return tuple(sorted(devices, key=lambda d: (resolve_device(d).year or 9999, d)))


def _rows(data: Imported, kernels: NDArray[np.bool_], steps: NDArray[np.bool_]) -> Imported:
    return replace(
        data, kernels=data.kernels[kernels].reset_index(drop=True),
        steps=data.steps[steps].reset_index(drop=True),
    )  # fmt: skip


def _judged(train: Imported, held: Imported, recipe: Recipe, device: str) -> dict[str, Judged]:
    found = {}
    few = recipe.model_copy(update={"rows_per_group": 0})
    kernels = sampled_rows(usable_kernels(held, few, [device]), JUDGED_KERNELS, SAMPLE_GROUP)
    known = usable_kernels(train, recipe, [device])
    if len(kernels):
        found["kernel"] = Judged(held=_kernels(kernels), known=_kernels(_at_most(known)))
    depth = recipe.network.message_layers
    models = sampled_rows(usable_models(held, [device]), JUDGED_MODELS, MODEL_GROUP)
    if len(models):
        told = _at_most(sampled_rows(usable_models(train, [device]), JUDGED_MODELS, MODEL_GROUP))
        samples = model_samples(models, banks_of(models), (), depth, Counter())
        assert samples is not None
        found["step"] = Judged(
            held=samples, known=model_samples(told, banks_of(told), (), depth, Counter())
        )
    steps = step_samples(held, usable_steps(held, [device]), ())
    if steps is not None:
        found["step"] = Judged(
            held=steps, known=step_samples(train, usable_steps(train, [device]), ())
        )
    return found


def _spoken_for(judged: dict[str, Judged]) -> dict[str, Judged]:
    """Targets without a kernel off its dtype's own path: predictions of such take assumed times.

    A P100 multiplies fp16 on its vector lanes; no network shows in its figures.
    """
    return {t: j for t, j in judged.items() if j.held.coverage.native_N.all()}


def _kernels(rows: pd.DataFrame) -> KernelSamples:
    return kernel_samples(rows.reset_index(drop=True), (), Counter())


def _at_most(rows: pd.DataFrame) -> pd.DataFrame:
    return sampled_rows(rows, MOST_EVIDENCE, ("device",))


def rows_of(samples: Samples) -> int:
    """Measured rows."""
    if isinstance(samples, StepSamples):
        return samples.graphs
    return len(samples.measured_us_N if isinstance(samples, KernelSamples) else samples)


def readings(networks: Ensemble, samples: Samples, device: str) -> Readings:
    """What networks say of rows of a device: as one they know, else as one of a datasheet."""
    at = effect_index(device, networks.devices)
    host = networks.devices.index(device) if device in networks.devices else -1
    known = every_kind(samples.coverage)
    if isinstance(samples, ModelSamples):
        moved = replace(samples, device_M=torch.full_like(samples.device_M, at))
        return model_readings(networks, moved, known)
    places = {
        "device_N": torch.full_like(samples.device_N, at),
        "host_N": torch.full_like(samples.host_N, host),
    }
    if isinstance(samples, KernelSamples):
        return kernel_readings(networks, replace(samples, **places), known)
    return step_readings(networks, replace(samples, **places), known)[1]


def drawn(stream: str, device: str, target: str, rows: int, k: int, draw: int) -> Indices:
    """`k` of the rows at random, all where there are fewer; the same for every method."""
    seed = zlib.crc32(f"{stream} {device} {target}".encode())
    rng = np.random.default_rng([seed, draw])
    return np.sort(rng.choice(rows, min(k, rows), replace=False))


assert FOLDS > NEVER_READ
