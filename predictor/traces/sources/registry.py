"""Sources by name: which importers exist, and reading one from several folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from predictor.errors import DataError
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.schema import Imported
from predictor.traces.sources import neusight
from predictor.traces.store import imported_at, read_imported

READERS: Mapping[str, Callable[[Path], Imported]] = {"neusight": neusight.read}


def read_source(name: str, folders: Sequence[Path]) -> Imported:
    """Rows of one source from all `folders` that hold part of its layout, or an import of it.

    Raises:
        DataError: the source is unknown, or no folder holds any of it.
    """
    import pandas as pd

    if name not in READERS:
        raise DataError(f"no source {name!r}; known: {', '.join(READERS)}")
    parts: list[Imported] = []
    failed: list[str] = []
    for folder in folders:
        try:
            parts.append(_read(name, folder))
        except LayoutNotFoundError as error:
            failed.append(str(error))
    if not parts:
        raise DataError("; ".join(failed) or f"no folder given for source {name!r}")
    first = parts[0]
    for other in parts[1:]:
        for table in ("kernels", "steps", "ops", "peers"):
            joined = pd.concat([getattr(first, table), getattr(other, table)], ignore_index=True)
            key = ["row_id"] if "row_id" in joined.columns else ["device", "graph", "peer"]
            joined = joined.drop_duplicates(key, ignore_index=True)
            setattr(first, table, joined)
        first.graphs = {**other.graphs, **first.graphs}
        first.dropped.update(other.dropped)
        first.rejects.extend(other.rejects)
        first.files = {**other.files, **first.files}
        first.left_out = {**other.left_out, **first.left_out}
    return first


def _read(name: str, folder: Path) -> Imported:
    imported = imported_at(folder, name)
    return READERS[name](folder) if imported is None else read_imported(imported)
