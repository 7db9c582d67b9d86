"""A kernel that does more of the same work is no faster: what a model says is held to it.

Of 1,233 pairs of measured convolutions that differ in their batch alone (DeepBench, eight GPUs),
1.2% fall by more than a twentieth. Networks break that in a twentieth of their answers, most on
small kernels that do not fill a device, where launch, tiles and algorithms take turns. The time of
a convolution is bounded by those of the same one on two, four and eight times its batch, that of a
kernel that streams by those of 2 to 2,048 times its elements or rows; errors of measured rows stay
what they were or fall.

Legend: N kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from predictor.cost.rules import kernel_cost
from predictor.features.roofline import op_class_of
from predictor.features.table import DIM_INDEX, OP_NAMES, KernelTable, concat
from predictor.graph.ops import OPS

Floats = NDArray[np.float64]
_STREAM = tuple(2**i for i in range(1, 12))
_GROWTH: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "conv": (("batch",), (2, 4, 8)),
    **dict.fromkeys(
        ("elementwise", "copy", "reduction", "softmax", "norm"), (("numel", "rows"), _STREAM)
    ),
}
"""By op class: the dimension that counts repetitions of the same work (the first that an op has),
and the factors by which it is raised."""
_LONGEST = {_STREAM: math.log(100.0)}
"""Log time from which kernels are not asked for: one that streams so long fills its device."""
RISING: tuple[str, ...] = tuple(_GROWTH)
"""Op classes that can be held to it."""


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
    found = op_class_of(table)
    for factors, group in _by_factors(classes).items():
        at = np.flatnonzero(np.isin(found, group) & (log_us < _LONGEST.get(factors, np.inf)))
        if not len(at):
            continue
        one, of = _different(table.take(at))
        larger = concat([enlarged(one, factor) for factor in factors])
        least = log_us_of(larger).reshape(len(factors), -1).min(axis=0)[of]
        down[at] = np.minimum(least - log_us[at], 0.0)
    return down


def _by_factors(classes: Collection[str]) -> Mapping[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for name in classes:
        found.setdefault(_GROWTH[name][1], []).append(name)
    return found


def _different(table: KernelTable) -> tuple[KernelTable, NDArray[np.int64]]:
    """The kernels that differ, once each, and which of them every kernel is."""
    _, dtype = np.unique(table.dtype, return_inverse=True)
    facts = np.column_stack([
        table.op, table.phase, dtype.reshape(-1), table.dims, table.flops, table.read_bytes,
        table.write_bytes, table.launches, table.context,
    ])  # fmt: skip
    _, first, of = np.unique(facts, axis=0, return_index=True, return_inverse=True)
    return table.take(first), of.reshape(-1)


def enlarged(table: KernelTable, factor: int) -> KernelTable:
    """The same kernels on so many times their work; traffic grows as the cost rules say."""
    dims = table.dims.copy()
    grown = {name: getattr(table, name).copy() for name in ("flops", "read_bytes", "write_bytes")}
    for op, dtype in {*zip(table.op.tolist(), table.dtype.tolist(), strict=True)}:
        at = np.flatnonzero((table.op == op) & (table.dtype == dtype))
        spec = OPS[OP_NAMES[op]]
        counted = next(n for n in _GROWTH[spec.op_class][0] if n in spec.dims)
        dims[at, DIM_INDEX[counted]] *= factor
        names = (*spec.dims, *spec.optional)
        before, after = (
            kernel_cost(OP_NAMES[op], {n: of[at, DIM_INDEX[n]] for n in names}, dtype)
            for of in (table.dims, dims)
        )
        for name, values in grown.items():
            less, more = (np.asarray(getattr(cost, name), dtype=float) for cost in (before, after))
            values[at] *= np.where(less > 0, more / np.where(less > 0, less, 1.0), factor)
    return replace(table, dims=dims, **grown)


def alone(table: KernelTable) -> KernelTable:
    """The same kernels with the traffic of their cost rules, nothing left to their neighbours."""
    moved = {name: getattr(table, name).copy() for name in ("read_bytes", "write_bytes")}
    for op, dtype in {*zip(table.op.tolist(), table.dtype.tolist(), strict=True)}:
        at = np.flatnonzero((table.op == op) & (table.dtype == dtype))
        spec = OPS[OP_NAMES[op]]
        names = (*spec.dims, *spec.optional)
        cost = kernel_cost(OP_NAMES[op], {n: table.dims[at, DIM_INDEX[n]] for n in names}, dtype)
        for name, values in moved.items():
            values[at] = np.maximum(values[at], np.asarray(getattr(cost, name), dtype=float))
    return replace(table, **moved)
