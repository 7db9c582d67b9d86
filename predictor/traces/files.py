"""Reading published files: plain or gzipped by content, each remembered with its hash and rows."""

from __future__ import annotations

import gzip
import hashlib
import io
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import DataError
from predictor.json_object import json_object

if TYPE_CHECKING:
    import pandas as pd

DEVICE_FILE = ".device.toml"
"""What a device file ends in that stands beside rows and describes a device of theirs."""
ROW_SUFFIXES: tuple[str, ...] = (".csv", ".csv.gz", ".parquet")
"""What files of users' own rows end in."""
GZIP_MAGIC = b"\x1f\x8b"
_REMEDY = "fetch the file again, or remove it"


class LayoutNotFoundError(DataError):
    """No part of a source's layout is where it was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A published file as it was read."""

    path: str
    """Below the root of the layout, with forward slashes."""
    sha256: str
    """Of the uncompressed content: the same for a file and its gzipped copy."""
    rows: int
    """Rows of a table, 1 for a JSON object."""


def content_of(path: Path, name: str) -> bytes:
    """Uncompressed content of a file.

    Args:
        path: plain or gzipped file, told apart by content.
        name: how an error calls it.

    Raises:
        DataError: the file cannot be read, or its compressed stream is damaged.
    """
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}: cannot be read ({error}); {_REMEDY}") from error


def encodable(text: str) -> str:
    """Text that UTF-8 can hold: half characters, which JSON can write, become `?`."""
    return text.encode(errors="replace").decode()


def parse_csv(content: bytes, name: str) -> pd.DataFrame:
    """Content of a CSV file as a table.

    Raises:
        DataError: it is empty or not CSV, or rows have more fields than the header.
    """
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # fields beyond the header
            # without `index_col` the first column would be taken away and the others be shifted
            return pd.read_csv(io.BytesIO(content), low_memory=False, index_col=False)
    except pd.errors.ParserWarning as error:
        raise DataError(f"{name}: rows have more fields than the header; {_REMEDY}") from error
    except (ValueError, OverflowError, pd.errors.ParserError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name}: not readable as CSV ({reason}); {_REMEDY}") from error


def parse_json(content: bytes, name: str) -> dict[str, Any]:
    """Content of a JSON file that holds one object.

    Raises:
        DataError: it is not JSON, or not an object.
    """
    try:
        return json_object(content)
    except ValueError as error:
        raise DataError(f"{name}: not readable as JSON ({error}); {_REMEDY}") from error


@dataclass(slots=True, kw_only=True)
class FolderReader:
    """Reads files below a root and remembers what it read."""

    root: Path
    files: dict[str, SourceFile] = field(default_factory=dict)
    """By path below the root."""

    def name(self, path: Path) -> str:
        """Path below the root, with forward slashes."""
        return path.relative_to(self.root).as_posix()

    def csv(self, path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
        """A table that must have `columns`.

        Raises:
            DataError: unreadable, or a column is missing.
        """
        content = content_of(path, self.name(path))
        table = parse_csv(content, self.name(path))
        for column in columns:
            if column not in table.columns:
                raise DataError(
                    f"{self.name(path)}: no column {column!r}; "
                    f"found: {', '.join(map(str, table.columns[:12]))}"
                )
        self._remember(path, content, len(table))
        return table

    def json(self, path: Path) -> dict[str, Any]:
        """A JSON object.

        Raises:
            DataError: unreadable or another JSON value.
        """
        content = content_of(path, self.name(path))
        value = parse_json(content, self.name(path))
        self._remember(path, content, 1)
        return value

    def text(self, path: Path) -> str:
        """A text file.

        Raises:
            DataError: it cannot be read.
        """
        content = content_of(path, self.name(path))
        self._remember(path, content, 1)
        return content.decode("utf-8", errors="replace")

    def _remember(self, path: Path, content: bytes, rows: int) -> None:
        name = self.name(path)
        digest = hashlib.sha256(content).hexdigest()
        self.files[name] = SourceFile(path=name, sha256=digest, rows=rows)


def one_of_each(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """CSV files without second copies (`x.csv` beside `x.csv.gz`): those to read, those left out.

    Only names that end in `.csv` or `.csv.gz` count, in sorted order.
    """
    keep: dict[Path, Path] = {}
    copies: list[Path] = []
    for path in sorted(paths):
        if path.name.endswith((".csv", ".csv.gz")) and path.is_file():
            plain = path.with_name(path.name.removesuffix(".gz"))
            if plain in keep:
                copies.append(path)
            else:
                keep[plain] = path
    return list(keep.values()), copies


def csv_at(folder: Path, name: str) -> Path | None:
    """The file `name.csv` or `name.csv.gz` of a folder, None when there is neither."""
    for suffix in (".csv", ".csv.gz"):
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return path
    return None
