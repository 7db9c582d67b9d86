"""Files of users' own rows: CSV (plain or gzipped) and Parquet, read in chunks of bounded size.

A CSV file is read as text, so that a refused cell can be shown as it stands there: UTF-8 (with or
without a byte-order mark), commas between fields, points in numbers, one header line. What a
spreadsheet may write instead (semicolons, tabs, UTF-16, .xlsx) is refused with the remedy.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from predictor.errors import DataError
from predictor.traces.files import (
    DEVICE_FILE,
    GZIP_MAGIC,
    ROW_SUFFIXES,
    LayoutNotFoundError,
    SourceFile,
)

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "rows"
CHUNK_ROWS = 200_000
"""Rows that are held at a time."""
COPY = "a second copy, gzipped"
OTHER = "neither CSV (.csv, .csv.gz) nor Parquet (.parquet)"
_SAVE = "save it as CSV in UTF-8 with commas between fields and points in numbers"
_READ_BYTES = 2**20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(slots=True, kw_only=True)
class RowFile:
    """One file of rows; `chunks` reads it once, then `seen` tells its hash and rows."""

    path: Path
    name: str
    """Below the folder given, or alone."""
    seen: SourceFile | None = field(default=None)

    def chunks(self) -> Iterator[pd.DataFrame]:
        """Chunks of at most `CHUNK_ROWS` rows, indexed by row number; at least one, maybe empty.

        Columns are named as in the file, in lower case without spaces around; cells of a CSV file
        are text.

        Raises:
            DataError: it cannot be read as what its name says.
        """
        read = _parquet_chunks if self.name.lower().endswith(".parquet") else _csv_chunks
        return read(self)


def row_files(data: Path) -> tuple[list[RowFile], dict[str, str]]:
    """Files of rows at `data`, and those left out with the reason.

    Args:
        data: one file, a folder that holds files (deeper ones are not read), or a folder with
            such a folder `rows`.

    Raises:
        LayoutNotFoundError: there is none.
    """
    if data.is_file():
        if not data.name.lower().endswith(ROW_SUFFIXES):
            raise LayoutNotFoundError(f"{data}: {OTHER}; {_SAVE}")
        return [RowFile(path=data, name=data.name)], {}
    folder = data / FOLDER if (data / FOLDER).is_dir() else data
    found = sorted(p for p in folder.glob("*") if p.is_file() and not p.name.startswith("."))
    tables = [p for p in found if p.name.lower().endswith(ROW_SUFFIXES)]
    if _is_import(folder):
        raise LayoutNotFoundError(f"{folder}: an import of another source, no files of own rows")
    if not tables:
        raise LayoutNotFoundError(
            f"{folder}: no own rows (expected {', '.join(ROW_SUFFIXES)} files in it, "
            f"or in {FOLDER}/)"
        )
    names = {p.name for p in tables}
    copies = [p for p in tables if p.name.endswith(".gz") and p.name.removesuffix(".gz") in names]
    known = {*tables, *device_files(folder)}
    left_out = {p.name: OTHER for p in found if p not in known}
    left_out |= {p.name: COPY for p in copies}
    return [RowFile(path=p, name=p.name) for p in tables if p not in copies], left_out


def device_files(data: Path) -> list[Path]:
    """Device files that stand beside the rows at `data`: they describe devices that rows name."""
    if data.is_file():
        own = data.parent / f"{data.name.partition('.')[0]}{DEVICE_FILE}"
        return [own] if own.is_file() else []
    folder = data / FOLDER if (data / FOLDER).is_dir() else data
    return sorted(folder.glob(f"*{DEVICE_FILE}"))


def _is_import(folder: Path) -> bool:
    path = folder / "report.json"
    try:
        report = json.loads(path.read_bytes()) if path.is_file() else None
    except (ValueError, RecursionError):
        return False
    return isinstance(report, dict) and "schema_version" in report


class _Hashed(io.RawIOBase):
    """A stream that hashes what is read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        content = self.stream.read(len(view))
        self.digest.update(content)
        view[: len(content)] = content
        return len(content)


def _csv_chunks(file: RowFile) -> Iterator[pd.DataFrame]:
    import pandas as pd

    name = file.name
    try:
        with file.path.open("rb") as raw:
            start = raw.read(len(GZIP_MAGIC))
            raw.seek(0)
            if start in _UTF16:
                raise DataError(f"{name}: UTF-16 text; {_SAVE}")
            plain = gzip.GzipFile(fileobj=raw) if start == GZIP_MAGIC else raw
            hashed = _Hashed(plain)  # type: ignore[arg-type]
            buffered = io.BufferedReader(hashed, _READ_BYTES)
            text = io.TextIOWrapper(buffered, encoding="utf-8-sig", newline="")
            columns = _header(text, name)
            rows = 0
            for chunk in _frames(text, columns):
                rows += len(chunk)
                yield chunk
            if rows == 0:
                yield pd.DataFrame({c: pd.Series(dtype="str") for c in columns})
            file.seen = SourceFile(path=name, sha256=hashed.digest.hexdigest(), rows=rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 ({error.reason}); {_SAVE}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}: cannot be read ({error}); make it again") from error
    except pd.errors.ParserWarning as error:
        raise DataError(f"{name}: a row has more fields than the header; {_SAVE}") from error
    except (ValueError, csv.Error, pd.errors.ParserError) as error:
        raise DataError(f"{name}: not readable as CSV ({' '.join(str(error).split())})") from error


def _frames(text: io.TextIOWrapper, columns: list[str]) -> Iterator[pd.DataFrame]:
    import pandas as pd

    try:
        reader = pd.read_csv(
            text, header=None, names=columns, index_col=False, dtype="str",
            keep_default_na=False, skipinitialspace=True, chunksize=CHUNK_ROWS,
        )  # fmt: skip
    except pd.errors.EmptyDataError:
        return
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # fields beyond the header
            chunk = next(reader, None)
        if chunk is None:
            return
        yield chunk.fillna("")


def _header(text: io.TextIOWrapper, name: str) -> list[str]:
    """Column names of a CSV file.

    Raises:
        DataError: there is no header, or fields are not separated by commas.
    """
    fields = next(csv.reader(text), [])
    if len(fields) <= 1:
        line = fields[0] if fields else ""
        for sign, word in ((";", "semicolons"), ("\t", "tabs")):
            if sign in line:
                raise DataError(f"{name}: fields are separated by {word}; {_SAVE}")
        if not line.strip():
            raise DataError(f"{name}: empty: the first line must name the columns")
    return _lower(fields, name)


def _lower(columns: Sequence[str], name: str) -> list[str]:
    """Column names in lower case, without spaces around.

    Raises:
        DataError: two are the same, as in a file without a line of names.
    """
    found = [column.strip().lower() for column in columns]
    twice = next((c for c in found if c and found.count(c) > 1), None)
    if twice is not None:
        if any(c.replace(".", "", 1).isdigit() for c in found):  # a number names no column
            raise DataError(f"{name}: the first line holds values; it must name the columns")
        raise DataError(f"{name}: column {twice!r} occurs twice; keep one of them")
    return found


def _parquet_chunks(file: RowFile) -> Iterator[pd.DataFrame]:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file.path) as table:
            schema = table.schema_arrow
            nested = [f.name for f in schema if pa.types.is_nested(f.type)]
            if nested:
                raise DataError(f"{file.name}: column {nested[0]!r} holds lists or structures")
            binary = {f.name for f in schema if _is_binary(f.type)}
            columns = [n for n in schema.names if not n.startswith("__index_level_")]
            lower = _lower(columns, file.name)
            rows = 0
            for batch in table.iter_batches(batch_size=CHUNK_ROWS, columns=columns):
                values = {
                    n: batch.column(c).cast(pa.string()) if c in binary else batch.column(c)
                    for n, c in zip(lower, columns, strict=True)
                }
                chunk = pd.DataFrame({n: v.to_pandas() for n, v in values.items()})
                chunk.index = pd.RangeIndex(rows, rows + len(chunk))
                rows += len(chunk)
                yield chunk
            if rows == 0:
                yield pd.DataFrame({c: [] for c in lower})
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{file.name}: not readable as Parquet ({error})") from error
    with file.path.open("rb") as raw:
        digest = hashlib.file_digest(raw, "sha256").hexdigest()
    file.seen = SourceFile(path=file.name, sha256=digest, rows=rows)


def _is_binary(kind: Any) -> bool:
    """Whether a column holds bytes: some writers store text so, without saying that it is."""
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
