"""Reading a trace: times, rank, devices, what is dropped."""

from __future__ import annotations

import json

import pytest

from predictor.errors import DataError
from predictor.traces.kineto.events import Lane, to_ns
from predictor.traces.kineto.names import (
    category_of,
    collective_of,
    is_communication,
    is_graph_launch,
    short_name,
    step_number,
)
from predictor.traces.kineto.trace import NotATraceError, read_trace


@pytest.mark.parametrize(
    ("microseconds", "ns"),
    [
        (12, 12_000), ("12.5", 12_500), ("1712195495519689.047", 1712195495519689047),
        ("4458676522690.6554", 4458676522690655), ("0.9996", 1000), ("-1.25", -1250),
        ("1e3", 1_000_000), ("nothing", None), (None, None), ("1e400", None), ("abc.123", None),
        ("--1.234", None), ("1.²³⁴", None), ("9" * 5000 + ".5", None),
    ],
)  # fmt: skip
def test_times_become_whole_nanoseconds_without_loss(microseconds, ns):
    assert to_ns(microseconds) == ns


def test_a_single_process_without_distributed_info_is_rank_0(writer):
    writer.head["baseTimeNanoseconds"] = 1711964646000000000
    writer.base = 0
    writer.kernel("k", 10.125, 2.5, launched=1)
    trace = read_trace(writer.write())
    assert (trace.header.rank, trace.header.world_size) == (0, 1)
    assert not trace.header.tells_rank
    assert trace.header.base_time_ns == 1711964646000000000
    assert trace.device["ts_ns"].tolist() == [10125]
    assert trace.device["dur_ns"].tolist() == [2500]


def test_rank_and_device_as_told(writer):
    writer.head["distributedInfo"] = {"backend": "nccl", "rank": 3, "world_size": 8}
    writer.kernel("k", 1, 2, device=0)
    trace = read_trace(writer.write())
    assert (trace.header.rank, trace.header.world_size) == (3, 8)
    assert trace.header.device_names == {"0": "NVIDIA A100-SXM4-40GB"}


def test_gzip_named_json_and_json_named_gzip(writer):
    writer.kernel("k", 1, 2)
    packed = read_trace(writer.write("a.json", gzipped=True))
    plain = read_trace(writer.write("b.json.gz", gzipped=False))
    assert len(packed.device) == len(plain.device) == 1
    assert packed.file.sha256 == plain.file.sha256


def test_events_without_time_or_duration_are_dropped_and_counted(writer):
    writer.kernel("good", 1, 2)
    writer.kernel("no duration", 5, 0)
    writer.kernel("at zero", -writer.base, 2)
    writer.kernel("before zero", -2000, 2)
    writer.add("kernel", "none", 1, 1)["dur"] = None
    writer.op("aten::view", 7, 0)
    trace = read_trace(writer.write())
    assert trace.dropped == {"device_event_without_duration": 2, "device_event_without_time": 2}
    assert (trace.ops.name_of(0), trace.device.name_of(0)) == ("aten::view", "good")
    assert (len(trace.ops), len(trace.device)) == (1, 1)


def test_older_traces_name_categories_and_streams_otherwise(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [
        {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 5, "dur": 1},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0,
         "tid": "stream 7", "ts": 9, "dur": 1, "args": {"bytes": 200, "external id": 3981}},
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 1, "tid": "1", "ts": 1, "dur": 1},
    ]}))  # fmt: skip
    trace = read_trace(path)
    events = trace.device
    assert [events.lanes[i] for i in events["lane"]] == [Lane(True, "0", "7")] * 2
    assert events["external"].tolist() == [-1, 3981]
    assert events.detail_of(1).size_bytes == 200
    assert trace.ops.name_of(0) == "aten::mm"


def test_what_is_no_trace_says_what_it_is(tmp_path, writer):
    for text, message in (
        ('{"schema": "1.0.1", "nodes": []}', "no profiler trace .* keys: schema, nodes"),
        ('{"traceEvents": 3}', "no list of events"),
        ('{"traceEvents": []}', "no op or kernel among 0 events"),
        ('{"traceEvents": [{"ph": "X", "cat": "Trace", "ts": 1, "dur": 1}]}', "others: 1 Trace"),
    ):
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(NotATraceError, match=message):
            read_trace(path)
    writer.kernel("k", 1, 2)
    path.write_text(writer.text()[:-30])
    with pytest.raises(DataError, match="cut off"):
        read_trace(path)


def test_a_trace_with_events_left_out_is_known_by_the_numbers_of_its_ops(writer):
    for i in range(10):
        writer.op("aten::mm", i, 1, Ev_Idx=10 * i)
    trace = read_trace(writer.write())
    assert trace.recorded_share == pytest.approx(10 / 91)
    assert trace.sampled


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "nccldevkernel_allreduce_sum_bf16_ring_ll",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "rcclGenericKernel<1, false>(rcclDevComm*)",
        "void vllm::cross_device_reduce_1stage<float, 2>(RankData*)",
    ],
)
def test_collectives_old_and_new_are_communication(name):
    assert is_communication(name)


@pytest.mark.parametrize("name", ["ampere_sgemm_32x32", "reduce_kernel", "Memcpy HtoD", "synccl_x"])
def test_others_are_not(name):
    assert not is_communication(name)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce"), ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"), ("ncclKernel_AllGather_RING_LL", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"), ("all_to_allv", "all_to_all"),
        ("ncclDevKernel_SendRecv(x)", "send_recv"), ("rcclGenericKernel", "collective"),
        ("broadcast", "collective"), ("ncclDevKernel_ReduceScatter_Sum", "reduce_scatter"),
    ],
)  # fmt: skip
def test_kinds_of_collectives(name, op):
    assert collective_of(name) == op


def test_small_names():
    assert step_number("ProfilerStep#1009") == 1009
    assert step_number("ProfilerStep* 3") is None
    assert step_number("## forward ##") is None
    assert is_graph_launch("cudaGraphLaunch") and is_graph_launch("hipGraphLaunch")
    assert not is_graph_launch("cudaLaunchKernel")
    assert category_of("XPU_Runtime") == category_of("cuda_driver") == category_of("Runtime")
    assert category_of("python_function") is None
    assert short_name("void at::native::foo_kernel<4, Bar<float>>(int)") == "at::native::foo_kernel"
    assert len(short_name("x" * 200)) == 60
