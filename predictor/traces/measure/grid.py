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
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"grid {grid}: cannot be read ({error})") from error
        points = (_of_csv if path.suffix == ".csv" else _of_toml)(text, grid)
    found = {point.key: point for point in points}
    if not found:
        raise DataError(f"grid {grid}: no points")
    return list(found.values())


def _of_csv(text: str, name: str) -> Iterator[Point]:
    """A line a point: columns kind, dtype, cache (optional) and sizes; empty cells are defaults."""
    for number, row in enumerate(csv.DictReader(text.splitlines()), 2):
        names = {c: (row.pop(c, None) or default) for c, default in
                 (("kind", ""), ("dtype", "fp32"), ("cache", "warm"))}  # fmt: skip
        try:
            sizes = {str(k): int(str(v)) for k, v in row.items() if v}
        except ValueError as error:
            raise DataError(f"grid {name}, line {number}: {error}; sizes are integers") from error
        yield _point(names["kind"], names["dtype"], sizes, names["cache"], f"{name}, line {number}")


def _of_toml(text: str, name: str) -> Iterator[Point]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"grid {name}: not TOML ({error})") from error
    unknown = sorted(set(tables) - {"points"})
    if unknown or not isinstance(tables.get("points"), list):
        raise DataError(f"grid {name}: a grid is a list of [[points]], no {unknown or 'points'}")
    for number, table in enumerate(tables["points"]):
        yield from _points(table, f"{name}, points {number + 1}")


def _points(table: Mapping[str, Any], where: str) -> Iterator[Point]:
    names = {n: _listed(table.get(n, {"dtype": "fp32", "cache": "warm"}.get(n))) for n in _NAMES}
    for kind in names["kind"]:
        for sizes in _sizes(table, where, str(kind)):
            for dtype, cache in itertools.product(names["dtype"], names["cache"]):
                yield _point(str(kind), str(dtype), sizes, str(cache), where)


def _sizes(table: Mapping[str, Any], where: str, kind: str) -> Iterator[dict[str, int]]:
    axes = {name: value for name, value in table.items() if name not in _KNOWN}
    shapes: Sequence[Mapping[str, int]] = table.get("shapes", [{}])
    if "count" not in table:
        ranges = [n for n, v in axes.items() if isinstance(v, Mapping)]
        if ranges:
            raise DataError(f"grid {where}: {ranges[0]} is a range: give count")
        lists = [[(n, v) for v in _listed(values)] for n, values in axes.items()]
        for shape, combination in itertools.product(shapes, itertools.product(*lists)):
            yield {**shape, **dict(combination)}
        return
    draw = random.Random(f"{kind} {where}")
    most = table.get("most", math.inf)
    for _ in range(int(table["count"])):
        for _ in range(_TRIES):
            drawn = {**draw.choice(list(shapes)), **{n: _drawn(v, draw) for n, v in axes.items()}}
            if math.prod(drawn[n] for n in drawn if n in table.get("bounded", drawn)) <= most:
                break
        else:
            raise DataError(f"grid {where}: no draw is within most = {most}")
        yield drawn


def _drawn(values: Any, draw: random.Random) -> int:
    if not isinstance(values, Mapping):
        return int(draw.choice(_listed(values)))
    low, high = int(values["from"]), int(values["to"])
    size = round(math.exp(draw.uniform(math.log(low), math.log(high))))
    step = draw.choice([1, 1, 1, *_ROUNDED])
    return size if step == 1 or size < step else max(low, size // step * step)


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _point(kind: str, dtype: str, sizes: Mapping[str, int], cache: str, where: str) -> Point:
    if cache not in CACHES:
        raise DataError(f"grid {where}: cache {cache!r} is unknown; one of: {', '.join(CACHES)}")
    try:
        known = kind_of(kind)
        wrong = next((n for n in sizes if n not in known.sizes), None)
        if wrong is not None or dtype not in known.dtypes:
            known.case(sizes, dtype)  # says what is wrong
    except DataError as error:
        raise DataError(f"grid {where}: {error}") from error
    return Point(kind=kind, dtype=dtype, sizes=sizes, cold=cache == "cold")
