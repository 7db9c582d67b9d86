"""Readings of `predictor.calibrate` from samples: kernels alone, ops inside steps, whole steps.

Kernels of one reading that the terms of a correction cannot tell apart are one part of it.

Legend: N readings, C kernels, P parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.calibrate.readings import KINDS, NO_HOST_US, Readings, joined, log_later
from predictor.calibrate.terms import (
    BOUNDS,
    HEADS,
    HOST,
    TERMS,
    launch_share,
    log_size,
    part_terms,
    step_terms,
)
from predictor.features.columns import COLUMNS
from predictor.features.roofline import LAUNCH_US
from predictor.fit.coverage import Coverage, KernelKind
from predictor.fit.log_ratios import kernel_log_ratio, model_log_ratio
from predictor.fit.model_samples import MODEL_ROWS, ModelSamples, batch_of
from predictor.fit.samples import KERNEL_ROWS, KernelSamples
from predictor.fit.step_kernels import of_models
from predictor.fit.step_samples import StepSamples, op_device_us
from predictor.graph.ops import TOKENS
from predictor.nn.composition import STEP_SHARPNESS
from predictor.nn.kernel_model import KernelModel
from predictor.nn.learned import Entry

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
READING_SHARPNESS = 4.0
"""Of the later of launch and kernel that a timer around one op shows."""
_COMPUTE_OVER_MEMORY = COLUMNS.index("log_compute_over_memory")
_LAUNCHES = COLUMNS.index("log_launches")


def kernel_readings(
    networks: KernelModel, samples: KernelSamples, learned: Collection[Entry]
) -> Readings:
    """A reading a kernel that was measured by itself or inside a step."""
    log_ratio = kernel_log_ratio(networks, samples)[:, 1]
    time = _device_us(samples.base_us_N, log_ratio, samples.coverage, learned)
    host = networks.host_us(samples.op_N, samples.scalar_arg_N, samples.isolated_N, samples.host_N)
    alone = samples.isolated_N.numpy() > 0
    hosted = samples.hosted_N.numpy() > 0
    read = torch.where(samples.hosted_N > 0, networks.measured_us(time, host), time)
    n = len(time)
    coverage = samples.coverage
    tokens, dtypes = _tokens_and_dtypes(coverage.kinds)
    token, dtype = tokens[coverage.kind_N], dtypes[coverage.kind_N]
    launches, bound = _launches_and_bound(samples.x_NF.numpy(), samples.base_us_N.numpy())
    time_us = time.numpy().astype(np.float64)
    heads = _heads(networks, samples.x_NF, samples.token_N)
    terms = np.zeros((n, len(TERMS)), dtype=np.float32)
    for where, flag in ((alone, True), (~alone, False)):
        terms[where] = part_terms(
            token_P=token[where], dtype_P=dtype[where], bound_P=bound[where],
            launch_P=launch_share(time_us[where], launches[where]),
            size_P=log_size(time_us[where]), head_PH=heads[where], alone=flag,
        )  # fmt: skip
    return Readings(
        log_predicted_N=np.log(read.numpy().astype(np.float64)),
        log_measured_N=np.log(samples.measured_us_N.numpy().astype(np.float64)),
        kind_N=np.where(alone, KINDS.index("alone"), KINDS.index("kernel")).astype(np.int64),
        start_N=np.arange(n + 1), part_us_P=time_us, part_PT=terms,
        host_us_N=np.where(hosted, host.numpy(), NO_HOST_US).astype(np.float64),
        sharpness_N=np.full(n, READING_SHARPNESS),
        row_NT=np.zeros((n, len(TERMS)), dtype=np.float32), host_term=HOST,
    )  # fmt: skip


def step_readings(
    networks: KernelModel, steps: StepSamples, learned: Collection[Entry]
) -> tuple[Readings | None, Readings]:
    """Readings of ops inside published steps (in the order of `steps.ops`), and of the steps."""
    isolated_N = torch.zeros_like(steps.base_us_N)
    log_ratio = networks.log_ratio(
        steps.x_NF, steps.token_N, steps.edge_index_2E, steps.device_N, isolated_N
    )[:, 1]
    time_N = _device_us(steps.base_us_N, log_ratio, steps.coverage, learned)
    heads = _heads(networks, steps.x_NF, steps.token_N)
    kernels = _Kernels(
        time_N.numpy(), steps.x_NF.numpy(), steps.base_us_N.numpy(), heads, steps.coverage
    )
    whole = kernels.readings(
        steps.graph_N.numpy(), steps.weight_N.numpy().astype(np.float64),
        measured=np.nansum(
            [steps.forward_us_G.numpy(), steps.backward_us_G.numpy()], axis=0
        ).astype(np.float64),
        host=np.full(steps.graphs, NO_HOST_US), sharpness=STEP_SHARPNESS, kind="step",
        row=_step_rows(steps.steps),
    )  # fmt: skip
    if not len(steps.ops):
        return None, whole
    host_N = networks.host_us(steps.op_N, steps.scalar_arg_N, isolated_N, steps.host_N)
    own = kernels.take(steps.kernel_K.numpy())
    host_R = op_device_us(steps, host_N).numpy().astype(np.float64)
    ops = own.readings(
        steps.label_K.numpy(), np.ones(len(steps.label_K)),
        measured=steps.op_us_R.numpy().astype(np.float64), host=host_R,
        sharpness=READING_SHARPNESS, kind="kernel", row=None,
    )  # fmt: skip
    return ops, whole


def model_readings(
    networks: KernelModel, models: ModelSamples, learned: Collection[Entry]
) -> Readings:
    """A reading a whole model, in the order of `models.rows`."""
    found = []
    for rows_B in torch.arange(len(models)).split(MODEL_ROWS):
        batch = batch_of(models, rows_B)
        at = batch.index_C
        log_ratio = model_log_ratio(networks, models, rows_B, batch)[:, 1]
        coverage = _coverage_at(models.coverage, at.numpy())
        time_C = _device_us(models.base_us_C[at], log_ratio, coverage, learned)
        time_C = torch.maximum(time_C, models.floor_us_C[at])
        kernels = _Kernels(
            time_C.numpy(), models.x_CF[at].numpy(), models.base_us_C[at].numpy(),
            _heads(networks, models.x_CF[at], models.token_C[at]), coverage,
        )  # fmt: skip
        of_step = networks.correction_terms(of_models(models, rows_B, batch, time_C)).sum(1)
        reading = (
            kernels.readings(
                batch.row_C.numpy(), models.count_C[at].numpy().astype(np.float64),
                measured=models.measured_us_M[rows_B].numpy().astype(np.float64),
                host=models.host_us_M[rows_B].numpy().astype(np.float64),
                sharpness=STEP_SHARPNESS, kind="step",
                row=_step_rows(models.rows.iloc[rows_B.numpy()]),
            )
        )  # fmt: skip
        told = reading.log_predicted_N + of_step.numpy().astype(np.float64)
        found.append(replace(reading, log_predicted_N=told))
    return joined(found)


class _Kernels:
    """Predicted kernels of some steps, with what the terms tell of each."""

    def __init__(
        self,
        time_us: NDArray[np.float32],
        x: NDArray[np.float32],
        base_us: NDArray[np.float32],
        heads: NDArray[np.float32],
        coverage: Coverage,
    ) -> None:
        self.heads = heads
        self.time_us = time_us.astype(np.float64)
        self.kind = coverage.kind_N.astype(np.int64)
        self.kinds = coverage.kinds
        self.launches, self.bound = _launches_and_bound(x, base_us)

    def take(self, at: Indices) -> _Kernels:
        """Those at `at`."""
        out = object.__new__(_Kernels)
        out.kinds = self.kinds
        for name in ("time_us", "kind", "launches", "bound", "heads"):
            setattr(out, name, getattr(self, name)[at])
        return out

    def readings(
        self,
        owner: Indices,
        count: Floats,
        *,
        measured: Floats,
        host: Floats,
        sharpness: float,
        kind: str,
        row: NDArray[np.float32] | None,
    ) -> Readings:
        """Readings of which `owner` tells the kernels, each `count` times."""
        n, kinds = len(measured), max(len(self.kinds), 1)
        key = (owner.astype(np.int64) * kinds + self.kind) * len(BOUNDS) + self.bound
        names, place = np.unique(key, return_inverse=True)
        spent = self.time_us * count
        total: Floats = np.bincount(place, weights=spent).astype(np.float64)
        launch = np.bincount(place, weights=spent * launch_share(self.time_us, self.launches))
        size = np.bincount(place, weights=spent * log_size(self.time_us))
        heads = np.stack([np.bincount(place, weights=spent * h) for h in self.heads.T], axis=1)
        token, dtype = _tokens_and_dtypes(self.kinds)
        what = names // len(BOUNDS) % kinds
        terms = part_terms(
            token_P=token[what], dtype_P=dtype[what], bound_P=names % len(BOUNDS),
            launch_P=launch / total, size_P=size / total, head_PH=heads / total[:, None],
            alone=False,
        )  # fmt: skip
        start = np.searchsorted(names // len(BOUNDS) // kinds, np.arange(n + 1))
        device = np.add.reduceat(total, start[:-1])
        waits = np.maximum(host, NO_HOST_US)
        lead = sharpness * np.log(device / waits)
        return Readings(
            log_predicted_N=log_later(waits, lead, sharpness),
            log_measured_N=np.log(measured), kind_N=np.full(n, KINDS.index(kind), dtype=np.int64),
            start_N=start.astype(np.int64), part_us_P=total, part_PT=terms, host_us_N=waits,
            sharpness_N=np.full(n, sharpness), host_term=HOST,
            row_NT=np.zeros((n, len(TERMS)), dtype=np.float32) if row is None else row,
        )  # fmt: skip


def _step_rows(steps: pd.DataFrame) -> NDArray[np.float32]:
    """What the terms say of whole steps, from their rows."""
    facts = {
        "train": steps["mode"] == "train", "compiled": steps["execution"] == "compiled",
        "nhwc": steps["layout"] == "nhwc", "amp": steps["dtype"].str.startswith("amp"),
    }  # fmt: skip
    return step_terms({name: column.to_numpy() for name, column in facts.items()}, len(steps))


def _device_us(
    base_us: torch.Tensor, log_ratio: torch.Tensor, coverage: Coverage, learned: Collection[Entry]
) -> torch.Tensor:
    """Device times: the network's where it speaks, else the assumed ones."""
    speaks = coverage.learned(learned)
    return torch.where(speaks, base_us * torch.exp(log_ratio), coverage.assumed_us_N3[:, 1])


def _heads(networks: KernelModel, x_NF: torch.Tensor, token_N: torch.Tensor) -> NDArray[np.float32]:
    found = torch.zeros(len(x_NF), HEADS)
    for at in torch.arange(len(x_NF)).split(KERNEL_ROWS):
        found[at] = networks.device_terms(x_NF[at], token_N[at], HEADS)
    return np.asarray(found.numpy())


def _tokens_and_dtypes(kinds: Sequence[KernelKind]) -> tuple[Indices, NDArray[np.str_]]:
    """Index into `TOKENS`, and the dtype, of each kind of kernel."""
    token = np.array([TOKENS.index(kind.token) for kind in kinds], dtype=np.int64)
    return token, np.array([kind.dtype for kind in kinds], dtype=np.str_)


def _launches_and_bound(
    x: NDArray[np.float32], base_us: NDArray[np.float32]
) -> tuple[Floats, Indices]:
    """Launches of each kernel, and which bound it is under."""
    launches = np.maximum(np.rint(np.exp(x[:, _LAUNCHES].astype(np.float64))), 1.0)
    bound = np.where(x[:, _COMPUTE_OVER_MEMORY] >= 0, 0, 1)
    # base = work + launch, and a kernel is bound by its launch where that is more than the work
    return launches, np.where(base_us < 2 * LAUNCH_US * launches, 2, bound).astype(np.int64)


def _coverage_at(coverage: Coverage, at: Indices) -> Coverage:
    return Coverage(
        kinds=coverage.kinds, kind_N=coverage.kind_N[at], native_N=coverage.native_N[at],
        assumed_us_N3=coverage.assumed_us_N3[torch.from_numpy(at)],
    )  # fmt: skip
