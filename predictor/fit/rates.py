"""Fit of `predictor.nn.rate_roofline`: kernels and whole programs, shrunk towards the roofline.

A most likely value under a prior: classes lie around their mean, devices around their classes. Few
rows then move little, and the rows of one device cannot drown another's.

Legend: N kernels, C op classes, D devices, M whole programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from predictor.errors import DataError
from predictor.features.roofline import launch_us
from predictor.fit.fitting import FitData
from predictor.fit.model_samples import batch_of
from predictor.graph.ops import OP_CLASSES
from predictor.hardware.catalogue import resolve_device
from predictor.nn.fitted_roofline import CLASS_OF_TOKEN
from predictor.nn.rate_roofline import FP16_SPREAD, RateRoofline, is_fp16, parts

START = (-0.8, 0.5)
"""Mean and standard deviation of the log of a kernel's start time over 1 us."""
PROGRAM = (-0.7, 0.7)
"""The same of a program's."""
RATE = (0.0, 0.15)
"""The same of the log of time over the sustained roofline."""
CLASS_SPREAD = (0.3, 0.15, 0.15)
"""How far op classes lie from their mean: start, memory, compute."""
DEVICE_SPREAD = ((0.3, 0.3), (0.15, 0.15), (0.15, 0.15))
"""How far a usual device lies from its classes as a whole, and a class on it beside."""
FREEDOM = 2.0
"""Degrees of freedom of that: some lie far off (Student's t), and shall not move what is shared."""
ADAPTER_SPREAD = ((0.5, 0.5), (1.0, 0.6), (0.6, 0.4))
"""Standard deviations of the same, which the correction of a new device starts from."""
NOISE = 0.15
"""What neither explains: log time of a kernel or program."""
MOST_ROWS = 30.0
"""Rows' worth of weight of a device: lines sampled at many sizes say the same over again."""
STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """N kernels; the first so many are rows of their own, the others belong to programs."""

    x_NF: Tensor
    class_N: Tensor
    device_N: Tensor
    count_N: Tensor
    row_N: Tensor
    """Row that each adds to."""
    measured_us_R: Tensor
    weight_R: Tensor


def fit_rates(data: FitData) -> RateRoofline:
    """The model of the rows: kernels measured by themselves, and programs of graph banks.

    Raises:
        DataError: no row, or devices of several kinds.
    """
    kinds = {resolve_device(name).kind for name in data.hosts}
    if len(kinds) > 1:
        raise DataError(f"one kind of device, not {', '.join(sorted(kinds))}: fit each by itself")
    rows = _rows(data)
    launch = launch_us(resolve_device(data.hosts[0]))
    classes, devices = len(OP_CLASSES), len(data.hosts)
    parameters = {
        "mean": torch.tensor([[START[0]], [RATE[0]], [RATE[0]]]), "class": torch.zeros(3, classes),
        "device": torch.zeros(3, devices, 1), "own": torch.zeros(3, devices, classes),
        "program": torch.tensor(PROGRAM[0]), "fp16": torch.tensor(0.0),
    }  # fmt: skip
    for value in parameters.values():
        value.requires_grad_(True)
    spread_32, fp16_N = torch.tensor(DEVICE_SPREAD), is_fp16(rows.x_NF)

    def cost() -> Tensor:
        factors_3C = parameters["mean"] + parameters["class"]
        devices_3DC = parameters["device"] + parameters["own"]
        factors_3N = factors_3C[:, rows.class_N] + devices_3DC[:, rows.device_N, rows.class_N]
        slower_N = parameters["fp16"] * fp16_N
        zero_N = torch.zeros_like(slower_N)
        factors_3N = factors_3N + torch.stack([zero_N, slower_N, zero_N])
        start_N, work_N, _ = parts(rows.x_NF, factors_3N, launch)
        program = torch.exp(parameters["program"])
        total_R = program + torch.zeros(len(rows.measured_us_R)).index_add(
            0, rows.row_N, (start_N + work_N) * rows.count_N
        )
        residual_R = torch.log(total_R / rows.measured_us_R) / NOISE
        misfit_R = 2.0 * (torch.sqrt(1.0 + 0.5 * residual_R**2) - 1.0)
        return (rows.weight_R * misfit_R).sum() + _prior(parameters, spread_32)

    _minimise(cost, list(parameters.values()))
    found = {name: value.detach() for name, value in parameters.items()}
    return RateRoofline(
        devices=data.hosts, log_factors_3C=found["mean"] + found["class"],
        devices_3DC=found["device"] + found["own"], spread_32=torch.tensor(ADAPTER_SPREAD),
        launch_us=launch,
        program_us=float(torch.exp(found["program"])), log_fp16=float(found["fp16"]),
    )  # fmt: skip


def _prior(parameters: dict[str, Tensor], spread_32: Tensor) -> Tensor:
    centre = torch.tensor([[START[0]], [RATE[0]], [RATE[0]]])
    width = torch.tensor([[START[1]], [RATE[1]], [RATE[1]]])
    class_31 = torch.tensor(CLASS_SPREAD)[:, None]
    return (
        0.5
        * (
            (((parameters["mean"] - centre) / width) ** 2).sum()
            + ((parameters["class"] / class_31) ** 2).sum()
            + ((parameters["program"] - PROGRAM[0]) / PROGRAM[1]) ** 2
            + (parameters["fp16"] / FP16_SPREAD) ** 2
        )
        + _tails(parameters["device"] / spread_32[:, :1, None])
        + _tails(parameters["own"] / spread_32[:, 1:, None])
    )


def _tails(standard: Tensor) -> Tensor:
    return 0.5 * (FREEDOM + 1.0) * torch.log1p(standard**2 / FREEDOM).sum()


def _minimise(cost: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    """L-BFGS from where the parameters stand."""
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = cost()
        value.backward()
        return value

    optimizer.step(closure)


def _rows(data: FitData) -> _Rows:
    k, models = data.kernels, data.models
    n = len(k.token_N)
    programs = 0 if models is None else len(models)
    if not n and not programs:
        raise DataError("no kernel and no program of a graph bank to fit rates on")
    x, token, device = [k.x_NF], [k.token_N], [k.device_N]
    count, row = [torch.ones(n)], [torch.arange(n)]
    measured, owner = [k.measured_us_N], [k.device_N]
    if models is not None:
        row_C = batch_of(models, torch.arange(programs)).row_C
        x.append(models.x_CF)
        token.append(models.token_C)
        device.append(models.device_M[row_C])
        count.append(models.count_C)
        row.append(n + row_C)
        measured.append(models.measured_us_M)
        owner.append(models.device_M)
    owner_R = torch.cat(owner).long()
    sizes = torch.bincount(owner_R, minlength=len(data.hosts)).float()
    weight_R = (MOST_ROWS / sizes.clamp(min=1.0)).clamp(max=1.0)[owner_R]
    return _Rows(
        x_NF=torch.cat(x), class_N=CLASS_OF_TOKEN[torch.cat(token)],
        device_N=torch.cat(device).long(), count_N=torch.cat(count), row_N=torch.cat(row),
        measured_us_R=torch.cat(measured), weight_R=weight_R,
    )  # fmt: skip
