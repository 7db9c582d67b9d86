import json
from pathlib import Path

import onnx
import pytest
from onnx import helper

from predictor import api
from predictor.cli import main
from predictor.errors import CaptureError
from predictor.hardware.device import Software


@pytest.fixture
def file(made, tmp_path: Path) -> Path:
    """Two convolutions with their activations, batch left open, weights elsewhere."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Conv", ["a", "w", "b"], ["g"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["g", "x"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    model = made(nodes, {"x": ["batch", 8, 32, 32]}, ["y"], {"w": [8, 8, 3, 3], "b": [8]})
    path = tmp_path / "pictures.onnx"
    onnx.save(model, path)
    return path


def run(*arguments: object) -> object:
    """Exit code of a call of the command line."""
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    return left.value.code


def test_estimate_says_what_it_takes_for_granted(file: Path, capsys: pytest.CaptureFixture[str]):
    out = file.parent / "out.json"
    assert not run("estimate", file, "--device", "nvidia-t4", "--dim", "batch=4", "--json", out)
    text = capsys.readouterr().out
    assert "fused inference" in text
    assert "convolution+" in text
    held = json.loads(out.read_text())
    assert held["target"] == str(file)
    assert held["software"]["framework"] == "fused inference"
    assert any("3 of 5 calls" in line for line in held["warnings"])


def test_a_runtime_can_be_named(file: Path, capsys: pytest.CaptureFixture[str]):
    call = ("estimate", file, "--device", "nvidia-t4", "--batch", 4, "--runtime")
    assert not run(*call, "pytorch")
    text = capsys.readouterr().out
    assert "pytorch eager" in text
    assert "assumes fused" not in text
    assert run(*call, "x")
    assert "one of pytorch, fused" in capsys.readouterr().err


def test_compare_and_capture(file: Path, capsys: pytest.CaptureFixture[str]):
    assert not run("compare", file, "--devices", "nvidia-t4,nvidia-l4", "--batch", 2)
    assert "nvidia-l4" in capsys.readouterr().out
    graph = file.parent / "graph.json"
    assert not run("capture", file, "--batch", 2, "--out", graph)
    assert api.capture(str(graph)) == api.capture(str(file), batch=2)


def test_open_sizes_are_listed(file: Path, capsys: pytest.CaptureFixture[str]):
    assert run("estimate", file, "--device", "nvidia-t4")
    assert "--dim batch=N" in capsys.readouterr().err


def test_fusing_costs_less_and_computes_the_same(file: Path):
    fused = api.estimate(str(file), device="nvidia-t4", batch=8)
    eager = api.estimate(str(file), device="nvidia-t4", batch=8, runtime="pytorch")
    assert fused.workload.kernels == 2
    assert eager.workload.kernels == 7
    assert fused.workload.matmul_flops == eager.workload.matmul_flops
    assert fused.step.latency_us < eager.step.latency_us


def test_pytorch_programs_run_fused_when_asked():
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    asked = api.estimate(module, torch.ones(2, 8), device="nvidia-t4", runtime="fused")
    assert asked.workload.kernels == 1
    assert asked.software == Software(framework="fused inference", matmul_tf32=True)


def test_training_is_not_fused_inference():
    import torch

    module = torch.nn.Linear(8, 8)
    with pytest.raises(CaptureError, match="for inference"):
        api.estimate(module, torch.ones(2, 8), device="nvidia-t4", mode="train", runtime="fused")


A100 = "nvidia-a100-sxm-80gb"


@pytest.fixture
def mlp(made, tmp_path: Path) -> Path:
    """Two fp32 products and an activation."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "w", "b"], ["y"]),
    ]
    model = made(nodes, {"x": ["batch", 4096]}, ["y"], {"w": [4096, 4096], "b": [4096]})
    path = tmp_path / "mlp.onnx"
    onnx.save(model, path)
    return path


def test_fp32_products_take_tf32_as_the_runtimes_do(mlp: Path):
    usual = api.estimate(str(mlp), device=A100, batch=4096)
    strict = api.estimate(str(mlp), device=A100, batch=4096, matmul_tf32=False)
    eager = api.estimate(str(mlp), device=A100, batch=4096, runtime="pytorch")
    assert (usual.software.matmul_tf32, usual.software.conv_tf32) == (True, True)
    assert (strict.software.matmul_tf32, strict.software.conv_tf32) == (False, False)
    assert (eager.software.matmul_tf32, eager.software.conv_tf32) == (False, True)
    assert usual.latency_us < strict.latency_us / 3  # 156 TFLOPS against 19.5
    told = " ".join(usual.table().split())
    assert "the default of TensorRT and ONNX Runtime, --no-tf32 turns it off" in told
    for other in (strict, eager):
        assert "--no-tf32" not in other.table()
    both = api.compare(str(mlp), devices=[A100, "amd-mi300x"], batch=4096)
    assert [e.software.matmul_tf32 for e in both.estimates] == [True, False]


def test_the_switch_is_obeyed_on_the_command_line(
    mlp: Path, file: Path, capsys: pytest.CaptureFixture[str]
):
    call = ("estimate", mlp, "--device", A100, "--batch", 8)
    assert not run(*call)
    assert "fused inference; TF32 matmul on, TF32 convolution on" in capsys.readouterr().out
    assert not run(*call, "--no-tf32")
    assert "TF32 matmul off, TF32 convolution off (fp32 work)" in capsys.readouterr().out
    assert not run(*call, "--runtime", "pytorch", "--tf32")
    assert "TF32 matmul on, TF32 convolution on (fp32 work)" in capsys.readouterr().out
    compared = []
    for flags in ((), ("--tf32",), ("--no-tf32",)):
        assert not run("compare", mlp, "--devices", A100, "--batch", 4096, "--json", "-", *flags)
        compared.append(json.loads(capsys.readouterr().out)["devices"][0]["latency_us"])
    assert compared[0] == compared[1] < compared[2] / 3


def test_learned_times_are_carried_to_the_runtime_and_say_so(file: Path):
    fused = api.estimate(str(file), device="nvidia-t4", batch=8)
    eager = api.estimate(str(file), device="nvidia-t4", batch=8, runtime="pytorch")
    assert any("no measured row is of TensorRT or ONNX Runtime" in w for w in fused.warnings)
    assert not any("no measured row" in w for w in eager.warnings)
