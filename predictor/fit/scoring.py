"""Predictions of trained networks on samples: kernels, in-step ops and steps, as DataFrames."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.fit.coverage import Outside
from predictor.fit.log_ratios import kernel_log_ratio, model_log_ratio
from predictor.fit.model_samples import MODEL_ROWS, ModelSamples, batch_of
from predictor.fit.module import phase_us
from predictor.fit.samples import KERNEL_ROWS, KernelSamples, NodeSamples
from predictor.fit.step_kernels import of_models, of_steps
from predictor.fit.step_samples import StepSamples, op_device_us
from predictor.nn.composition import device_us, step_us
from predictor.nn.kernel_model import KernelModel
from predictor.nn.learned import Entry, Measured

if TYPE_CHECKING:
    import pandas as pd

PHASES: tuple[str, ...] = ("total", "forward", "backward")
NOTHING: Mapping[str, float] = {
    "learned": 1.0, "in_distribution": 1.0, "outside": 0.0, "transferred": 0.0,
}  # fmt: skip
"""Shares of no time at all, by column."""


def score_kernels(
    networks: KernelModel,
    samples: KernelSamples,
    learned: Collection[Entry] | None = None,
    outside: Outside | None = None,
    measured: Measured | None = None,
) -> pd.DataFrame:
    """One row a kernel: what its measurement would read, with quantiles (microseconds).

    Args:
        networks: a trained model.
        samples: measured kernels.
        learned: entries (`predictor.nn.learned`) that they speak for; others take the assumed
            time. All, when not given.
        outside: of what training saw; with it the rows hold `outside`, and whether they are
            `in_distribution`.
        measured: on which devices; with it the rows hold whether the time is `transferred`: the
            networks speak for the kernel, but its class was not measured on the device.
    """
    import pandas as pd

    log_ratio = kernel_log_ratio(networks, samples)
    host_N = networks.host_us(
        samples.op_N, samples.scalar_arg_N, samples.isolated_N, samples.host_N
    )
    device_N3, speaks_N = _device_us(samples, log_ratio, learned)
    with_host = networks.measured_us(device_N3, host_N[:, None])
    read = torch.where(samples.hosted_N[:, None] > 0, with_host, device_N3).numpy()
    rows = pd.DataFrame({
        "row_id": samples.row_id, "measured_us": samples.measured_us_N.numpy(),
        "predicted_us": read[:, 1], "lower_us": read[:, 0], "upper_us": read[:, 2],
        "base_us": samples.base_us_N.numpy(), "host_us": host_N.numpy(),
        "learned": speaks_N.float().numpy(),
    })  # fmt: skip
    if outside is not None:
        far_N = torch.zeros(len(speaks_N), dtype=torch.float64)
        for at in torch.arange(len(speaks_N)).split(KERNEL_ROWS):
            far_N[at] = outside(samples.x_NF[at], samples.token_N[at])
        rows["outside"] = far_N.numpy()
        rows["in_distribution"] = (speaks_N & (far_N == 0)).float().numpy()
    if measured is not None:
        elsewhere_N = speaks_N & ~samples.coverage.measured(measured)
        rows["transferred"] = elsewhere_N.float().numpy()
    return rows


def _device_us(
    samples: NodeSamples, log_ratio_N3: Tensor, learned: Collection[Entry] | None
) -> tuple[Tensor, Tensor]:
    """(N, 3) device times, and (N,) whether the networks speak for each kernel."""
    time_N3 = samples.base_us_N[:, None] * torch.exp(log_ratio_N3)
    if learned is None:
        return time_N3, torch.ones(len(time_N3), dtype=torch.bool)
    speaks_N = samples.coverage.learned(learned)
    return torch.where(speaks_N[:, None], time_N3, samples.coverage.assumed_us_N3), speaks_N


def score_steps(
    networks: KernelModel,
    steps: StepSamples,
    learned: Collection[Entry] | None = None,
    outside: Outside | None = None,
    measured: Measured | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Op rows (in-step reading with quantiles) and step rows (three phases), microseconds.

    `learned`, `outside` and `measured`, as of `score_kernels`; in the rows the share of the
    predicted device time that the networks speak for, that of kernels like those of training, how
    far outside of training their kernels lie in the mean, and the share of transferred ones.
    """
    isolated_N = torch.zeros_like(steps.base_us_N)
    log_ratio = networks.log_ratio(
        steps.x_NF, steps.token_N, steps.edge_index_2E, steps.device_N, isolated_N
    )
    time_N3, speaks_N = _device_us(steps, log_ratio, learned)
    host_N = networks.host_us(steps.op_N, steps.scalar_arg_N, isolated_N, steps.host_N)
    ops = steps.ops.copy()
    host_R = op_device_us(steps, host_N)
    for i, column in enumerate(("lower_us", "predicted_us", "upper_us")):
        ops[column] = networks.measured_us(op_device_us(steps, time_N3[:, i]), host_R).numpy()
    ops["host_us"] = host_R.numpy()
    mid_N = time_N3[:, 1]
    own_N = mid_N * speaks_N
    phases = _phases(steps, mid_N)
    factor_G = torch.exp(networks.correction_terms(of_steps(steps, mid_N)).sum(1))
    shares = {"learned": own_N}
    if outside is not None:
        far_N = outside(steps.x_NF, steps.token_N).to(own_N.dtype)
        shares["in_distribution"] = own_N * (far_N == 0)
        shares["outside"] = own_N * far_N
    if measured is not None:
        shares["transferred"] = own_N * ~steps.coverage.measured(measured)
    for name in shares:
        ops[name] = _share(
            op_device_us(steps, shares[name]), op_device_us(steps, mid_N), NOTHING[name]
        )
    by_phase = {
        name: {
            phase: _share(part, phases[phase], NOTHING[name])
            for phase, part in _phases(steps, of_N).items()
        }
        for name, of_N in shares.items()
    }
    predicted = {phase: (phases[phase] * factor_G).numpy() for phase in PHASES}
    return ops, step_rows(steps.steps, predicted, by_phase)


def _phases(steps: StepSamples, kernel_us_N: Tensor) -> dict[str, Tensor]:
    """(G,) device time by phase; inference has no backward kernels."""
    forward_G, backward_G = phase_us(steps, kernel_us_N)
    return {"total": forward_G + backward_G, "forward": forward_G, "backward": backward_G}


def _share(part: Tensor, whole: Tensor, nothing: float = 1.0) -> NDArray[np.float32]:
    """`part / whole`; `nothing` where there is nothing."""
    return np.asarray(torch.where(whole > 0, part / whole.clamp(min=1e-9), nothing).numpy())


def score_models(
    networks: KernelModel,
    models: ModelSamples,
    learned: Collection[Entry] | None = None,
    outside: Outside | None = None,
    measured: Measured | None = None,
) -> pd.DataFrame:
    """One row a whole model: its step time (microseconds), kernels never below their floor.

    Args:
        networks: a trained model.
        models: measured models.
        learned: entries (`predictor.nn.learned`) that they speak for; others take the assumed
            time. All, when not given. The rows hold the share of the device time that they
            speak for.
        outside: of what training saw; with it the rows hold the share of kernels inside, and how
            far outside the kernels lie in the mean.
        measured: on which devices; with it the rows hold the share of the time in kernels that
            the networks speak for, of classes that were not measured on the device.
    """
    coverage = models.coverage
    speaks_C = None if learned is None else coverage.learned(learned)
    elsewhere_C = None if measured is None else ~coverage.measured(measured)
    assumed_C = coverage.assumed_us_N3[:, 1]
    predicted: list[Tensor] = []
    shares: dict[str, list[NDArray[np.float32]]] = {}
    for rows_B in torch.arange(len(models)).split(MODEL_ROWS):
        batch = batch_of(models, rows_B)
        at = batch.index_C
        log_ratio = model_log_ratio(networks, models, rows_B, batch)
        time_C = models.base_us_C[at] * torch.exp(log_ratio[:, 1])
        own_C = torch.ones(len(at), dtype=torch.bool)
        if speaks_C is not None:
            own_C = speaks_C[at]
            time_C = torch.where(own_C, time_C, assumed_C[at])
        time_C = torch.maximum(time_C, models.floor_us_C[at])
        parts = {"learned": time_C * own_C}
        if outside is not None:
            far_C = outside(models.x_CF[at], models.token_C[at]).to(time_C.dtype)
            parts["in_distribution"] = parts["learned"] * (far_C == 0)
            parts["outside"] = parts["learned"] * far_C
        if elsewhere_C is not None:
            parts["transferred"] = parts["learned"] * elsewhere_C[at]
        of_row = (models.count_C[at], batch.row_C, len(rows_B))
        device_B = device_us(time_C, *of_row)
        for name, part_C in parts.items():
            share_B = _share(device_us(part_C, *of_row), device_B, NOTHING[name])
            shares.setdefault(name, []).append(share_B)
        terms_BS = networks.correction_terms(of_models(models, rows_B, batch, time_C))
        step_B = step_us(device_B, models.host_us_M[rows_B]) * torch.exp(terms_BS.sum(1))
        predicted.append(step_B)
    rows = models.rows
    keys = ["row_id", "device", "graph", "model", "mode", "batch", "seq"]
    frame: pd.DataFrame = rows[keys].assign(
        phase="total", measured_us=rows["latency_us"], predicted_us=torch.cat(predicted).numpy(),
        **{name: np.concatenate(parts) for name, parts in shares.items()},
    )  # fmt: skip
    return frame


def step_rows(
    steps: pd.DataFrame,
    predicted_us: Mapping[str, NDArray[np.float32]],
    shares: Mapping[str, Mapping[str, NDArray[np.float32]]],
) -> pd.DataFrame:
    """Long format, one row a step and measured phase; inference has no backward row.

    `total` is what was published end to end: forward plus backward, no optimizer.

    Args:
        steps: G step rows.
        predicted_us: (G,) by phase.
        shares: (G,) by column and phase: `learned`, the share of the time that the networks speak
            for, and the like.
    """
    import pandas as pd

    train = (steps["mode"] == "train").to_numpy()
    keys = ["row_id", "device", "graph", "model", "mode", "batch", "seq"]
    measured = {
        "total": steps["latency_us"], "forward": steps["forward_us"],
        "backward": steps["backward_us"],
    }  # fmt: skip
    parts = []
    for phase in PHASES:
        part = steps[keys].copy()
        part["phase"] = phase
        part["measured_us"] = measured[phase].to_numpy(dtype=float)
        part["predicted_us"] = predicted_us[phase].astype(float)
        for column, by_phase in shares.items():
            part[column] = by_phase[phase]
        parts.append(part[train] if phase == "backward" else part)
    rows = pd.concat(parts, ignore_index=True)
    return rows[rows["measured_us"].notna()].reset_index(drop=True)
