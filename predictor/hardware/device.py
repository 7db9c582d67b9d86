"""`Device`: what the model may know about a device, and `Software`: the context it runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "tpu", "cpu", "npu"]
Scope = Literal["device", "die", "package"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Datasheet facts of one framework device. `None` is unknown, never 0."""

    id: str
    """Stable kebab-case key."""
    vendor: str
    kind: Kind
    scope: Scope = "device"
    """`package` rows hold totals of several devices and never feed a prediction."""
    name: str | None = None
    """As the vendor's runtime prints it."""
    architecture: str | None = None
    compute_capability: str | None = None
    year: int | None = None
    process_nm: float | None = None
    unit_kind: str | None = None
    units: float | None = None
    """Enabled SMs, CUs, cores."""
    fp32_flop_per_clk_unit: float | None = None
    matrix16_flop_per_clk_unit: float | None = None
    clock_base_mhz: float | None = None
    clock_boost_mhz: float | None = None
    clock_matrix_mhz: float | None = None
    memory_gib: float | None = None
    memory_reported_gib: float | None = None
    memory_type: str | None = None
    memory_bus_bits: float | None = None
    memory_bw_gbps: float | None = None
    """Peak DRAM bandwidth, 1e9 bytes per second."""
    l2_mib: float | None = None
    llc_mib: float | None = None
    l1_shared_kib_per_unit: float | None = None
    shared_kib_per_unit: float | None = None
    register_kib_per_unit: float | None = None
    peak_fp64_tflops: float | None = None
    peak_fp64_matrix_tflops: float | None = None
    peak_fp32_tflops: float | None = None
    """Vector rate, dense, 1e12 FLOP per second."""
    peak_fp32_matrix_tflops: float | None = None
    peak_tf32_tflops: float | None = None
    peak_fp16_tflops: float | None = None
    """Matrix rate, dense, fp32 accumulate."""
    peak_bf16_tflops: float | None = None
    peak_fp8_tflops: float | None = None
    peak_int8_tops: float | None = None
    peak_fp4_tflops: float | None = None
    peak_fp16_vector_tflops: float | None = None
    peak_fp16_fp16acc_tflops: float | None = None
    unsupported_dtypes: tuple[str, ...] = ()
    matrix_unit: str | None = None
    tdp_w: float | None = None
    host_link: str | None = None
    host_bw_gbps: float | None = None
    scaleup_link: str | None = None
    scaleup_bw_gbps: float | None = None
    scaleout_default: str | None = None
    scaleout_bw_gbps: float | None = None
    dies_per_package: int | None = None
    confidence: str | None = None
    notes: str | None = None


FUSED = "fused inference"
"""`Software.framework` of an inference runtime that fuses, as TensorRT and ONNX Runtime."""
TELL_TF32 = frozenset({"jax", "torch_xla"})
"""Frameworks that XLA compiles for: their kernels tell TF32 themselves, fp32 is fp32 there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The software context of a run; the defaults are PyTorch's own."""

    framework: str = "pytorch"
    framework_version: str | None = None
    mode: Literal["eager", "compiled"] = "eager"
    matmul_tf32: bool = False
    """`torch.backends.cuda.matmul.allow_tf32`; PyTorch's default is off."""
    conv_tf32: bool = True
    """`torch.backends.cudnn.allow_tf32`; PyTorch's default is on."""
    amp: str | None = None
    """`fp16` or `bf16` under autocast."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Of images and convolutions."""
    library: str = ""
    """What the kernels come from, as a source names it; empty for the framework's usual one."""
    scheme: str = ""
    """How operands are quantised, as a source names it; empty for plain numbers."""
    routing: str = ""
    """How tokens spread over experts: `balanced`, `power_law_1.2`, …."""

    @property
    def by_inductor(self) -> bool:
        """Whether `torch.compile` made the kernels; XLA's are compiled too, and fused already."""
        return self.mode == "compiled" and self.framework == "pytorch"
