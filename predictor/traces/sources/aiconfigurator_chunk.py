"""Rows of one published table on one device, and what a reader makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.errors import DataError
from predictor.hardware.device import Device
from predictor.traces.sources.aiconfigurator_formats import ACTIVATION_BYTES, Format
from predictor.traces.sources.aiconfigurator_layout import Table, column

if TYPE_CHECKING:
    import pyarrow as pa

Rows: TypeAlias = NDArray[np.intp]
Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Rows of a chunk that are one op in one format."""

    rows: Rows
    """Their positions in the chunk."""
    op: str
    dims: Mapping[str, Numbers | int]
    """Arrays as long as `rows`, or one value."""
    form: Format
    stored_bytes: float | None = None
    """Bytes of an element of weights or cache; those of `form` when None."""
    input_bytes: float = ACTIVATION_BYTES
    output_bytes: float = ACTIVATION_BYTES
    context: str = "device"
    execution: str = "cuda_graph"
    routing: str = ""
    """How tokens spread over experts, as published."""
    ranks_per_node: Numbers | None = None
    flag: NDArray[np.bool_] | bool = False
    """Rows that carry `flag_name`."""
    flag_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Rows of a chunk that break a rule."""

    rows: Rows
    column: str
    value: object
    rule: str


Reader: TypeAlias = Callable[["Chunk"], Iterator[Kernels | Refused]]


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Rows of one table, measured on one device."""

    table: Table
    device: Device
    content: pa.Table
    _texts: dict[str, tuple[NDArray[np.int64], list[str]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.content.num_rows)

    def has(self, name: str) -> bool:
        """Whether the table has a column."""
        return name in self.content.column_names

    def numbers(self, name: str, default: int | None = None) -> Numbers:
        """A column of whole numbers; -1 where it is null or not whole.

        Args:
            name: column.
            default: its value in tables that lack it; None when they must have it.

        Raises:
            DataError: there is none, or it holds no numbers.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if default is not None and not self.has(name):
            return np.full(len(self), default, dtype=np.int64)
        published = self._numeric(name)
        if not pa.types.is_integer(published.type):
            values = self.floats(name)
            whole = (np.abs(values) < 2**62) & (values == np.floor(values))
            return np.where(whole, values, -1.0).astype(np.int64)
        values = pc.cast(pc.fill_null(published, -1), pa.int64(), safe=False)
        return np.asarray(values.to_numpy(), dtype=np.int64)

    def floats(self, name: str) -> NDArray[np.float64]:
        """A column of numbers; NaN where it is null.

        Raises:
            DataError: there is none, or it holds no numbers.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        values = pc.cast(self._numeric(name), pa.float64(), safe=False)
        return np.asarray(values.to_numpy(), dtype=np.float64)

    def _numeric(self, name: str) -> Any:
        import pyarrow as pa

        values = column(self.content, name, self.table)
        kind, known = values.type, pa.types
        if not any(is_(kind) for is_ in (known.is_integer, known.is_floating, known.is_null)):
            raise DataError(f"{self.table.name}: column {name!r} holds {kind}, no numbers")
        return values

    def texts(self, name: str, default: str | None = None) -> tuple[NDArray[np.int64], list[str]]:
        """A text column as codes and the values they stand for; empty where it is null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if name not in self._texts:
            if default is not None and not self.has(name):
                self._texts[name] = (np.zeros(len(self), dtype=np.int64), [default])
            else:
                text = pc.cast(column(self.content, name, self.table), pa.string())
                coded = pa.concat_arrays(pc.fill_null(text, "").chunks).dictionary_encode()
                codes = coded.indices.to_numpy().astype(np.int64)
                self._texts[name] = (codes, coded.dictionary.to_pylist())
        return self._texts[name]

    def split(self, *names: str) -> Iterator[tuple[tuple[str, ...], Rows]]:
        """Rows by the values of text columns, in the order of their first row."""
        yield from self.split_rows(np.arange(len(self)), names)

    def split_rows(
        self, rows: Rows, names: Sequence[str]
    ) -> Iterator[tuple[tuple[str, ...], Rows]]:
        """As `split`, within some rows."""
        key = np.zeros(len(rows), dtype=np.int64)
        for name in names:
            codes, values = self.texts(name)
            key = key * len(values) + codes[rows]
        found, first = np.unique(key, return_index=True)
        for i in np.argsort(first):
            part = rows[key == found[i]]
            values_of = tuple(self.texts(n)[1][self.texts(n)[0][part[0]]] for n in names)
            yield values_of, part
