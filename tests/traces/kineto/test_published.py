"""The published traces, read as a whole by another way: needs `PREDICTOR_TRACES`."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from copy import deepcopy
from decimal import Decimal
from pathlib import Path

import pytest

from predictor import api
from predictor.lower.eager import lower_eager
from predictor.traces.kineto.activity import activities
from predictor.traces.kineto.execution_graph import read_graph
from predictor.traces.kineto.host_calls import host_calls
from predictor.traces.kineto.join import joined_graph
from predictor.traces.kineto.steps import steps_of
from predictor.traces.kineto.summary import summaries
from predictor.traces.kineto.trace import NotATraceError, read_trace
from predictor.traces.kineto.units import UnitReader
from predictor.traces.merge import merged
from predictor.traces.sources.kineto import TraceImport

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


@pytest.fixture(scope="module")
def imported():
    reader = TraceImport(data=ROOT)
    parts = list(reader.parts())
    return reader, parts, merged(deepcopy(parts))


def test_every_file_is_read_or_left_out_with_the_reason(imported):
    reader, _, data = imported
    assert set(data.files) | set(data.left_out) == set(FILES)
    assert set(data.files) == {*TRACES, *reader.joined.values()}
    assert set(data.left_out.values()) == {"an execution graph without a trace of its run"}
    assert len(reader.summaries) == len(TRACES)


def test_calls_kept_and_dropped_are_the_calls_of_the_trace(imported):
    reader, parts, _ = imported
    for part in parts[:-1]:
        (name,) = (f for f in part.files if f in TRACES)
        (activity,) = activities(trace := read_trace(ROOT / name))
        units = list(UnitReader().units(trace, activity, calls_of(trace, activity, reader)))
        kept = int(part.kernels["repeats"].sum())
        assert kept + sum(part.dropped.values()) == len(units)
        assert sum(u.time_ns for u in units) == activity.events["dur_ns"].sum()


def calls_of(trace, activity, reader):
    calls = host_calls(trace, activity)
    graph = reader.joined.get(trace.header.name)
    if graph is not None:
        calls.recorded = joined_graph(trace, [read_graph(ROOT / graph)]).calls_by_row
    return calls


def test_rows_by_device_and_op(imported):
    _, _, data = imported
    assert data.kernels.groupby("device")["op"].count().to_dict() == {
        "nvidia-a100-sxm-40gb": 462, "nvidia-rtx-2080-ti": 20, "nvidia-v100-sxm2-32gb": 23,
    }  # fmt: skip
    linear = data.kernels[data.kernels["op"] == "linear"]
    assert (len(linear), int(linear["repeats"].sum())) == (46, 495)
    assert set(linear["tf32"]) == {"on", "off"}
    assert (data.kernels["flag"] == "waits_for_peers").sum() == 7
    assert not (data.kernels["flag"] == "above_peak").any()
    assert data.kernels["licence"].eq("MIT").all()
    assert dict(data.dropped) == {
        "op_without_shapes": 8730, "in_last_step": 3638, "argument_not_recorded": 790,
        "device_not_named": 427, "op_unknown": 136, "collective_size_not_recorded": 55,
        "kernel_without_op": 49, "launches_without_kernel": 1,
    }  # fmt: skip


def test_steps_of_the_published_traces(imported):
    reader, _, data = imported
    none = Counter(c.no_step_row for c in reader.coverage)
    assert none == {"": 5, "no_step_found": 2, "events_left_out": 1}
    steps = data.steps.set_index("model")
    assert steps.loc["control", ["mode", "dtype", "latency_us", "repeats", "devices"]].tolist() == [
        "train", "fp32", 76786.0, 5.0, 8.0,
    ]  # fmt: skip
    assert len(steps) == 5
    assert steps.loc["event_sync_trace", "flag"] == "single_step"


def test_an_execution_graph_as_a_target_has_the_published_sizes():
    name = "param/et_replay/tests/inputs/resnet_et.json.gz"
    kernels = lower_eager(api.capture(str(ROOT / name))).kernels
    convolutions = [k for k in kernels if k.op == "conv"]
    assert len(convolutions) == 53  # ResNet-50
    assert sum(k.op == "conv_wgrad" for k in kernels) == 53
    forward = sum(k.matmul_flops for k in kernels if k.phase == "forward")
    assert forward / 32 / 1e9 == pytest.approx(8.2, rel=0.02)  # 4.1 GMAC an image
