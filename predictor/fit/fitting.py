"""One fit: samples in, trained networks out; resumes from its last checkpoint."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from predictor.errors import CheckpointError, RecipeError
from predictor.features.columns import COLUMNS
from predictor.features.table import OP_NAMES
from predictor.fit.model_samples import ModelSamples
from predictor.fit.recipe import OptimizerRecipe, Recipe
from predictor.fit.samples import KernelSamples
from predictor.fit.step_samples import StepSamples
from predictor.graph.ops import TOKENS
from predictor.nn.ensemble import threads
from predictor.nn.latency_net import LatencyNet, NetConfig

if TYPE_CHECKING:
    from predictor.fit.lightning_api import Callback, Trainer
    from predictor.fit.module import LatencyTraining

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitData:
    """What one fit trains on."""

    hosts: tuple[str, ...]
    kernels: KernelSamples
    steps: StepSamples | None
    ratios: StepSamples | None
    models: ModelSamples | None = None


class EpochShuffle(Sampler[tuple[list[int], list[int]]]):
    """Batches of kernel rows and model rows; their order depends on seed and epoch alone.

    An epoch sees every kernel row once, and a share of the model rows. The kind that needs more
    batches decides how many there are; the other is spread over them.
    """

    def __init__(self, kernels: int, models: int, optimizer: OptimizerRecipe, seed: int) -> None:
        self.rows, self.seed, self.epoch = (kernels, models), seed, 0
        self.seen = (kernels, math.ceil(models * optimizer.model_share))
        sizes = (optimizer.batch_size, optimizer.model_batch_size)
        needed = [-(-seen // size) for seen, size in zip(self.seen, sizes, strict=True)]
        self.batches = max(*needed, 1)
        self.sizes = tuple(
            size if batches == self.batches else -(-seen // self.batches)
            for seen, size, batches in zip(self.seen, sizes, needed, strict=True)
        )

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer, so that a resumed run sees the order it would have seen."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        orders = [
            torch.randperm(rows, generator=generator)[:seen].tolist()
            for rows, seen in zip(self.rows, self.seen, strict=True)
        ]
        for i in range(self.batches):
            kernels, models = (
                order[i * size : (i + 1) * size]
                for order, size in zip(orders, self.sizes, strict=True)
            )
            yield kernels, models


class _Given(Dataset[list[int]]):
    """A data set whose items are their own indices."""

    def __getitem__(self, rows: list[int]) -> list[int]:
        return rows


def net_config(recipe: Recipe, hosts: int) -> NetConfig:
    """Network sizes of a recipe over this version's features and vocabulary."""
    n = recipe.network
    return NetConfig(
        features=len(COLUMNS), tokens=len(TOKENS), ops=len(OP_NAMES), hosts=hosts, hidden=n.hidden,
        depth=n.depth, token_width=n.token_width, message_layers=n.message_layers,
        dropout=n.dropout, ratio_limit=n.ratio_limit, bins=n.bins, tiled_prior=n.tiled_prior,
        streamed_prior=n.streamed_prior, device_heads=n.device_heads,
        class_encoders=n.class_encoders, correction=n.correction,
    )  # fmt: skip


AfterEpoch = Callable[[int, Sequence[LatencyNet]], None]
"""Told how many epochs are done and the networks as they are then, ready to predict."""


def fit_networks(
    recipe: Recipe,
    data: FitData,
    folder: Path | None,
    *,
    progress: bool,
    after_epoch: AfterEpoch | None = None,
    module: type[LatencyTraining] | None = None,
) -> list[LatencyNet]:
    """Train the recipe's networks.

    Args:
        recipe: sizes and settings.
        data: what they learn from.
        folder: keeps `last.ckpt` there and resumes from it; None keeps nothing.
        progress: a bar; else a logged line an epoch.
        after_epoch: called in place of both; what it raises ends the fit.
        module: whose loss is taken; `LatencyTraining` when not given.

    Raises:
        RecipeError: the loss is no number after an epoch, and there is no `after_epoch`.
    """
    with threads(recipe.threads):
        return _fit(recipe, data, folder, progress=progress, after_epoch=after_epoch, kind=module)


def _fit(
    recipe: Recipe,
    data: FitData,
    folder: Path | None,
    *,
    progress: bool,
    after_epoch: AfterEpoch | None,
    kind: type[LatencyTraining] | None,
) -> list[LatencyNet]:
    from predictor.fit.lightning_api import (
        ModelCheckpoint,
        TQDMProgressBar,
        Trainer,
        seed_everything,
    )
    from predictor.fit.module import LatencyTraining

    seed_everything(recipe.seed, verbose=False)
    models = 0 if data.models is None else len(data.models)
    sampler = EpochShuffle(len(data.kernels.measured_us_N), models, recipe.optimizer, recipe.seed)
    module = (kind or LatencyTraining)(
        recipe, net_config(recipe, len(data.hosts)), data.kernels, data.steps, data.ratios,
        total_batches=len(sampler) * recipe.optimizer.epochs, models=data.models,
    )  # fmt: skip
    loader: DataLoader[Any] = DataLoader(
        _Given(),  # the sampler yields the rows themselves
        batch_sampler=sampler,  # type: ignore[arg-type]
        collate_fn=lambda pair: tuple(torch.tensor(rows, dtype=torch.long) for rows in pair),
    )
    callbacks: list[Callback] = []
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        callbacks.append(  # after every epoch, over the last one
            ModelCheckpoint(dirpath=folder, filename="last", enable_version_counter=False)
        )
    progress = progress and after_epoch is None
    if after_epoch is not None:
        callbacks.append(_telling(after_epoch))
    else:
        callbacks.append(TQDMProgressBar(refresh_rate=20) if progress else _plain_progress(recipe))
    if after_epoch is None:  # a search prunes such a trial, and goes on
        callbacks.append(_diverging())
    trainer = Trainer(
        max_epochs=recipe.optimizer.epochs, accelerator="cpu", devices=1, logger=False,
        enable_checkpointing=folder is not None, enable_model_summary=False,
        enable_progress_bar=progress, callbacks=callbacks, gradient_clip_val=1.0,
        default_root_dir=folder, num_sanity_val_steps=0,
    )  # fmt: skip
    last = folder / "last.ckpt" if folder is not None else None
    resume = last if last is not None and last.is_file() else None
    if resume is not None:
        _check_resumable(resume)
        logger.info("resuming from %s", resume)
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, loader, ckpt_path=resume, weights_only=True)
    except SystemExit as error:  # how Lightning ends an interrupted run, further ones ignored
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from error
    return _ready(module.nets(), module.constant_GF)


def _ready(nets: list[LatencyNet], constant_GF: Tensor) -> list[LatencyNet]:
    """Networks in evaluation mode, without weights on what did not vary."""
    for net in nets:
        net.silence(constant_GF)
        net.eval()
    return nets


def _diverging() -> Callback:
    """Ends a fit whose loss is no number: its weights are none from then on."""
    from predictor.fit.lightning_api import LambdaCallback

    def check(trainer: Trainer, _: object) -> None:
        loss = float(trainer.callback_metrics.get("loss", 0.0))
        if not math.isfinite(loss):
            raise RecipeError(
                f"the loss is {loss:g} after epoch {trainer.current_epoch + 1}: the training "
                "diverges; take a smaller optimizer.learning_rate"
            )

    return LambdaCallback(on_train_epoch_end=check)


def _telling(after_epoch: AfterEpoch) -> Callback:
    """Calls `after_epoch` with copies: training goes on with what it had."""
    from predictor.fit.lightning_api import LambdaCallback

    def tell(trainer: Trainer, module: LatencyTraining) -> None:
        after_epoch(
            trainer.current_epoch + 1, _ready(copy.deepcopy(module.nets()), module.constant_GF)
        )

    return LambdaCallback(on_train_epoch_end=tell)


def _plain_progress(recipe: Recipe) -> Callback:
    """One logged line an epoch, for where no progress bar can be drawn."""
    from predictor.fit.lightning_api import LambdaCallback

    def report(trainer: Trainer, _: object) -> None:
        loss = float(trainer.callback_metrics.get("loss", float("nan")))
        done, all_epochs = trainer.current_epoch + 1, recipe.optimizer.epochs
        logger.info("epoch %d of %d, loss %.3f", done, all_epochs, loss)

    return LambdaCallback(on_train_epoch_end=report)


def _check_resumable(path: Path) -> None:
    """Refuse a damaged file of an earlier run; no code in it is run.

    Raises:
        CheckpointError: it cannot be read as tensors and plain values.
    """
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} cannot be resumed ({reason}): remove it, and this fit starts again"
        ) from error
