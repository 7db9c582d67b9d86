"""The public calls, with a stand-in network: what is captured once, refused, or passed through."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import predictor
from predictor import api, runtime
from predictor.errors import (
    CaptureError,
    CheckpointError,
    DataError,
    NotYetError,
    UnknownDeviceError,
    UnknownTargetError,
    UnsupportedPrecision,
)
from predictor.graph.ir import KernelGraph, OpGraph
from predictor.hardware.device import Device, Software
from predictor.nn.prediction import Prediction
from predictor.program import split_inputs


@pytest.fixture(scope="module")
def captured() -> OpGraph:
    """A training step of one linear layer: batch 8, 16 to 32."""
    return api.capture(torch.nn.Linear(16, 32), torch.empty(8, 16), mode="train")


@dataclass(kw_only=True)
class Recording:
    """A network that keeps what it was asked."""

    inner: api.Predictor
    softwares: list[Software]
    name: str = "recording"

    def predict(self, graph: KernelGraph, device: Device, software: Software) -> Prediction:
        """Note the context, then predict."""
        self.softwares.append(software)
        if "fp8" in device.unsupported_dtypes:
            raise UnsupportedPrecision(f"{device.id} has no path")
        return self.inner.predict(graph, device, software)


@pytest.fixture
def recording(network: api.Predictor) -> Recording:
    """The stand-in network, recorded."""
    return Recording(inner=network, softwares=[])


def test_the_call_stays_a_call_when_its_package_is_used() -> None:
    code = (
        "import predictor; from predictor.capture.target import capture_target; "
        "import predictor.capture.torch; assert predictor.capture is predictor.program.capture; "
        "from predictor import capture; assert callable(capture)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_estimate_of_a_module(device: Device, network: api.Predictor) -> None:
    module = torch.nn.Linear(16, 32)
    estimate = predictor.estimate(
        module, torch.empty(8, 16), device=device, mode="train", checkpoint=network
    )
    assert estimate.workload.parameters == 16 * 32 + 32
    assert estimate.workload.matmul_flops == 2 * (2 * 8 * 16 * 32)  # forward and weight gradient
    assert set(estimate.phases) == {"forward", "backward", "optimizer"}
    assert estimate.step.lower_us <= estimate.latency_us <= estimate.step.upper_us
    assert estimate.target == "Linear"
    assert estimate.memory.optimizer_bytes == 2 * 4 * 544 + 2 * 4
    assert estimate.memory.fits


def test_inference_is_the_default(device: Device, network: api.Predictor) -> None:
    estimate = predictor.estimate(
        torch.nn.Linear(16, 32), torch.empty(8, 16), device=device, checkpoint=network
    )
    assert estimate.graph.workload.mode == "infer"
    assert estimate.workload.matmul_flops == 2 * 8 * 16 * 32
    assert set(estimate.phases) == {"forward"}


def test_a_step_function_is_captured_as_it_is(device: Device, network: api.Predictor) -> None:
    module = torch.nn.Linear(16, 32)
    update = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(
        module: torch.nn.Module, update: torch.optim.Optimizer, x: torch.Tensor
    ) -> torch.Tensor:
        update.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        update.step()
        return loss

    inputs = (module, update, torch.empty(8, 16))
    estimate = predictor.estimate(step, inputs, device=device, checkpoint=network)
    assert estimate.graph.workload.mode == "train"
    assert set(estimate.phases) == {"forward", "backward", "optimizer"}
    for given in ({"mode": "train"}, {"optimizer": "sgd", "mode": "train"}, {"dtype": "bf16"}):
        with pytest.raises(CaptureError, match="decides its own"):
            api.capture(step, inputs, **given)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="cannot capture a int"):
        api.capture(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bf16", "amp-bf16"])
def test_dtype_of_a_module(dtype: str, device: Device, network: api.Predictor) -> None:
    module = torch.nn.Linear(16, 32)
    graph = api.capture(module, torch.empty(8, 16), dtype=dtype)
    assert graph.workload.dtype == dtype
    assert module.weight.dtype == torch.float32
    (product,) = (
        kernel
        for kernel in predictor.estimate(graph, device=device, checkpoint=network).graph.kernels
        if kernel.matmul_flops
    )
    assert product.dtype == "bf16"


def test_a_program_that_launches_nothing(device: Device, network: api.Predictor) -> None:
    estimate = predictor.estimate(
        torch.nn.Identity(), torch.empty(2), device=device, checkpoint=network
    )
    assert (estimate.latency_us, estimate.workload.kernels) == (0.0, 0)
    assert estimate.to_json()["kernels"] == []
    assert estimate.warnings == ()
    assert "costliest" not in str(estimate)


def test_a_captured_graph_is_not_captured_again(
    captured: OpGraph, device: Device, network: api.Predictor
) -> None:
    assert api.capture(captured) is captured
    assert api.capture(captured, mode="train", optimizer="adamw", dtype="fp32") is captured
    estimate = predictor.estimate(captured, device=device, checkpoint=network)
    assert estimate.workload.ops == len(captured.nodes)


@pytest.mark.parametrize(
    "asked", [{"mode": "infer"}, {"optimizer": "sgd"}, {"dtype": "bf16"}, {"batch": 3}, {"seq": 4}]
)
def test_a_captured_graph_is_not_something_else(
    captured: OpGraph, asked: dict[str, object]
) -> None:
    with pytest.raises(CaptureError, match="was captured with"):
        api.capture(captured, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        (None, (), {}),
        (1, (1,), {}),
        ((1, 2), (1, 2), {}),
        ([1, 2], (1, 2), {}),
        ({"x": 1}, (), {"x": 1}),
        (((1,), {"x": 2}), (1,), {"x": 2}),
    ],
)
def test_inputs_are_read_one_way(
    inputs: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    assert split_inputs(inputs) == (args, kwargs)


def test_words_outside_the_tables(device: Device) -> None:
    module, x = torch.nn.Linear(16, 32), torch.empty(8, 16)
    with pytest.raises(CaptureError, match=r"dtype 'int4' is unknown; use fp32"):
        api.capture(module, x, dtype="int4")
    with pytest.raises(NotYetError, match="fp8"):
        api.capture(module, x, dtype="fp8")
    with pytest.raises(CaptureError, match="mode 'eval' is unknown"):
        api.capture(module, x, mode="eval")  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="optimizer 'lion' is unknown"):
        api.capture(module, x, mode="train", optimizer="lion")
    with pytest.raises(CaptureError, match="needs a training step"):
        api.capture(module, x, optimizer="sgd")
    with pytest.raises(CaptureError, match="a module's inputs have their own"):
        api.capture(module, x, batch=3)
    with pytest.raises(CaptureError, match="brings its own inputs"):
        api.capture("gpt2", x)


def test_a_graph_file_is_a_target(
    captured: OpGraph, tmp_path: Path, device: Device, network: api.Predictor
) -> None:
    from predictor.graph.serialize import save_graph

    path = tmp_path / "graph.json.gz"
    save_graph(captured, path)
    assert api.capture(str(path)) == captured
    estimate = predictor.estimate(str(path), device=device, checkpoint=network)
    assert estimate.graph.workload.mode == "train"
    with pytest.raises(CaptureError, match="was captured with mode='train'"):
        api.capture(str(path), mode="infer")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(DataError, match="no op or kernel among 0 events"):
        api.capture(str(tmp_path / "trace.json"))
    with pytest.raises(UnknownTargetError, match="no file"):
        api.capture(str(tmp_path / "none.json"))


def test_context_follows_capture_and_flags(
    captured: OpGraph, device: Device, recording: Recording
) -> None:
    predictor.estimate(captured, device=device, checkpoint=recording)
    predictor.estimate(captured, device=device, checkpoint=recording, matmul_tf32=True)
    given = Software(conv_tf32=False, matmul_tf32=True)
    predictor.estimate(captured, device=device, checkpoint=recording, software=given)
    amp = replace(captured, workload=replace(captured.workload, dtype="amp-bf16"))
    predictor.estimate(amp, device=device, checkpoint=recording)
    assert recording.softwares == [
        Software(), Software(matmul_tf32=True), given, Software(amp="bf16"),
    ]  # fmt: skip


def test_compare_captures_once_and_lists_refusals(
    device: Device, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = runtime.capture

    def counted(*args: object, **kwargs: object) -> OpGraph:
        calls.append(args)
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime, "capture", counted)
    slow = replace(device, id="half-1", memory_bw_gbps=50.0)
    cannot = replace(device, id="old-1", unsupported_dtypes=("fp8",))
    comparison = predictor.compare(
        torch.nn.Linear(16, 32),
        torch.empty(8, 16),
        devices=[device, cannot, slow],
        checkpoint=recording,
    )
    assert len(calls) == 1
    assert [e.device.id for e in comparison] == ["round-1", "half-1"]
    assert dict(comparison.refused) == {"old-1": "old-1 has no path"}
    fast_us, slow_us = (e.latency_us for e in comparison)
    assert slow_us > fast_us
    text = str(comparison)
    assert text.index("round-1") < text.index("half-1") < text.index("refused old-1")
    rows = comparison.to_json()["devices"]
    assert isinstance(rows, list)
    assert rows[0]["samples_per_s"] == pytest.approx(8 / fast_us * 1e6)
    assert list(comparison.frame()["device"]) == ["round-1", "half-1"]
    assert rows[0]["warnings"] == list(next(iter(comparison)).warnings)
    assert rows[0]["level"] == 0.9
    assert "in distribution" in text


def test_each_kind_of_device_takes_its_own_checkpoint_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    original = api.load

    def named(checkpoint: str | Path = api.DEFAULT_CHECKPOINT) -> api.Predictor:
        asked.append(str(checkpoint))
        return original(checkpoint)

    monkeypatch.setattr(api, "load", named)
    half = api.capture(torch.nn.Linear(16, 32), torch.empty(8, 16), dtype="bf16")
    found = predictor.compare(half, devices=["google-tpu-v5e", "nvidia-a100-sxm-80gb"])
    assert asked == ["tpu-v1", "base-v2"]
    assert [e.checkpoint for e in found] == asked
    told = "checkpoints: tpu-v1 for google-tpu-v5e; base-v2 for nvidia-a100-sxm-80gb"
    assert told in " ".join(str(found).split())
    rows = found.to_json()["devices"]
    assert isinstance(rows, list) and [row["checkpoint"] for row in rows] == asked
    one = predictor.estimate(half, device="google-tpu-v6e", checkpoint="base-v2")
    assert one.checkpoint == "base-v2"


def test_all_devices_refused_is_still_a_table(captured: OpGraph, recording: Recording) -> None:
    cannot = Device(id="old-1", vendor="x", kind="gpu", unsupported_dtypes=("fp8",))
    comparison = predictor.compare(captured, devices=[cannot], checkpoint=recording)
    assert str(comparison).strip() == "refused old-1: old-1 has no path"


def test_unknown_devices_and_checkpoints(captured: OpGraph, network: api.Predictor) -> None:
    with pytest.raises(UnknownDeviceError, match="no device 'nope'"):
        predictor.estimate(captured, device="nope", checkpoint=network)
    with pytest.raises(UnknownDeviceError, match="give at least one"):
        predictor.compare(captured, devices=[], checkpoint=network)
    with pytest.raises(UnknownDeviceError, match="package"):
        predictor.estimate(captured, device="amd-mi250x-package", checkpoint=network)
    with pytest.raises(CheckpointError, match="no checkpoint 'nope'"):
        predictor.estimate(captured, device="nvidia-t4", checkpoint="nope")


def test_what_does_not_fit_keeps_a_hypothetical_latency(
    captured: OpGraph, device: Device, network: api.Predictor
) -> None:
    small = replace(device, memory_gib=0.7501, memory_reported_gib=None)
    tight = replace(captured, workload=replace(captured.workload, parameters_bytes=10**9))
    estimate = predictor.estimate(tight, device=small, checkpoint=network)
    assert estimate.hypothetical
    assert estimate.latency_us > 0
    assert "does not fit" in estimate.warnings[0]


def test_the_same_graph_gives_the_same_estimate(
    captured: OpGraph, device: Device, network: api.Predictor
) -> None:
    first, second = (
        predictor.estimate(captured, device=device, checkpoint=network) for _ in range(2)
    )
    assert first.to_json() == second.to_json()


def test_pooling_on_a_gpu_where_sums_alone_were_measured_is_transferred() -> None:
    import torch

    pooling = torch.nn.MaxPool2d(3, 2, 1)
    found = predictor.estimate(
        pooling, torch.empty(16, 64, 112, 112), device="nvidia-a100-sxm-80gb"
    )
    assert found.kernels["label"].tolist() == ["transferred"]
    seen = predictor.estimate(pooling, torch.empty(16, 64, 112, 112), device="nvidia-rtx-3090")
    assert seen.kernels["label"].tolist() == ["learned"]
    reach = [e.kernels["upper_us"] / e.kernels["lower_us"] for e in (found, seen)]
    assert reach[0][0] > reach[1][0]
