"""How XLA's backends differ in what they fuse and how they lay tensors out: data, one row each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Literal

from predictor.graph.ir import DTYPE_BYTES
from predictor.hardware.device import Device, Software
from predictor.hardware.peaks import has_hardware_path

_ARRAY = re.compile(r"MXU (\d+)x(\d+)")
_LANES = 128
_SUBLANE_BYTES = 32
"""A tile of TPU memory is 128 lanes by 32 bytes: 8 rows of fp32, 16 of bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Fusion rules of one backend."""

    name: Literal["cpu", "gpu", "tpu"]
    multi_output: bool
    """Whether kernels over the same elements that share inputs become one with several outputs."""
    repeats_expensive: bool
    """Whether transcendentals are computed again where that saves memory traffic."""
    whole_rows: bool
    """Whether a reduction and what uses its rows become one kernel (softmax, normalisation)."""
    epilogue: bool
    """Whether elementwise work that follows a matrix product is done before it is written."""
    prologue: bool
    """Whether conversions and the like are done while a matrix product reads."""
    writes_out_vectors: bool
    """Whether products with a vector, and outer products, become multiplications and sums."""
    launch_bytes: float = 0.0
    """Traffic that a kernel more is worth: what memory moves while one starts."""
    repeated_elements: int = 0
    """Times that a transcendental is computed again rather than start a kernel for it."""
    most_reductions: int = 64
    """Reductions that a kernel holds at most."""
    folded: int = 1
    """Elements from which a sum is a reduction; shorter ones are part of a loop."""
    matrix_side: int | None = None
    """Side of the systolic array that operands are padded to; None without."""
    tf32_products: bool = False
    """Whether fp32 products run in TF32 where the program does not ask for `HIGHEST`."""
    tf32_convolutions: bool = False
    """The same of convolutions, whose library has the unit on NVIDIA devices alone."""

    def stored_bytes(self, shape: Sequence[int], dtype: str) -> float:
        """Bytes of a tensor in memory, tiles filled up where the backend has tiles."""
        width = DTYPE_BYTES[dtype]
        numel = math.prod(shape)
        if self.matrix_side is None or numel <= 1:
            return numel * width
        return numel * width * _fill(tuple(shape), max(1, int(_SUBLANE_BYTES / width)))

    def padded(self, size: int) -> int:
        """A side of a matrix product as the array takes it."""
        if self.matrix_side is None:
            return size
        return math.ceil(size / self.matrix_side) * self.matrix_side


@lru_cache(maxsize=4096)
def _fill(shape: tuple[int, ...], rows: int) -> float:
    """Elements in memory for one that is needed: the layout whose tiles are filled best."""
    sizes = [size for size in shape if size > 1]
    if len(sizes) < 2:
        return _filled(math.prod(sizes), _LANES)
    pairs = permutations(range(len(sizes)), 2)
    return min(_filled(sizes[i], _LANES) * _filled(sizes[j], rows) for i, j in pairs)


def _filled(size: int, tile: int) -> float:
    """Elements moved for one that is needed, when a side is cut into tiles."""
    return math.ceil(size / tile) * tile / size


CPU = Backend(
    name="cpu", multi_output=False, repeats_expensive=False, whole_rows=False, epilogue=False,
    prologue=False, writes_out_vectors=False,
)  # fmt: skip
GPU = Backend(
    name="gpu", multi_output=True, repeats_expensive=True, whole_rows=True, epilogue=True,
    prologue=True, writes_out_vectors=True, launch_bytes=1e6, repeated_elements=1_000_000,
    most_reductions=8, folded=32,
)  # fmt: skip
JAX = Software(framework="jax", mode="compiled", matmul_tf32=True, memory_format="channels_last")
"""XLA's defaults: fp32 products take TF32 where the device has it."""
DEFAULT_SIDE = 128
"""Systolic array of TPUs up to v5."""


def tpu(matrix_side: int = DEFAULT_SIDE) -> Backend:
    """A TPU with systolic arrays of that side."""
    return Backend(
        name="tpu", multi_output=True, repeats_expensive=True, whole_rows=False, epilogue=True,
        prologue=True, writes_out_vectors=True, matrix_side=matrix_side,
    )  # fmt: skip


def backend_of(device: Device, software: Software = JAX) -> Backend:
    """The backend that compiles for a device.

    Args:
        device: what it compiles for.
        software: whether TF32 is allowed.
    """
    if device.kind == "tpu":
        found = _ARRAY.search(device.matrix_unit or "")
        return tpu(int(found[1]) if found else DEFAULT_SIDE)
    if device.kind == "cpu":
        return CPU
    unit = has_hardware_path(device, "tf32")
    return replace(
        GPU, tf32_products=unit and software.matmul_tf32,
        tf32_convolutions=unit and software.conv_tf32 and device.vendor == "nvidia",
    )  # fmt: skip
