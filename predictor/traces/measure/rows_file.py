"""The file that a measurement writes as it goes: rows so far, whole at any moment.

A Parquet file in the columns of own rows (docs/data.md); what the importer has no column for (which
points are done, what was refused, under which conditions) stands in the file's metadata.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.atomic import replacing_file
from predictor.errors import DataError
from predictor.graph.ops import DIM_NAMES
from predictor.traces.measure.flags import MENDABLE
from predictor.traces.schema import TABLES, column_kind
from predictor.traces.sources.rows_columns import SET_BY_IMPORT

if TYPE_CHECKING:
    import pandas as pd

META = b"predictor.measure"
_MISSING: Mapping[str, Any] = {"text": "", "integer": -1, "number": math.nan}
_DTYPES: Mapping[str, str] = {"text": "str", "integer": "int64", "number": "float64"}
WRITE_SECONDS = 20.0
"""How long measured rows may be in memory alone."""


class RowsFile:
    """Rows of one table, kept on disk.

    Args:
        path: the file; its folder is made when missing.
        table: `kernels` or `steps`.
        resume: go on with the rows that are there.

    Raises:
        DataError: the file is there and `resume` is not given, or it is another measurement's.
    """

    def __init__(self, path: Path, table: str, *, resume: bool = False) -> None:
        self.path, self.table = path, table
        self.facts: dict[str, Any] = {}
        """What is said of all rows: the device, the software, the conditions."""
        self._rows: list[Mapping[str, Any]] = []
        self._keys: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._written = time.monotonic()
        self._before: Callable[[], None] = lambda: None
        if path.exists():
            if not resume:
                raise DataError(f"{path} exists: name another file, or go on with it (--resume)")
            self._read()

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return len(self._rows)

    @property
    def refused(self) -> Counter[str]:
        """Points that gave no row, by reason."""
        return Counter(self._refused.values())

    @property
    def refused_points(self) -> Mapping[str, str]:
        """Reason by point."""
        return self._refused

    def flags(self) -> Counter[str]:
        """Rows by flag; sound ones have the empty flag."""
        return Counter(str(row.get("flag", "")) for row in self._rows)

    def devices(self) -> set[str]:
        """Devices that the rows name."""
        return {str(row["device"]) for row in self._rows if "device" in row}

    def before_rows(self, write: Callable[[], None]) -> None:
        """Have something written before each time that rows are (what describes their device)."""
        self._before = write

    def done(self, key: str) -> bool:
        """Whether a point has its rows; a refused one has not."""
        return key in self._keys

    def sound(self, key: str) -> bool:
        """Whether a point has its rows and another measurement would not mend their flags."""
        return self.done(key) and not self.worst(key)

    def worst(self, key: str) -> str:
        """The gravest flag of a point's rows that another measurement may mend; empty for none."""
        flags = {str(row.get("flag", "")) for row in self.rows_of(key)}
        return next((flag for flag in MENDABLE if flag in flags), "")

    def rows_of(self, key: str) -> Sequence[Mapping[str, Any]]:
        """Rows of a point; none where it is not done."""
        if key not in self._keys:
            return ()
        before = sum(self._keys[k] for k in itertools.takewhile(lambda k: k != key, self._keys))
        return self._rows[before : before + self._keys[key]]

    def add(self, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the rows of a point in place of older ones, and write the file when it is time."""
        old = {id(row) for row in self.rows_of(key)}
        self._rows = [row for row in self._rows if id(row) not in old] if old else self._rows
        self._keys.pop(key, None)
        self._keys[key] = len(rows)
        self._rows.extend(rows)
        self._refused.pop(key, None)
        self._maybe_write()

    def refuse(self, key: str, reason: str) -> None:
        """Note that a point gave no number that can be trusted; rows that it has stay."""
        if not self.done(key):
            self._refused[key] = reason
            self._maybe_write()

    def frame(self) -> pd.DataFrame:
        """The rows as a table of own rows."""
        import pandas as pd

        columns = [c for c in TABLES[self.table] if c not in SET_BY_IMPORT]
        kinds = {c: column_kind(c) for c in columns}
        values = {c: [row.get(c, _MISSING[kinds[c]]) for row in self._rows] for c in columns}
        return pd.DataFrame(values).astype({c: _DTYPES[kinds[c]] for c in columns})

    def write(self) -> None:
        """Write everything, whole or not at all; without any row no file is made."""
        if not self._rows and not self.path.exists():
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._before()
        table = pa.Table.from_pandas(self.frame(), preserve_index=False)
        kept = {"keys": self._keys, "refused": self._refused, "facts": self.facts}
        meta = {**(table.schema.metadata or {}), META: json.dumps(kept).encode()}
        with replacing_file(self.path) as temporary:
            pq.write_table(table.replace_schema_metadata(meta), temporary, compression="zstd")
        self._written = time.monotonic()

    def _maybe_write(self) -> None:
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self.write()

    def _read(self) -> None:
        frame, kept = read_rows(self.path)
        names = [f"dim_{d}" for d in DIM_NAMES] if self.table == "kernels" else ["measure"]
        if not set(names) <= set(frame.columns):
            raise DataError(f"{self.path}: not a file of {self.table}; name another file")
        self._rows = [
            {str(k): v for k, v in row.items() if v != "" and v == v}
            for row in frame.to_dict("records")
        ]
        self._keys, self._refused, self.facts = kept["keys"], kept["refused"], kept["facts"]


def read_rows(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of a measured file, and what its metadata says.

    Raises:
        DataError: it is no file that was measured here, or its metadata is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet ({error})") from error
    meta = (table.schema.metadata or {}).get(META)
    if meta is None:
        raise DataError(f"{path}: no file of `predictor measure`; name another file")
    try:
        kept = json.loads(meta)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: its metadata is no JSON; measure to another file") from error
    if not _is_sound(kept, table.num_rows):
        raise DataError(f"{path}: its metadata does not fit its rows; measure to another file")
    return table.to_pandas(), kept


def is_measured(path: Path) -> bool:
    """Whether a file was written by `RowsFile`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return META in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def _is_sound(kept: Any, rows: int) -> bool:
    """Whether metadata is as `RowsFile.write` leaves it: every row belongs to a point."""
    if not isinstance(kept, dict) or not all(
        isinstance(kept.get(part), dict) for part in ("keys", "refused", "facts")
    ):
        return False
    counts = list(kept["keys"].values())
    return all(type(count) is int and count >= 0 for count in counts) and sum(counts) == rows
