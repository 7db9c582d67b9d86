"""From events as parsed to columns.

Flow arrows, counters, Python frames and metadata are passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.traces.files import encodable
from predictor.traces.kineto.events import ABSENT, COLUMNS, LARGEST, Detail, EventTable, Lane, to_ns
from predictor.traces.kineto.names import ANNOTATION, DEVICE_CATEGORIES, OP, RUNTIME, category_of

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
        if ts is None or not 0 < ts < LARGEST:
            self.dropped[f"{_WHAT[on_device]}_without_time"] += 1
            return
        if dur is None or not 0 <= dur < LARGEST or (on_device and dur == 0):
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
        named = names.get(name)
        if named is None:
            named = names.setdefault(encodable(name), len(names))
        external = args.get("External id")
        if external is None:
            external = args.get("external id")
        self._rows.append((
            number, category, named, ts, dur, lane,
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
    return value if isinstance(value, int) and -LARGEST < value < LARGEST else ABSENT


def _last_word(label: str) -> str:
    """`7` of `stream 7`, as older releases name streams."""
    return label.rpartition(" ")[2]
