"""Predictions of trained networks on samples: kernels, in-step ops and steps, as DataFrames."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.fit.coverage import Pair
from predictor.fit.model_samples import ModelSamples, batch_of
from predictor.fit.module import op_device_us, phase_us
from predictor.fit.samples import KernelSamples, StepSamples
from predictor.nn.composition import device_us, step_us
from predictor.nn.ensemble import Ensemble

if TYPE_CHECKING:
    import pandas as pd

PHASES: tuple[str, ...] = ("total", "forward", "backward")


def score_kernels(
    networks: Ensemble, samples: KernelSamples, learned: Collection[Pair] | None = None
) -> pd.DataFrame:
    """One row a kernel: what its measurement would read, with quantiles (microseconds).

    Args:
        networks: trained members.
        samples: measured kernels.
        learned: (token, dtype) pairs that they speak for; others take the assumed time. All, when
            not given.
    """
    import pandas as pd

    no_edges = torch.zeros(2, 0, dtype=torch.long)
    log_ratio = networks.log_ratio(
        samples.x_NF, samples.token_N, no_edges, samples.device_N, samples.isolated_N
    )
    host_N = networks.host_us(
        samples.op_N, samples.scalar_arg_N, samples.isolated_N, samples.host_N
    )
    device_N3 = samples.base_us_N[:, None] * torch.exp(log_ratio)
    speaks_N = torch.ones(len(host_N), dtype=torch.bool)
    if learned is not None:
        speaks_N = samples.coverage.learned(learned)
        device_N3 = torch.where(speaks_N[:, None], device_N3, samples.coverage.assumed_us_N3)
    with_host = networks.measured_us(device_N3, host_N[:, None])
    read = torch.where(samples.isolated_N[:, None] > 0, with_host, device_N3).numpy()
    return pd.DataFrame({
        "row_id": samples.row_id, "measured_us": samples.measured_us_N.numpy(),
        "predicted_us": read[:, 1], "lower_us": read[:, 0], "upper_us": read[:, 2],
        "base_us": samples.base_us_N.numpy(), "host_us": host_N.numpy(),
        "learned": speaks_N.numpy(),
    })  # fmt: skip


def score_steps(networks: Ensemble, steps: StepSamples) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Op rows (in-step reading with quantiles) and step rows (three phases), microseconds."""
    isolated_N = torch.zeros_like(steps.base_us_N)
    log_ratio = networks.log_ratio(
        steps.x_NF, steps.token_N, steps.edge_index_2E, steps.device_N, isolated_N
    )
    host_N = networks.host_us(steps.op_N, steps.scalar_arg_N, isolated_N, steps.host_N)
    ops = steps.ops.copy()
    host_R = op_device_us(steps, host_N)
    for i, column in enumerate(("lower_us", "predicted_us", "upper_us")):
        device_R = op_device_us(steps, steps.base_us_N * torch.exp(log_ratio[:, i]))
        ops[column] = networks.measured_us(device_R, host_R).numpy()
    ops["host_us"] = host_R.numpy()
    forward_G, backward_G = phase_us(steps, steps.base_us_N * torch.exp(log_ratio[:, 1]))
    return ops, step_rows(steps.steps, forward_G.numpy(), backward_G.numpy())


MODEL_ROWS = 256
"""Whole models that are predicted at a time."""


def score_models(
    networks: Ensemble, models: ModelSamples, learned: Collection[Pair] | None = None
) -> pd.DataFrame:
    """One row a whole model: its step time (microseconds), kernels never below their floor.

    Args:
        networks: trained members.
        models: measured models.
        learned: (token, dtype) pairs that they speak for; others take the assumed time. All, when
            not given.
    """
    speaks_C = None if learned is None else models.coverage.learned(learned)
    assumed_C = models.coverage.assumed_us_N3[:, 1]
    predicted = []
    for rows_B in torch.arange(len(models)).split(MODEL_ROWS):
        batch = batch_of(models, rows_B)
        at = batch.index_C
        log_ratio = networks.log_ratio(
            models.x_CF[at], models.token_C[at], batch.producers_2P,
            models.device_M[rows_B][batch.row_C], torch.zeros(len(at)), batch.consumers_2P,
        )  # fmt: skip
        time_C = models.base_us_C[at] * torch.exp(log_ratio[:, 1])
        if speaks_C is not None:
            time_C = torch.where(speaks_C[at], time_C, assumed_C[at])
        time_C = torch.maximum(time_C, models.floor_us_C[at])
        device_B = device_us(time_C, models.count_C[at], batch.row_C, len(rows_B))
        predicted.append(step_us(device_B, models.host_us_M[rows_B]))
    rows = models.rows
    keys = ["row_id", "device", "graph", "model", "mode", "batch", "seq"]
    frame: pd.DataFrame = rows[keys].assign(
        phase="total", measured_us=rows["latency_us"], predicted_us=torch.cat(predicted).numpy()
    )
    return frame


def step_rows(
    steps: pd.DataFrame, forward_us: NDArray[np.float32], backward_us: NDArray[np.float32]
) -> pd.DataFrame:
    """Long format, one row a step and measured phase; inference has no backward row.

    `total` is what was published end to end: forward plus backward, no optimizer.
    """
    import pandas as pd

    train = (steps["mode"] == "train").to_numpy()
    keys = ["row_id", "device", "graph", "model", "mode", "batch", "seq"]
    predicted = {
        "total": np.where(train, forward_us + backward_us, forward_us),
        "forward": forward_us, "backward": backward_us,
    }  # fmt: skip
    measured = {
        "total": steps["latency_us"], "forward": steps["forward_us"],
        "backward": steps["backward_us"],
    }  # fmt: skip
    parts = []
    for phase in PHASES:
        part = steps[keys].copy()
        part["phase"] = phase
        part["measured_us"] = measured[phase].to_numpy(dtype=float)
        part["predicted_us"] = predicted[phase].astype(float)
        parts.append(part[train] if phase == "backward" else part)
    rows = pd.concat(parts, ignore_index=True)
    return rows[rows["measured_us"].notna()].reset_index(drop=True)
