"""Columns of users' own rows: which there are, which are needed, and what a wrong name may mean.

A file holds kernel rows when it has the column `op`, step rows when it has `model`. Dimensions are
named `dim_m` or `m`. Names are compared without case; nothing else about them is guessed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from predictor.errors import DataError
from predictor.graph.ops import DIM_NAMES
from predictor.traces.schema import TABLES

SET_BY_IMPORT: tuple[str, ...] = ("row_id", "source", "file", "row")
"""Columns that the import fills itself."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "kernels": ("device", "op", "dtype", "context", "latency_us"),
    "steps": ("device", "model", "mode", "batch", "dtype", "measure", "latency_us"),
}
"""Columns that a file must have, by table, and every row a value in."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    table: tuple(
        c for c in TABLES[table]
        if c not in (*SET_BY_IMPORT, *REQUIRED[table]) and not c.startswith("dim_")
    )
    for table in REQUIRED
}  # fmt: skip
"""Columns that a file may have; absent or an empty cell is unknown."""
_TELLS: Mapping[str, str] = {"op": "kernels", "model": "steps"}
_UNITS: Mapping[str, tuple[str, float]] = {
    "ns": ("nanoseconds", 1e-3), "ms": ("milliseconds", 1e3), "msec": ("milliseconds", 1e3),
    "millis": ("milliseconds", 1e3), "s": ("seconds", 1e6), "sec": ("seconds", 1e6),
    "secs": ("seconds", 1e6), "seconds": ("seconds", 1e6),
}  # fmt: skip
_TIME = r"(?:latency|time|runtime|duration|elapsed|wall|forward|backward|spread|std|mean|median)"
_TIME_NAME = re.compile(rf"^{_TIME}(?:_{_TIME})*(?:_([a-z]+))?$")


def table_of(columns: Sequence[str], file: str) -> str:
    """`kernels` or `steps`, by the columns of a file.

    Raises:
        DataError: neither, or a column has no name or occurs twice.
    """
    for i, column in enumerate(columns):
        if not column:
            raise DataError(
                f"{file}: column {i + 1} has no name; name it or remove it (pandas: "
                "to_csv(..., index=False))"
            )
    plain = [_plain(c) for c in columns]
    twice = next((c for c in plain if plain.count(c) > 1), None)
    if twice is not None:
        raise DataError(f"{file}: column {twice!r} occurs twice; keep one of them")
    for column, table in _TELLS.items():
        if column in columns:
            return table
    raise DataError(
        f"{file}: neither kernel rows (column 'op') nor step rows (column 'model'); found: "
        f"{', '.join(columns[:12])}; docs/data.md lists the columns of both"
    )


def schema_names(columns: Sequence[str], table: str, file: str) -> dict[str, str]:
    """Column of the schema for every column of a file.

    Args:
        columns: names in the file, lower case.
        table: `kernels` or `steps`.
        file: how an error calls the file.

    Raises:
        DataError: a column is unknown, has another unit, is filled by the import, or is missing.
    """
    known = _known(table)
    for column in columns:
        if column in known:
            continue
        if column in SET_BY_IMPORT:
            raise DataError(f"{file}: column {column!r} is filled by the import; remove it")
        raise DataError(f"{file}: {_what_it_may_mean(column, table, list(known))}")
    names = {column: known[column] for column in columns}
    for column in REQUIRED[table]:
        if column not in names.values():
            dims = ", the dimensions of their ops" if table == "kernels" else ""
            raise DataError(
                f"{file}: no column {column!r}; {table[:-1]} rows need "
                f"{', '.join(REQUIRED[table])}{dims}; they may have {', '.join(OPTIONAL[table])}"
            )
    return names


def _plainly(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 1 else f"{factor:g}"


def _plain(column: str) -> str:
    return column.removeprefix("dim_") if column.removeprefix("dim_") in DIM_NAMES else column


def _known(table: str) -> dict[str, str]:
    """Column of the schema by every name it may have in a file."""
    names = {c: c for c in (*REQUIRED[table], *OPTIONAL[table])}
    if table == "kernels":
        names |= {f"dim_{d}": f"dim_{d}" for d in DIM_NAMES}
        names |= {d: f"dim_{d}" for d in DIM_NAMES}
    return names


def _what_it_may_mean(column: str, table: str, known: Sequence[str]) -> str:
    time = _TIME_NAME.match(column)
    if time and time[1] in _UNITS:
        unit, factor = _UNITS[time[1]]
        target = column.removesuffix(f"_{time[1]}") + "_us"
        target = target if target in known else "latency_us"
        return (
            f"column {column!r} is in {unit}; times are microseconds: "
            f"multiply by {_plainly(factor)} and name it {target!r}"
        )
    if time and time[1] is None:
        return f"column {column!r} has no unit; give microseconds and name it 'latency_us'"
    other = next((t for t in REQUIRED if t != table and column in _known(t)), None)
    near = difflib.get_close_matches(column, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "remove it"
    if other is not None:
        hint = f"{other[:-1]} rows have it; {hint}" if near else f"{other[:-1]} rows have it"
    return (
        f"unknown column {column!r} of {table[:-1]} rows; {hint} (docs/data.md lists the columns)"
    )
