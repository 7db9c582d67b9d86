"""Importer of users' own rows: CSV or Parquet files in the columns that docs/data.md lists.

Nothing about a row is guessed: what is not written is unknown. FLOPs and bytes follow from op,
dimensions and dtype where they are not given; the phase is `forward` unless the op itself is one of
a backward pass or an optimizer. Rules, each counted where it drops a row:

* `missing_value`: a required cell is empty;
* `not_a_number`: a number is written as something else;
* `unknown_device`: no device, or several, answer to the name (catalogue ids and names as a vendor's
  runtime prints them do, and ids of the device files `*.device.toml` beside the rows);
* `dimension_missing`: the op needs a dimension that the row does not give;
* `dimension_not_of_op`: the row gives one that the op does not have;
* `dimension_not_plausible`: a dimension is not whole, or beyond every tensor;
* what every source must satisfy: `predictor.traces.validate`.

A kernel row that is less than half of its physical floor is kept with the flag `below_floor`: most
often its time was written in another unit. Where most kernels of a file are below it, or a hundred
times longer than their roofline, a line asks for the unit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.hardware.device_file import adopt_device_file
from predictor.traces.schema import Imported
from predictor.traces.sources.rows_columns import SET_BY_IMPORT, schema_names, table_of
from predictor.traces.sources.rows_files import FOLDER, RowFile, device_files, row_files
from predictor.traces.sources.rows_kernels import TOO_LONG, complete_kernels, flag_below_floor
from predictor.traces.sources.rows_tables import UNSTATED, checked_rows, schema_rows
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FOLDER", "SOURCE", "UNSTATED", "parts"]

logger = logging.getLogger(__name__)

SOURCE = "rows"
MOSTLY = 0.5
"""Share of a file's times below their floor or refused, or far too long, from which its unit is
doubted aloud."""


def parts(data: Path) -> Iterator[Imported]:
    """Rows of all files at `data`, a part a chunk.

    Args:
        data: a file, a folder of files, or a folder that holds such a folder called `rows`.

    Raises:
        DataError: nothing is there, a file cannot be read, or its columns are not the schema's.
        DeviceFileError: a device file beside the rows breaks a rule.
    """
    files, left_out = row_files(data)
    for path in device_files(data):
        adopt_device_file(path)
    for file in files:
        yield from file_parts(file, left_out)


def file_parts(
    file: RowFile, left_out: dict[str, str], *, source: str = SOURCE
) -> Iterator[Imported]:
    """Rows of one file, a part a chunk; the last tells what was read.

    Args:
        file: in the columns of own rows.
        left_out: files beside it that are not read, and why.
        source: whose rows they are.

    Raises:
        DataError: it cannot be read, or its columns are not the schema's.
    """
    fast = slow = rows = 0
    last: Imported | None = None
    for chunk in file.chunks():
        if last is not None:
            yield last
        last, long = _part(chunk, file.name, source)
        slow += long
        implausible = last.dropped["latency_not_plausible"]
        fast += int((last.kernels["flag"] == "below_floor").sum()) + implausible
        rows += len(last.kernels) + len(last.steps) + implausible
    assert last is not None and file.seen is not None  # a file has at least one chunk
    last.files, last.left_out = {file.name: file.seen}, dict(left_out)
    if fast > MOSTLY * rows:
        logger.warning(
            "%s: %d of %d times are shorter than can be, or beyond all; are they microseconds?",
            file.name, fast, rows,
        )  # fmt: skip
    if slow > MOSTLY * rows:
        logger.warning(
            "%s: %d of %d times are more than %.0f times longer than the device should need; are "
            "they microseconds?",
            file.name, slow, rows, TOO_LONG,
        )  # fmt: skip
    yield last


def _part(chunk: pd.DataFrame, file: str, source: str) -> tuple[Imported, int]:
    """A chunk of a file in the schema, and how many of its kernels took far too long.

    Rows that an import wrote keep the name of their source, which their graphs are found by.
    """
    whose = chunk["source"] if set(SET_BY_IMPORT) <= set(chunk.columns) else None
    if whose is not None:
        chunk = chunk.drop(columns=list(SET_BY_IMPORT))
    columns = [str(c) for c in chunk.columns]
    table = table_of(columns, file)
    named = chunk.rename(columns=schema_names(columns, table, file))
    out = Imported.empty(source)
    rows = checked_rows(named.rename_axis(None), table, file, out)
    if table == "kernels":
        rows = complete_kernels(rows, file, out)
    made = schema_rows(rows, table, source, file)
    if whose is not None:
        made = made.assign(source=whose.loc[rows.index].astype("str").array)
    setattr(out, table, made)
    keep_valid(out)
    return out, flag_below_floor(out.kernels) if table == "kernels" else 0
