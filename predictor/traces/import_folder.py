"""The folder of an import: what stands in it, its report, and whether one may be written there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from predictor.errors import DataError
from predictor.traces.files import DEVICE_FILE, ROW_SUFFIXES, content_of, parse_json
from predictor.traces.graph_tables import GRAPH_TABLES
from predictor.traces.schema import SCHEMA_VERSION, TABLES

logger = logging.getLogger(__name__)

REPORT = "report.json"
REJECTS = "rejects.json"
SUMMARIES = "traces.json"
"""File that an import of traces adds, with what each trace says of itself."""


def check_target(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier import: writing replaces it.

    Raises:
        DataError: `out` is a file, a folder with other content, or can be none.
    """
    _check_place(out)
    if out.is_dir() and (not any(out.iterdir()) or report_of(out) is not None):
        others = _foreign(out) if report_of(out) is not None else []
        if others:
            named = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
            raise DataError(
                f"{out} holds an import and {named}, which a new import there would "
                "remove: give another folder to write to, or move them"
            )
        return
    if out.exists():
        raise DataError(f"{out} exists and is no earlier import: give a new folder to write to")


def beside_import(folder: Path) -> list[str]:
    """Names of row files in the folder of an import that are none of its tables, in order."""
    if report_of(folder) is None:
        return []
    files = (name for name in _foreign(folder) if (folder / name).is_file())
    return [name for name in files if name.lower().endswith(ROW_SUFFIXES)]


def _foreign(folder: Path) -> list[str]:
    """Names in the folder of an import that no import writes, in order; hidden ones left out."""
    own = {REPORT, REJECTS, SUMMARIES, *(f"{table}.parquet" for table in (*TABLES, *GRAPH_TABLES))}
    found = (p.name for p in folder.iterdir() if not p.name.startswith("."))
    return sorted(name for name in found if name not in own and not name.endswith(DEVICE_FILE))


def _check_place(out: Path) -> None:
    """Refuse what no folder can be written to.

    Raises:
        DataError: a link to nothing, something below a file, or the current folder.
    """
    if out.is_symlink() and not out.exists():
        raise DataError(f"{out} is a link to nothing: give a new folder to write to")
    parents = out.absolute().parents  # none above the root
    above = next((p for p in parents if p.exists() or p.is_symlink()), out)
    if not above.is_dir():
        raise DataError(f"{out}: {above} is no folder: give a new folder to write to")
    if out.exists() and out.samefile(Path()):
        raise DataError(f"{out} is the current folder: give a folder in it, or go elsewhere")


def warn_beside_import(folder: Path) -> None:
    """Say which row files in the folder of an import are not read."""
    others = beside_import(folder)
    if others:
        logger.warning(
            "%s: the import there is read, not %s beside it; import them to another folder",
            folder, ", ".join(others),
        )  # fmt: skip


def imported_at(folder: Path, source: str) -> Path | None:
    """Folder of an import of `source`: `folder` itself or `folder/source`; None without one."""
    for candidate in (folder, folder / source):
        report = report_of(candidate)
        if report is not None and report.get("source") == source:
            return candidate
    return None


def import_report(folder: Path) -> dict[str, Any] | None:
    """The report of an import; None where `folder` is none.

    Raises:
        DataError: the import is of another schema version.
    """
    report = report_of(folder)
    if report is not None and report["schema_version"] != SCHEMA_VERSION:
        raise other_version(folder, report)
    return report


def report_of(folder: Path) -> dict[str, Any] | None:
    """The report of an import of any schema version; None where `folder` is none.

    Raises:
        DataError: it cannot be read.
    """
    path = folder / REPORT
    if not path.is_file():
        return None
    report = parse_json(content_of(path, str(path)), str(path))
    if not {"schema_version", "source", "rows"} <= set(report):
        return None
    for key in ("rows", "dropped"):
        if not _are_counts(report.get(key, {})):
            raise DataError(f"{path}: {key!r} are no counts; import the source again")
    return report


def other_version(folder: Path, report: dict[str, Any]) -> DataError:
    """The error of an import that another version of the library wrote."""
    return DataError(
        f"{folder}: schema version {report.get('schema_version')!r}, this version reads "
        f"{SCHEMA_VERSION}; import the source again"
    )


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(type(count) is int for count in value.values())
