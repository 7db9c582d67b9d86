"""What a kernel model asks of a device: clocks, rates by byte and microsecond, the cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.device import Device
from predictor.hardware.peaks import mem_bw_gbps
from predictor.hardware.sustained import cache_bw_gbps, cache_mib, sustained_bw_gbps

Floats = NDArray[np.float64]

USUAL_CLOCK_MHZ = 1_900.0
CACHE_MIB_PER_UNIT = 0.5
"""Cache of a GPU that does not tell it, by unit (A100 and H100 0.38, L40S 0.68, B200 0.85)."""
EXPONENTIALS = 16.0
"""Exponentials of a unit a clock (CUDA programming guide, arithmetic throughput: 16 for all
capabilities from 3.0 on)."""
EXPONENTIALS_OF = {"10.3": 32.0}
"""Blackwell Ultra doubles it for attention (NVIDIA, "Inside Blackwell Ultra")."""
ASYNC_CAPABILITY = 9.0
"""From here on matrix units read shared memory by themselves and copies run beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Sustained rates of one GPU."""

    units: float
    us_per_clock: float
    memory: float
    """Bytes a microsecond from memory."""
    cache: float
    """Bytes a microsecond from the last-level cache."""
    cache_bytes: float
    exponentials: float
    """Of a unit a clock."""
    capability: float
    """NVIDIA's compute capability, 0 where there is none."""

    @property
    def copies_async(self) -> bool:
        """Whether matrix units read shared memory by themselves."""
        return self.capability >= ASYNC_CAPABILITY


def chip_of(device: Device) -> Chip:
    """Rates of a GPU.

    Raises:
        UnknownRateError: the memory bandwidth is not known.
    """
    units = float(device.units or 64)
    dram = mem_bw_gbps(device)
    clock = device.clock_boost_mhz or device.clock_matrix_mhz or USUAL_CLOCK_MHZ
    capability = device.compute_capability or ""
    return Chip(
        units=units, us_per_clock=1.0 / clock,
        memory=sustained_bw_gbps(device, dram) * 1e3, cache=cache_bw_gbps(device, dram) * 1e3,
        cache_bytes=(cache_mib(device) or CACHE_MIB_PER_UNIT * units) * 2**20,
        exponentials=EXPONENTIALS_OF.get(capability, EXPONENTIALS),
        capability=float(capability) if device.vendor == "nvidia" and capability else 0.0,
    )  # fmt: skip


def latest(power: float, *times: Floats | float) -> Floats:
    """(N,) smooth maximum of times: their norm of the given power."""
    worst = np.maximum.reduce(np.broadcast_arrays(*times))
    worst = np.maximum(worst, 1e-9)
    total = np.asarray(sum((np.asarray(t) / worst) ** power for t in times))
    return np.asarray(worst * total ** (1.0 / power))


def read_rate(
    chip: Chip, traffic: Floats, *, share: float, edge: float, slope: float, gain: float
) -> Floats:
    """(N,) bytes a microsecond at which what is read again and again comes.

    Args:
        chip: the device.
        traffic: bytes between two uses.
        share: of the sustained bandwidth that memory gives.
        edge: traffic over the cache where half of it is still there.
        slope: how sharp that edge is.
        gain: share of the cache's bandwidth at which what is there comes.
    """
    held = 1.0 / (1.0 + (traffic / (chip.cache_bytes * edge)) ** slope)
    faster = max(gain * chip.cache / chip.memory - 1.0, 0.0)
    return np.asarray(chip.memory * share * (1.0 + held * faster))
