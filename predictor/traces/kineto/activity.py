"""What a device did: its events by stream and kind, and how each came to be launched.

Where no device was traced, the host is the device: a thread is a stream, and its outermost ops are
what runs on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.traces.kineto.events import ABSENT, EventTable
from predictor.traces.kineto.intervals import Union, union
from predictor.traces.kineto.names import (
    KERNEL,
    KINDS,
    Kind,
    is_communication,
    is_graph_launch,
)
from predictor.traces.kineto.trace import Trace

HOST = "host"
"""Name of the device of a trace without one."""


@dataclass(slots=True, kw_only=True)
class Activity:
    """Events of one device, by start; N of them."""

    device: str
    """Its number, or `HOST`."""
    events: EventTable
    kind: NDArray[np.int8]
    """(N,) index into `KINDS`."""
    launch: NDArray[np.int64]
    """(N,) index of the runtime call behind each event in `launches`; -1 where none is recorded."""
    launches: EventTable
    """Runtime calls of the trace."""
    replayed: NDArray[np.bool_]
    """(N,) whether a captured graph was replayed: one call launched many kernels."""

    def __len__(self) -> int:
        return len(self.events)

    @property
    def launch_ns(self) -> NDArray[np.int64]:
        """(N,) when the host launched each event; its own start where that is not recorded."""
        known = self.launch != ABSENT
        at = self.events["ts_ns"].copy()
        at[known] = self.launches["ts_ns"][self.launch[known]]
        return np.asarray(at)

    def union_of(self, kind: Kind | None = None) -> Union:
        """When something (of a kind) ran on any stream."""
        some = slice(None) if kind is None else self.kind == KINDS.index(kind)
        return union(self.events["ts_ns"][some], self.events.end_ns[some])

    def by_stream(self) -> dict[str, Union]:
        """When each stream was busy."""
        found = {}
        for number in np.unique(self.events["lane"]):
            some = self.events["lane"] == number
            found[self.events.lanes[number].member] = union(
                self.events["ts_ns"][some], self.events.end_ns[some]
            )
        return found


def activities(trace: Trace) -> list[Activity]:
    """One for each device that did something, the host alone where none was traced."""
    launches = trace.runtime
    if not trace.on_device:
        return [_host_activity(trace, launches)]
    events = trace.device
    device_of_lane = np.array([lane.group for lane in events.lanes])
    devices = device_of_lane[events["lane"]]
    different = sorted(set(np.unique(devices).tolist()))
    if len(different) == 1:
        return [_activity(different[0], events, launches)]
    return [
        _activity(device, events.take(np.flatnonzero(devices == device)), launches)
        for device in different
    ]


def _activity(device: str, events: EventTable, launches: EventTable) -> Activity:
    launch = _launches_of(events, launches)
    graph_names = np.array([is_graph_launch(name) for name in launches.names], dtype=bool)
    replayed = np.zeros(len(events), dtype=bool)
    known = launch != ABSENT
    replayed[known] = graph_names[launches["name"][launch[known]]]
    return Activity(
        device=device, events=events, kind=kinds_of(events), launch=launch, launches=launches,
        replayed=replayed,
    )  # fmt: skip


def kinds_of(events: EventTable) -> NDArray[np.int8]:
    """Index into `KINDS` of device events: by metadata, name and category."""
    named = np.array([is_communication(name) for name in events.names], dtype=bool)
    told = np.array([bool(d.collective) for d in events.details] + [False], dtype=bool)
    kernels = events["category"] == KERNEL
    talks = kernels & (named[events["name"]] | told[events["detail"]])
    kind = np.where(kernels, KINDS.index("compute"), KINDS.index("copy"))
    return np.where(talks, KINDS.index("communication"), kind).astype(np.int8)


def _launches_of(events: EventTable, launches: EventTable) -> NDArray[np.int64]:
    """Index of the runtime call with the correlation id of each event."""
    found = np.full(len(events), ABSENT, dtype=np.int64)
    usable = np.flatnonzero(launches["link"] >= 0)
    if len(usable) == 0:
        return found
    ids = launches["link"][usable]
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], events["link"]), len(ids) - 1)
    same = (ids[order][place] == events["link"]) & (events["link"] >= 0)
    found[same] = usable[order][place[same]]
    return found


def _host_activity(trace: Trace, launches: EventTable) -> Activity:
    ops = trace.ops
    outer = ops.take(np.sort(_outermost(ops)))
    n = len(outer)
    return Activity(
        device=HOST, events=outer, kind=np.zeros(n, dtype=np.int8), launches=launches,
        launch=np.full(n, ABSENT, dtype=np.int64), replayed=np.zeros(n, dtype=bool),
    )  # fmt: skip


def _outermost(ops: EventTable) -> NDArray[np.int64]:
    """Ops that lie in no other op of their thread."""
    found = []
    for lane in np.unique(ops["lane"]):
        here = np.flatnonzero(ops["lane"] == lane)
        reach = np.maximum.accumulate(ops.end_ns[here])
        outer = np.concatenate([[True], ops["ts_ns"][here][1:] >= reach[:-1]])
        found.append(here[outer])
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
