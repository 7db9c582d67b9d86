"""One trace file: who recorded it, on which devices, and its events."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from predictor.errors import DataError
from predictor.traces.files import SourceFile, encodable
from predictor.traces.kineto.content import TraceContent
from predictor.traces.kineto.event_builder import EventBuilder
from predictor.traces.kineto.events import EventTable
from predictor.traces.kineto.scan import JsonStream

EVENTS = "traceEvents"
_COMPLETE = 0.9
"""Share of the profiler's numbered ops that a trace must hold not to count as sampled."""


class NotATraceError(DataError):
    """A JSON file without trace events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """What a trace says about itself."""

    name: str
    rank: int
    """0 where the file does not tell: a single process records no `distributedInfo`."""
    world_size: int
    """1 where the file does not tell."""
    device_names: Mapping[str, str]
    """As the runtime prints them, by device number; empty where the file does not tell."""
    base_time_ns: int
    """What times count from: nanoseconds since 1970, 0 where they are that themselves."""
    tells_rank: bool = True
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of software that the file tells."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """A trace as read."""

    header: TraceHeader
    ops: EventTable
    annotations: EventTable
    runtime: EventTable
    """Calls of the runtime that launched something on a device."""
    device: EventTable
    """Kernels, copies and fills."""
    file: SourceFile
    dropped: Counter[str]
    """Events that can be no measurement (no time, no duration), by rule."""
    passed_over: Counter[str]
    """Events that analysis does not use, by category."""
    mended: int
    """Events that were no JSON as written (`inf`, `N/A`, …)."""
    recorded_share: float | None
    """Share of the ops that the profiler numbered which are in the file; None without numbers."""

    @property
    def on_device(self) -> bool:
        """Whether a device did something, or the host alone was traced."""
        return len(self.device) > 0

    @property
    def sampled(self) -> bool:
        """Whether a part of the events was left out: sums over it are too small."""
        return self.recorded_share is not None and self.recorded_share < _COMPLETE


def read_trace(path: Path, name: str | None = None) -> Trace:
    """Read a trace, plain or gzipped whatever it is called, in bounded memory.

    Args:
        path: the file.
        name: how messages and rows call it; the file's own name when not given.

    Raises:
        NotATraceError: JSON without trace events, or with none of an op or device.
        DataError: the file cannot be read, is no JSON, or is cut off.
    """
    content = TraceContent(path=path, name=name or path.name)
    stream = JsonStream(content.pieces(), content.name)
    builder = EventBuilder()
    head: dict[str, Any] = {}
    found = False
    with _no_cycle_search():
        for key, value in stream.members(EVENTS):
            if key != EVENTS:
                head[key] = value
            elif isinstance(value, list):
                found = True
                builder.add(value)
            else:
                raise NotATraceError(f"{content.name}: {EVENTS} is no list of events")
        stream.finish()
    if not found:
        keys = ", ".join(list(head)[:6]) or "none"
        raise NotATraceError(f"{content.name}: no profiler trace (no {EVENTS}; keys: {keys})")
    share = None
    if builder.last_recorded > 0:
        share = min(1.0, builder.recorded / (builder.last_recorded + 1))
    dropped, passed_over = builder.dropped, builder.passed_over
    ops, annotations, runtime, device = builder.tables()
    launching = np.flatnonzero(np.isin(runtime["link"], device["link"]))
    runtime = runtime.only("name", "ts_ns", "dur_ns", "lane", "link").take(launching)
    if len(ops) == len(device) == 0:
        kinds = ", ".join(f"{n} {c}" for c, n in passed_over.most_common(4)) or "none"
        raise NotATraceError(
            f"{content.name}: no op or kernel among {builder.seen:,} events (others: {kinds}); "
            "record the trace with activities=[CPU, CUDA]"
        )
    return Trace(
        header=_header(content.name, head), dropped=dropped, ops=ops, annotations=annotations,
        runtime=runtime, device=device,
        file=SourceFile(path=content.name, sha256=content.sha256, rows=builder.seen),
        passed_over=passed_over, mended=stream.mended, recorded_share=share,
    )  # fmt: skip


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Parsed events hold no cycles: looking for them takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _header(name: str, head: Mapping[str, Any]) -> TraceHeader:
    told = head.get("distributedInfo")
    distributed = told if isinstance(told, dict) else {}
    devices = head.get("deviceProperties")
    names = {
        str(d.get("id", i)): encodable(str(d["name"]))
        for i, d in enumerate(devices if isinstance(devices, list) else [])
        if isinstance(d, dict) and d.get("name")
    }
    versions = {
        k: encodable(str(v))
        for k, v in head.items()
        if "version" in k.lower() and k != "schemaVersion"
    }
    return TraceHeader(
        name=name, rank=_count(distributed.get("rank"), 0), device_names=names,
        world_size=max(1, _count(distributed.get("world_size"), 1)), versions=versions,
        base_time_ns=_count(head.get("baseTimeNanoseconds"), 0),
        tells_rank=isinstance(distributed.get("rank"), int),
    )  # fmt: skip


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default
