"""Which rows a user of a new device happens to measure: random draws by group.

A group is a model or a shape. Rows of a group that was drawn from are never scored.

Legend: N rows that may be measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
BUDGETS: tuple[int, ...] = (0, 1, 3, 5, 10, 20, 50, 100)
"""Numbers of measured rows."""
DRAWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Rows that are measured, and the groups that they use up."""

    index_K: Indices
    groups: frozenset[str]


def draw(
    group_N: NDArray[np.str_], k: int, rng: np.random.Generator, *, spread: bool = True
) -> Draw | None:
    """`k` of N rows, out of at most half of the groups; None where that cannot be.

    Args:
        group_N: group of each row.
        k: at most half of the rows, else None.
        rng: of the draw.
        spread: a row a group before a second one of any; else one group after the other, each as
            far as it goes.
    """
    names, code_N = np.unique(group_N, return_inverse=True)
    if k == 0:
        return Draw(index_K=np.zeros(0, dtype=np.int64), groups=frozenset())
    most = len(names) // 2
    if not most or k > len(group_N) // 2:
        return None
    chosen = rng.permutation(len(names))[: min(most, k)]
    order_N = rng.permutation(len(group_N))
    queues = [order_N[code_N[order_N] == group] for group in chosen]
    drawn = _in_turns(queues, k) if spread else np.concatenate(queues)[:k]
    if len(drawn) < k:
        return None
    return Draw(
        index_K=drawn.astype(np.int64), groups=frozenset(map(str, names[np.unique(code_N[drawn])]))
    )


def _in_turns(queues: list[Indices], k: int) -> Indices:
    """The first of each queue, then the second of each, …: `k` in all, or what there is."""
    found: list[int] = []
    for turn in range(max(map(len, queues))):
        found += [int(queue[turn]) for queue in queues if turn < len(queue)]
        if len(found) >= k:
            break
    return np.array(found[:k], dtype=np.int64)
