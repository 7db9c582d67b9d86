"""Which op contains which: the calls of each host thread as a forest, by time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.traces.kineto.events import ABSENT, EventTable

Longs = NDArray[np.int64]
_BLOCK = 1 << 16
"""Events that are Python numbers at a time: those take ten times the memory."""


@dataclass(slots=True)
class OpTree:
    """Nested events of the host; N of them."""

    events: EventTable
    """By start, longer ones first."""
    parent: Longs
    """(N,) index of the innermost event around each, -1 for outermost ones."""

    def innermost(self, lanes: Longs, times: Longs) -> Longs:
        """Index of the innermost event of a lane at a time, -1 where there is none.

        Args:
            lanes: (M,) numbers of lanes.
            times: (M,) nanoseconds.
        """
        found = np.full(len(times), ABSENT, dtype=np.int64)
        starts, ends = self.events["ts_ns"], self.events.end_ns
        for lane in np.unique(lanes):
            here = np.flatnonzero(self.events["lane"] == lane)
            asked = np.flatnonzero(lanes == lane)
            if len(here) == 0:
                continue
            place = np.searchsorted(starts[here], times[asked], side="right") - 1
            current = np.where(place >= 0, here[np.maximum(place, 0)], ABSENT)
            while True:
                over = (current != ABSENT) & (ends[current] < times[asked])
                if not over.any():
                    break
                current[over] = self.parent[current[over]]
            found[asked] = current
        return found

    def ancestors_where(self, mark: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(N,) whether an event or one around it is marked."""
        found = mark.copy()
        current = self.parent.copy()
        while (current != ABSENT).any():
            some = current != ABSENT
            found[some] |= mark[current[some]]
            current[some] = self.parent[current[some]]
        return found


def op_tree(events: EventTable) -> OpTree:
    """The forest of events that `EventTable.of` sorted."""
    parent = np.full(len(events), ABSENT, dtype=np.int64)
    columns = events["ts_ns"], events.end_ns, events["lane"]
    stacks: dict[int, list[tuple[int, int]]] = {}
    for low in range(0, len(events), _BLOCK):
        block = (column[low : low + _BLOCK].tolist() for column in columns)
        for i, (start, end, lane) in enumerate(zip(*block, strict=True), low):
            stack = stacks.setdefault(lane, [])
            while stack and (stack[-1][0] <= start or stack[-1][0] < end):
                stack.pop()
            if stack:
                parent[i] = stack[-1][1]
            stack.append((end, i))
    return OpTree(events, parent)
