import numpy as np
import pytest
from onnx import TensorProto, helper

from predictor import api
from predictor.capture.onnx.capture import capture_onnx
from predictor.errors import CaptureError
from predictor.lower.eager import lower_eager

VALUE = helper.make_tensor_value_info


def _branch(name: str, weight: str) -> object:
    node = helper.make_node("MatMul", ["x", weight], [f"{name}_y"])
    out = VALUE(f"{name}_y", TensorProto.FLOAT, None)
    return helper.make_graph([node], name, [], [out])


@pytest.fixture
def branching(made):
    """`x @ w` by a large or a small weight."""
    node = helper.make_node(
        "If", ["large"], ["y"],
        then_branch=_branch("then", "wide"), else_branch=_branch("else", "slim"),
    )  # fmt: skip
    return made(
        [node], {"x": [64, 512], "large": []}, ["y"], {"wide": [512, 4096], "slim": [512, 8]},
        elements={"large": TensorProto.BOOL},
    )  # fmt: skip


def _flops(graph) -> float:
    return sum(k.matmul_flops for k in lower_eager(graph).kernels)


def test_a_branch_takes_its_larger_side_and_keeps_the_other(branching):
    graph = capture_onnx(branching)
    assert _flops(graph) == 2 * 64 * 512 * 4096
    assert graph.lighter is not None
    assert _flops(graph.lighter) == 2 * 64 * 512 * 8
    assert "takes its then branch" in graph.workload.warnings[0]


@pytest.mark.parametrize(("hint", "columns"), [(1, 4096), (0, 8)])
def test_a_hint_decides_a_branch(branching, hint: int, columns: int):
    graph = capture_onnx(branching, dims={"large": hint})
    assert _flops(graph) == 2 * 64 * 512 * columns
    assert graph.lighter is None


def test_the_interval_of_an_estimate_reaches_the_cheaper_side(branching):
    whole = api.estimate(branching, device="nvidia-t4")
    least = api.estimate(branching, device="nvidia-t4", dims={"large": 0})
    most = api.estimate(branching, device="nvidia-t4", dims={"large": 1})
    assert whole.step.latency_us == most.step.latency_us
    assert whole.step.lower_us == pytest.approx(min(least.step.lower_us, most.step.lower_us))
    assert whole.step.upper_us == most.step.upper_us


def test_branches_survive_a_file(branching, tmp_path):
    from predictor.graph.serialize import load_graph, save_graph

    graph = capture_onnx(branching)
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph


def _body() -> object:
    """`state @ w`, and the state as a stacked result."""
    nodes = [
        helper.make_node("MatMul", ["state", "w"], ["next"]),
        helper.make_node("Identity", ["going"], ["still"]),
        helper.make_node("Identity", ["next"], ["row"]),
    ]
    inputs = [
        VALUE("i", TensorProto.INT64, []), VALUE("going", TensorProto.BOOL, []),
        VALUE("state", TensorProto.FLOAT, [4, 16]),
    ]  # fmt: skip
    outputs = [
        VALUE("still", TensorProto.BOOL, []), VALUE("next", TensorProto.FLOAT, [4, 16]),
        VALUE("row", TensorProto.FLOAT, [4, 16]),
    ]  # fmt: skip
    return helper.make_graph(nodes, "body", inputs, outputs)


def _looping(made, limit: np.ndarray | None):
    node = helper.make_node("Loop", ["trips", "", "x"], ["last", "rows"], body=_body())
    weights: dict[str, object] = {"w": [16, 16]}
    inputs: dict[str, list[int]] = {"x": [4, 16]}
    if limit is None:
        inputs["trips"] = []
    else:
        weights["trips"] = limit
    return made(
        [node], inputs, {"last": [4, 16], "rows": None}, weights,
        elements={"trips": TensorProto.INT64},
    )  # fmt: skip


def test_a_loop_runs_as_often_as_its_constant_says(made):
    graph = capture_onnx(_looping(made, np.array(5, dtype=np.int64)))
    assert _flops(graph) == 5 * 2 * 4 * 16 * 16
    assert graph.nodes[-1].outputs[0].shape == (5, 4, 16)
    assert graph.nodes[1].deps == (0,)


def test_a_loop_of_an_input_asks_for_its_count(made):
    model = _looping(made, None)
    with pytest.raises(CaptureError, match=r"trip count, --dim trips=N"):
        capture_onnx(model)
    assert _flops(capture_onnx(model, dims={"trips": 7})) == 7 * 2 * 4 * 16 * 16


def test_an_endless_loop_is_refused(made):
    with pytest.raises(CaptureError, match="trip count"):
        capture_onnx(_looping(made, np.array(2**62, dtype=np.int64)))


def test_a_scan_runs_along_its_axis(made):
    body = helper.make_graph(
        [helper.make_node("MatMul", ["row", "w"], ["out"])],
        "body",
        [VALUE("row", TensorProto.FLOAT, [4, 16])],
        [VALUE("out", TensorProto.FLOAT, [4, 16])],
    )
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    graph = capture_onnx(made([node], {"x": [24, 4, 16]}, ["y"], {"w": [16, 16]}))
    assert _flops(graph) == 24 * 2 * 4 * 16 * 16


def test_a_function_is_its_body(made):
    twice = [
        helper.make_node("MatMul", ["a", "b"], ["d"]),
        helper.make_node("MatMul", ["d", "b"], ["c"]),
    ]
    opset = [helper.make_opsetid("", 17)]
    body = helper.make_function("own", "Twice", ["a", "b"], ["c"], twice, opset)
    model = made(
        [helper.make_node("Twice", ["x", "w"], ["y"], domain="own")], {"x": [2, 8]}, ["y"],
        {"w": [8, 8]}, domains={"own": 1}, functions=[body],
    )  # fmt: skip
    assert _flops(capture_onnx(model)) == 2 * (2 * 2 * 8 * 8)
