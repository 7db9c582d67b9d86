"""The published traces, read as a whole by another way: needs `PREDICTOR_TRACES`."""

from __future__ import annotations

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path

import pytest

from predictor.traces.kineto.activity import activities
from predictor.traces.kineto.steps import steps_of
from predictor.traces.kineto.summary import summaries
from predictor.traces.kineto.trace import NotATraceError, read_trace

ROOT = Path(os.environ.get("PREDICTOR_TRACES", "")) / "kineto"
pytestmark = pytest.mark.skipif(
    "PREDICTOR_TRACES" not in os.environ or not ROOT.is_dir(),
    reason="published traces: set PREDICTOR_TRACES to the folder that holds kineto/",
)
FILES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.gz")) if ROOT.is_dir() else []
TRACES = [f for f in FILES if "_et" not in f]
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def device_spans(path):
    """Start and end in nanoseconds of every device event, exactly as written."""
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    spans = []
    for event in events:
        if event.get("cat") in DEVICE and event["dur"] > 0 and event["ts"] > 0:
            start = round(Decimal(event["ts"]) * 1000)
            spans.append((start, start + round(Decimal(event["dur"]) * 1000)))
    return sorted(spans)


def swept(spans):
    """Length of the union by a sweep over sorted spans."""
    total, reach = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def test_all_thirteen_files_are_there():
    assert len(FILES) == 13
    assert len(TRACES) == 8


@pytest.mark.parametrize("file", TRACES)
def test_busy_time_is_the_union_of_device_intervals(file):
    trace = read_trace(ROOT / file)
    spans = device_spans(ROOT / file)
    for keep_last in (True, False):
        (summary,) = summaries(trace, keep_last=keep_last)
        start, end = steps_of(trace, activities(trace)[0]).window(keep_last=keep_last)
        inside = [(max(a, start), min(b, end)) for a, b in spans if a < end and b > start]
        assert summary.busy_us * summary.steps * 1000 == pytest.approx(swept(inside), abs=1)
        period = summary.busy_us + summary.idle_us
        assert period * summary.steps * 1000 == pytest.approx(end - start, abs=1)


@pytest.mark.parametrize("file", sorted(set(FILES) - set(TRACES)))
def test_execution_graphs_are_refused_as_traces_with_the_reason(file):
    with pytest.raises(NotATraceError, match=r"no profiler trace .*schema"):
        read_trace(ROOT / file)


def test_what_the_card_says_of_the_files():
    by_name = {Path(f).name: read_trace(ROOT / f) for f in TRACES}
    control = by_name["control.json.gz"]
    assert (control.header.rank, control.header.world_size) == (3, 8)
    (s,) = summaries(control)
    assert (s.device, s.steps, s.steps_left_out) == ("NVIDIA A100-PG509-200", 5, 1)
    assert s.communication_us > 0 and s.overlap_us > 0
    assert by_name["sampled_rank-0.json.gz"].sampled
    assert not any(t.sampled for n, t in by_name.items() if n != "sampled_rank-0.json.gz")
    (resnet,) = summaries(by_name["resnet_kineto.json.gz"])
    assert (resnet.steps_found, resnet.steps) == ("optimizer", 30)
    ns = by_name["rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"]
    assert (ns.device["ts_ns"] % 1000 != 0).any()
