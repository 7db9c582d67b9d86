"""A tiny program and a stand-in network, for the tests of what lies around the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from predictor.cost.memory import memory_report
from predictor.graph.ir import Kernel, KernelGraph, Workload
from predictor.graph.ops import OPS
from predictor.hardware.device import Device, Software
from predictor.nn.prediction import Interval, Prediction
from predictor.report.assemble import assemble
from predictor.report.estimate import Estimate

LAUNCH_US = 2.0


@dataclass(frozen=True, kw_only=True)
class RooflineNetwork:
    """A stand-in for a trained network: every kernel takes its floor plus a launch."""

    name: str = "stand-in"
    label: str = "learned"

    def predict(self, graph: KernelGraph, device: Device, software: Software) -> Prediction:
        """Floor by the fp32 peak and the bandwidth of the datasheet."""
        assert device.peak_fp32_tflops is not None
        assert device.memory_bw_gbps is not None
        compute_us = np.array([k.flops for k in graph.kernels]) / device.peak_fp32_tflops / 1e6
        memory_us = np.array([k.bytes for k in graph.kernels]) / device.memory_bw_gbps / 1e3
        floor_us = np.maximum(compute_us, memory_us)
        kernel_us = floor_us + LAUNCH_US
        phase = np.array([k.phase for k in graph.kernels])
        names = [p for p in ("forward", "backward", "optimizer") if p in phase]
        classes = [OPS[k.op].op_class for k in graph.kernels]
        return Prediction(
            kernel_us=kernel_us,
            kernel_lower_us=kernel_us * 0.9,
            kernel_upper_us=kernel_us * 1.2,
            floor_us=floor_us,
            bound=np.where(compute_us > memory_us, "compute", "memory"),
            label=np.where(np.array(classes) == "optimizer", "roofline", self.label),
            in_distribution=np.ones(len(kernel_us), dtype=bool),
            phases={p: _interval(float(kernel_us[phase == p].sum())) for p in names},
            step=_interval(float(kernel_us.sum())),
        )


def _interval(us: float) -> Interval:
    return Interval(latency_us=us, lower_us=us * 0.95, upper_us=us * 1.1)


def linear(phase: str, *, m: int = 8, n: int = 16, k: int = 4, dtype: str = "fp32") -> Kernel:
    """A matrix product `[m, k] x [k, n]`: 2mnk FLOPs, every operand moved once."""
    return Kernel(
        op="linear",
        phase=phase,  # type: ignore[arg-type]
        dims={"batch": 1, "m": m, "n": n, "k": k},
        dtype=dtype,
        flops=2.0 * m * n * k,
        matmul_flops=2.0 * m * n * k,
        read_bytes=4.0 * (m * k + n * k),
        write_bytes=4.0 * m * n,
        name="aten.addmm",
    )


def workload(**changes: object) -> Workload:
    """A training workload with 64 parameters."""
    values: dict[str, object] = {
        "name": "tiny",
        "mode": "train",
        "parameters": 64,
        "trainable_parameters": 64,
        "parameters_bytes": 256,
        "buffers_bytes": 0,
        "inputs_bytes": 128,
        "batch": 8,
        "tokens": None,
        "dtype": "fp32",
        "optimizer": "adamw",
        "trainable_bytes": 256,
    }
    return Workload(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def network() -> RooflineNetwork:
    """The stand-in network."""
    return RooflineNetwork()


@pytest.fixture
def make_graph() -> Callable[..., KernelGraph]:
    """Make a kernel graph: two equal linears forward, one backward, one optimizer kernel."""

    def make(**changes: object) -> KernelGraph:
        update = Kernel(
            op="adamw", phase="optimizer", dims={"numel": 64, "tensors": 1}, dtype="fp32",
            flops=640.0, read_bytes=1024.0, write_bytes=768.0, name="adamw",
        )  # fmt: skip
        kernels = (linear("forward"), linear("forward"), linear("backward", m=16), update)
        return KernelGraph(
            workload=workload(**changes),
            kernels=kernels,
            edges=((0, 1), (1, 2)),
            edge_bytes=(512.0, 512.0),
            host_ops={"forward": 2, "backward": 1, "optimizer": 1},
            peak_activation_bytes=1024.0,
        )

    return make


@pytest.fixture
def make_estimate(
    network: RooflineNetwork, make_graph: Callable[..., KernelGraph], device: Device
) -> Callable[..., Estimate]:
    """Make an estimate of the tiny program; `memory_gib` sizes the device."""

    def make(*, memory_gib: float | None = 1.0, **changes: object) -> Estimate:
        graph = make_graph(**changes)
        sized = replace(device, memory_gib=memory_gib, memory_reported_gib=memory_gib)
        return assemble(
            graph,
            network.predict(graph, sized, Software()),
            target="tiny",
            ops=7,
            device=sized,
            software=Software(),
            memory=memory_report(graph, sized),
            checkpoint=network.name,
            provenance={"code_version": "1"},
        )

    return make


@pytest.fixture
def device() -> Device:
    """A device with round numbers: 1 TFLOP/s, 100 GB/s, 1 GiB."""
    return Device(
        id="round-1", vendor="nvidia", kind="gpu", peak_fp32_tflops=1.0, memory_bw_gbps=100.0,
        memory_gib=1.0, memory_reported_gib=1.0, units=1.0, clock_boost_mhz=1000.0,
    )  # fmt: skip
