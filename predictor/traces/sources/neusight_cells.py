"""Cells of NeuSight's op graphs: Python literals of shapes, calls and node names, checked.

The files print sets, tuples and lists as Python writes them. A cell that does not read as what its
column holds is an error that names file, row, column and value.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from predictor.errors import DataError
from predictor.traces.validate import DIM_LIMIT

CELL_LIMIT = 100_000
"""Characters of the longest cell that is read."""

Row: TypeAlias = Mapping[Any, Any]
"""A row of an op graph by column, its number in the file under `row`."""
Shape: TypeAlias = tuple[int, ...]


class GraphCellError(DataError):
    """A cell of an op graph cannot be read, or does not fit the op of its node."""

    def __init__(self, file: str, row: Row, column: str) -> None:
        self.file = file
        self.row = int(row["row"])
        self.column = column
        self.value = str(row[column])[:80]
        super().__init__(f"{file}: row {self.row}, column {column!r}: cannot read {self.value!r}")


@lru_cache(maxsize=4096)
def _evaluated(text: str) -> Any:
    """A Python literal; shapes and calls repeat often. Callers do not change what they get."""
    return ast.literal_eval(text)


def _literal(row: Row, column: str, file: str) -> Any:
    text = str(row[column])
    if len(text) > CELL_LIMIT:
        raise GraphCellError(file, row, column)
    try:
        return _evaluated(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise GraphCellError(file, row, column) from error


def _checked_shape(value: object) -> Shape | None:
    """A shape; None where `value` is none. A size may be 0: an expert without tokens."""
    if not isinstance(value, (tuple, list)):
        return None
    if not all(type(d) is int and 0 <= d <= DIM_LIMIT for d in value):
        return None
    return tuple(value) if math.prod(value) <= DIM_LIMIT else None


def shape_cell(row: Row, column: str, file: str) -> Shape:
    """One shape: `(4, 1024, 1280)`.

    Raises:
        GraphCellError: it is none.
    """
    shape = _checked_shape(_literal(row, column, file))
    if shape is None:
        raise GraphCellError(file, row, column)
    return shape


def shapes_cell(row: Row, column: str, file: str) -> tuple[Shape, ...]:
    """Several shapes: `[(4, 1024), (1280,)]`.

    Raises:
        GraphCellError: one of them is none.
    """
    found = _literal(row, column, file)
    shapes = [_checked_shape(v) for v in found] if isinstance(found, (tuple, list)) else [None]
    if any(s is None for s in shapes):
        raise GraphCellError(file, row, column)
    return tuple(s for s in shapes if s is not None)


def calls_cell(row: Row, column: str, file: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """NeuSight's list of calls, a name and sizes each: `[['Linear', (4096, 1280, 3840)]]`.

    Raises:
        GraphCellError: it is none.
    """
    found = _literal(row, column, file)
    if not isinstance(found, (tuple, list)) or not all(
        isinstance(call, (tuple, list)) and len(call) == 2 and isinstance(call[1], (tuple, list))
        for call in found
    ):
        raise GraphCellError(file, row, column)
    return tuple((str(name), tuple(sizes)) for name, sizes in found)


def names_cell(row: Row, column: str, file: str) -> tuple[str, ...]:
    """A set of node names: `{'addmm', 'view_3'}`, `set()` when there are none.

    Raises:
        GraphCellError: it is none.
    """
    if str(row[column]) == "set()":
        return ()
    found = _literal(row, column, file)
    if not isinstance(found, (set, list, tuple, dict)):
        raise GraphCellError(file, row, column)
    return tuple(str(name) for name in found)


def json_number(value: object) -> float | None:
    """A finite JSON number that a float can hold, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
