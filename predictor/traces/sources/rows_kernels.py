"""Kernel rows of users: dimensions by op, phase, FLOPs and bytes, and times that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.cost.rules import kernel_cost
from predictor.errors import DataError, UnsupportedPrecision
from predictor.features.roofline import roofline
from predictor.graph.ir import DTYPE_BYTES
from predictor.graph.ops import DIM_NAMES, OPS
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.traces.schema import Imported, kernel_table
from predictor.traces.sources.rows_tables import keep
from predictor.traces.validate import DIM_LIMIT

if TYPE_CHECKING:
    import pandas as pd

FASTEST = Software(matmul_tf32=True, conv_tf32=True)
"""The software under which floors are lowest."""
BELOW = 0.5
"""Share of the physical floor below which a time is doubted: clocks and rounding explain less."""
TOO_LONG = 100.0
"""Times of the sustained roofline and a host's launch above which a time is doubted. Of measured
kernels (DeepBench's, aiter's, a processor's) one in 300 is above it; half of a file never was."""
HOST_US = 10.0
"""What a timer around a kernel sees at least where the host launches it."""
PLAIN_PRODUCTS = ("linear", "matmul")
"""Products of two matrices: m, n and k say all where a file has no batches."""
_COSTS = ("flops", "read_bytes", "write_bytes")


def complete_kernels(rows: pd.DataFrame, file: str, out: Imported) -> pd.DataFrame:
    """Rows with the dimensions of their op, a phase, and FLOPs and bytes; -1 where no dimension.

    In a file without a column `batch` a plain matrix product has one batch.

    Raises:
        DataError: the file lacks the column of a dimension that one of its ops needs.
    """
    if "dim_batch" not in rows.columns:
        plain = rows["op"].isin(PLAIN_PRODUCTS)
        if plain.any():
            rows = rows.assign(dim_batch=np.where(plain, 1.0, np.nan))
            batched = rows["op"].isin([name for name, op in OPS.items() if "batch" in op.dims])
            if (batched & ~plain).any():
                raise _lacks_column(file, str(rows.loc[batched & ~plain, "op"].iloc[0]), "batch")
    absent = [f"dim_{d}" for d in DIM_NAMES if f"dim_{d}" not in rows.columns]
    given = [f"dim_{d}" for d in DIM_NAMES if f"dim_{d}" in rows.columns]
    for op in rows["op"].unique():
        needed = OPS[op].dims if op in OPS else ()
        for dim in needed:
            if f"dim_{dim}" in absent:
                raise _lacks_column(file, op, dim)
    for column in given:
        rows = _checked_dimension(rows, column, file, out)
    rows = rows.assign(**{c: rows[c].fillna(-1.0) for c in given})
    rows = rows.assign(**{c: np.full(len(rows), -1.0) for c in absent})
    return _with_phase(_with_costs(rows))


def _lacks_column(file: str, op: str, dim: str) -> DataError:
    return DataError(f"{file}: op {op!r} needs column {dim!r}; it needs {', '.join(OPS[op].dims)}")


def _checked_dimension(rows: pd.DataFrame, column: str, file: str, out: Imported) -> pd.DataFrame:
    """Rows whose dimension is whole, given where the op needs it, and only there."""
    dim = column.removeprefix("dim_")
    needs = [name for name, op in OPS.items() if dim in op.dims]
    may = [name for name, op in OPS.items() if dim in (*op.dims, *op.optional)]
    unknown = ~rows["op"].isin(list(OPS))  # refused by its own rule
    values = rows[column].to_numpy()
    absent = np.isnan(values) | (values == -1)
    whole = absent | ((values == np.floor(values)) & (np.abs(values) <= DIM_LIMIT))
    rules = {
        "dimension_not_plausible": whole,
        "dimension_missing": ~(rows["op"].isin(needs).to_numpy() & absent),
        "dimension_not_of_op": (rows["op"].isin(may) | unknown).to_numpy() | absent,
    }
    left = np.ones(len(rows), dtype=bool)
    for rule, good in rules.items():
        rows = keep(rows, good[left], file, out, column, rule)
        left &= good
    return rows


def _with_costs(rows: pd.DataFrame) -> pd.DataFrame:
    """FLOPs and bytes by the op's rule where the file does not give them."""
    n = len(rows)
    costs = {
        c: rows[c].to_numpy(copy=True) if c in rows.columns else np.full(n, np.nan) for c in _COSTS
    }
    for (op, dtype), index in _groups(rows, "op", "dtype"):
        if op not in OPS or dtype not in DTYPE_BYTES:
            continue  # refused by `keep_valid`
        group = rows.iloc[index]
        names = (*OPS[op].dims, *OPS[op].optional)
        dims = {d: group[f"dim_{d}"].to_numpy() for d in names}
        cost = kernel_cost(op, dims, dtype)
        for column in _COSTS:
            own = costs[column][index]
            costs[column][index] = np.where(np.isnan(own), getattr(cost, column), own)
    unknown = ~rows["op"].isin(list(OPS)) | ~rows["dtype"].isin(list(DTYPE_BYTES))
    costs = {c: np.where(unknown, 0.0, v) for c, v in costs.items()}
    return rows.assign(**costs)


def _with_phase(rows: pd.DataFrame) -> pd.DataFrame:
    """`forward` where no phase is given, unless the op belongs to another."""
    own = {
        name: "optimizer" if op.op_class == "optimizer"
        else "backward" if op.forward_op is not None else "forward"
        for name, op in OPS.items()
    }  # fmt: skip
    usual = rows["op"].map(own).fillna("forward").astype("str")
    if "phase" not in rows.columns:
        return rows.assign(phase=usual)
    return rows.assign(phase=rows["phase"].where(rows["phase"] != "", usual))


def flag_below_floor(rows: pd.DataFrame) -> int:
    """Flag rows that are faster than `BELOW` of their physical floor, where they have no flag.

    Args:
        rows: valid kernel rows; rates that the catalogue does not know give no floor.

    Returns:
        Rows that are longer than `TOO_LONG` times what the device should need.
    """
    below, long = np.zeros(len(rows), dtype=bool), 0
    for (device, _), index in _groups(rows, "device", "dtype"):
        group = rows.iloc[index]
        try:
            bounds = roofline(kernel_table(group), resolve_device(device), FASTEST)
        except UnsupportedPrecision:
            continue
        measured_us = group["latency_us"].to_numpy()
        below[index] = measured_us < BELOW * bounds.floor_us
        long += int((measured_us > TOO_LONG * (bounds.base_us + HOST_US)).sum())
    rows["flag"] = rows["flag"].mask(below & (rows["flag"] == "").to_numpy(), "below_floor")
    return long


def _groups(rows: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values of some columns, with the positions of their rows."""
    for values, index in rows.groupby(list(columns), sort=False).indices.items():
        assert isinstance(values, tuple)
        yield tuple(map(str, values)), index
