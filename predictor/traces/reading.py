"""Measured rows of whatever data lies in some folders, in parts, each row once.

A folder may be an import, hold imports (one a folder), or hold published layouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.errors import DataError
from predictor.traces.files import ROW_SUFFIXES, LayoutNotFoundError
from predictor.traces.hashing import Hashes, hashed_columns
from predictor.traces.import_folder import import_report, warn_beside_import
from predictor.traces.noise import NOISE_COLUMNS
from predictor.traces.schema import empty_table
from predictor.traces.sources import kineto
from predictor.traces.sources import rows as own_rows
from predictor.traces.sources.registry import SOURCES
from predictor.traces.store import imported_columns

if TYPE_CHECKING:
    import pandas as pd

KERNEL_COLUMNS: tuple[str, ...] = ("file", "row", *NOISE_COLUMNS)
"""Columns of kernel rows that are read."""
STEP_COLUMNS: tuple[str, ...] = (
    "file", "row", "device", "mode", "dtype", "measure", "flag",
)  # fmt: skip
"""Columns of step rows that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPart:
    """Some rows of one source at one place."""

    source: str
    place: Path
    kernels: pd.DataFrame
    """With at least `KERNEL_COLUMNS`; text may be categories."""
    steps: pd.DataFrame
    """With at least `STEP_COLUMNS`."""
    dropped: Counter[str]
    """Rows that the import refused, by rule (in one part of a place)."""
    repeated: int
    """Rows left out: the same row of the same file stood at an earlier place."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """Rows of earlier places, by source."""

    earlier: dict[str, Hashes] = field(default_factory=dict)
    here: dict[str, list[Hashes]] = field(default_factory=dict)

    def fresh(self, source: str, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows that no earlier place of the source had."""
        names = rows[["file", "row"]].assign(kind=rows["op"] if "op" in rows.columns else "step")
        names["file"] = names["file"].astype("category").cat.rename_categories(_plain)
        ids = hashed_columns(names, ("file", "row", "kind"))
        self.here.setdefault(source, []).append(ids)
        if source not in self.earlier:
            return rows
        new = ~np.isin(ids, self.earlier[source])
        return rows if new.all() else rows[new]

    def leave(self) -> None:
        """The next rows come from another place."""
        for source, ids in self.here.items():
            before = self.earlier.get(source, np.zeros(0, dtype=np.uint64))
            self.earlier[source] = np.concatenate([before, *ids])
        self.here.clear()


def measured_parts(folders: Sequence[Path]) -> Iterator[MeasuredPart]:
    """Kernel and step rows of all data in `folders`.

    Raises:
        DataError: a folder holds no data, or a file is damaged.
    """
    seen = _Seen()
    for folder in dict.fromkeys(f.absolute() for f in folders):
        found = False
        for part in _parts_at(folder):
            found = True
            yield _without_repeats(part, seen)
        seen.leave()
        if not found:
            raise DataError(
                f"{folder}: no measured data: give a folder that `predictor import` wrote, one "
                f"that holds such folders, or published data of {', '.join(SOURCES)}"
            )


def expected_rows(folders: Sequence[Path]) -> int | None:
    """Kernel and step rows that the folders hold; None where some must be read to know."""
    total = 0
    for folder in folders:
        imports = _imports(folder)
        if not imports:
            return None
        total += sum(int(r["rows"].get(t, 0)) for _, r in imports for t in ("kernels", "steps"))
    return total


def _without_repeats(part: MeasuredPart, seen: _Seen) -> MeasuredPart:
    kernels, steps = (seen.fresh(part.source, t) for t in (part.kernels, part.steps))
    left_out = len(part.kernels) + len(part.steps) - len(kernels) - len(steps)
    return MeasuredPart(
        source=part.source, place=part.place, kernels=kernels, steps=steps, dropped=part.dropped,
        repeated=left_out,
    )  # fmt: skip


def _imports(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    own = import_report(folder)
    if own is not None:
        return [(folder, own)]
    children = sorted(p for p in folder.glob("*") if p.is_dir()) if folder.is_dir() else []
    return [(c, report) for c in children if (report := import_report(c)) is not None]


def _parts_at(folder: Path) -> Iterator[MeasuredPart]:
    imports = _imports(folder)
    for place, report in imports:
        warn_beside_import(place)
        yield from _imported_parts(place, report)
    if any(place == folder for place, _ in imports):
        return
    published = False
    table = folder.is_file() and folder.name.lower().endswith(ROW_SUFFIXES)
    for name in SOURCES:
        if name != own_rows.SOURCE and not (table and name == kineto.SOURCE):  # it reads any file
            for part in _published_parts(name, folder):
                published = True
                yield part
    if not published:  # loose CSV files are own rows where no published layout explains them
        yield from _published_parts(own_rows.SOURCE, folder)


def _published_parts(name: str, folder: Path) -> Iterator[MeasuredPart]:
    try:
        for data in SOURCES[name].parts(folder):
            yield MeasuredPart(
                source=name, place=folder, kernels=data.kernels, steps=data.steps,
                dropped=data.dropped, repeated=0,
            )  # fmt: skip
    except LayoutNotFoundError:
        return


def _imported_parts(place: Path, report: dict[str, Any]) -> Iterator[MeasuredPart]:
    dropped: Counter[str] = Counter(report.get("dropped", {}))
    source, no_kernels, no_steps = (
        str(report["source"]),
        empty_table("kernels"),
        empty_table("steps"),
    )
    for steps in imported_columns(place, "steps", STEP_COLUMNS):
        yield MeasuredPart(
            source=source, place=place, kernels=no_kernels, steps=steps, dropped=dropped, repeated=0
        )
        dropped = Counter()
    for kernels in imported_columns(place, "kernels", KERNEL_COLUMNS):
        yield MeasuredPart(
            source=source, place=place, kernels=kernels, steps=no_steps, dropped=dropped, repeated=0
        )
        dropped = Counter()


def _plain(file: object) -> str:
    return str(file).removesuffix(".gz")
