"""A roofline with rates: start time, memory and compute rate by op class, and how devices differ.

    time = launches · start + max(compute / compute rate, traffic / memory rate)

relative to the sustained roofline. Each of the three is a number of the op class, plus what a
known device adds to it. fp16 on lanes without it (no TPU has it) is converted on the way in and
out, which slows memory traffic by a number of its own. A program takes a start of its own beside,
and so does a kernel by itself.

For devices of one kind with few rows each: what is shared carries over to a device that was never
measured, and what differs between devices is what an adapter fits first.

Legend: N kernels, C op classes, D devices, 3 terms (start, memory, compute).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from predictor.features.columns import COLUMNS
from predictor.graph.ops import OP_CLASSES
from predictor.nn.correction import StepKernels, no_terms
from predictor.nn.fitted_roofline import CLASS_OF_TOKEN, NO_LAUNCH_US, places_of

TERMS: tuple[str, ...] = ("start", "memory", "compute")
LOG_FACTORS, DEVICES, SPREAD, STARTS = (
    "rates.log_factors", "rates.devices", "rates.spread", "rates.start_us",
)  # fmt: skip
LEAST_SHARE = 0.01
"""Of a step's time: a start of the program below is not told."""
HEAD_SPREAD = 1.268
"""Spread that the shipped prior gives the weight of a device term (`calibrate/prior.toml`)."""
FP16_SPREAD = 0.8
"""Standard deviation of what fp16 costs, log time."""
SMALLEST_WORK_US = 1e-4
_RATIO = COLUMNS.index("log_compute_over_memory")
_BASE = COLUMNS.index("log_base_us")
_HALF, _BF16 = COLUMNS.index("half_precision"), COLUMNS.index("bf16")
_LAUNCHES = COLUMNS.index("log_launches")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRoofline:
    """Start time and rates by op class, and by device."""

    devices: tuple[str, ...]
    log_factors_3C: Tensor
    """Log of the start time over 1 us, of time over the sustained roofline's memory and compute."""
    devices_3DC: Tensor
    """What each known device adds to them."""
    spread_32: Tensor
    """Standard deviation of that between devices: of a whole device, and of a class on it."""
    launch_us: float
    """Launch time inside the base time of the features."""
    program_us: float
    """Start of a program."""
    log_fp16: float
    """Log of time over the memory part in fp16."""

    @property
    def message_layers(self) -> int:
        """Kernels by themselves."""
        return 0

    def log_ratio(
        self,
        x_NF: Tensor,
        token_N: Tensor,
        edge_index_2E: Tensor,
        device_N: Tensor,
        isolated_N: Tensor,
        consumers_2E: Tensor | None = None,
    ) -> Tensor:
        """(N, 3) the same value three times: the width comes from calibration."""
        factors_3N = self.factors(CLASS_OF_TOKEN[token_N], device_N, is_fp16(x_NF))
        start_N, work_N, _ = parts(x_NF, factors_3N, self.launch_us)
        start_N = start_N + self.program_us * (isolated_N > 0)
        log_N = torch.log(start_N + work_N) - x_NF[:, _BASE]
        return log_N[:, None].expand(-1, 3)

    def factors(self, class_N: Tensor, device_N: Tensor, fp16_N: Tensor) -> Tensor:
        """(3, N) logs of start time and inverse rates."""
        factors_3N = self.log_factors_3C[:, class_N].clone()
        factors_3N[1] += self.log_fp16 * fp16_N
        if not self.devices:
            return factors_3N
        known_N = device_N.long()
        own_3N = self.devices_3DC[:, known_N.clamp(min=0), class_N]
        return factors_3N + torch.where(known_N >= 0, own_3N, 0.0)

    def device_terms(self, x_NF: Tensor, token_N: Tensor, most: int) -> Tensor:
        """(N, most) how the log time moves with each term of a device, and of a class on it.

        By one standard deviation between devices, over the spread that the prior of a correction
        gives a term.
        """
        class_N = CLASS_OF_TOKEN[token_N]
        nowhere_N = torch.full((len(x_NF),), -1)
        fp16_N = is_fp16(x_NF)
        factors_3N = self.factors(class_N, nowhere_N, fp16_N)
        start_N, work_N, compute_N = parts(x_NF, factors_3N, self.launch_us)
        share_N = work_N / (start_N + work_N)
        share_3N = torch.stack([
            1.0 - share_N, share_N * (compute_N < 0.5), share_N * (compute_N >= 0.5)
        ])  # fmt: skip
        out_NH = torch.zeros(len(x_NF), most)
        out_NH[:, :3] = (share_3N * self.spread_32[:, :1]).T / HEAD_SPREAD
        rows = torch.arange(len(x_NF))
        column_N = 3 + class_N
        fits = column_N < most
        own_N = (share_3N[1:] * self.spread_32[1:, 1:]).sum(0) / HEAD_SPREAD
        out_NH[rows[fits], column_N[fits]] = own_N[fits]
        if 3 + len(OP_CLASSES) < most:
            out_NH[:, 3 + len(OP_CLASSES)] = share_3N[1] * fp16_N * FP16_SPREAD / HEAD_SPREAD
        return out_NH

    def host_us(
        self, op_N: Tensor, scalar_arg_N: Tensor, isolated_N: Tensor, host_N: Tensor
    ) -> Tensor:
        """(N,) nothing: the device issues its kernels, and the start time is in the answer."""
        return torch.full((len(op_N),), NO_LAUNCH_US)

    def measured_us(self, device_us: Tensor, host_us: Tensor) -> Tensor:
        """The answer itself."""
        return torch.maximum(device_us, host_us)

    def correction_terms(self, steps: StepKernels) -> Tensor:
        """A program's start beside its kernels, as the constant."""
        share_G = self.program_us / steps.total(steps.time_N * steps.count_N).clamp(min=1e-3)
        terms = no_terms(steps)
        terms[:, -1] = torch.where(share_G >= LEAST_SHARE, torch.log1p(share_G), 0.0)
        return terms

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of its tensors in a release."""
        return (LOG_FACTORS, DEVICES, SPREAD, STARTS)

    def tensors(self) -> dict[str, Tensor]:
        """What a release stores."""
        return {
            LOG_FACTORS: self.log_factors_3C, DEVICES: self.devices_3DC.contiguous(),
            SPREAD: self.spread_32,
            STARTS: torch.tensor([self.launch_us, self.program_us, self.log_fp16]),
        }  # fmt: skip


def is_fp16(x_NF: Tensor) -> Tensor:
    """(N,) 1 for kernels in fp16."""
    return ((x_NF[:, _HALF] > 0) & (x_NF[:, _BF16] == 0)).to(x_NF.dtype)


def parts(x_NF: Tensor, factors_3N: Tensor, launch_us: float) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) start and work of each kernel, microseconds, and 1 where compute bounds the work.

    The features tell the base time and the ratio of its compute and memory parts.

    Args:
        x_NF: features.
        factors_3N: logs of start time (us) and of the inverse rates.
        launch_us: launch time inside the base time.
    """
    launches_N = torch.exp(x_NF[:, _LAUNCHES])
    longer_N = torch.exp(x_NF[:, _BASE]) - launch_us * launches_N
    longer_N = longer_N.clamp(min=SMALLEST_WORK_US)
    ratio_N = x_NF[:, _RATIO]
    compute_N = longer_N * torch.exp(ratio_N.clamp(max=0.0) + factors_3N[2])
    memory_N = longer_N * torch.exp(-ratio_N.clamp(min=0.0) + factors_3N[1])
    bound_N = (compute_N >= memory_N).float()
    return launches_N * torch.exp(factors_3N[0]), torch.maximum(compute_N, memory_N), bound_N


def rates_of(
    tensors: Mapping[str, Tensor], devices: tuple[str, ...], classes: object
) -> RateRoofline:
    """The model that a release stores.

    A class that the release did not know takes the mean of those that it did; none of its rows was
    learned.

    Args:
        tensors: all its tensors.
        devices: with measured rows.
        classes: its op classes, in the order of the tensors.

    Raises:
        ValueError: a tensor is missing or of another size, or a class is not known to this version.
    """
    at = places_of(classes)
    shapes = {
        LOG_FACTORS: (3, len(at)), DEVICES: (3, len(devices), len(at)),
        SPREAD: (3, 2), STARTS: (3,),
    }  # fmt: skip
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ValueError(f"tensor {name} is {found}, not {shape}")
    factors_3C = tensors[LOG_FACTORS].float()
    mean_31 = factors_3C.mean(1, keepdim=True) if len(at) else torch.zeros(3, 1)
    return RateRoofline(
        devices=devices,
        log_factors_3C=mean_31.expand(-1, len(OP_CLASSES)).clone().index_copy(1, at, factors_3C),
        devices_3DC=torch.zeros(3, len(devices), len(OP_CLASSES)).index_copy(
            2, at, tensors[DEVICES].float()
        ),
        spread_32=tensors[SPREAD].float(), launch_us=float(tensors[STARTS][0]),
        program_us=float(tensors[STARTS][1]),
        log_fp16=float(tensors[STARTS][2]),
    )  # fmt: skip
