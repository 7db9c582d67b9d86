"""Imported data on disk: Parquet tables and two JSON files, written whole or not at all.

| file | holds |
|---|---|
| `kernels.parquet`, `steps.parquet` | measured rows: single kernels, whole steps |
| `ops.parquet` | measured rows of ops timed inside steps |
| `peers.parquet` | predictions that others published: never labels |
| `graphs.parquet` | kernels of each op graph, in stream order, with node, class and repetitions |
| `graph_nodes.parquet` | all nodes of each op graph, those that launch nothing too |
| `graph_edges.parquet` | data edges between the kernels of a graph |
| `ID.device.toml` | a device of the rows that the catalogue does not have |
| `rejects.json` | refused rows: file, row, column, value and rule, and the count by rule |
| `report.json` | schema version, rows kept, dropped and flagged by rule, files read with SHA-256 |

Rows are written part by part, and can be read so: a source need not fit in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.atomic import replacing_folder, write_text
from predictor.errors import DataError
from predictor.hardware.catalogue import adopted_devices
from predictor.hardware.device_file import adopt_device_file, device_file_text
from predictor.traces.files import (
    DEVICE_FILE,
    SourceFile,
    content_of,
    parse_json,
)
from predictor.traces.graph_tables import GRAPH_TABLES, graphs_from_tables, graphs_to_tables
from predictor.traces.import_folder import REJECTS, REPORT, check_target, other_version, report_of
from predictor.traces.import_report import ImportReport
from predictor.traces.merge import merged
from predictor.traces.schema import SCHEMA_VERSION, TABLES, Imported, column_kind, empty_table
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

PART_ROWS = 250_000
"""Kernel rows that are read at a time."""


def write_imported(source: str, parts: Iterable[Imported], out: Path) -> ImportReport:
    """Write the parts of a source to the folder `out`; an earlier import there is replaced.

    Raises:
        DataError: `out` holds something else.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_target(out)
    report = ImportReport(source=source, out=out, earlier=report_of(out) if out.exists() else None)
    graphs = {}
    with replacing_folder(out) as folder:
        with ExitStack() as stack:
            schemas = {table: _arrow_schema(table) for table in TABLES}
            writers = {
                table: stack.enter_context(
                    pq.ParquetWriter(
                        folder / f"{table}.parquet", schema, compression="zstd",
                        use_dictionary=[f.name for f in schema if f.name != "row_id"],
                        column_encoding={"row_id": "DELTA_BYTE_ARRAY"} if "row_id" in schema.names
                        else None,
                    )
                )
                for table, schema in schemas.items()
            }  # fmt: skip
            for part in parts:
                report.add(part)
                graphs.update(part.graphs)
                for table, writer in writers.items():
                    rows = getattr(part, table)
                    if len(rows):
                        writer.write_table(
                            pa.Table.from_pandas(rows, schemas[table], preserve_index=False)
                        )
        for name, frame in graphs_to_tables(graphs).items():
            frame.to_parquet(folder / f"{name}.parquet", index=False, compression="zstd")
        for device in report.by_device.keys() & adopted_devices().keys():
            text = device_file_text(adopted_devices()[device])
            write_text(folder / f"{device}{DEVICE_FILE}", text)
        rejects = {"dropped": dict(report.dropped), "first_of_file_and_rule": report.rejects}
        _write_json(rejects, folder / REJECTS)
        _write_json(report.to_json(), folder / REPORT)
    return report


def read_imported(folder: Path) -> Imported:
    """Data that `write_imported` wrote, as it was.

    Raises:
        DataError: the folder is no import, of another schema version, or damaged.
    """
    return merged(read_parts(folder))


def read_parts(folder: Path) -> Iterator[Imported]:
    """The same in parts: everything but most kernel rows first, then kernel rows.

    Raises:
        DataError: as `read_imported`.
    """
    report = report_of(folder)
    if report is None:
        raise DataError(f"{folder}: no import (no {REPORT}); make one with `predictor import`")
    if report.get("schema_version") != SCHEMA_VERSION:
        raise other_version(folder, report)
    for path in folder.glob(f"*{DEVICE_FILE}"):
        adopt_device_file(path)
    rejects = parse_json(content_of(folder / REJECTS, REJECTS), REJECTS)
    small = [name for name in (*TABLES, *GRAPH_TABLES) if name != "kernels"]
    tables = {name: _read(folder / f"{name}.parquet") for name in small}
    graphs = graphs_from_tables({name: tables.pop(name) for name in GRAPH_TABLES})
    kernels = _kernel_parts(folder / "kernels.parquet")
    try:
        first = Imported(
            source=str(report["source"]), graphs=graphs,
            kernels=next(kernels, empty_table("kernels")),
            files={f["path"]: SourceFile(**f) for f in report["files"]},
            left_out=dict(report["left_out"]), dropped=Counter(rejects["dropped"]),
            rejects=list(rejects["first_of_file_and_rule"]), **tables,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: {REPORT} or {REJECTS} is damaged ({error!r})") from error
    keep_valid(first)
    yield first
    for rows in kernels:
        part = Imported.empty(first.source)
        part.kernels = rows
        keep_valid(part)
        yield part


def imported_columns(folder: Path, table: str, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Some columns of a table of an import, part by part, text as categories.

    The rows passed the rules when they were written, and are not checked again.

    Args:
        folder: an import.
        table: a name of `TABLES`.
        columns: some of the table's.

    Raises:
        DataError: the file is damaged or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"{table}.parquet"
    texts = [c for c in columns if column_kind(c) == "text" and c != "row_id"]  # written as deltas
    try:
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            missing = [c for c in columns if c not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{path}: no column {missing[0]!r}; import the source again")
            wrong = [c for c in columns if column_kind(c) != "text" and _is_text(file, c)]
            if wrong:
                raise DataError(f"{path}: {wrong[0]!r} holds no numbers; import the source again")
            for batch in file.iter_batches(batch_size=PART_ROWS, columns=list(columns)):
                yield batch.to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet ({error})") from error


def _is_text(file: Any, column: str) -> bool:
    import pyarrow as pa

    kind = file.schema_arrow.field(column).type
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _arrow_schema(table: str) -> Any:
    import pyarrow as pa

    types = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64()}
    return pa.schema([(c, types[column_kind(c)]) for c in TABLES[table]])


def _write_json(value: object, path: Path) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _kernel_parts(path: Path) -> Iterator[pd.DataFrame]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PART_ROWS):
                yield batch.to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path.name}: not readable as Parquet ({error})") from error


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name}: not readable as Parquet ({error})") from error
