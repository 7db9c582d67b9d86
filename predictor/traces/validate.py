"""What a row must satisfy to be kept: types, plausible units, known devices, ops and dimensions.

Rules are written once, for every source. A row that breaks one is dropped and counted with its
file, row, column, value and rule; the others stay.

| rule | a row is dropped when |
|---|---|
| `not_a_number` | a number is text, NaN or infinite (what may be unknown may be NaN) |
| `row_id_repeated` | an earlier row has the same `row_id` |
| `unknown_device` | the catalogue has no such device, or only as the totals of a package |
| `unknown_op`, `unknown_phase`, `unknown_dtype`, `unknown_context`, … | no such name (`NAMES`) |
| `latency_not_plausible` | a time is below 0.1 us or above 1e9 us (ops and predictions: below 0) |
| `dimension_not_plausible` | a dimension of the op is below 1 (flags and tensors read: below 0) |
| `work_not_plausible` | FLOPs, bytes or repetitions are negative |
| `count_not_plausible` | a count (devices, samples, tokens, …) is below 1 or not whole |
| `reading_not_plausible` | a spread, a power limit or a clock is outside of `READINGS` |
| `dtype_not_supported` | the device has no hardware path for a matrix product of the dtype |
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.errors import DataError
from predictor.features.table import CONTEXTS
from predictor.graph.ir import DTYPE_BYTES, PHASES
from predictor.graph.ops import DIM_NAMES, OPS
from predictor.hardware.catalogue import adopted_devices, load_catalogue
from predictor.hardware.peaks import MATRIX_CLASSES, has_hardware_path
from predictor.traces.schema import TABLES, Imported, column_kind, empty_table

if TYPE_CHECKING:
    import pandas as pd

LATENCY_US = (0.1, 1e9)
"""Shortest and longest time that is taken for a measurement: 0.1 us to 1,000 s."""
DIM_LIMIT = 2**40
"""Largest dimension or tensor size, elements."""
MODES: tuple[str, ...] = ("infer", "train")
STEP_DTYPES: tuple[str, ...] = ("fp32", "amp-fp16", "amp-bf16", "bf16", "fp16", "fp8", "fp4")
NAMES: Mapping[str, Collection[str]] = {
    "mode": MODES,
    "execution": ("eager", "compiled", "cuda_graph", "tuned", "xla", "library", ""),
    "layout": ("nchw", "nhwc", ""),
    "amp": ("fp16", "bf16", ""),
    "tf32": ("on", "off", ""),
    "measure": ("wall", "kernel_sum", "device_span", "throughput"),
}  # fmt: skip
"""Allowed names by column, in every table that has it."""
_KERNEL_NAMES: Mapping[str, Collection[str]] = {
    "op": OPS, "phase": PHASES, "dtype": DTYPE_BYTES, "context": CONTEXTS,
}  # fmt: skip
_MAY_BE_ZERO = frozenset({"causal", "inputs", "window", "input_size"})
_COUNTS = ("batch", "seq", "size", "devices", "micro_batch", "repeats", "ranks_per_node")
READINGS: Mapping[str, tuple[float, float]] = {
    "spread_us": (0.0, 1e9), "power_limit_w": (1.0, 1e4), "clock_mhz": (10.0, 1e4),
}  # fmt: skip
"""Least and largest plausible value by column."""
_MAY_BE_NAN = frozenset({"forward_us", "backward_us", *_COUNTS, *READINGS})
"""What a publisher may not tell, or a step not have."""

Mask: TypeAlias = NDArray[np.bool_]
Finding: TypeAlias = tuple[str, str, Mask]
"""Rule, column, rows that break it."""


def keep_valid(data: Imported) -> None:
    """Drop the rows of every table that break a rule, and count them in `data`.

    Raises:
        DataError: a table lacks a column: that is no fault of a row.
    """
    for table in TABLES:
        setattr(data, table, _valid_rows(data, table))


def _valid_rows(data: Imported, table: str) -> pd.DataFrame:
    rows: pd.DataFrame = getattr(data, table)
    if rows.empty:
        return empty_table(table)
    missing = [c for c in TABLES[table] if c not in rows.columns]
    if missing:
        raise DataError(f"{data.source}: table {table!r} has no column {missing[0]!r}")
    keep = np.ones(len(rows), dtype=bool)
    numbers = {c: _numbers(rows[c]) for c in TABLES[table] if column_kind(c) != "text"}
    for rule, column, bad in _findings(rows, numbers, table):
        found = bad & keep
        if found.any():
            _reject(data, rows, found, table, rule, column)
            keep &= ~found
    if keep.all() and all(rows[c].dtype == v.dtype for c, v in numbers.items()):
        return rows
    kept = rows.assign(**numbers)[keep].reset_index(drop=True)
    whole = {c: "int64" for c in numbers if column_kind(c) == "integer"}
    return kept.astype(whole)


def _numbers(column: pd.Series[Any]) -> NDArray[Any]:
    import pandas as pd

    if column.dtype.kind in "if":
        return np.asarray(column.to_numpy())
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)


def _findings(
    rows: pd.DataFrame, numbers: dict[str, NDArray[Any]], table: str
) -> Iterator[Finding]:
    for column, values in numbers.items():
        may = column in _MAY_BE_NAN and table in ("kernels", "steps")
        yield "not_a_number", column, _not_a_number(rows[column], values, may)
    if "row_id" in rows.columns:
        yield "row_id_repeated", "row_id", rows["row_id"].duplicated().to_numpy()
    yield "unknown_device", "device", _outside(rows["device"], known_devices())
    for column, allowed in NAMES.items():
        if column in TABLES[table]:
            yield f"unknown_{column}", column, _outside(rows[column], allowed)
    low = LATENCY_US[0] if table in ("kernels", "steps") else 0.0
    for column in ("latency_us", "forward_us", "backward_us"):
        if column in numbers:
            values = numbers[column]
            yield "latency_not_plausible", column, (values < low) | (values > LATENCY_US[1])
    for column in ("flops", "read_bytes", "write_bytes", "weight"):
        if column in numbers:
            yield "work_not_plausible", column, numbers[column] < 0
    for column in (c for c in _COUNTS if c in numbers):  # in order: the first rule counts a row
        values = numbers[column]
        part = np.isfinite(values) & (values != np.floor(values))
        bad = part | (values < 1) | (values > DIM_LIMIT)
        yield "count_not_plausible", column, bad
    for column in (c for c in READINGS if c in numbers):
        low, high = READINGS[column]
        yield "reading_not_plausible", column, (numbers[column] < low) | (numbers[column] > high)
    if table == "steps":
        yield "unknown_dtype", "dtype", _outside(rows["dtype"], (*STEP_DTYPES, ""))
    if table == "kernels":
        yield from _kernel_findings(rows, numbers)


def _not_a_number(column: pd.Series[Any], values: NDArray[Any], may_be_unknown: bool) -> Mask:
    """Not finite; where a value may be unknown: infinite, or something that is no number."""
    if not may_be_unknown:
        return np.asarray(~np.isfinite(values))
    unread = np.isnan(values) & column.notna().to_numpy() if column.dtype.kind not in "if" else None
    bad = np.isinf(values)
    return np.asarray(bad if unread is None else bad | unread)


def _kernel_findings(rows: pd.DataFrame, numbers: dict[str, NDArray[Any]]) -> Iterator[Finding]:
    for column, allowed in _KERNEL_NAMES.items():
        yield f"unknown_{column}", column, _outside(rows[column], allowed)
    bad = {f"dim_{d}": np.zeros(len(rows), dtype=bool) for d in DIM_NAMES}
    for op in rows["op"].unique():
        of_op = (rows["op"] == op).to_numpy()
        for dim in OPS[op].dims if op in OPS else ():
            values = numbers[f"dim_{dim}"]
            least = 0 if dim in _MAY_BE_ZERO else 1
            bad[f"dim_{dim}"] |= of_op & ((values < least) | (values > DIM_LIMIT))
        for dim in OPS[op].optional if op in OPS else ():
            values = numbers[f"dim_{dim}"]
            given = of_op & (values != -1)
            least = 0 if dim in _MAY_BE_ZERO else 1
            bad[f"dim_{dim}"] |= given & ((values < least) | (values > DIM_LIMIT))
    for column, broken in bad.items():
        if broken.any():
            yield "dimension_not_plausible", column, broken
    yield "dtype_not_supported", "dtype", _without_path(rows)


def known_devices() -> frozenset[str]:
    """Ids that a row may name: framework devices, not packages, and devices that came with data."""
    catalogue = frozenset(i for i, d in load_catalogue().items() if d.scope != "package")
    return catalogue | adopted_devices().keys()


def _outside(column: pd.Series[str], allowed: Collection[str]) -> Mask:
    return ~column.isin(list(allowed)).to_numpy()


def _without_path(rows: pd.DataFrame) -> Mask:
    """Matrix products in a dtype that the device has no hardware path for."""
    devices = {**load_catalogue(), **adopted_devices()}
    matrix = [name for name, op in OPS.items() if op.op_class in MATRIX_CLASSES]
    bad = np.zeros(len(rows), dtype=bool)
    pairs = rows[["device", "dtype"]].drop_duplicates()
    for device, dtype in zip(pairs["device"], pairs["dtype"], strict=True):
        if device in devices and not has_hardware_path(devices[device], dtype):
            bad |= ((rows["device"] == device) & (rows["dtype"] == dtype)).to_numpy()
    return bad & rows["op"].isin(matrix).to_numpy()


def _reject(
    data: Imported, rows: pd.DataFrame, found: Mask, table: str, rule: str, column: str
) -> None:
    """Count the rows that break a rule: one reject a file."""
    broken = rows[found]
    by = next((c for c in ("file", "row_id", "graph") if c in rows.columns), table)
    for file, group in broken.groupby(by, sort=False, dropna=False):
        first = group.iloc[0]
        data.reject(
            file=str(file),
            row=int(first["row"]) if str(first.get("row", "")).isdigit() else None,
            column=column,
            value=first[column],
            rule=rule,
            rows=len(group),
            meant=_meant(column, first[column]),
        )


def _meant(column: str, value: object) -> str:
    """Names that could stand in a cell of names, for a value that is none of them."""
    names = _KERNEL_NAMES.get(column, NAMES.get(column))
    if names is None:
        return ""
    near = difflib.get_close_matches(str(value).strip().lower(), names, 3, 0.6)
    if near:
        return f"nearest: {', '.join(near)}"
    return f"known: {', '.join(name for name in names if name)}"
