"""How far reading is: the rows behind, told part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from predictor.traces.schema import Imported

Progress: TypeAlias = Callable[[int], None]
"""Told the number of rows read so far, kept or dropped."""


def told(
    parts: Iterable[Imported], progress: Progress | None, *, before: int = 0
) -> Iterator[Imported]:
    """The parts as they are; `progress` hears of each when its reader asks for the next.

    Args:
        parts: of one source.
        progress: nothing is told without one.
        before: rows read earlier.
    """
    rows = before
    for part in parts:
        rows += len(part.kernels) + len(part.steps) + part.dropped.total()
        yield part
        if progress is not None:
            progress(rows)
