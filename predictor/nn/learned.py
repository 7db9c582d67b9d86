"""What a checkpoint learned: kinds of kernel that measured rows cover, on which kinds of device.

An entry is (token, dtype), or (token, dtype, kind of device) in a checkpoint that learned from
several kinds: an optimizer's kernels measured on a processor say nothing of a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from predictor.graph.ir import HALVES

Entry: TypeAlias = tuple[str, ...]
TWIN_HALF: Mapping[str, str] = dict(zip(HALVES, reversed(HALVES), strict=True))


def speaks(learned: Collection[Entry], token: str, dtype: str, kind: str) -> bool:
    """Whether rows of a kind of kernel were measured, on a device of that kind."""
    return (token, dtype) in learned or (token, dtype, kind) in learned


def with_twins(learned: Iterable[Sequence[str]]) -> frozenset[Entry]:
    """The entries, and those of the other half precision.

    fp16 and bf16 run on the same units at the same rate and move the same bytes: what was learned
    of one speaks for the other.
    """
    entries = frozenset(tuple(map(str, entry)) for entry in learned)
    return entries | {
        (token, TWIN_HALF[dtype], *kind) for token, dtype, *kind in entries if dtype in TWIN_HALF
    }


def entries_of(found: Collection[tuple[str, str, str]]) -> list[list[str]]:
    """Entries of (token, dtype, kind of device) triples, sorted; without kinds if all are one."""
    if len({kind for _, _, kind in found}) > 1:
        return [list(entry) for entry in sorted(found)]
    return [list(pair) for pair in sorted({(token, dtype) for token, dtype, _ in found})]
