"""Imported data on disk: Parquet tables and two JSON files, written whole or not at all.

| file | holds |
|---|---|
| `kernels.parquet`, `steps.parquet` | measured rows: single kernels, whole steps |
| `ops.parquet` | measured rows of ops timed inside steps |
| `peers.parquet` | predictions that others published: never labels |
| `graphs.parquet` | kernels of each op graph, in stream order, with node, class and repetitions |
| `graph_nodes.parquet` | all nodes of each op graph, those that launch nothing too |
| `graph_edges.parquet` | data edges between the kernels of a graph |
| `rejects.json` | refused rows: file, row, column, value and rule, and the count by rule |
| `report.json` | schema version, rows kept, dropped and flagged by rule, files read with SHA-256 |
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.atomic import replacing_folder, write_text
from predictor.errors import DataError
from predictor.traces.files import SourceFile, content_of, parse_json
from predictor.traces.graph_tables import GRAPH_TABLES, graphs_from_tables, graphs_to_tables
from predictor.traces.import_report import ImportReport
from predictor.traces.schema import SCHEMA_VERSION, TABLES, Imported
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

REPORT = "report.json"
REJECTS = "rejects.json"


def check_target(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier import: writing replaces it.

    Raises:
        DataError: `out` is a file, or a folder with other content.
    """
    if out.is_dir() and (not any(out.iterdir()) or _report_of(out) is not None):
        return
    if out.exists():
        raise DataError(f"{out} exists and is no earlier import: give a new folder to write to")


def write_imported(data: Imported, out: Path) -> ImportReport:
    """Write `data` to the folder `out`; an earlier import there is replaced as a whole.

    Raises:
        DataError: `out` holds something else.
    """
    check_target(out)
    report = ImportReport.of(data, out)
    with replacing_folder(out) as folder:
        for table in TABLES:
            _write(getattr(data, table), folder / f"{table}.parquet")
        for name, frame in graphs_to_tables(data.graphs).items():
            _write(frame, folder / f"{name}.parquet")
        rejects = {"dropped": dict(data.dropped), "first_of_file_and_rule": data.rejects}
        _write_json(rejects, folder / REJECTS)
        _write_json(report.to_json(files=data.files, left_out=data.left_out), folder / REPORT)
    return report


def read_imported(folder: Path) -> Imported:
    """Data that `write_imported` wrote, as it was.

    Raises:
        DataError: the folder is no import, of another schema version, or damaged.
    """
    report = _report_of(folder)
    if report is None:
        raise DataError(f"{folder}: no import (no {REPORT}); make one with `predictor import`")
    if report.get("schema_version") != SCHEMA_VERSION:
        raise DataError(
            f"{folder}: schema version {report.get('schema_version')!r}, this version reads "
            f"{SCHEMA_VERSION}; import the source again"
        )
    rejects = parse_json(content_of(folder / REJECTS, REJECTS), REJECTS)
    tables = {name: _read(folder / f"{name}.parquet") for name in (*TABLES, *GRAPH_TABLES)}
    graphs = graphs_from_tables({name: tables.pop(name) for name in GRAPH_TABLES})
    try:
        data = Imported(
            source=str(report["source"]), graphs=graphs,
            files={f["path"]: SourceFile(**f) for f in report["files"]},
            left_out=dict(report["left_out"]), dropped=Counter(rejects["dropped"]),
            rejects=list(rejects["first_of_file_and_rule"]), **tables,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: {REPORT} or {REJECTS} is damaged ({error!r})") from error
    keep_valid(data)
    return data


def imported_at(folder: Path, source: str) -> Path | None:
    """Folder of an import of `source`: `folder` itself or `folder/source`; None without one."""
    for candidate in (folder, folder / source):
        report = _report_of(candidate)
        if report is not None and report.get("source") == source:
            return candidate
    return None


def _report_of(folder: Path) -> dict[str, Any] | None:
    path = folder / REPORT
    if not path.is_file():
        return None
    report = parse_json(content_of(path, str(path)), str(path))
    return report if {"schema_version", "source", "rows"} <= set(report) else None


def _write(frame: pd.DataFrame, path: Path) -> None:
    frame.to_parquet(path, index=False, compression="zstd")


def _write_json(value: object, path: Path) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name}: not readable as Parquet ({error})") from error
