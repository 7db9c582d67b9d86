"""Convolutions take no less time on a larger batch: what a model says is held to it.

A kernel that does more of the same work is no faster: of 1,233 pairs of measured convolutions that
differ in their batch alone (DeepBench, eight GPUs), 1.2% fall by more than a twentieth. Networks
break that in a twentieth of their answers, most on small batches that do not fill a device, where
launch, tiles and algorithms take turns. Each time is bounded by those of the same convolution on
two, four and eight times its batch; the errors of measured rows stay what they were.

Legend: N kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from predictor.cost.rules import kernel_cost
from predictor.features.roofline import op_class_of
from predictor.features.table import DIM_INDEX, OP_NAMES, KernelTable, concat
from predictor.graph.ops import OPS

Floats = NDArray[np.float64]
RISING: tuple[str, ...] = ("conv",)
"""Op classes that can be held to it: their `batch` counts inputs of one set of weights."""
FACTORS: tuple[int, ...] = (2, 4, 8)


def lowered(
    table: KernelTable,
    log_us: Floats,
    classes: Collection[str],
    log_us_of: Callable[[KernelTable], Floats],
) -> Floats:
    """(N,) how far the log time of each kernel goes down, so that none exceeds a larger batch's.

    Args:
        table: the kernels.
        log_us: log of their times.
        classes: op classes that are held to it, of `RISING`.
        log_us_of: log times of other kernels.
    """
    down = np.zeros(len(table))
    at = np.flatnonzero(np.isin(op_class_of(table), list(classes)))
    if len(at):
        one, of = _different(table.take(at))
        larger = concat([with_batch(one, factor) for factor in FACTORS])
        least = log_us_of(larger).reshape(len(FACTORS), -1).min(axis=0)[of]
        down[at] = np.minimum(least - log_us[at], 0.0)
    return down


def _different(table: KernelTable) -> tuple[KernelTable, NDArray[np.int64]]:
    """The kernels that differ, once each, and which of them every kernel is."""
    _, dtype = np.unique(table.dtype, return_inverse=True)
    facts = np.column_stack([
        table.op, table.phase, dtype.reshape(-1), table.dims, table.flops, table.read_bytes,
        table.write_bytes, table.launches, table.context,
    ])  # fmt: skip
    _, first, of = np.unique(facts, axis=0, return_index=True, return_inverse=True)
    return table.take(first), of.reshape(-1)


def with_batch(table: KernelTable, factor: int) -> KernelTable:
    """The same kernels on so many times their batch; traffic grows as its cost rule says."""
    dims = table.dims.copy()
    dims[:, DIM_INDEX["batch"]] *= factor
    grown = {name: getattr(table, name).copy() for name in ("flops", "read_bytes", "write_bytes")}
    for op, dtype in {*zip(table.op.tolist(), table.dtype.tolist(), strict=True)}:
        at = np.flatnonzero((table.op == op) & (table.dtype == dtype))
        names = (*OPS[OP_NAMES[op]].dims, *OPS[OP_NAMES[op]].optional)
        before, after = (
            kernel_cost(OP_NAMES[op], {n: of[at, DIM_INDEX[n]] for n in names}, dtype)
            for of in (table.dims, dims)
        )
        for name, values in grown.items():
            values[at] *= np.asarray(getattr(after, name) / getattr(before, name))
    return replace(table, dims=dims, **grown)
