"""Grids: which kernels are measured. Named ones come with the library, others are TOML or CSV.

A TOML grid is a list of `[[points]]`. `kind`, `dtype` and `cache` are names or lists of names.
Every other key is a size of the kind: a number, a list of numbers, or, where `count` asks for that
many points, a range `{from = 1, to = 4096}` to draw from (evenly in the logarithm; half of the
drawn numbers are rounded to multiples of 8, 32 or 64). `shapes` is a list of tables of sizes that
belong together; `most` bounds the product of the sizes that `bounded` names (all drawn ones when
it does not). Without `count` the points are all combinations. The same grid gives the same
points everywhere.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from predictor.errors import DataError
from predictor.traces.measure.kinds import kind_of

PACKAGE = "predictor.traces.measure"
CACHES = ("warm", "cold")
_NAMES = ("kind", "dtype", "cache")
_KNOWN = (*_NAMES, "count", "shapes", "most", "bounded")
_ROUNDED = (8, 32, 64)
POINTS_LIMIT = 1_000_000
"""Points of one `[[points]]` at most: more were a slip, and would take weeks to measure."""
SIZE_LIMIT = 10**12
"""The largest size: no machine holds such an operand."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_TRIES = 200
"""Draws per point that may break the bound `most` before the bound is called wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One kernel to measure."""

    kind: str
    dtype: str
    sizes: Mapping[str, int]
    cold: bool = False

    @property
    def key(self) -> str:
        """What tells the point from all others, the same in every run."""
        sizes = " ".join(f"{name}={size}" for name, size in sorted(self.sizes.items()))
        return f"{self.kind} {self.dtype} {CACHES[self.cold]} {sizes}"


def grid_names() -> tuple[str, ...]:
    """Grids that come with the library."""
    folder = resources.files(PACKAGE) / "grids"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir()
                        if f.name.endswith(".toml")))  # fmt: skip


def read_grid(grid: str) -> list[Point]:
    """Points of a grid, each once.

    Args:
        grid: a name of `grid_names`, or the path of a TOML or CSV file.

    Raises:
        DataError: no such grid, or one that cannot be read.
    """
    path = Path(grid)
    if grid in grid_names():
        file = resources.files(PACKAGE) / "grids" / f"{grid}.toml"
        points = _of_toml(file.read_text(encoding="utf-8"), grid)
    elif path.suffix not in (".toml", ".csv"):
        raise DataError(
            f"no grid {grid!r}; known: {', '.join(grid_names())}, or a file .toml or .csv"
        )
    else:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"grid {grid}: cannot be read ({error})") from error
        points = (_of_csv if path.suffix == ".csv" else _of_toml)(text, grid)
    found = {point.key: point for point in points}
    if not found:
        raise DataError(f"grid {grid}: no points")
    return list(found.values())


def _of_csv(text: str, name: str) -> Iterator[Point]:
    """A line a point: columns kind, dtype, cache (optional) and sizes; empty cells are defaults."""
    for number, row in _csv_rows(text, name):
        names = {c: (row.pop(c, None) or default) for c, default in
                 (("kind", ""), ("dtype", "fp32"), ("cache", "warm"))}  # fmt: skip
        where = f"{name}, line {number}"
        wrong = next((k for k, v in row.items() if v and not _INTEGER.fullmatch(v.strip())), None)
        if wrong is not None:
            raise DataError(f"grid {where}: {wrong} = {_short(row[wrong])}; sizes are integers")
        sizes = {str(k): int(v) for k, v in row.items() if v}
        _check_values({}, sizes, [{}], where)
        yield _point(names["kind"], names["dtype"], sizes, names["cache"], where)


def _csv_rows(text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows by column, with the number of their line."""
    rows = csv.DictReader(text.splitlines())
    try:
        for number, row in enumerate(rows, 2):
            if None in row:
                raise DataError(f"grid {name}, line {number}: more fields than the header")
            yield number, row
    except csv.Error as error:
        raise DataError(f"grid {name}, line {rows.line_num + 1}: not CSV ({error})") from error


def _of_toml(text: str, name: str) -> Iterator[Point]:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"grid {name}: not TOML ({error})") from error
    unknown = sorted(set(tables) - {"points"})
    if unknown or not isinstance(tables.get("points"), list):
        raise DataError(f"grid {name}: a grid is a list of [[points]], no {unknown or 'points'}")
    for number, table in enumerate(tables["points"]):
        yield from _points(table, f"{name}, points {number + 1}")


def _points(table: Any, where: str) -> Iterator[Point]:
    if not isinstance(table, Mapping):
        raise DataError(f"grid {where}: {table!r} is no table of sizes")
    names = {n: _listed(table.get(n, {"dtype": "fp32", "cache": "warm"}.get(n))) for n in _NAMES}
    for kind in names["kind"]:
        for sizes in _sizes(table, where, str(kind)):
            for dtype, cache in itertools.product(names["dtype"], names["cache"]):
                yield _point(str(kind), str(dtype), sizes, str(cache), where)


def _sizes(table: Mapping[str, Any], where: str, kind: str) -> Iterator[dict[str, int]]:
    axes = {name: value for name, value in table.items() if name not in _KNOWN}
    shapes: Sequence[Mapping[str, int]] = table.get("shapes", [{}])
    _check_values(table, axes, shapes, where)
    if "count" not in table:
        ranges = [n for n, v in axes.items() if isinstance(v, Mapping)]
        if ranges:
            raise DataError(f"grid {where}: {ranges[0]} is a range: give count")
        lists = [[(n, v) for v in _listed(values)] for n, values in axes.items()]
        _check_number(len(shapes) * math.prod(map(len, lists)), where)
        for shape, combination in itertools.product(shapes, itertools.product(*lists)):
            yield {**shape, **dict(combination)}
        return
    draw = random.Random(f"{kind} {where}")
    most = table.get("most", math.inf)
    for _ in range(table["count"]):
        for _ in range(_TRIES):
            drawn = {**draw.choice(list(shapes)), **{n: _drawn(v, draw) for n, v in axes.items()}}
            if math.prod(drawn[n] for n in drawn if n in table.get("bounded", drawn)) <= most:
                break
        else:
            raise DataError(f"grid {where}: no draw is within most = {most}")
        yield drawn


def _check_values(
    table: Mapping[str, Any], axes: Mapping[str, Any], shapes: object, where: str
) -> None:
    """Refuse what is no size, range, shape, count or bound."""
    if not isinstance(shapes, list) or not shapes or not all(isinstance(s, dict) for s in shapes):
        raise DataError(f"grid {where}: shapes is a list of tables of sizes, not {shapes!r}")
    for name, value in itertools.chain(axes.items(), *(shape.items() for shape in shapes)):
        if isinstance(value, Mapping):
            _check_range(name, value, where)
        elif not _listed(value) or not all(
            type(v) is int and 0 <= v <= SIZE_LIMIT for v in _listed(value)
        ):
            raise DataError(
                f"grid {where}: {name} = {_short(value)}: sizes are whole numbers from 0 to "
                f"{SIZE_LIMIT:,}"
            )
    if "count" in table:
        if type(table["count"]) is not int:
            raise DataError(f"grid {where}: count = {table['count']!r} is no whole number")
        _check_number(table["count"], where)
    if type(table.get("most", 0)) not in (int, float):
        raise DataError(f"grid {where}: most = {table['most']!r} is no number")
    if not isinstance(table.get("bounded", []), list):
        raise DataError(f"grid {where}: bounded is a list of names of sizes")


def _check_range(name: str, value: Mapping[str, Any], where: str) -> None:
    low, high = value.get("from"), value.get("to")
    whole = len(value) == 2 and type(low) is type(high) is int
    if not (whole and 1 <= value["from"] <= value["to"] <= SIZE_LIMIT):
        raise DataError(
            f"grid {where}: {name}: a range is {{from = LOW, to = HIGH}}, whole numbers from 1 to "
            f"{SIZE_LIMIT:,}, not {_short(dict(value))}"
        )


def _check_number(points: int, where: str) -> None:
    if points > POINTS_LIMIT:
        raise DataError(
            f"grid {where}: {points:,} points are more than {POINTS_LIMIT:,}; draw some (count)"
        )


def _drawn(values: Any, draw: random.Random) -> int:
    if not isinstance(values, Mapping):
        return int(draw.choice(_listed(values)))
    low, high = values["from"], values["to"]
    size = round(math.exp(draw.uniform(math.log(low), math.log(high))))
    step = draw.choice([1, 1, 1, *_ROUNDED])
    return size if step == 1 or size < step else max(low, size // step * step)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _point(kind: str, dtype: str, sizes: Mapping[str, int], cache: str, where: str) -> Point:
    if cache not in CACHES:
        raise DataError(f"grid {where}: cache {cache!r} is unknown; one of: {', '.join(CACHES)}")
    try:
        kind_of(kind).check(sizes, dtype)
    except DataError as error:
        raise DataError(f"grid {where}: {error}") from error
    return Point(kind=kind, dtype=dtype, sizes=sizes, cold=cache == "cold")
