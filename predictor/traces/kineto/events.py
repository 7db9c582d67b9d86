"""Events of a trace as columns: what analysis needs of millions of events, 49 bytes each.

Times are whole nanoseconds. Names, lanes and recorded details are numbers into lists of the
different ones. Flow arrows, counters, Python frames and metadata are passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.traces.kineto.names import ANNOTATION, DEVICE_CATEGORIES, OP, RUNTIME, category_of

ABSENT = -1
_LARGEST = 2**62
_FLUSH_ROWS = 1 << 15
GROUPS: tuple[tuple[int, ...], ...] = ((OP,), (ANNOTATION,), (RUNTIME,), DEVICE_CATEGORIES)
"""Categories that are looked at together."""
_RECORDED = frozenset({OP, ANNOTATION})
"""Categories whose events have a record function id."""
_ON_DEVICE = frozenset(DEVICE_CATEGORIES)
_WHAT = ("host_event", "device_event")
_DETAIL_KEYS: tuple[str, ...] = (
    "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Collective name", "dtype",
    "In msg nelems", "Out msg nelems", "Group size",
)  # fmt: skip

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
        return len(self.columns["row"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def take(self, index: NDArray[Any]) -> EventTable:
        """The events at `index`; the lists are shared."""
        columns = {name: values[index] for name, values in self.columns.items()}
        return EventTable(columns, self.names, self.lanes, self.details)

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
    if value[-4:-3] == "." and value[-3:].isdigit():  # as Kineto writes it
        return int(value[:-4] + value[-3:])
    whole, point, fraction = value.partition(".")
    if point and fraction.isdigit() and whole.lstrip("-").isdigit():
        part = int((fraction + "00")[:3]) + (fraction[3:4] >= "5")
        return int(whole) * 1000 + (-part if whole.startswith("-") else part)
    try:
        number = float(value) * 1000
    except ValueError:
        return None
    return round(number) if abs(number) < _LARGEST else None


@dataclass(slots=True)
class EventBuilder:
    """Takes events as parsed and keeps their columns."""

    dropped: Counter[str] = field(default_factory=Counter)
    """Events that can be no measurement, by rule."""
    passed_over: Counter[str] = field(default_factory=Counter)
    """Events of other kinds, by category."""
    seen: int = 0
    recorded: int = 0
    """Ops and annotations with a number of the profiler (`Ev Idx`)."""
    last_recorded: int = ABSENT
    """The largest such number: with `recorded` it tells whether events are missing."""
    _rows: list[tuple[int, ...]] = field(default_factory=list)
    _columns: dict[str, NDArray[Any]] = field(
        default_factory=lambda: {n: np.empty(_FLUSH_ROWS, dtype=d) for n, d in COLUMNS.items()}
    )
    _kept: int = 0
    _categories: dict[str, int | None] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _lanes: dict[Lane, int] = field(default_factory=dict)
    _lane_keys: dict[tuple[bool, str, str], int] = field(default_factory=dict)
    _detail_keys: dict[str | int, int] = field(default_factory=dict)
    _details: list[Detail] = field(default_factory=list)

    def add(self, events: Sequence[Any]) -> None:
        """Take some events."""
        keep, categories = self._keep, self._categories
        for number, event in enumerate(events, self.seen):
            if type(event) is not dict:
                self.dropped["event_is_no_object"] += 1
                continue
            if event.get("ph") != "X":
                continue
            label, args = event.get("cat"), event.get("args")
            if type(args) is not dict:
                args = {}
            if type(label) is not str:
                label = str(label)
            if label not in categories:
                categories[label] = category_of(label)
            category = categories[label]
            if category is None or category in _RECORDED:
                self._count_recorded(args)
            if category is None:
                self.passed_over[label] += 1
            else:
                keep(number, category, event, args)
        self.seen += len(events)
        if len(self._rows) >= _FLUSH_ROWS:
            self._flush()

    def _count_recorded(self, args: dict[str, Any]) -> None:
        index = args.get("Ev Idx")
        if index is None:
            index = args.get("Profiler Event Index")
        if type(index) is int:
            self.recorded += 1
            if index > self.last_recorded:
                self.last_recorded = index

    def _keep(
        self, number: int, category: int, event: dict[str, Any], args: dict[str, Any]
    ) -> None:
        ts, dur = to_ns(event.get("ts")), to_ns(event.get("dur"))
        on_device = category in _ON_DEVICE
        if ts is None or not 0 < ts < _LARGEST:
            self.dropped[f"{_WHAT[on_device]}_without_time"] += 1
            return
        if dur is None or not 0 <= dur < _LARGEST or (on_device and dur == 0):
            self.dropped[f"{_WHAT[on_device]}_without_duration"] += 1
            return
        pid, tid = event.get("pid"), event.get("tid")
        link, detail = "correlation", ABSENT
        if on_device:
            lane = self._lane(True, args.get("device", pid), args.get("stream", tid))
            detail = self._device_detail(args)
        else:
            lane = self._lane(False, pid, tid)
            if category in _RECORDED:
                link, detail = "Record function id", self._host_detail(args)
        name = event.get("name", "")
        if type(name) is not str:
            name = str(name)
        names = self._names
        external = args.get("External id")
        if external is None:
            external = args.get("external id")
        self._rows.append((
            number, category, names.setdefault(name, len(names)), ts, dur, lane,
            _whole(args.get(link)), _whole(external), detail,
        ))  # fmt: skip

    def _lane(self, on_device: bool, group: Any, member: Any) -> int:
        key = (on_device, str(group), str(member))
        found = self._lane_keys.get(key)
        if found is None:
            lane = (
                Lane(on_device, _last_word(key[1]), _last_word(key[2])) if on_device else Lane(*key)
            )
            found = self._lane_keys[key] = self._lanes.setdefault(lane, len(self._lanes))
        return found

    def _device_detail(self, args: dict[str, Any]) -> int:
        size = _whole(args.get("bytes"))
        if "Collective name" in args:
            return self._detail(args, size)
        if size == ABSENT:
            return ABSENT
        number = self._detail_keys.get(size)
        if number is None:
            number = self._detail_keys[size] = len(self._details)
            self._details.append(Detail(size_bytes=size))
        return number

    def _host_detail(self, args: dict[str, Any]) -> int:
        if "Input Dims" in args or "Collective name" in args:
            return self._detail(args, ABSENT)
        return ABSENT

    def _detail(self, args: dict[str, Any], size: int) -> int:
        keys = _DETAIL_KEYS if "Collective name" in args else _DETAIL_KEYS[:4]
        key = repr([args.get(k) for k in keys])
        number = self._detail_keys.get(key)
        if number is not None:
            return number
        types = args.get("Input type")
        elements = max(_whole(args.get("In msg nelems")), _whole(args.get("Out msg nelems")))
        number = self._detail_keys[key] = len(self._details)
        self._details.append(Detail(
            dims=args.get("Input Dims"),
            types=tuple(str(t) for t in types) if isinstance(types, list) else (),
            strides=args.get("Input Strides"), concrete=args.get("Concrete Inputs"),
            collective=str(args.get("Collective name", "")), elements=elements,
            dtype=str(args.get("dtype", "")), ranks=_whole(args.get("Group size")), size_bytes=size,
        ))  # fmt: skip
        return number

    def _flush(self) -> None:
        """Move the rows at hand into the columns, which grow by half where they are full."""
        if not self._rows:
            return
        end = self._kept + len(self._rows)
        for name, values in zip(COLUMNS, zip(*self._rows, strict=True), strict=True):
            column = self._columns[name]
            if end > len(column):
                larger = np.empty(max(end, len(column) * 3 // 2), dtype=column.dtype)
                larger[: self._kept] = column[: self._kept]
                column = self._columns[name] = larger
            column[self._kept : end] = values
        self._kept = end
        self._rows.clear()

    def tables(self) -> list[EventTable]:
        """The events of each group of `GROUPS`; the builder is empty afterwards."""
        self._flush()
        kept, self._kept = self._kept, 0
        category, start, length = (
            self._columns[name][:kept] for name in ("category", "ts_ns", "dur_ns")
        )
        orders = []
        for group in GROUPS:
            index = np.flatnonzero(np.isin(category, group)).astype(np.int32)
            orders.append(index[np.lexsort((-length[index], start[index]))])
        del category, start, length
        columns: list[dict[str, NDArray[Any]]] = [{} for _ in GROUPS]
        for name in COLUMNS:
            whole = self._columns.pop(name)[:kept]
            for found, order in zip(columns, orders, strict=True):
                found[name] = whole[order]
        names, lanes = list(self._names), list(self._lanes)
        return [EventTable(found, names, lanes, self._details) for found in columns]


def _whole(value: object) -> int:
    """An id or size; -1 when it is none."""
    return value if isinstance(value, int) and -_LARGEST < value < _LARGEST else ABSENT


def _last_word(label: str) -> str:
    """`7` of `stream 7`, as older releases name streams."""
    return label.rpartition(" ")[2]
