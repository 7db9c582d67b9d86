"""The same program gives the same answer through every front end.

Matrix and convolution FLOPs and parameter bytes are equal; kernel time after lowering for PyTorch
eager is within 10%. Through `torch.export` the kernels are those of the module, one by one, in
inference and in training. ONNX holds inference: no exporter of PyTorch writes a backward, so the
GPT-2 block is compared with its loss and without its backward there (`backward` below shows that
a training step through ONNX is refused, not guessed).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import predictor
from predictor.checkpoint import DEFAULT_CHECKPOINT, list_releases
from predictor.errors import CaptureError
from predictor.graph.ir import KernelGraph, OpGraph
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.lower.eager import lower_eager

NAMES = ("mlp", "resnet-18", "bert-layer", "gpt2-block", "lstm", "moe-layer")
DEVICE = "nvidia-a100-sxm-80gb"
Made = Callable[[str], tuple[nn.Module, tuple[torch.Tensor, ...]]]

pytestmark = [
    pytest.mark.skipif(
        DEFAULT_CHECKPOINT not in list_releases(), reason="the default is not in checkpoints/"
    ),
    pytest.mark.filterwarnings(
        "ignore:The tensor attributes", "ignore:`isinstance.treespec, LeafSpec.`"
    ),
]


@dataclass(frozen=True)
class Facts:
    """What is compared."""

    matmul_flops: float
    parameters_bytes: int
    kernel_us: float
    kernels: KernelGraph


def facts(graph: OpGraph) -> Facts:
    """The graph as PyTorch eager runs it, whichever front end it came from."""
    kernels = lower_eager(graph)
    assert all(k.op != "opaque" for k in kernels.kernels)
    predicted = predictor.load().predict(kernels, resolve_device(DEVICE), Software())
    return Facts(
        matmul_flops=sum(k.matmul_flops for k in kernels.kernels),
        parameters_bytes=graph.workload.parameters_bytes,
        kernel_us=float(predicted.kernel_us.sum()),
        kernels=kernels,
    )


def loss_of(output: Any) -> torch.Tensor:
    """The output where it is a loss already, else the sum of what there is."""
    if isinstance(output, dict):
        output = output["logits"]
    return torch.as_tensor(output if output.dim() == 0 else output.sum())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("door", ["memory", "file"])
def test_exported_program(name: str, mode: Any, door: str, made: Made, tmp_path: Path) -> None:
    module, inputs = made(name)
    module.train(mode == "train")
    options: dict[str, Any] = {"mode": mode, "loss": loss_of if mode == "train" else None}
    target: Any = torch.export.export(module, inputs)
    if door == "file":
        path = tmp_path / "program.pt2"
        torch.export.save(target, path)
        target = str(path)
    direct = lower_eager(predictor.capture(module, inputs, **options))
    graph = predictor.capture(target, **options)
    exported = lower_eager(graph)
    assert exported.kernels == direct.kernels
    assert exported.edges == direct.edges
    assert exported.host_ops == direct.host_ops
    assert exported.peak_activation_bytes == direct.peak_activation_bytes
    assert graph.workload.parameters_bytes == direct.workload.parameters_bytes
    if mode == "train":
        assert {k.phase for k in exported.kernels} == {"forward", "backward", "optimizer"}


def test_exported_backward(made: Made) -> None:
    """A program exported with its backward: the same products, from PyTorch's decompositions."""
    from torch.export.experimental import _export_forward_backward

    module, inputs = made("gpt2-block")
    module.eval()  # the exported backward holds no random numbers
    direct = facts(predictor.capture(module, inputs, mode="train", loss=loss_of))
    joint = facts(predictor.capture(_export_forward_backward(torch.export.export(module, inputs))))
    assert joint.parameters_bytes == direct.parameters_bytes
    for phase in ("forward", "backward"):
        flops = [
            sum(k.matmul_flops for k in one.kernels.kernels if k.phase == phase)
            for one in (direct, joint)
        ]
        assert flops[0] == pytest.approx(flops[1], rel=0.01)


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters to ONNX warn of themselves and of what they trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def traced(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> None:
    """The exporter through TorchScript; its fusion of batch norm into convolutions is off."""
    with quiet():
        torch.onnx.export(
            module, inputs, str(path), dynamo=False, opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
        )  # fmt: skip


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> None:
    """The exporter through `torch.export`, as it is by default."""
    pytest.importorskip("onnxscript")
    with quiet():
        torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exporter", [traced, exported])
def test_onnx(name: str, exporter: Callable[..., None], made: Made, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    module, inputs = made(name)
    module.eval()
    path = tmp_path / "model.onnx"
    exporter(module, inputs, path)
    direct = facts(predictor.capture(module, inputs))
    onnx = facts(predictor.capture(str(path)))
    assert onnx.matmul_flops == direct.matmul_flops
    assert onnx.kernel_us == pytest.approx(direct.kernel_us, rel=0.1)
    if exporter is traced:
        assert onnx.parameters_bytes == direct.parameters_bytes
    else:  # it folds batch norms into weights, and constants (masks, zeros) into new ones
        assert onnx.parameters_bytes == pytest.approx(direct.parameters_bytes, rel=0.01)


def test_onnx_backward(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    module, inputs = made("gpt2-block")
    traced(module.eval(), inputs, tmp_path / "model.onnx")
    with pytest.raises(CaptureError, match="captured as it is, and mode cannot be asked"):
        predictor.capture(str(tmp_path / "model.onnx"), mode="train")
