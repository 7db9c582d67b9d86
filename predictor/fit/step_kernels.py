"""The kernels of measured steps, as the correction of a step's time reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from predictor.fit.model_samples import ModelBatch, ModelSamples, batch_of
from predictor.fit.step_samples import StepSamples
from predictor.nn.correction import StepKernels, summaries

UNKNOWN_HOST_US = 1e-3
"""Shorter than any step: nothing waits for it."""
ROWS = 256
"""Whole models that are summarised at a time."""


def of_models(
    models: ModelSamples, rows_B: Tensor, batch: ModelBatch, time_C: Tensor
) -> StepKernels:
    """Those of some whole models; `time_C` are the times of the batch's kernel classes."""
    at = batch.index_C
    return StepKernels(
        x_NF=models.x_CF[at], time_N=time_C,
        count_N=models.count_C[at], graph_N=batch.row_C, host_us_G=models.host_us_M[rows_B],
        training_G=models.training_M[rows_B],
    )  # fmt: skip


def of_steps(steps: StepSamples, time_N: Tensor) -> StepKernels:
    """Those of published op graphs: their host is not known, and taken to be far ahead."""
    training = torch.isfinite(steps.backward_us_G)
    return StepKernels(
        x_NF=steps.x_NF, time_N=time_N, count_N=steps.weight_N,
        graph_N=steps.graph_N,
        host_us_G=torch.full((steps.graphs,), UNKNOWN_HOST_US), training_G=training.float(),
    )  # fmt: skip


def training_summaries(models: ModelSamples | None, steps: StepSamples | None) -> Tensor:
    """(G, S) of all steps at roofline times: they say what is usual before anything is learned."""
    parts = []
    if models is not None:
        for rows_B in torch.arange(len(models)).split(ROWS):
            batch = batch_of(models, rows_B)
            parts.append(
                summaries(of_models(models, rows_B, batch, models.base_us_C[batch.index_C]))
            )
    if steps is not None:
        parts.append(summaries(of_steps(steps, steps.base_us_N)))
    return torch.cat(parts)
