"""Traces written event by event."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

MAIN, BACKWARD = 11, 12
"""Threads of the host."""


@dataclass
class TraceWriter:
    """Collects events; times are microseconds from `base`."""

    folder: Path
    base: float = 1000.0
    events: list[dict[str, Any]] = field(default_factory=list)
    head: dict[str, Any] = field(default_factory=lambda: {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}],
    })  # fmt: skip
    correlation: int = 100

    def add(self, cat: str, name: str, start: float, dur: float, **more: Any) -> dict[str, Any]:
        event = {
            "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": more.pop("tid", MAIN),
            "ts": self.base + start, "dur": dur, "args": more.pop("args", {}), **more,
        }  # fmt: skip
        self.events.append(event)
        return event

    def op(self, name: str, start: float, dur: float, *, tid: int = MAIN, **args: Any) -> None:
        self.add(
            "cpu_op",
            name,
            start,
            dur,
            tid=tid,
            args={k.replace("_", " "): v for k, v in args.items()},
        )

    def step(self, number: int, start: float, dur: float) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", start, dur)

    def kernel(
        self, name: str, start: float, dur: float, *, stream: int = 7,
        launched: float | None = None, cat: str = "kernel", call: str = "cudaLaunchKernel",
        device: int = 0, tid: int = MAIN,
        **args: Any,
    ) -> None:  # fmt: skip
        self.correlation += 1
        if launched is not None:
            self.add(
                "cuda_runtime", call, launched, 1.0, tid=tid, args={"correlation": self.correlation}
            )
        self.add(
            cat, name, start, dur, tid=stream,
            args={"device": device, "stream": stream, "correlation": self.correlation, **args},
        )  # fmt: skip

    def text(self) -> str:
        return json.dumps({**self.head, "traceEvents": self.events})

    def write(self, name: str = "trace.json", *, gzipped: bool | None = None) -> Path:
        path = self.folder / name
        data = self.text().encode()
        packed = name.endswith(".gz") if gzipped is None else gzipped
        path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
        return path


@pytest.fixture
def writer(tmp_path: Path) -> TraceWriter:
    return TraceWriter(tmp_path)


@pytest.fixture
def torch_trace(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Real traces of a step function on the CPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    def record(step: Callable[[], Any], *, steps: int = 3, name: str = "cpu.json") -> Path:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as p:
            for number in range(steps):
                with torch.profiler.record_function(f"ProfilerStep#{number}"):
                    step()
        p.export_chrome_trace(str(tmp_path / name))
        return tmp_path / name

    yield record
