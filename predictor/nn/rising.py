"""A kernel that does more of the same work is no faster: what a model says is held to it.

Of 1,233 pairs of measured convolutions that differ in their batch alone (DeepBench, eight GPUs),
1.2% fall by more than a twentieth. Networks break that in a twentieth of their answers, most on
small kernels that do not fill a device, where launch, tiles and algorithms take turns. The time of
a convolution is bounded by those of the same one on two, four and eight times its batch, that of a
kernel that streams by those of 2 to 2,048 times its elements or rows; errors of measured rows stay
what they were or fall.

Legend: N kernels, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from predictor.cost.rules import Cost, kernel_cost
from predictor.features.roofline import op_class_of
from predictor.features.table import DIM_INDEX, OP_NAMES, KernelTable, concat
from predictor.graph.ops import OPS

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Growth:
    """How the work of a kernel is multiplied."""

    counted: tuple[str, ...]
    """Dimensions that count repetitions of the same work: the first that an op has is raised."""
    factors: tuple[int, ...]
    longest_us: float = math.inf
    """Time from which kernels are not asked for: one that streams so long fills its device."""


_BATCHES = _Growth(("batch",), (2, 4, 8))
_STREAMS = _Growth(("numel", "rows"), tuple(2**i for i in range(1, 12)), 100.0)
_GROWTH: Mapping[str, _Growth] = {
    "conv": _BATCHES,
    **dict.fromkeys(("elementwise", "copy", "reduction", "softmax", "norm"), _STREAMS),
}
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
    for growth in dict.fromkeys(_GROWTH[name] for name in classes):
        group = [name for name in classes if _GROWTH[name] is growth]
        at = np.flatnonzero(np.isin(found, group) & (log_us < np.log(growth.longest_us)))
        if not len(at):
            continue
        one, of = _different(table.take(at))
        larger = concat([enlarged(one, factor) for factor in growth.factors])
        least = log_us_of(larger).reshape(len(growth.factors), -1).min(axis=0)[of]
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


def enlarged(table: KernelTable, factor: int) -> KernelTable:
    """The same kernels on so many times their work; traffic grows as the cost rules say."""
    dims = table.dims.copy()
    grown = {name: getattr(table, name).copy() for name in ("flops", "read_bytes", "write_bytes")}
    for op, dtype, at in _alike(table):
        counted = next(n for n in _GROWTH[OPS[op].op_class].counted if n in OPS[op].dims)
        dims[at, DIM_INDEX[counted]] *= factor
        before, after = (_cost(op, dtype, of[at]) for of in (table.dims, dims))
        for name, values in grown.items():
            less, more = (np.asarray(getattr(cost, name), dtype=float) for cost in (before, after))
            values[at] *= np.where(less > 0, more / np.where(less > 0, less, 1.0), factor)
    return replace(table, dims=dims, **grown)


def alone(table: KernelTable) -> KernelTable:
    """The same kernels with the traffic of their cost rules, nothing left to their neighbours."""
    moved = {name: getattr(table, name).copy() for name in ("read_bytes", "write_bytes")}
    for op, dtype, at in _alike(table):
        cost = _cost(op, dtype, table.dims[at])
        for name, values in moved.items():
            values[at] = np.maximum(values[at], np.asarray(getattr(cost, name), dtype=float))
    return replace(table, **moved)


def _alike(table: KernelTable) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """Op and dtype, and where the kernels of both are."""
    for op, dtype in {*zip(table.op.tolist(), table.dtype.tolist(), strict=True)}:
        yield OP_NAMES[op], dtype, np.flatnonzero((table.op == op) & (table.dtype == dtype))


def _cost(op: str, dtype: str, dims_ND: NDArray[np.int64]) -> Cost:
    """What the cost rule says of kernels of one op and dtype."""
    names = (*OPS[op].dims, *OPS[op].optional)
    return kernel_cost(op, {n: dims_ND[:, DIM_INDEX[n]] for n in names}, dtype)
