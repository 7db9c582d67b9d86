"""Where the files of a source lie: in a folder of data folders, alone, in a clone, or one of them.

A layout is known by markers, relative paths of which at least one stands below its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.traces.files import FolderReader, LayoutNotFoundError, one_of_each
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

GZIPPED_COPY = "a second copy, gzipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Root of a source's files, and the part of them that is asked for."""

    root: Path
    part: Path
    """The root, a folder below it, or one file."""

    def name(self, path: Path) -> str:
        """Path below the root, with forward slashes."""
        return path.relative_to(self.root).as_posix()

    def whole(self) -> Layout:
        """The layout without restriction to a part."""
        return Layout(root=self.root, part=self.root)

    def files(self, *patterns: str) -> list[Path]:
        """Files of the part whose path below the root matches one of the glob patterns, sorted."""
        found = {p for pattern in patterns for p in self.root.glob(pattern) if p.is_file()}
        return sorted(p for p in found if p == self.part or self.part in p.parents)

    def tables(self, *patterns: str) -> tuple[list[Path], dict[str, str]]:
        """CSV files, plain or gzipped, each once; by name, the copies left out and why.

        Args:
            patterns: of plain names; their gzipped forms are looked for too.
        """
        every = self.files(*patterns, *(f"{pattern}.gz" for pattern in patterns))
        keep, copies = one_of_each(every)
        return keep, {self.name(path): GZIPPED_COPY for path in copies}


def find_layout(data: Path, *, folders: Sequence[str], markers: Sequence[str]) -> Layout:
    """The layout at `data`, below one of its `folders`, or around it.

    Args:
        data: a folder that holds the layout, the layout's root, a folder or a file inside it.
        folders: names that the root may have below `data`.
        markers: paths below the root, of which one must be there.

    Raises:
        LayoutNotFoundError: no marker is there.
    """
    given = data.absolute()
    for root in (given, *(given / folder for folder in folders)):
        if any((root / marker).exists() for marker in markers):
            return Layout(root=root, part=root)
    for root in given.parents if given.exists() else ():
        inside = [root / marker for marker in markers if (root / marker).exists()]
        if any(given == marker or marker in given.parents for marker in inside):
            return Layout(root=root, part=given)
    raise nothing_found(data, markers)


def sole_table(
    data: Path, *, source: str, folder: str, file: str, columns: Sequence[str]
) -> tuple[Imported, pd.DataFrame, str]:
    """An empty import that knows its file, the rows of a source of one table, and the file's name.

    Args:
        data: a folder that holds the source's, that folder itself, or the table.
        source: whose rows they are.
        folder: name of the source's folder.
        file: name of the table, plain or gzipped.
        columns: that it must have.

    Raises:
        LayoutNotFoundError: the table is not there.
        DataError: it is damaged.
    """
    layout = find_layout(data, folders=(folder,), markers=(file, f"{file}.gz"))
    (table, *_), copies = layout.tables(file)
    reader, out = FolderReader(root=layout.root), Imported.empty(source)
    raw = reader.csv(table, columns)
    out.files, out.left_out = reader.files, dict(copies)
    return out, raw, layout.name(table)


def nothing_found(data: Path, expected: Sequence[str]) -> LayoutNotFoundError:
    """The error of a place that holds no part of a layout."""
    return LayoutNotFoundError(
        f"{data}: nothing of this source (expected {', '.join(expected)}); give the published "
        "folder, one that holds it, or a file inside it"
    )
