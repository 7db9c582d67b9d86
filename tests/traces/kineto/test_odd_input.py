"""Odd values anywhere in an event: a trace is read or refused, never a crash."""

from __future__ import annotations

import json
import logging

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.errors import PredictorError
from predictor.traces.kineto.target import graph_of_trace
from predictor.traces.merge import merged
from predictor.traces.sources.kineto import TraceImport
from predictor.traces.store import write_imported

ODD = st.sampled_from(
    [None, -1, 0, 1, 2**70, -(2**70), 1.5, "x", "", "7", [], [1], [[1, 2], [3]], {}, {"a": 1}, True]
)
GOOD = {
    "ph": "X", "cat": "kernel", "name": "aten::mm", "pid": 1, "tid": 11, "ts": 100.5, "dur": 7.25,
}  # fmt: skip
ARGS = {
    "External id": 3, "correlation": 5, "device": 0, "stream": 7, "bytes": 64, "Ev Idx": 2,
    "Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"],
    "Input Strides": [[8, 1], [2, 1]], "Concrete Inputs": ["", ""], "Record function id": 3,
}  # fmt: skip
CATEGORIES = ["kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "cuda_runtime", "user_annotation"]


@st.composite
def events(draw):
    event = {**GOOD, "cat": draw(st.sampled_from(CATEGORIES)), "ts": draw(st.integers(90, 120))}
    event["name"] = draw(
        st.sampled_from(["aten::mm", "aten::sum", "ProfilerStep#3", "Memcpy HtoD", "nccl"])
    )
    args = {k: v for k, v in ARGS.items() if draw(st.booleans())}
    if draw(st.integers(0, 3)) == 0:
        args["Collective name"] = draw(ODD)
        args["In msg nelems"] = draw(ODD)
    if args and draw(st.booleans()):
        args[draw(st.sampled_from(sorted(args)))] = draw(ODD)
    event["args"] = args
    if draw(st.integers(0, 3)) == 0:
        event[draw(st.sampled_from(sorted(event)))] = draw(ODD)
    return event


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(events(), min_size=1, max_size=12), ODD, ODD)
def test_odd_values_are_read_or_refused(tmp_path, found, head, devices):
    logging.disable()
    path = tmp_path / "t.json"
    path.write_text(json.dumps(
        {"distributedInfo": head, "deviceProperties": devices, "traceEvents": found}
    ))  # fmt: skip
    try:
        data = merged(TraceImport(data=path, device="nvidia-l4").parts())
        assert (data.kernels["latency_us"] > 0).all()
        graph_of_trace(path)
    except PredictorError as error:
        assert str(error)
    finally:
        logging.disable(logging.NOTSET)


def test_half_characters_of_json_can_be_written(tmp_path):
    half = "\ud800"
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 11}
    call = {**GOOD, "cat": "cpu_op", "name": half, "ts": 90, "args": {"External id": 3}}
    kernel = {**GOOD, "name": half, "args": {**ARGS, "External id": 3}}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({
        "deviceProperties": [{"id": 0, "name": half}], "pytorch_version": half,
        "traceEvents": [call, {**launch, "ts": 92, "dur": 1, "args": {"correlation": 5}}, kernel],
    }))  # fmt: skip
    report = write_imported("kineto", TraceImport(data=path).parts(), tmp_path / "out")
    assert report.dropped
    assert "?" in (tmp_path / "out" / "rejects.json").read_text(encoding="utf-8")
