"""Rows from traces: calls joined to kernels, opaque ones counted, nothing lost."""

from __future__ import annotations

import json

import pytest

from predictor.capture.torch import capture_module
from predictor.errors import DataError
from predictor.features.table import CONTEXTS
from predictor.lower.eager import lower_eager
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.kineto.reading import read_device
from predictor.traces.kineto.trace import read_trace
from predictor.traces.kineto.units import UnitReader
from predictor.traces.merge import merged
from predictor.traces.sources.kineto import TraceImport, parts
from predictor.traces.sources.kineto_coverage import coverage_text

MM = {"Input_Dims": [[64, 32], [32, 16]], "Input_type": ["float", "float"]}
BACKWARD = 12
A100 = "nvidia-a100-sxm-40gb"


def imported(path, **more):
    return merged(TraceImport(data=path, **more).parts())


def reading_of(path):
    (reading,) = read_device(read_trace(path), UnitReader())
    return reading


def test_a_kernel_goes_to_the_op_that_launched_it(writer):
    writer.op("aten::matmul", 0, 30, **MM)
    writer.op("aten::mm", 5, 20, **MM)
    writer.kernel("sgemm", 50, 7.5, launched=10)
    writer.op("aten::mm", 40, 20, **MM)
    writer.kernel("sgemm", 60, 8.5, launched=45)
    rows = imported(writer.write()).kernels
    assert rows[["device", "op", "dtype", "phase", "context"]].values.tolist() == [
        [A100, "matmul", "fp32", "forward", "step"]
    ]
    (row,) = rows.to_dict("records")
    assert (row["dim_m"], row["dim_n"], row["dim_k"], row["dim_batch"]) == (64, 16, 32, 1)
    assert (row["latency_us"], row["spread_us"], row["repeats"]) == (8.0, 0.5, 2)
    assert row["flops"] == 2 * 64 * 32 * 16
    assert row["context"] in CONTEXTS


def test_the_kernels_of_one_call_are_added_up(writer):
    writer.op("aten::mm", 0, 20, **MM)
    writer.kernel("split_k_gemm", 30, 7, launched=5)
    writer.kernel("split_k_reduce", 40, 2, launched=8)
    rows = imported(writer.write()).kernels
    assert rows["latency_us"].tolist() == [9.0]


def test_a_composite_call_gives_a_row_for_each_of_its_kernels(writer):
    dims = {"Input_Dims": [[4, 8, 9, 9], [16, 8, 3, 3], [16], [], [], [], []],
            "Input_type": ["float"] * 3 + ["ScalarList"] * 3 + ["Scalar"],
            "Concrete_Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]}  # fmt: skip
    writer.op("aten::conv2d", 0, 40, **dims)
    writer.op("aten::cudnn_convolution", 5, 10)
    writer.kernel("scudnn_tf32", 50, 20, launched=8)
    writer.op("aten::add_", 20, 10)
    writer.kernel("elementwise", 70, 3, launched=25)
    rows = imported(writer.write()).kernels
    assert rows[["op", "latency_us", "tf32"]].values.tolist() == [
        ["conv", 20.0, "on"], ["add", 3.0, ""],
    ]  # fmt: skip


def test_phases_follow_autograd_and_the_optimizer(writer):
    writer.op("aten::mm", 0, 10, **MM)
    writer.kernel("a", 100, 1, launched=2)
    writer.op("autograd::engine::evaluate_function: MmBackward0", 20, 30, tid=BACKWARD)
    writer.op("aten::mm", 25, 10, tid=BACKWARD, **MM)
    writer.kernel("a", 110, 1, launched=27, tid=BACKWARD)
    writer.add("user_annotation", "Optimizer.step#SGD.step", 60, 20)
    writer.op(
        "aten::add_", 65, 10, Input_Dims=[[64], [64], []], Input_type=["float", "float", "Scalar"]
    )
    writer.kernel("b", 120, 1, launched=67)
    data = imported(writer.write())
    assert data.kernels[["op", "phase"]].values.tolist() == [
        ["matmul", "forward"], ["matmul", "backward"], ["add", "optimizer"],
    ]  # fmt: skip


def test_copies_across_the_bus_and_fills_are_known_by_their_bytes(writer):
    writer.kernel("Memcpy HtoD (Pinned -> Device)", 0, 5, cat="gpu_memcpy", bytes=4096)
    writer.kernel("Memset (Device)", 10, 2, cat="gpu_memset", bytes=512)
    writer.op("aten::copy_", 20, 20, Input_Dims=[[8, 4], [8, 4], []],
              Input_type=["float", "float", "Scalar"])  # fmt: skip
    writer.kernel(
        "Memcpy DtoH (Device -> Pageable)", 50, 3, cat="gpu_memcpy", launched=25, bytes=128
    )
    rows = imported(writer.write()).kernels
    found = rows.set_index("op")
    assert found.loc["fill", ["dtype", "dim_numel"]].tolist() == ["uint8", 512]
    assert rows[rows["op"] == "transfer"][["dtype", "dim_numel"]].values.tolist() == [
        ["fp32", 32], ["uint8", 4096],
    ]  # fmt: skip


def test_a_collective_has_its_buffer_and_group_and_is_flagged(writer):
    writer.kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 0, 50,
        **{"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
           "Group size": 8, "dtype": "BFloat16"},
    )  # fmt: skip
    writer.kernel("ncclKernel_AllGather_RING", 60, 50)
    data = imported(writer.write())
    (row,) = data.kernels.to_dict("records")
    assert (row["op"], row["dtype"], row["flag"]) == ("all_reduce", "bf16", "waits_for_peers")
    assert (row["dim_numel"], row["dim_ranks"]) == (1000, 8)
    assert data.dropped["collective_size_not_recorded"] == 1


@pytest.mark.parametrize(
    ("name", "args", "rule"),
    [
        ("aten::mm", {}, "op_without_shapes"),
        ("aten::sum", {"Input_Dims": [[8, 4], [], [], []],
                       "Input_type": ["float", "ScalarList", "Scalar", ""]},
         "argument_not_recorded"),
        ("mine::op", {"Input_Dims": [[8]], "Input_type": ["float"]}, "op_unknown"),
        ("aten::mm", {"Input_Dims": [[8, 4], [5, 6]], "Input_type": ["float", "float"]},
         "op_not_replayable"),
        ("aten::convolution_backward", {
            "Input_Dims": [[4, 16, 9, 9], [4, 8, 9, 9], [16, 8, 3, 3], *[[]] * 8],
            "Input_type": ["float"] * 3 + ["ScalarList"] * 4 + ["ScalarList"] * 3 + ["Scalar"],
        }, "op_unknown"),
        ("aten::view", {"Input_Dims": [[8, 4], []], "Input_type": ["float", "ScalarList"],
                        "Concrete_Inputs": ["", "[32]"]}, "launches_without_kernel"),
    ],
)  # fmt: skip
def test_what_is_not_known_enough_is_counted_by_rule(writer, name, args, rule):
    writer.op(name, 0, 20, **args)
    writer.kernel("k", 30, 4, launched=5)
    writer.op("aten::mm", 30, 20, **MM)
    writer.kernel("k", 60, 4, launched=35)
    data = imported(writer.write())
    assert data.dropped[rule] == 1
    assert data.kernels["op"].tolist() == ["matmul"]


def test_graph_replays_are_opaque_by_kernel_name(writer):
    writer.add("cuda_runtime", "cudaGraphLaunch", 5, 3, args={"correlation": 9})
    writer.op("aten::mm", 0, 20, **MM)
    for i in range(3):
        writer.add("kernel", f"gemm{i % 2}", 20 + 10 * i, 8, tid=7,
                   args={"device": 0, "stream": 7, "correlation": 9})  # fmt: skip
    reading = reading_of(writer.write())
    (dropped,) = reading.measured.dropped.values()
    assert list(reading.measured.dropped) == ["kernel_without_op"]
    assert dropped.time_ns == {"gemm0": 16000, "gemm1": 8000}


def test_calls_kept_and_dropped_are_calls_read(writer):
    for i in range(4):
        writer.step(i, 100 * i, 100)
        writer.op("aten::mm", 100 * i + 5, 10, **MM)
        writer.kernel("gemm", 100 * i + 40, 9, launched=100 * i + 7)
        writer.op("aten::mm", 100 * i + 20, 10)
        writer.kernel("gemm", 100 * i + 60, 9, launched=100 * i + 22)
    data = imported(writer.write())
    assert data.dropped == {"op_without_shapes": 3, "in_last_step": 2}
    assert data.kernels["repeats"].sum() + sum(data.dropped.values()) == 8
    (step,) = data.steps.to_dict("records")
    assert (step["latency_us"], step["repeats"], step["measure"]) == (100, 3, "wall")
    assert (step["mode"], step["dtype"], step["devices"]) == ("infer", "fp32", 1)
    reader = TraceImport(data=writer.write())
    merged(reader.parts())
    (coverage,) = reader.coverage
    assert (coverage.rows, coverage.kept.calls, coverage.read.calls) == (1, 3, 8)
    assert coverage.read.time_us == 8 * 9 and coverage.share == 0.5
    assert {r: c.calls for r, c in coverage.dropped.items()} == data.dropped
    kept = imported(writer.write(), keep_last=True)
    assert kept.kernels["repeats"].sum() == 4


@pytest.mark.parametrize(("longest", "flag"), [(100, ""), (1100, "noisy")])
def test_steps_that_spread_by_more_than_their_time_are_flagged(writer, longest, flag):
    at = 0
    for i, length in enumerate((100, 100, 100, longest, 100)):
        writer.step(i, at, length)
        writer.op("aten::mm", at + 5, 10, **MM)
        writer.kernel("gemm", at + 40, 9, launched=at + 7)
        at += length
    (step,) = imported(writer.write()).steps.to_dict("records")
    assert (step["latency_us"], step["flag"]) == (100, flag)


def test_a_device_that_is_not_known_refuses_rows_unless_it_is_given(writer):
    writer.head.pop("deviceProperties")
    writer.step(0, 0, 100)
    writer.op("aten::mm", 5, 10, **MM)
    writer.kernel("gemm", 40, 9, launched=7)
    path = writer.write()
    assert imported(path).dropped == {"device_not_named": 1}
    reader = TraceImport(data=path)
    merged(reader.parts())
    (coverage,) = reader.coverage
    assert (coverage.device, coverage.rows, coverage.share) == (None, 0, 0.0)
    assert coverage.dropped["device_not_named"].calls == 1
    assert coverage.no_step_row == "device_not_named"
    data = imported(path, device=A100)
    assert (data.kernels["device"].tolist(), data.steps["device"].tolist()) == ([A100], [A100])
    writer.head["deviceProperties"] = [{"id": 0, "name": "Board of Nobody"}]
    assert imported(writer.write()).dropped == {"unknown_device": 1}


def test_times_of_the_host_are_no_rows_of_a_gpu_nor_kernels_of_a_processor(writer):
    writer.head.pop("deviceProperties")
    writer.step(0, 0, 100)
    writer.op("aten::mm", 5, 10, **MM)
    host = writer.write("host.json")
    data = imported(host, device=A100)
    assert len(data.kernels) == len(data.steps) == 0
    assert data.dropped == {"device_of_other_kind": 1}
    data = imported(host, device="intel-xeon-phi-7250")
    assert data.kernels["device"].tolist() == data.steps["device"].tolist()
    assert data.kernels["device"].tolist() == ["intel-xeon-phi-7250"]
    writer.kernel("gemm", 40, 9, launched=7)
    data = imported(writer.write("gpu.json"), device="intel-xeon-phi-7250")
    assert data.dropped == {"device_of_other_kind": 1}
    assert len(data.kernels) == len(data.steps) == 0


def test_a_fact_of_a_trace_is_no_dropped_row(writer):
    writer.op("aten::mm", 5, 10, **MM)
    writer.kernel("gemm", 40, 9, launched=7)
    reader = TraceImport(data=writer.write())
    data = merged(reader.parts())
    assert (len(data.kernels), len(data.steps), data.dropped) == (1, 0, {})
    (coverage,) = reader.coverage
    assert coverage.no_step_row == "no_step_found"
    assert "step row     none: no_step_found" in coverage_text(coverage).splitlines()


def test_older_traces_join_by_external_id_where_no_launch_is_recorded(writer):
    writer.op("aten::mm", 0, 20, External_id=77, **MM)
    writer.kernel("gemm", 40, 9, **{"External id": 77})
    assert imported(writer.write()).kernels["op"].tolist() == ["matmul"]


def test_a_trace_of_the_host_gives_the_labels_of_capture(torch_trace):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.norm = torch.nn.LayerNorm(16)
            self.out = torch.nn.Linear(16, 4)

        def forward(self, x):
            x = torch.relu(self.conv(x)).mean(-1)
            return torch.softmax(self.out(self.norm(x)), -1)

    model, x = Net().eval(), torch.ones(2, 3, 16, 16)

    def step():
        with torch.no_grad():
            model(x)

    data = imported(torch_trace(step), device="intel-xeon-gold-6226")
    captured = lower_eager(capture_module(model, x)).kernels
    facts = {(k.op, k.dtype, tuple(sorted(k.dims.items()))) for k in captured}
    found = {
        (row["op"], row["dtype"], tuple(sorted(
            (name[4:], value) for name, value in row.items()
            if name.startswith("dim_") and value != -1
        )))
        for row in data.kernels.to_dict("records")
    }  # fmt: skip
    assert facts <= found
    assert (data.kernels["repeats"] >= 2).all()
    assert data.steps["repeats"].tolist() == [2]


def execution_graph(writer, *, pid, same_ids=True):
    nodes = [
        {"name": "aten::mm", "id": 5, "rf_id": 3 if same_ids else 30, "parent": 2, "tid": 1,
         "inputs": [[6, 7, 0, 2048, 4, "cuda:0"], [8, 9, 0, 512, 4, "cuda:0"]],
         "input_shapes": [[64, 32], [32, 16]], "input_types": ["Tensor(float)"] * 2,
         "outputs": [[10, 11, 0, 1024, 4, "cuda:0"]], "output_shapes": [[64, 16]],
         "output_types": ["Tensor(float)"]},
    ]  # fmt: skip
    path = writer.folder / "run_et.json"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": pid, "nodes": nodes}))
    return path


@pytest.mark.parametrize(
    ("pid", "same_ids", "joins"), [(1, True, True), (2, True, False), (1, False, False)]
)
def test_an_execution_graph_of_the_same_run_gives_sizes(writer, pid, same_ids, joins):
    writer.op("aten::mm", 0, 20, External_id=3)
    writer.kernel("gemm", 40, 9, launched=7)
    writer.write("run_trace.json")
    graph = execution_graph(writer, pid=pid, same_ids=same_ids)
    reader = TraceImport(data=writer.folder)
    data = merged(reader.parts())
    assert (data.kernels["op"].tolist() == ["matmul"]) is joins
    assert ("run_trace.json" in reader.joined) is joins
    assert (graph.name in data.left_out) is not joins


def test_files_that_are_no_traces_are_left_out_with_the_reason(writer):
    writer.kernel("Memset", 0, 5, cat="gpu_memset", bytes=64)
    (writer.folder / "deep").mkdir()
    writer.write("deep/good.json.gz")
    (writer.folder / "other.json").write_text('{"a": 1}')
    (writer.folder / "cut.json").write_text(writer.text()[:-10])
    (writer.folder / "broken.json.gz").write_bytes(b"\x1f\x8b\x08not gzip")
    data = imported(writer.folder)
    assert set(data.files) == {"deep/good.json.gz"}
    assert data.left_out["other.json"] == "neither a profiler trace nor an execution graph"
    assert "cut off" in data.left_out["cut.json"]
    assert "cannot be read" in data.left_out["broken.json.gz"]


def test_a_single_file_that_cannot_be_read_is_an_error(writer):
    path = writer.folder / "x.json"
    path.write_text('{"traceEvents": [')
    with pytest.raises(DataError, match="cut off"):
        list(parts(path))
    with pytest.raises(LayoutNotFoundError, match="nowhere"):
        list(parts(writer.folder / "nowhere"))


def test_the_licence_is_that_of_the_folder(writer):
    writer.kernel("Memset", 0, 5, cat="gpu_memset", bytes=64)
    (writer.folder / "set").mkdir()
    writer.write("set/a.json")
    assert imported(writer.folder).kernels["licence"].tolist() == ["unstated"]
    (writer.folder / "set" / "LICENSE").write_text("MIT License\n\nCopyright")
    assert imported(writer.folder).kernels["licence"].tolist() == ["MIT"]
