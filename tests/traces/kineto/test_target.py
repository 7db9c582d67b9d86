"""A trace as a target: one step's calls, estimated elsewhere."""

from __future__ import annotations

import json

import pytest

import predictor
import predictor.errors
from predictor import api
from predictor.capture.kineto_graph import MEASURED
from predictor.capture.torch import capture_module
from predictor.errors import CaptureError, CostRuleError
from predictor.graph.ir import OpGraph
from predictor.graph.serialize import graph_from_dict, graph_to_dict
from predictor.lower.eager import lower_eager

MM = {"Input_Dims": [[64, 32], [32, 16]], "Input_type": ["float", "float"]}
ADD = {"Input_Dims": [[64, 16], [64, 16], []], "Input_type": ["float", "float", "Scalar"]}


def steps(writer, count=3):
    """Steps of a product, a view and a sum; the second takes longer."""
    at = 0
    for i in range(count):
        length = 140 if i == 1 else 100
        writer.step(i, at, length)
        writer.op("aten::mm", at + 5, 10, **MM)
        writer.kernel("gemm", at + 40, 9 + i, launched=at + 7)
        writer.op("aten::view", at + 18, 1)
        writer.op("aten::add", at + 20, 10, **ADD)
        writer.kernel("add", at + 60, 3, launched=at + 22)
        at += length
    return writer


def test_one_step_becomes_a_graph_in_program_order(writer):
    graph = api.capture(str(steps(writer, 4).write()))
    assert [n.op for n in graph.nodes] == ["aten.mm", "aten.view", "aten.add"]
    assert [n.deps for n in graph.nodes] == [(), (0,), (1,)]
    assert [n.attrs.get(MEASURED) for n in graph.nodes] == [11.0, None, 3.0]
    assert (graph.workload.mode, graph.workload.dtype) == ("infer", "fp32")
    assert any("ProfilerStep#2, 100.0 µs as measured" in w for w in graph.workload.warnings)
    kernels = lower_eager(graph)
    assert [k.op for k in kernels.kernels] == ["matmul", "add"]
    assert kernels.edges == ((0, 1),)
    assert kernels.host_ops == {"forward": 3}


def test_the_graph_is_written_and_read_as_any_other(writer, tmp_path):
    graph = api.capture(str(steps(writer).write()))
    again = graph_from_dict(json.loads(json.dumps(graph_to_dict(graph))))
    assert again == graph
    assert isinstance(again, OpGraph)


def test_what_is_not_known_is_opaque_and_said(writer):
    writer.op("mine::op", 0, 10, Input_Dims=[[8, 4]], Input_type=["float"])
    writer.kernel("k", 30, 6, launched=2)
    writer.kernel("nobody", 40, 2)
    writer.op("aten::mm", 12, 10, **MM)
    writer.kernel("gemm", 50, 8, launched=14)
    graph = api.capture(str(writer.write()))
    assert [n.op for n in graph.nodes] == ["kineto.mine::op", "aten.mm", "kineto.nobody"]
    assert graph.nodes[0].attrs["reason"] == "op_unknown"
    assert [k.op for k in lower_eager(graph).kernels] == ["opaque", "matmul"]
    assert graph.workload.recorded_us == {
        "step": 28.0, "estimated": 14.0, "opaque": 6.0, "unknown": 2.0,
    }  # fmt: skip
    assert any("2.0 µs in the trace" in w for w in graph.workload.warnings)
    said = [w for w in graph.workload.warnings if "opaque" in w]
    assert said == [
        "opaque calls: 8.0 µs of kernel time in the trace (op_unknown 6.0 µs, kernel_without_op "
        "2.0 µs)"
    ]


def test_a_call_that_was_not_traced_still_needs_a_rule(writer):
    graph = api.capture(str(steps(writer).write()))
    node = graph.nodes[0]
    from dataclasses import replace

    other = replace(graph, nodes=(replace(node, op="kineto.x", attrs={}),))
    with pytest.raises(CostRuleError):
        lower_eager(other)


def test_collectives_and_copies_over_the_bus_are_left_out_and_said(writer):
    steps(writer)
    for at in (0, 100, 240):
        writer.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 70, 12, launched=at + 31)
        writer.kernel(
            "Memcpy HtoD (Pinned -> Device)",
            at + 30,
            4,
            cat="gpu_memcpy",
            launched=at + 2,
            bytes=64,
        )
    graph = api.capture(str(writer.write()))
    assert [n.op for n in graph.nodes] == ["aten.mm", "aten.view", "aten.add"]
    said = " ".join(graph.workload.warnings)
    assert graph.workload.recorded_us["collectives"] == 12.0
    assert "left out: collectives, 12.0 µs" in said
    assert "left out: copies between host and device, 4.0 µs" in said


@pytest.mark.parametrize("asked", [{"batch": 4}, {"seq": 8}, {"mode": "train"}, {"dtype": "bf16"}])
def test_a_trace_has_what_it_was_recorded_with(writer, asked):
    (name,) = asked
    with pytest.raises(CaptureError, match=f"is a profiler trace: it has the {name} it was rec"):
        api.capture(str(steps(writer).write()), **asked)


def test_a_trace_without_sizes_says_how_to_record_them(writer):
    writer.op("aten::mm", 0, 10)
    writer.kernel("gemm", 30, 6, launched=2)
    with pytest.raises(CaptureError, match="record_shapes=True"):
        api.capture(str(writer.write()))


def test_a_step_of_the_host_equals_the_captured_program(torch_trace):
    import torch

    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    ).eval()
    x = torch.ones(8, 16)

    def step():
        with torch.no_grad():
            model(x)

    traced = lower_eager(api.capture(str(torch_trace(step)))).kernels
    captured = lower_eager(capture_module(model, x)).kernels
    assert [(k.op, k.dims, k.dtype, k.flops, k.bytes) for k in traced] == [
        (k.op, k.dims, k.dtype, k.flops, k.bytes) for k in captured
    ]


def test_a_training_step_of_the_host_has_all_three_phases(torch_trace):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(8, 16)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    graph = api.capture(str(torch_trace(step)))
    assert {n.phase for n in graph.nodes} == {"forward", "backward", "optimizer"}
    assert (graph.workload.mode, graph.workload.optimizer) == ("train", "sgd")
    products = [k for k in lower_eager(graph).kernels if k.op in ("matmul", "linear")]
    assert [k.phase for k in products] == ["forward"] * 2 + ["backward"] * 3


def node(number, name, *, parent=1, rf=None, inputs=(), outputs=()):
    """A node of an execution graph: tensors are (tensor, storage, sizes)."""

    def side(tensors):
        return {
            "values": [[t, s, 0, 64, 4, "cuda:0"] for t, s, _ in tensors],
            "shapes": [list(shape) for *_, shape in tensors],
            "types": ["Tensor(float)"] * len(tensors),
        }  # fmt: skip

    return {
        "id": number, "name": name, "ctrl_deps": parent, "inputs": side(inputs),
        "outputs": side(outputs),
        "attrs": [{"name": "rf_id", "type": "uint64", "value": number if rf is None else rf},
                  {"name": "tid", "type": "uint64", "value": 1}],
    }  # fmt: skip


def graph_file(folder, nodes, name="run_et.json", schema="1.1.0-chakra.0.0.4", pid=1):
    path = folder / name
    path.write_text(json.dumps({"schema": schema, "pid": pid, "nodes": nodes}))
    return path


TWO_PRODUCTS = [
    node(1, "[pytorch|profiler|execution_trace|process]", parent=1),
    node(2, "aten::linear", inputs=[(10, 100, (8, 4)), (11, 101, (6, 4))],
         outputs=[(12, 102, (8, 6))]),
    node(3, "aten::mm", inputs=[(20, 200, (8, 4)), (21, 201, (4, 6))], outputs=[(22, 202, (8, 6))]),
    node(4, "aten::add_", inputs=[(12, 102, (8, 6)), (22, 202, (8, 6))],
         outputs=[(12, 102, (8, 6))]),
]  # fmt: skip


def test_an_execution_graph_gives_sizes_and_dependencies_by_tensor(tmp_path):
    nodes = json.loads(json.dumps(TWO_PRODUCTS))
    for place, value, kind in ((1, "<None>", "None"), (3, 1, "Int")):
        inputs = nodes[place]["inputs"]
        inputs["values"].append(value)
        inputs["types"].append(kind)
        inputs["shapes"].append([])
    graph = api.capture(str(graph_file(tmp_path, nodes)))
    assert [n.op for n in graph.nodes] == ["aten.t", "aten.mm", "aten.mm", "aten.add_"]
    kernels = lower_eager(graph)
    assert [k.op for k in kernels.kernels] == ["matmul", "matmul", "add"]
    assert kernels.edges == ((0, 2), (1, 2))


def test_one_step_of_an_execution_graph_lies_between_two_marks(tmp_path):
    products = [
        node(10 + i, "aten::mm", inputs=[(1, 1, (4 + i, 4)), (2, 2, (4, 6))],
             outputs=[(3, 3, (4 + i, 6))])
        for i in range(3)
    ]  # fmt: skip
    marks = [node(100 + i, f"ProfilerStep#{i}", rf=10 + i) for i in range(3)]
    nodes = [products[0], marks[1], products[1], marks[2], products[2]]
    for place, one in enumerate(nodes):
        one["attrs"][0]["value"] = place
    graph = api.capture(str(graph_file(tmp_path, nodes)))
    assert [n.inputs[0].shape for n in graph.nodes] == [(5, 4)]
    assert "from ProfilerStep#1 to the next" in graph.workload.warnings[0]


def test_other_schemas_and_broken_nodes_are_refused(tmp_path):
    for nodes, schema, message in (
        (TWO_PRODUCTS, "2.0", "schema '2.0' are not read"),
        ([{"id": 1}], "1.0.1", "a node of the execution graph cannot be read"),
        ([node(1, "mine::op")], "1.0.3-chakra.0.0.4", "no op of the execution graph is known"),
    ):
        with pytest.raises((predictor.errors.DataError, CaptureError), match=message):
            api.capture(str(graph_file(tmp_path, nodes, schema=schema)))


def test_an_execution_graph_beside_a_trace_gives_its_dependencies(writer):
    writer.op("aten::mm", 0, 10, External_id=3)
    writer.kernel("gemm", 40, 9, launched=5)
    writer.op("aten::mm", 12, 10, External_id=4)
    writer.kernel("gemm", 50, 9, launched=15)
    path = writer.write("run.json")
    nodes = [
        node(3, "aten::mm", inputs=[(1, 1, (8, 4)), (2, 2, (4, 6))], outputs=[(3, 3, (8, 6))]),
        node(4, "aten::mm", inputs=[(5, 5, (8, 4)), (6, 6, (4, 6))], outputs=[(7, 7, (8, 6))]),
    ]
    graph_file(writer.folder, nodes)
    graph = api.capture(str(path))
    assert [n.deps for n in graph.nodes] == [(), ()]
    assert [n.attrs[MEASURED] for n in graph.nodes] == [9.0, 9.0]
    assert any("dependencies from the execution graph run_et.json" in w
               for w in graph.workload.warnings)  # fmt: skip


def test_a_trace_is_estimated_on_another_device(writer):
    estimate = predictor.estimate(str(steps(writer).write()), device="nvidia-t4")
    assert estimate.latency_us > 0
    assert estimate.kernels["op_class"].tolist() == ["matmul", "elementwise"]
