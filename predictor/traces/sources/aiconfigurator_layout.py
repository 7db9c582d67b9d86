"""Where the tables of the aiconfigurator layout lie, whose device they name, which are copies."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import DataError, UnknownDeviceError
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Device
from predictor.traces.files import LayoutNotFoundError, SourceFile

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

SOURCE = "aiconfigurator"
LICENCE = "Apache-2.0"
SUFFIX = "_perf.parquet"
_DATA = Path("systems/data")
_ROOTS = (
    SOURCE, "", "src/aiconfigurator", "aic-core/src/aiconfigurator_core",
    f"{SOURCE}/src/aiconfigurator", f"{SOURCE}/aic-core/src/aiconfigurator_core",
)  # fmt: skip
_DEPTH = 4
"""Folders between `systems/data` and a table: system, family, framework, version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One published table: where it lies says most of what it is."""

    path: Path
    name: str
    """Below the root, with forward slashes."""

    @property
    def kind(self) -> str:
        """File name without its suffix, such as `gemm`."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def system(self) -> str:
        """Folder of the machine."""
        return self.path.parts[-1 - _DEPTH]

    @property
    def framework(self) -> str:
        """Folder of the framework."""
        return self.path.parts[-3]

    @property
    def version(self) -> str:
        """Folder of the framework's version."""
        return self.path.parts[-2]


@dataclass(slots=True, kw_only=True)
class Layout:
    """Tables below one root, and what was read of them."""

    root: Path
    """Folder that holds `systems`."""
    only: Path | None = None
    """A single table."""
    files: dict[str, SourceFile] = field(default_factory=dict)
    _contents: dict[bytes, str] = field(default_factory=dict)
    """Name of the first table that had these numbers."""
    _devices: dict[str, Device | None] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        """Tables in the order of their names."""
        pattern = "/".join(["*"] * _DEPTH) + f"/*{SUFFIX}"
        paths = sorted((self.root / _DATA).glob(pattern)) if self.only is None else [self.only]
        return [Table(path=p, name=p.relative_to(self.root).as_posix()) for p in paths]

    def read(self, table: Table) -> pa.Table:
        """A table; remembered with its hash and rows.

        Raises:
            DataError: it cannot be read, or is not Parquet.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            content = table.path.read_bytes()
            found = pq.read_table(pa.BufferReader(content))
        except (OSError, pa.ArrowException) as error:
            raise _damaged(table, error) from error
        digest = hashlib.sha256(content).hexdigest()
        self.files[table.name] = SourceFile(path=table.name, sha256=digest, rows=found.num_rows)
        return found

    def rows(self, table: Table) -> int:
        """Rows of a table, by its footer.

        Raises:
            DataError: it cannot be read, or is not Parquet.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(table.path).num_rows)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(table, error) from error

    def copy_of(self, table: Table, content: pa.Table) -> str | None:
        """Name of an earlier table of the same kind with the same numbers in the same order."""
        import pyarrow as pa

        digest = hashlib.sha256(f"{table.kind}:{content.num_rows}".encode())
        for name in sorted(content.column_names):
            column = content.column(name)
            if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
                digest.update(name.encode())
                digest.update(column.to_numpy().tobytes())
        first = self._contents.setdefault(digest.digest(), table.name)
        return None if first == table.name else first

    def device(self, system: str, name: object) -> Device | None:
        """The device of a row: that of the system's folder, else of its `device` column.

        None when neither is known, or when the column names another device than the folder
        (a table copied from another system). A shorter name of the folder's device is the same
        one (`NVIDIA H100` in `h100_sxm`).
        """
        folder, named = self._resolved(system), self._resolved(name)
        if folder is None or named is None or named.id == folder.id:
            return folder or named
        short = isinstance(name, str) and folder.name is not None and folder.name.startswith(name)
        return folder if short else None

    def is_known(self, system: str, name: object) -> bool:
        """Whether the catalogue knows the folder's or the column's device."""
        return self._resolved(system) is not None or self._resolved(name) is not None

    def _resolved(self, name: object) -> Device | None:
        if not isinstance(name, str) or not name or name.lower().endswith(".toml"):
            return None
        if name not in self._devices:
            try:
                self._devices[name] = resolve_device(name, source=SOURCE)
            except UnknownDeviceError:
                logger.warning("device %r is not in the catalogue", name)
                self._devices[name] = None
        return self._devices[name]


def _damaged(table: Table, error: Exception) -> DataError:
    return DataError(
        f"{table.name}: not readable as Parquet ({error}); fetch the file again (a clone needs "
        "`git lfs pull`), or remove it"
    )


def open_layout(data: Path) -> Layout:
    """The layout at `data`: a folder that holds it, or one table inside one.

    Raises:
        LayoutNotFoundError: no part of the layout is there, or the file is no table of it.
    """
    if data.is_file():
        file = data.absolute()
        roots = [p for p in file.parents if (p / _DATA) in file.parents]
        if roots and file.name.endswith(SUFFIX):
            return Layout(root=roots[0], only=file)
        raise LayoutNotFoundError(
            f"{data}: no table of an aiconfigurator layout ({_DATA}/SYSTEM/…/OP{SUFFIX}); keep the "
            "file in its published folder, or give the folder"
        )
    for name in _ROOTS:
        layout = Layout(root=data / name)
        if layout.tables():
            return layout
    raise LayoutNotFoundError(
        f"{data}: no aiconfigurator layout (expected {_DATA}/SYSTEM/FAMILY/FRAMEWORK/VERSION/"
        f"*{SUFFIX} below it, below {SOURCE}/, or below a clone's src/aiconfigurator/)"
    )


def column(content: pa.Table, name: str, table: Table) -> Any:
    """A column of a table as an Arrow array.

    Raises:
        DataError: there is none.
    """
    if name not in content.column_names:
        found = ", ".join(content.column_names[:12])
        raise DataError(f"{table.name}: no column {name!r}; found: {found}")
    return content.column(name)
