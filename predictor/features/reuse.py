"""How many bytes pass between two uses of a kernel's operands, against the cache.

Inside a step a weight is used once and others pass before it is used again. A kernel timed in a
loop finds its operands where the loop left them. Serving benchmarks take several copies of a weight
in turn so that it comes from memory, as many as their collectors' sources say (aiconfigurator's
card): what the copies hold together decides.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from predictor.features.table import CONTEXTS, KernelTable
from predictor.hardware.device import Device, Software
from predictor.hardware.sustained import cache_mib

COPIES: Mapping[str, int] = {"trtllm": 5, "sglang": 6, "vllm": 6}
"""Copies of a weight that a serving benchmark takes in turn, at most, by framework."""
FILLS_CACHE = ("trtllm",)
"""Frameworks whose benchmark takes no more copies than fill the cache."""
ONE_COPY: Mapping[str, tuple[str, ...]] = {"vllm": ("fp8_block", "nvfp4")}
"""Schemes whose weight is always the same one, by framework."""
LIMIT = 4.0
"""Largest |log(reuse bytes / cache)| that is told apart: beyond, all or nothing is resident."""


def log_reuse(
    table: KernelTable, weight_bytes: NDArray[np.float64], device: Device, software: Software
) -> NDArray[np.float64]:
    """(N,) log(bytes between two uses of an operand / cache), within `LIMIT`; 0 for no known cache.

    Args:
        table: N kernels.
        weight_bytes: of the operand that stays the same (n x k of a product), 0 where none does.
        device: whose last-level cache counts.
        software: the framework decides how a benchmark loops.
    """
    capacity = (cache_mib(device) or 0.0) * 2**20
    if not capacity:
        return np.zeros(len(table))
    traffic = table.read_bytes + table.write_bytes
    in_step = (table.context == CONTEXTS.index("step")) | (
        table.context == CONTEXTS.index("in_step")
    )
    between = np.maximum(traffic, 1.0)
    copies = float(COPIES.get(software.framework, 0))
    if copies and software.scheme not in ONE_COPY.get(software.framework, ()):
        turns = np.full(len(table), copies)
        if software.framework in FILLS_CACHE:
            turns = np.clip(np.ceil(capacity / np.maximum(weight_bytes, 1.0)), 1.0, copies)
        between = np.where(weight_bytes > 0, weight_bytes * turns, between)
    ratio = np.clip(np.log(between / capacity), -LIMIT, LIMIT)
    return np.asarray(np.where(in_step, LIMIT, ratio))
