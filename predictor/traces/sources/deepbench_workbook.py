"""DeepBench's spreadsheets: cells of a workbook, and the tables in them as records.

An `.xlsx` file is a zip of XML (ECMA-376, SpreadsheetML): values, shared texts, and the last
computed value of a formula, which is all that is needed; so no spreadsheet library is.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from predictor.errors import DataError

Cell: TypeAlias = str | float
Sheet: TypeAlias = Mapping[int, Mapping[int, Cell]]
"""Cells by row and column, both counted from 1."""

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
HEADS: tuple[frozenset[str], ...] = (
    frozenset({"m", "n", "k", "a transpose"}), frozenset({"n", "timesteps"}),
    frozenset({"w", "h", "c", "n", "k"}), frozenset({"size # floats"}),
)  # fmt: skip
"""Names of which a table's header row has one whole set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of a published table."""

    device: str
    mode: str
    sheet: str
    section: str
    """Title of the table."""
    row: int
    """In its file or sheet, from 0 below the first line."""
    cells: Mapping[str, object]
    """By header, as published."""


def plain_name(header: str) -> str:
    """A header without what stands in parentheses: `K  (number of filters)` is `k`."""
    return " ".join(re.sub(r"\(.*?\)", " ", header).lower().split())


def read_workbook(content: bytes, name: str) -> dict[str, Sheet]:
    """Sheets of a workbook by name.

    Raises:
        DataError: it is no workbook, or damaged.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as book:
            texts = _texts(book)
            targets = {
                r.get("Id"): r.get("Target", "") for r in _xml(book, "_rels/workbook.xml.rels")
            }
            sheets = _xml(book, "workbook.xml").find(f"{_MAIN}sheets")
            return {
                str(s.get("name")): _cells(book, targets[s.get(_RELATION)], texts)
                for s in (sheets if sheets is not None else ())
                if "worksheets/" in targets[s.get(_RELATION)]
            }
    except (zipfile.BadZipFile, KeyError, ValueError, IndexError, ET.ParseError) as error:
        raise DataError(
            f"{name}: not readable as a workbook ({error!r}); fetch the file again, or remove it"
        ) from error


def _xml(book: zipfile.ZipFile, path: str) -> ET.Element:
    return ET.fromstring(book.read(f"xl/{path.removeprefix('/').removeprefix('xl/')}"))


def _texts(book: zipfile.ZipFile) -> list[str]:
    if "xl/sharedStrings.xml" not in book.namelist():
        return []
    return [_text(item) for item in _xml(book, "sharedStrings.xml").findall(f"{_MAIN}si")]


def _text(element: ET.Element) -> str:
    return "".join(t.text or "" for t in element.iter(f"{_MAIN}t"))


def _cells(book: zipfile.ZipFile, path: str, texts: Sequence[str]) -> Sheet:
    rows: dict[int, dict[int, Cell]] = {}
    for cell in _xml(book, path).iter(f"{_MAIN}c"):
        value = cell.findtext(f"{_MAIN}v")
        kind = cell.get("t", "n")
        place = re.fullmatch(r"([A-Z]+)([0-9]+)", cell.get("r", ""))
        if place is None or (value is None and kind != "inlineStr"):
            continue
        column = 0
        for letter in place[1]:
            column = column * 26 + ord(letter) - ord("A") + 1
        found: Cell = _text(cell) if value is None else value
        if kind == "s":
            found = texts[int(found)]
        elif kind in ("n", "b"):
            found = float(found)
        rows.setdefault(int(place[2]), {})[column] = found
    return rows


def records(sheets: Mapping[str, Sheet], device: str, mode: str) -> list[Record]:
    """Rows of all tables of a workbook: below a header row, as long as some size is a number."""
    found = []
    for sheet, rows in sheets.items():
        header: dict[int, str] = {}
        title = section = ""
        for number in sorted(rows):
            cells = rows[number]
            first = cells.get(1)
            if isinstance(first, str) and first.strip() and first.strip().lower() != "precision":
                title = first.strip()
            names = {c: v.strip() for c, v in cells.items() if isinstance(v, str)}
            plain = {plain_name(v) for v in names.values()}
            if any(head <= plain for head in HEADS):
                header, section = names, title
                continue
            values = {header[c]: v for c, v in cells.items() if c in header and c > 2}
            if sum(isinstance(v, float) for v in values.values()) >= 2:
                found.append(
                    Record(device=device, mode=mode, sheet=sheet, section=section,
                           row=number - 2, cells=values)
                )  # fmt: skip
    return found


def versions(sheets: Mapping[str, Sheet]) -> str:
    """Libraries of the `Specs` sheet: `cuda 8.0.61, cudnn 6.0`; empty without one."""
    named = {"cuda": "cuda", "cudnn": "cudnn", "rocm": "rocm", "miopen": "miopen"}
    found = []
    for cells in sheets.get("Specs", {}).values():
        label = str(cells.get(1, "")).lower().replace("intel ", "")
        for word, library in {**named, "mkl": "mkl"}.items():
            if label.startswith(f"{word} version") and cells.get(2) not in (None, "", "-"):
                found.append(f"{library} {str(cells[2]).strip()}")
    return ", ".join(found)
