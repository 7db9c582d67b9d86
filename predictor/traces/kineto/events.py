"""Events of a trace as columns: what analysis needs of millions of events, 49 bytes each.

Times are whole nanoseconds. Names, lanes and recorded details are numbers into lists of the
different ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ABSENT = -1
LARGEST = 2**62
"""Times and sizes from here on are no measurement."""

COLUMNS: dict[str, Any] = {
    "row": np.int32, "category": np.int8, "name": np.int32, "ts_ns": np.int64, "dur_ns": np.int64,
    "lane": np.int32, "link": np.int64, "external": np.int64, "detail": np.int32,
}  # fmt: skip
"""Columns of an event table: `row` is the event's place in the file; `link` the correlation id of
runtime calls and device events, the record function id of ops and annotations; `external` the id
that the profiler gave an op (of a device event: to its op); `lane` and `detail` numbers into the
lists of that name. -1 is absent."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where events happen one after another: a stream of a device, or a thread of the host."""

    on_device: bool
    group: str
    """Number of the device, or process of the host."""
    member: str
    """Number of the stream, or thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What was recorded of an event besides its time."""

    dims: Any = None
    """Sizes of an op's arguments in schema order (`record_shapes=True`): a list an argument, of
    lists for tensor lists, empty for what is no tensor."""
    types: tuple[str, ...] = ()
    strides: Any = None
    concrete: Any = None
    """Values of arguments that are no tensors, as text; newer releases only."""
    size_bytes: int = ABSENT
    """Of a copy or fill."""
    collective: str = ""
    """What a collective was called as; empty for what is none."""
    elements: int = ABSENT
    """Of a collective's larger buffer on this rank."""
    dtype: str = ""
    """Of a collective's elements."""
    ranks: int = ABSENT
    """Of a collective's group."""


@dataclass(slots=True)
class EventTable:
    """Events by start, longer ones first."""

    columns: dict[str, NDArray[Any]]
    names: list[str]
    lanes: list[Lane]
    details: list[Detail]

    def __len__(self) -> int:
        return len(self.columns["ts_ns"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def take(self, index: NDArray[Any]) -> EventTable:
        """The events at `index`; the lists are shared."""
        columns = {name: values[index] for name, values in self.columns.items()}
        return EventTable(columns, self.names, self.lanes, self.details)

    def only(self, *columns: str) -> EventTable:
        """The same events with some of the columns."""
        kept = {name: self.columns[name] for name in columns}
        return EventTable(kept, self.names, self.lanes, self.details)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """Ends of the events."""
        return np.asarray(self["ts_ns"] + self["dur_ns"])

    def name_of(self, index: int) -> str:
        """The name of one event."""
        return self.names[int(self["name"][index])]

    def detail_of(self, index: int) -> Detail | None:
        """What was recorded of one event."""
        number = int(self["detail"][index])
        return None if number == ABSENT else self.details[number]


def to_ns(value: object) -> int | None:
    """Nanoseconds of a time in microseconds as it stands in a trace; None when it is no number.

    A number with a fraction is text here: a binary float would lose what lies below a quarter of a
    microsecond in a time since 1970.
    """
    if type(value) is int:
        return value * 1000
    if type(value) is not str:
        return None
    try:
        if value[-4:-3] == "." and value[-3:].isdigit():  # as Kineto writes it
            return int(value[:-4] + value[-3:])
        whole, point, fraction = value.partition(".")
        if point and fraction.isdigit() and whole.lstrip("-").isdigit():
            part = int((fraction + "00")[:3]) + (fraction[3:4] >= "5")
            return int(whole) * 1000 + (-part if whole.startswith("-") else part)
        number = float(value) * 1000
    except ValueError:
        return None
    return round(number) if abs(number) < LARGEST else None
