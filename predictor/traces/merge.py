"""Parts of a source, or copies of it from several folders, as one `Imported`."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.errors import DataError
from predictor.traces.schema import TABLES, Imported


def merged(parts: Iterable[Imported], *, repeated: bool = False) -> Imported:
    """All rows of all parts; of two graphs with one name the first stays.

    Args:
        parts: of one source.
        repeated: whether parts may hold the same rows (folders that overlap): the first stays.

    Raises:
        DataError: there is no part, or copies of a file differ, so that rows of the same id do.
    """
    import pandas as pd

    every = list(parts)
    if not every:
        raise DataError("nothing to read: no part of the source")
    first = every[0]
    for table in TABLES:
        frames = [frame for part in every if len(frame := getattr(part, table))]
        joined = pd.concat(frames, ignore_index=True) if frames else getattr(first, table)
        if repeated:
            key = ["row_id"] if "row_id" in joined.columns else ["device", "graph", "peer"]
            joined = joined.drop_duplicates(key, ignore_index=True)
        setattr(first, table, joined)
    for other in every[1:]:
        changed = [p for p, f in other.files.items() if repeated and first.files.get(p, f) != f]
        if changed:
            raise DataError(
                f"{first.source}: {changed[0]} has other content in another folder given; rename "
                "one of them, or give one folder"
            )
        first.graphs = {**other.graphs, **first.graphs}
        first.dropped.update(other.dropped)
        first.rejects.extend(other.rejects)
        first.files = {**other.files, **first.files}
        first.left_out = {**other.left_out, **first.left_out}
    return first
