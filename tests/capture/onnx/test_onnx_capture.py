import os
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from predictor import api
from predictor.capture.onnx.capture import capture_onnx
from predictor.errors import CaptureError, UnknownTargetError
from predictor.lower.eager import lower_eager


@pytest.fixture
def mlp(made):
    return made(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["a"]),
            helper.make_node("Gemm", ["a", "w2", "b2"], ["y"], transB=1),
        ],
        {"x": ["batch", 8]},
        ["y"],
        {"w1": [16, 8], "b1": [16], "w2": [4, 16], "b2": [4]},
    )


def test_mlp_is_what_pytorch_runs(mlp):
    graph = capture_onnx(mlp, dims={"batch": 3})
    assert [n.op for n in graph.nodes if not n.attrs.get("view")] == [
        "aten.addmm", "aten.relu", "aten.addmm",
    ]  # fmt: skip
    kernels = lower_eager(graph)
    assert sum(k.matmul_flops for k in kernels.kernels) == 2 * 3 * 16 * 8 + 2 * 3 * 4 * 16
    assert graph.workload.parameters == 16 * 8 + 16 + 4 * 16 + 4
    assert graph.workload.parameters_bytes == 4 * graph.workload.parameters
    assert graph.workload.batch == 3


def test_open_sizes_are_listed(mlp):
    with pytest.raises(CaptureError, match=r"batch \(x\[0\]\).*--dim batch=N"):
        capture_onnx(mlp)


def test_batch_stands_for_the_usual_name(mlp):
    assert capture_onnx(mlp, batch=5) == capture_onnx(mlp, dims={"batch": 5})


def test_unknown_size_names_what_is_there(mlp):
    with pytest.raises(CaptureError, match=r"no open size 'bacth'.*batch"):
        capture_onnx(mlp, dims={"batch": 1, "bacth": 2})


def test_tensors_in_other_files_are_never_opened(mlp, tmp_path: Path):
    path = tmp_path / "model.onnx"
    onnx.save(mlp, path)
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    graph = capture_onnx(path, dims={"batch": 1})
    own = [name for name in opened if name.startswith(str(tmp_path))]
    assert own == [str(path)]
    assert graph.workload.parameters_bytes == 4 * (16 * 8 + 16 + 4 * 16 + 4)


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "a\0b", "", "C:\\x"])
def test_paths_of_other_files_are_not_followed(made, outside, location: str):
    model = made(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 8]}, ["y"], {"w": [8, 4]}
    )
    model.graph.initializer[0].CopyFrom(outside("w", [8, 4], location=location))
    opened: list[object] = []
    sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
    graph = capture_onnx(model)
    assert not [name for name in opened if "passwd" in os.fsdecode(str(name))]
    assert lower_eager(graph).kernels[0].matmul_flops == 2 * 2 * 4 * 8


def test_file_and_model_give_the_same_graph(mlp, tmp_path: Path):
    path = tmp_path / "model.onnx"
    onnx.save(mlp, path)
    by_file = api.capture(str(path), dims={"batch": 2})
    assert by_file.nodes == api.capture(mlp, dims={"batch": 2}).nodes
    assert by_file.workload.name == str(path)


def test_missing_file_is_told(tmp_path: Path):
    with pytest.raises(UnknownTargetError, match="no file"):
        api.capture(str(tmp_path / "none.onnx"))


@pytest.mark.parametrize("asked", [{"mode": "train"}, {"recompute": True}, {"inputs": 1}])
def test_what_a_file_decides_cannot_be_asked(mlp, asked):
    with pytest.raises(CaptureError, match="captured as it is"):
        api.capture(mlp, dims={"batch": 2}, **asked)


def test_half_precision_halves_the_weights(mlp):
    graph = capture_onnx(mlp, batch=2, dtype="fp16")
    assert graph.workload.dtype == "fp16"
    assert graph.workload.parameters_bytes == 2 * graph.workload.parameters


def test_models_of_more_than_two_gigabytes_need_no_data(made):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    model = made(nodes, {"x": [1, 50_000]}, ["y"], {"w": [50_000, 50_000]})
    graph = capture_onnx(model)
    assert graph.workload.parameters_bytes == 10_000_000_000


def test_sizes_without_a_name_are_told_by_place(made):
    model = made([helper.make_node("Relu", ["x"], ["y"])], {"x": [None, 3, None]}, ["y"])
    with pytest.raises(CaptureError, match=r"x\.0 \(x\[0\]\); x\.2 \(x\[2\]\)"):
        capture_onnx(model)
    graph = capture_onnx(model, dims={"x.0": 2, "x.2": 5})
    assert graph.nodes[0].outputs[0].shape == (2, 3, 5)


def test_a_fixed_batch_cannot_be_another(made):
    model = made([helper.make_node("Relu", ["x"], ["y"])], {"x": [4, 3]}, ["y"])
    assert capture_onnx(model, batch=4) == capture_onnx(model)
    with pytest.raises(CaptureError, match="exported for batch 4, not 8"):
        capture_onnx(model, batch=8)
