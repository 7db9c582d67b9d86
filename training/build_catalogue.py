"""Build the shipped device catalogue from the two fact tables.

    python training/build_catalogue.py devices.csv devices_sources.csv [--out predictor/hardware]
        [--additions training/catalogue_additions.csv]

Writes `catalogue.toml` (the facts) and `catalogue_sources.csv` (where each number comes from).
The additions are facts that the tables leave empty, a row each with its source.
The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from predictor.hardware.device import Device
from predictor.hardware.fields import DTYPE_TOKENS, FIELDS

logger = logging.getLogger("build_catalogue")

Row = Mapping[str, str]

SOURCE_COLUMNS = ("device", "field", "value", "source_url", "how_read", "note")
HOW_READ = frozenset({"read", "derived", "memory", "measured"})
LIST_FIELDS = ("aliases", "unsupported_dtypes")
_FIRST = ("vendor", "kind", "scope", "name", "aliases")
TOML_KEYS = (*_FIRST, *(name for name in FIELDS if name not in (*_FIRST, "id")))
HEADER = (
    "# Device catalogue: one table a device. Made by training/build_catalogue.py: do not edit.\n"
    "# An absent key is unknown or does not apply, never 0. Units and meanings: docs/devices.md.\n"
    "# Where each number comes from: catalogue_sources.csv.\n"
)


def read_devices(path: Path) -> list[Row]:
    """Read the fact table, one mapping a device.

    Raises:
        ValueError: A column or a cell breaks a rule of the table.
    """
    with path.open(newline="", encoding="utf-8") as handle:
        rows: list[Row] = [*csv.DictReader(handle)]
    expected = {field.name for field in fields(Device)} | {"aliases"}
    if set(rows[0]) != expected:
        raise ValueError(f"{path}: columns differ from Device: {sorted(set(rows[0]) ^ expected)}")
    seen: dict[str, str] = {}
    for row in rows:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row["id"]):
            raise ValueError(f"{path}: id {row['id']!r} is not kebab-case")
        for label in {row["id"], *filter(None, row["aliases"].split(";"))}:
            if seen.setdefault(label.lower(), row["id"]) != row["id"]:
                raise ValueError(f"{path}: {label!r} names {seen[label.lower()]} and {row['id']}")
        for token in filter(None, row["unsupported_dtypes"].split(";")):
            if token not in DTYPE_TOKENS:
                raise ValueError(f"{path}: {row['id']}: unknown dtype {token!r}")
        for name, spec in FIELDS.items():
            if spec.numeric and row[name] and not float(row[name]) > 0:
                raise ValueError(f"{path}: {row['id']}: {name} = {row[name]}: unknown is empty")
    return rows


def read_additions(path: Path, devices: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Fill empty cells of `devices`; the filled table, and the sources of what was filled.

    Raises:
        ValueError: A row names no cell of the table, or one that is filled.
    """
    filled = {row["id"]: dict(row) for row in devices}
    with path.open(newline="", encoding="utf-8") as handle:
        sources: list[Row] = [*csv.DictReader(handle)]
    for row in sources:
        cell = (row["device"], row["field"])
        if row["device"] not in filled or row["field"] not in FIELDS:
            raise ValueError(f"{path}: no cell {' '.join(cell)}")
        if row["how_read"] not in HOW_READ:
            raise ValueError(f"{path}: how_read {row['how_read']!r}")
        if filled[row["device"]][row["field"]]:
            raise ValueError(f"{path}: {' '.join(cell)} is known already")
        filled[row["device"]][row["field"]] = row["value"]
    return list(filled.values()), sources


def read_sources(path: Path, devices: Sequence[Row], added: Sequence[Row] = ()) -> list[Row]:
    """Read the provenance table and check that every filled cell of `devices` has a row.

    `added` are rows of cells that the additions filled.

    A source text with an unquoted comma makes a line too long; such a line is put together again.

    Raises:
        ValueError: A row is malformed, names no device or field, or a filled cell has no source.
    """
    by_id = {row["id"]: row for row in devices}
    rows: list[Row] = []
    with path.open(newline="", encoding="utf-8") as handle:
        reader = csv.reader(handle)
        if tuple(next(reader)) != SOURCE_COLUMNS:
            raise ValueError(f"{path}: columns must be {SOURCE_COLUMNS}")
        for cells in reader:
            whole = [*cells[:3], ",".join(cells[3:-2]), *cells[-2:]]
            row = dict(zip(SOURCE_COLUMNS, whole, strict=True))
            if row["how_read"] not in HOW_READ:
                raise ValueError(f"{path}:{reader.line_num}: how_read {row['how_read']!r}")
            if row["device"] not in by_id or row["field"] not in FIELDS:
                raise ValueError(
                    f"{path}:{reader.line_num}: no cell {row['device']} {row['field']}"
                )
            rows.append(row)
    rows += added
    covered = {(row["device"], row["field"]) for row in rows}
    unsourced = ("id", "vendor", "kind", "scope", "unsupported_dtypes", "confidence", "notes")
    for device_id, facts in by_id.items():
        for name in FIELDS:
            if facts[name] and name not in unsourced and (device_id, name) not in covered:
                raise ValueError(f"{path}: no source for {device_id} {name}")
    order = {device_id: index for index, device_id in enumerate(by_id)}
    column = {name: index for index, name in enumerate(FIELDS)}
    return sorted(rows, key=lambda row: (order[row["device"]], column[row["field"]]))


def catalogue_text(devices: Sequence[Row]) -> str:
    """Return the TOML text of the catalogue: filled cells, numbers as the table prints them."""
    parts = [HEADER]
    for row in devices:
        lines = [f"\n[{row['id']}]\n"]
        for name in TOML_KEYS:
            value = row[name]
            if not value:
                continue
            if name in LIST_FIELDS:
                shown = json.dumps(value.split(";"), ensure_ascii=False)
            elif FIELDS[name].numeric:
                shown = value
            else:
                shown = json.dumps(value, ensure_ascii=False)
            lines.append(f"{name} = {shown}\n")
        parts.append("".join(lines))
    return "".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Read both tables, check them, write both catalogue files."""
    parser = argparse.ArgumentParser(description="Build the device catalogue.")
    parser.add_argument("devices", type=Path, help="devices.csv")
    parser.add_argument("sources", type=Path, help="devices_sources.csv")
    default = Path(__file__).resolve().parent.parent / "predictor" / "hardware"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--additions", type=Path, help="further facts, with their sources")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    devices = read_devices(args.devices)
    added: list[Row] = []
    if args.additions is not None:
        devices, added = read_additions(args.additions, devices)
    sources = read_sources(args.sources, devices, added)
    (args.out / "catalogue.toml").write_text(catalogue_text(devices), encoding="utf-8")
    target = args.out / "catalogue_sources.csv"
    with target.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, SOURCE_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sources)
    logger.info("%d devices, %d source rows in %s", len(devices), len(sources), args.out)


if __name__ == "__main__":
    main()
