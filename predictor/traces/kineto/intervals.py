"""Sets of time intervals: unions, what two have in common, what lies in a window.

Intervals are two arrays of nanoseconds, starts and ends, in any order and overlapping as they
come. A union is disjoint and sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Union:
    """Disjoint intervals in order."""

    starts: Longs
    ends: Longs

    @property
    def length_ns(self) -> int:
        """Nanoseconds covered."""
        return int((self.ends - self.starts).sum())

    def within(self, start: int, end: int) -> Union:
        """The part between two times."""
        starts, ends = np.maximum(self.starts, start), np.minimum(self.ends, end)
        some = ends > starts
        return Union(starts[some], ends[some])

    def gaps(self, start: int, end: int) -> Union:
        """What is not covered between two times."""
        inside = self.within(start, end)
        starts = np.concatenate([np.array([start], dtype=np.int64), inside.ends])
        ends = np.concatenate([inside.starts, np.array([end], dtype=np.int64)])
        some = ends > starts
        return Union(starts[some], ends[some])


def union(starts: Longs, ends: Longs) -> Union:
    """The union of intervals; empty ones cover nothing."""
    some = ends > starts
    order = np.argsort(starts[some], kind="stable")
    starts, ends = starts[some][order], ends[some][order]
    if len(starts) == 0:
        return Union(starts, ends)
    reach = np.maximum.accumulate(ends)
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Union(starts[first], reach[last])


def common_ns(a: Union, b: Union) -> int:
    """Nanoseconds that both unions cover."""
    both = union(np.concatenate([a.starts, b.starts]), np.concatenate([a.ends, b.ends]))
    return a.length_ns + b.length_ns - both.length_ns


def covered_at_least(parts: list[Union], times: int) -> Union:
    """Where at least `times` of the unions are at once."""
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Union(empty, empty)
    starts = np.concatenate([p.starts for p in parts])
    ends = np.concatenate([p.ends for p in parts])
    at = np.concatenate([starts, ends])
    change = np.concatenate([np.ones(len(starts), np.int64), np.full(len(ends), -1, np.int64)])
    order = np.argsort(at, kind="stable")
    at, depth = at[order], np.cumsum(change[order])
    deep = depth[:-1] >= times
    return union(at[:-1][deep], at[1:][deep])
