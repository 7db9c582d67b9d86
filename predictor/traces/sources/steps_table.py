"""What every step table shares: where its files lie, its rows, devices, plans and refused rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from predictor.errors import UnknownDeviceError
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.names import PACKAGE_DIES
from predictor.traces.files import FolderReader, SourceFile, content_of, csv_at
from predictor.traces.schema import Imported, filled
from predictor.traces.validate import keep_valid

SOURCE = "steps"

Record = Mapping[str, Any]
"""One row of a published table, by column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """A family of published tables in one folder."""

    folder: str
    licence: str
    files: tuple[str, ...]
    """Patterns of the files that give rows, below the folder; CSV names without their suffix."""
    read: Callable[[TableReader], None]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why other files of the folder are not read, by pattern."""


@dataclass(slots=True, kw_only=True)
class TableReader:
    """Reads the files of one table and gathers its step rows."""

    table: StepTable
    root: Path
    """Folder of the table."""
    only: Path | None = None
    """The one file to read, when one was given."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    out: Imported = field(default_factory=lambda: Imported.empty(SOURCE))
    _refused: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)
    _devices: dict[str, tuple[str, int] | None] = field(default_factory=dict)

    def csv(self, name: str, columns: Sequence[str], *, aside: bool = False) -> list[Record]:
        """Rows of `name.csv` or `name.csv.gz`, none where there is no such file.

        Args:
            name: below the folder, without the suffix.
            columns: which it must have.
            aside: the file only describes the rows of another: read although one file was given.

        Raises:
            DataError: unreadable, or a column is missing.
        """
        path = csv_at(self.root, name)
        if path is None or (self.only not in (None, path) and not aside):
            return []
        reader = FolderReader(root=self.root)
        rows = reader.csv(path, columns).to_dict("records")
        self._remember(reader)
        place = {"_file": self.name(path)}
        return [
            {**{str(c): v for c, v in row.items()}, **place, "_row": i}
            for i, row in enumerate(rows)
        ]

    def markdown(self, pattern: str, parse: Callable[[str], list[Record]]) -> list[Record]:
        """Rows that `parse` finds in the text files that match.

        Raises:
            DataError: one cannot be read.
        """
        found: list[Record] = []
        for path in sorted(self.root.glob(pattern)):
            if self.only in (None, path):
                file = self.name(path)
                content = content_of(path, file)
                rows = parse(content.decode("utf-8", errors="replace"))
                digest = hashlib.sha256(content).hexdigest()
                self.out.files[file] = SourceFile(path=file, sha256=digest, rows=len(rows))
                found += [{**row, "_file": file, "_row": i} for i, row in enumerate(rows)]
        return found

    def name(self, path: Path) -> str:
        """How rows and reports call a file: the folder and the path below it."""
        return f"{self.table.folder}/{path.relative_to(self.root).as_posix()}"

    def device(self, published: str) -> tuple[str, int] | None:
        """Catalogue id and how many such devices a published one is (2 cores a TPU v3 chip)."""
        if published not in self._devices:
            self._devices[published] = device_and_count(published, self.table.folder)
        return self._devices[published]

    def add(self, record: Record, device: str, count: object, **values: Any) -> None:
        """Keep a step row; refuse it where the device is unknown.

        Args:
            record: the published row.
            device: published name of the device.
            count: published number of devices.
            values: columns of `steps`; `flags` is a list, joined to `flag` with `+`.
        """
        found = self.device(device)
        if found is None:
            self.refuse(record, "device", device, "unknown_device")
            return
        file, row = str(record["_file"]), int(record["_row"])
        flags = [f for f in values.pop("flags", ()) if f]
        self.rows.append({
            "row_id": f"{SOURCE}:{file.removesuffix('.gz')}:{row}", "source": SOURCE,
            "file": file, "row": row, "licence": self.table.licence, "device": found[0],
            "devices": number(count) * found[1], "mode": "train", "flag": "+".join(flags),
            **values,
        })  # fmt: skip

    def refuse(self, record: Record, column: str, value: object, rule: str) -> None:
        """Count a row that breaks a rule; `unknown_device` is told apart by name."""
        shown = str(value) if rule == "unknown_device" else ""
        key = (str(record["_file"]), column, rule, shown)
        entry = self._refused.setdefault(key, [int(record["_row"]), 0])
        entry[1] += 1

    def finish(self) -> Imported:
        """The rows as a part of the source that passed the rules of every source."""
        columns = sorted({c for row in self.rows for c in row})
        numbers = {"latency_us", "spread_us", "batch", "seq", "size", "devices", "micro_batch",
                   "repeats", "power_limit_w"}  # fmt: skip
        values = {
            c: [row.get(c, math.nan if c in numbers else "") for row in self.rows] for c in columns
        }
        if self.rows:
            self.out.steps = filled("steps", values, len(self.rows))
        for (file, column, rule, value), (row, count) in self._refused.items():
            self.out.reject(
                file=file, row=row, column=column, value=value or "", rule=rule, rows=count
            )
        for pattern, reason in self.table.left_out.items():
            for path in sorted(self.root.glob(pattern)) if self.only is None else ():
                if self.name(path) not in self.out.files:
                    self.out.left_out[self.name(path)] = reason
        keep_valid(self.out)
        return self.out

    def _remember(self, reader: FolderReader) -> None:
        for file in reader.files.values():
            name = f"{self.table.folder}/{file.path}"
            self.out.files[name] = replace(file, path=name)


def device_and_count(published: str, dataset: str) -> tuple[str, int] | None:
    """Catalogue id of a published device name, and how many of it the name stands for.

    A package that a framework sees as several devices (a TPU v3 chip, an MI250) counts as those.
    """
    try:
        device = resolve_device(published, source=dataset, allow_package=True)
    except UnknownDeviceError:
        return None
    if device.scope != "package":
        return device.id, 1
    die = PACKAGE_DIES.get(device.id)
    if die is None or device.units is None:
        return None
    units = load_catalogue()[die].units
    return None if units is None else (die, round(device.units / units))


def number(value: object) -> float:
    """A finite published number, else NaN."""
    if isinstance(value, bool) or value is None:
        return math.nan
    try:
        found = float(str(value).replace(",", ""))
    except ValueError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def text(value: object) -> str:
    """Published text; a missing cell is empty."""
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def plan(**axes: float | None) -> str:
    """A parallel plan, `dp=8,tp=2`: axes in the order given, those unknown (None, NaN) left out."""
    known = {a: n for a, n in axes.items() if n is not None and n == n}
    return ",".join(f"{axis}={n:.0f}" for axis, n in known.items())


def share(devices: float, *axes: float) -> float | None:
    """Devices left for data parallelism beside the other axes; None where they do not divide."""
    product = math.prod(axes)
    if product == 0:
        return None
    rest = devices / product
    return rest if rest >= 1 and rest == int(rest) else None
