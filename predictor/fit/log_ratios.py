"""What networks say of measured kernels and models: log time over roofline, batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from predictor.fit.model_samples import ModelBatch, ModelSamples
from predictor.fit.samples import KERNEL_ROWS, KernelSamples
from predictor.nn.kernel_model import KernelModel


def kernel_log_ratio(networks: KernelModel, samples: KernelSamples) -> Tensor:
    """(N, 3) lower, middle and upper log ratio of every kernel, each by itself."""
    no_edges = torch.zeros(2, 0, dtype=torch.long)
    log_ratio_N3 = torch.zeros(len(samples.token_N), 3)
    for at in torch.arange(len(log_ratio_N3)).split(KERNEL_ROWS):
        log_ratio_N3[at] = networks.log_ratio(
            samples.x_NF[at], samples.token_N[at], no_edges, samples.device_N[at],
            samples.isolated_N[at],
        )  # fmt: skip
    return log_ratio_N3


def model_log_ratio(
    networks: KernelModel, models: ModelSamples, rows_B: Tensor, batch: ModelBatch
) -> Tensor:
    """(C, 3) the same of the kernel classes of a batch (`batch_of(models, rows_B)`)."""
    at = batch.index_C
    return networks.log_ratio(
        models.x_CF[at], models.token_C[at], batch.producers_2P,
        models.device_M[rows_B][batch.row_C], torch.zeros(len(at)), batch.consumers_2P,
    )  # fmt: skip
