"""A part of a large source that fits in memory: at most so many kernel rows, spread over strata.

Rows of one device, kind of table, dtype, scheme and framework are a stratum. Every stratum gives
its rows of least priority, up to one quota for all; the quota is the largest with which the sample
stays within its limit, so small strata come whole and large ones are thinned. The priority of a
row is a hash of its `row_id` (64 bits: rows of equal priority are as good as impossible): the
sample is the same whatever the order and size of the parts, and whether a row is in it depends on
the other rows through the quota alone.

Rows arrive part by part, and what no later row can bring back is let go, so that memory is
bounded by about 1.25 times the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.traces.merge import merged
from predictor.traces.schema import Imported, empty_table

if TYPE_CHECKING:
    import pandas as pd

LIMIT = 2_000_000
"""Kernel rows that training takes of one source at most."""
SLACK = 1.25
"""Rows held before the surplus is let go, as a multiple of the limit."""
STRATA: tuple[str, ...] = ("device", "file", "dtype", "scheme", "framework")
"""Columns that tell strata apart; of `file` the kind of table counts: its name without folders."""


@dataclass(slots=True)
class _Held:
    """Rows of one part that are still in the sample, column by column."""

    columns: dict[str, Any]
    stratum: NDArray[np.int64]
    priority: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.priority)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        self.columns = {name: values[mask] for name, values in self.columns.items()}
        self.stratum, self.priority = self.stratum[mask], self.priority[mask]


@dataclass(slots=True, kw_only=True)
class KernelSample:
    """Sample of kernel rows, built part by part; `row_id` must be unique over all parts."""

    limit: int = LIMIT
    _held: list[_Held] = field(default_factory=list)
    _strata: dict[tuple[str, ...], int] = field(default_factory=dict)
    _quota: int | None = None
    """Rows of a stratum at most, so far: it only falls. None while all rows fit."""

    def add(self, rows: pd.DataFrame) -> None:
        """Take the rows of one part into account."""
        if not len(rows):
            return
        columns = {str(name): rows[name].array for name in rows.columns}
        stratum = _stratum_of(rows, self._strata)
        self._held.append(_Held(columns, stratum, priorities(rows["row_id"])))
        if self._total() > SLACK * self.limit:
            self._let_go()

    def finish(self) -> pd.DataFrame:
        """The sample, in the order of priority (not of the files); it is then empty."""
        import pandas as pd

        if self._held and (self._total() > self.limit or self._quota is not None):
            self._let_go()
        if not self._held:
            return empty_table("kernels")
        order = np.argsort(np.concatenate([held.priority for held in self._held]), kind="stable")
        columns = {}
        for name in list(self._held[0].columns):  # one at a time: memory for one sample, not two
            pieces = [pd.Series(held.columns.pop(name)) for held in self._held]
            columns[name] = pd.concat(pieces, ignore_index=True).array[order]
        self._held.clear()
        return pd.DataFrame(columns)

    def _total(self) -> int:
        return sum(map(len, self._held))

    def _let_go(self) -> None:
        """Lower the quota to what fits, and drop the rows beyond it."""
        stratum = np.concatenate([held.stratum for held in self._held])
        priority = np.concatenate([held.priority for held in self._held])
        counts = np.bincount(stratum, minlength=len(self._strata))
        fits = quota_of(counts, self.limit)
        self._quota = fits if self._quota is None else min(self._quota, fits)
        order = np.lexsort((priority, stratum))
        first = np.cumsum(counts) - counts
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - first[stratum[order]]
        stops = np.cumsum([len(held) for held in self._held])[:-1]
        for held, mask in zip(self._held, np.split(rank < self._quota, stops), strict=True):
            held.keep(mask)
        self._held = [held for held in self._held if len(held)]


def sampled(parts: Iterable[Imported], *, limit: int = LIMIT) -> Imported:
    """All of a source but its kernel rows, and a sample of those.

    Args:
        parts: of one source, in any order.
        limit: kernel rows at most; a source with fewer comes whole.

    Raises:
        DataError: there is no part.
    """
    sample = KernelSample(limit=limit)
    rest = []
    for part in parts:
        sample.add(part.kernels)
        part.kernels = empty_table("kernels")
        rest.append(part)
    data = merged(rest)
    data.kernels = sample.finish()
    return data


def quota_of(counts: NDArray[np.integer], limit: int) -> int:
    """Largest q for which the strata, cut to q rows each, hold at most `limit` rows together."""
    sizes = np.sort(np.asarray(counts, dtype=np.int64))
    if sizes.sum() <= limit:
        return int(sizes[-1]) if len(sizes) else 0
    whole = np.concatenate([[0], np.cumsum(sizes)[:-1]])  # of all smaller strata
    left = np.arange(len(sizes), 0, -1)  # strata that are cut, this one and larger
    quota = (limit - whole) // left
    return int(quota[np.flatnonzero(quota < sizes)[0]])


def priorities(row_ids: pd.Series[str]) -> NDArray[np.uint64]:
    """(N,) hashes of row ids: the same in every process, near uniform."""
    import pandas as pd

    values = row_ids.to_numpy(dtype=object)
    return np.asarray(pd.util.hash_array(values, categorize=False), dtype=np.uint64)


def _stratum_of(rows: pd.DataFrame, known: dict[tuple[str, ...], int]) -> NDArray[np.int64]:
    """(N,) number of each row's stratum; strata not met before are added to `known`."""
    key = np.zeros(len(rows), dtype=np.int64)
    for column in STRATA:
        codes, values = rows[column].factorize()
        key = key * max(len(values), 1) + codes
    found, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    number = np.empty(len(found), dtype=np.int64)
    for i, row in enumerate(rows.iloc[first][list(STRATA)].to_dict("records")):
        row["file"] = PurePosixPath(row["file"]).name
        number[i] = known.setdefault(tuple(map(str, row.values())), len(known))
    return number[inverse]
