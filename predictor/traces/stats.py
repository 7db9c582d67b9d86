"""What measured data holds: rows by source, device, op class, dtype and flag, and their noise."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.traces.hashing import codes_of
from predictor.traces.noise import Noise, NoiseMeter, measured_class
from predictor.traces.reading import MeasuredPart, measured_parts
from predictor.traces.sources.registry import SOURCES

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

COUNTED: Mapping[str, tuple[str, ...]] = {
    "kernels": ("source", "device", "op_class", "dtype", "scheme", "context", "flag"),
    "steps": ("source", "device", "mode", "dtype", "measure", "flag"),
}
"""What rows are counted by, by table."""


@dataclass(slots=True, kw_only=True)
class DataStats:
    """Counts and noise of measured data."""

    places: list[Path] = field(default_factory=list)
    counts: dict[str, Counter[tuple[str, ...]]] = field(
        default_factory=lambda: {table: Counter() for table in COUNTED}
    )
    """Rows by the values of `COUNTED`, by table."""
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    """Rows that the imports refused, by source and rule."""
    repeated: Counter[str] = field(default_factory=Counter)
    """Rows left out by source, because an earlier folder holds them too."""
    noise: Noise | None = None

    def add(self, part: MeasuredPart) -> None:
        """Count one part."""
        if part.place not in self.places:
            self.places.append(part.place)
        self.dropped.setdefault(part.source, Counter()).update(part.dropped)
        if part.repeated:
            self.repeated[part.source] += part.repeated
        kernels = part.kernels
        if len(kernels):
            counted = kernels.assign(source=part.source, op_class=measured_class(kernels))
            self._count("kernels", counted)
        if len(part.steps):
            self._count("steps", part.steps.assign(source=part.source))

    def _count(self, table: str, rows: pd.DataFrame) -> None:
        coded = [codes_of(rows[c]) for c in COUNTED[table]]
        mixed = np.zeros(len(rows), dtype=np.int64)
        for codes, values in coded:
            mixed = mixed * (len(values) + 1) + codes
        _, first, sizes = np.unique(mixed, return_index=True, return_counts=True)
        for i, n in zip(first, sizes, strict=True):
            self.counts[table][tuple(str(v[c[i]]) for c, v in coded)] += int(n)

    def total(self, table: str) -> int:
        """Rows of `kernels` or `steps`."""
        return self.counts[table].total()

    def by(self, table: str, *columns: str) -> dict[tuple[str, ...], Counter[str]]:
        """Rows by some of the columns of `COUNTED`: `rows`, and how many are `flagged`."""
        index = [COUNTED[table].index(c) for c in columns]
        flag = COUNTED[table].index("flag")
        found: dict[tuple[str, ...], Counter[str]] = {}
        for key, n in sorted(self.counts[table].items()):
            counter = found.setdefault(tuple(key[i] for i in index), Counter())
            counter["rows"] += n
            counter["flagged"] += n if key[flag] else 0
        return found

    def to_json(self) -> dict[str, object]:
        """Every count, and the noise by group and in detail (ratios less one)."""
        made: dict[str, object] = {
            "folders": [str(place) for place in self.places],
            "rows": {table: self.total(table) for table in COUNTED},
        }
        for table, columns in COUNTED.items():
            made[table] = [
                {**dict(zip(columns, key, strict=True)), "rows": n}
                for key, n in sorted(self.counts[table].items())
            ]
        made["dropped"] = {s: dict(sorted(d.items())) for s, d in sorted(self.dropped.items())}
        made["repeated"] = dict(self.repeated)
        if self.noise is not None:
            made["noise"] = self.noise.groups.to_dict("records")
            made["noise_details"] = self.noise.details.to_dict("records")
        return made


def data_stats(
    folders: Sequence[Path], *, progress: Callable[[int], None] | None = None
) -> DataStats:
    """Counts and noise of all data in `folders`, read in parts of bounded size.

    Args:
        folders: imports, folders of imports, or published data.
        progress: told the number of rows read so far after each part.

    Raises:
        DataError: a folder holds no data, or a file is damaged.
    """
    unstated = frozenset(source.name for source in SOURCES.values() if source.unstated_facts)
    stats, meter, rows = DataStats(), NoiseMeter(unstated=unstated), 0
    for part in measured_parts(folders):
        stats.add(part)
        if len(part.kernels):
            meter.add(part.kernels.assign(source=part.source))
        rows += len(part.kernels) + len(part.steps) + part.repeated
        if progress is not None:
            progress(rows)
    logger.info("read %s rows; comparing repeats, releases and sources", f"{rows:,}")
    stats.noise = meter.measured()
    return stats
