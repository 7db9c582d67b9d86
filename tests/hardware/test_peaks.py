"""Peaks: section B of the hand-worked cases, and laws that every catalogue row keeps."""

import dataclasses
import math

import pytest

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.graph.ir import DTYPE_BYTES
from predictor.graph.ops import OP_CLASSES
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.consistency import implied_fp32_tflops, implied_matrix16_tflops
from predictor.hardware.device import Software
from predictor.hardware.peaks import (
    DTYPES,
    MATRIX_CLASSES,
    VECTOR_CLASSES,
    arithmetic_dtype,
    max_clock_peak_tflops,
    mem_bw_gbps,
    peak_tflops,
    supported_dtypes,
)

CATALOGUE = load_catalogue()
DEFAULTS = Software()
HIGH = Software(matmul_tf32=True)
GEMM_8192 = 2 * 8192**3


def peak(device_id, dtype="fp32", op_class="matmul", software=DEFAULTS):
    return peak_tflops(CATALOGUE[device_id], op_class=op_class, dtype=dtype, software=software)


def max_peak(device_id, dtype="fp32", op_class="matmul", software=DEFAULTS):
    return max_clock_peak_tflops(
        CATALOGUE[device_id], op_class=op_class, dtype=dtype, software=software
    )


def compute_us(flops, tflops):
    return flops / tflops * 1e-6


def memory_us(moved_bytes, device_id):
    return moved_bytes / mem_bw_gbps(CATALOGUE[device_id]) * 1e-3


def test_depthwise_convolution_on_a100_is_memory_bound():  # B1
    flops, moved = 1_849_688_064, 411_046_400
    floor_us = memory_us(moved, "nvidia-a100-sxm-80gb")
    assert floor_us == pytest.approx(201.6, rel=1e-3)
    assert compute_us(flops, peak("nvidia-a100-sxm-80gb", "bf16", "conv")) < floor_us
    ridge = peak("nvidia-a100-sxm-80gb", "bf16") * 1e3 / 2039
    assert ridge == pytest.approx(153, rel=1e-2)
    assert peak("nvidia-a100-sxm-80gb") * 1e3 / 2039 == pytest.approx(9.6, rel=1e-2)


@pytest.mark.parametrize(
    ("device_id", "floor_us"),
    [
        ("nvidia-a100-sxm-40gb", 1035.8),
        ("nvidia-a100-pcie-80gb", 832.4),
        ("nvidia-a100-sxm-80gb", 789.9),
        ("nvidia-h100-pcie-80gb", 805.3),
        ("nvidia-h100-sxm-80gb", 480.8),
        ("nvidia-l4", 5368.7),
        ("nvidia-t4", 5033.2),
    ],
)
def test_addition_floor(device_id, floor_us):  # B3
    assert memory_us(3 * 2**28 * 2, device_id) == pytest.approx(floor_us, rel=0.02)


def test_a100_memory_helps_addition_and_not_gemm():  # B3
    old, new = "nvidia-a100-sxm-40gb", "nvidia-a100-sxm-80gb"
    assert memory_us(1, old) / memory_us(1, new) == pytest.approx(1.311, rel=1e-3)
    assert peak(old, "bf16") == peak(new, "bf16")


@pytest.mark.parametrize(
    ("device_id", "floor_us"),
    [
        ("nvidia-h100-sxm-80gb", 1111.3),
        ("nvidia-h100-pcie-80gb", 1454.4),
        ("nvidia-a100-sxm-40gb", 3524.1),
        ("nvidia-l4", 9086.9),  # B9: dense; 242 would be the sparse peak
        ("amd-mi250x-gcd", 5741.6),
        ("google-tpu-v5e", 5581),
    ],
)
def test_gemm_floor_is_dense_and_per_device(device_id, floor_us):  # B4
    assert compute_us(GEMM_8192, peak(device_id, "bf16")) == pytest.approx(floor_us, rel=0.02)


def test_published_clock_arithmetic():  # B5
    assert peak("nvidia-a100-sxm-80gb", "fp16") == pytest.approx(432 * 256 * 2 * 1.41e-3, rel=0.01)
    assert peak("nvidia-h100-sxm-80gb", "fp16") == pytest.approx(528 * 512 * 2 * 1.83e-3, rel=0.01)
    package = CATALOGUE["amd-mi250x-package"].peak_fp16_tflops
    assert package == pytest.approx(880 * 128 * 2 * 1.7e-3, rel=0.01)
    assert package == pytest.approx(2 * peak("amd-mi250x-gcd", "fp16"), rel=0.01)


@pytest.mark.parametrize("device", CATALOGUE.values(), ids=CATALOGUE)
def test_peaks_agree_with_units_and_clocks(device):  # B5
    hybrid = device.id == "intel-i7-12700h"  # two kinds of cores: one clock does not say it
    implied = implied_fp32_tflops(device)
    if implied is not None and device.peak_fp32_tflops is not None and not hybrid:
        assert device.peak_fp32_tflops == pytest.approx(implied, rel=0.02)
    sixteen = max(device.peak_fp16_tflops or 0, device.peak_bf16_tflops or 0)
    implied = implied_matrix16_tflops(device)
    if implied is not None and sixteen > 0:
        assert sixteen == pytest.approx(implied, rel=0.02)


NVIDIA = [d for d in CATALOGUE.values() if d.vendor == "nvidia"]


@pytest.mark.parametrize("device", NVIDIA, ids=[d.id for d in NVIDIA])
def test_nvidia_ratios_between_dtypes(device):  # B5
    if device.peak_bf16_tflops is None:
        return
    if device.peak_fp8_tflops is not None:
        assert device.peak_fp8_tflops / device.peak_bf16_tflops == pytest.approx(2, rel=0.03)
    if device.peak_tf32_tflops is not None:
        assert device.peak_bf16_tflops / device.peak_tf32_tflops == pytest.approx(2, rel=0.03)
    if device.peak_int8_tops is not None and float(device.compute_capability) < 10:
        # GeForce halves fp32 accumulation: int8 is twice the rate with fp16 accumulation.
        full = device.peak_fp16_fp16acc_tflops or device.peak_bf16_tflops
        assert device.peak_int8_tops / full == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("device", CATALOGUE.values(), ids=CATALOGUE)
def test_no_value_under_an_unsupported_dtype(device):
    fields = {"fp16_matrix": "peak_fp16_tflops", "fp64": "peak_fp64_tflops"}
    for token in device.unsupported_dtypes:
        if token != "int8_matrix":  # DP4A
            name = fields.get(
                token, "peak_int8_tops" if token == "int8" else f"peak_{token}_tflops"
            )
            assert getattr(device, name) is None


@pytest.mark.parametrize(
    "name", ["nvidia-a100-sxm-80gb", "NVIDIA A10", "GeForce RTX 3090", "Tesla V100-PCIE-32GB"]
)
def test_fp8_before_ada_and_hopper_is_unsupported(name):  # B7
    with pytest.raises(UnsupportedPrecision, match="fp8") as caught:
        peak_tflops(resolve_device(name), op_class="matmul", dtype="fp8", software=DEFAULTS)
    assert not isinstance(caught.value, UnknownRateError)
    assert "fp16" in str(caught.value)  # what is supported


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA L4", 242.5),
        ("NVIDIA L40S", 733),
        ("GeForce RTX 4090", 330.3),
        ("NVIDIA H100 PCIe", 1513),
        ("NVIDIA B200", 4500),
        ("AMD Instinct MI300X", 2614.9),
    ],
)
def test_fp8_where_supported(name, tflops):  # B7
    device = resolve_device(name)
    assert peak_tflops(device, op_class="matmul", dtype="fp8", software=DEFAULTS) == tflops


@pytest.mark.parametrize("op_class", sorted(MATRIX_CLASSES))
@pytest.mark.parametrize(
    ("device_id", "dtype"),
    [
        ("nvidia-v100-sxm2-32gb", "bf16"),
        ("nvidia-t4", "bf16"),
        ("nvidia-t4", "tf32"),
        ("nvidia-p100-pcie-16gb", "bf16"),
        ("nvidia-p100-pcie-16gb", "int8"),
        ("nvidia-h100-sxm-80gb", "fp4"),
        ("amd-mi210", "fp8"),
        ("google-tpu-v4", "fp16"),
        ("google-tpu-v3-core", "int8"),
        ("google-tpu-v5e", "fp64"),
    ],
)
def test_missing_hardware_paths(device_id, dtype, op_class):
    with pytest.raises(UnsupportedPrecision, match=f"{device_id} has no hardware path for {dtype}"):
        peak(device_id, dtype, op_class)


def test_fp32_follows_the_tf32_switches_of_the_framework():  # B8
    a100 = "nvidia-a100-sxm-80gb"
    assert compute_us(GEMM_8192, peak(a100)) == pytest.approx(56_400, rel=0.01)
    assert compute_us(GEMM_8192, peak(a100, op_class="conv")) == pytest.approx(7_050, rel=0.01)
    assert peak(a100, op_class="conv") / peak(a100) == pytest.approx(8, rel=0.01)
    assert compute_us(GEMM_8192, peak(a100, software=HIGH)) == pytest.approx(7_050, rel=0.01)
    strict = Software(conv_tf32=False)
    assert peak(a100, op_class="conv", software=strict) == 19.49
    assert peak(a100, op_class="recurrent") == 156
    for op_class in ("attention", "grouped_matmul"):
        assert peak(a100, op_class=op_class) == 19.49
        assert peak(a100, op_class=op_class, software=HIGH) == 156
    assert peak(a100, "tf32") == 156
    assert peak("nvidia-v100-sxm2-32gb", op_class="conv", software=HIGH) == 15.67  # no tf32


def test_cudnn_switch_is_nvidia_only():
    assert peak("amd-mi300x", op_class="conv") == 163.4
    assert peak("amd-mi300x", software=HIGH) == 653.7
    assert peak("amd-mi350x", software=HIGH) == 144.2  # emulates tf32
    assert peak("intel-max-1550-stack", op_class="conv") == 26.21


def test_fp32_takes_the_matrix_units_that_accept_it():
    assert peak("amd-mi100") == 46.1
    assert peak("amd-mi210") == 45.3
    assert peak("amd-mi210", op_class="elementwise") == 22.63
    assert peak("intel-gaudi3") == 229


def test_half_without_matrix_units_runs_at_the_fp32_rate():
    assert peak("nvidia-p100-pcie-16gb", "fp16") == 9.526
    assert peak("nvidia-p100-pcie-16gb", "fp16", "conv") == 19.05  # native half
    assert peak("nvidia-tesla-p4", "fp16", "conv") == 5.704  # native half is 1/64 there
    assert peak("nvidia-tesla-p4", "int8") == 22.8  # DP4A


def test_double_precision():
    assert peak("nvidia-a100-sxm-80gb", "fp64") == 19.5
    assert peak("nvidia-a100-sxm-80gb", "fp64", "elementwise") == 9.75
    assert peak("nvidia-t4", "complex128") == 0.254


def test_vector_work_takes_the_fp32_lanes_whatever_the_dtype():
    assert set(OP_CLASSES) == MATRIX_CLASSES | VECTOR_CLASSES
    assert not MATRIX_CLASSES & VECTOR_CLASSES
    for op_class in VECTOR_CLASSES:
        for dtype in set(DTYPE_BYTES) - {"fp64", "complex128", "fp16"}:
            assert peak("nvidia-v100-sxm2-32gb", dtype, op_class) == 15.67
        assert peak("nvidia-v100-sxm2-32gb", "fp16", op_class) == 31.3
        assert peak("nvidia-tesla-p4", "fp16", op_class) == 5.704
        assert peak("google-tpu-v4", "bf16", op_class) == 4.301  # its lanes, not its matrix units
    with pytest.raises(UnsupportedPrecision, match="fp64"):
        peak("google-tpu-v4", "fp64", "elementwise")


def test_vector_work_without_a_known_rate_is_bounded_by_bandwidth_alone():
    device = dataclasses.replace(resolve_device("google-tpu-v4"), peak_fp32_tflops=None)
    rate = peak_tflops(device, op_class="reduction", dtype="bf16", software=Software())
    assert rate == math.inf


def test_fp32_products_of_a_tpu_never_take_its_lanes():
    device = resolve_device("google-tpu-v5e")
    assert device.peak_fp32_tflops == pytest.approx(implied_fp32_tflops(device), rel=0.001)
    with pytest.raises(UnknownRateError, match="fp32"):
        peak_tflops(device, op_class="matmul", dtype="fp32", software=Software())


@pytest.mark.parametrize(
    ("device_id", "dtype"),
    [
        ("intel-xeon-gold-6240", "bf16"),
        ("intel-xeon-gold-6240", "fp16"),
        ("google-tpu-v4", "fp32"),
        ("intel-gaudi2", "fp32"),
        ("nvidia-h100-sxm-96gb-hbm2e", "bf16"),
        ("nvidia-jetson-orin-nano-8gb", "bf16"),
        ("qualcomm-hexagon-8gen3", "int8"),
    ],
)
def test_unknown_rates_say_so(device_id, dtype):
    with pytest.raises(UnknownRateError, match=f"{device_id}: the {dtype} peak is unknown"):
        peak(device_id, dtype)


def test_unknown_tf32_rate_names_the_switch():
    orin = "nvidia-jetson-agx-orin-64gb"
    with pytest.raises(UnknownRateError, match=r"tf32 peak is unknown; .*; switch TF32 off"):
        peak(orin, op_class="conv")
    assert peak(orin, op_class="conv", software=Software(conv_tf32=False)) == 5.325
    assert peak(orin) == 5.325


def test_cpus_and_tpus_work():
    assert peak("intel-xeon-gold-6240") == 2.995
    assert peak("google-tpu-v5e", "bf16") == 197
    assert peak("google-tpu-v5e", "int8") == 394
    assert peak("google-tpu7x-device", "fp8") == 2307


def test_unknown_bandwidth():
    assert mem_bw_gbps(CATALOGUE["nvidia-t4"]) == 320.1
    with pytest.raises(UnknownRateError, match="amd-epyc-9004-2vcpu: the memory bandwidth"):
        mem_bw_gbps(CATALOGUE["amd-epyc-9004-2vcpu"])


def test_highest_clock_raises_matrix_peaks_only():
    assert max_peak("nvidia-h100-sxm-80gb", "bf16") == pytest.approx(1070, rel=1e-3)
    assert max_peak("nvidia-h100-sxm-80gb", "bf16") == pytest.approx(989.4 * 1980 / 1830)
    assert max_peak("nvidia-h100-sxm-80gb") == 66.91  # already at boost
    assert max_peak("nvidia-h100-sxm-80gb", op_class="conv") == pytest.approx(494.7 * 1980 / 1830)
    assert max_peak("nvidia-h100-sxm-80gb", "fp64") == 66.9
    assert max_peak("nvidia-gb300", "bf16") == 2500  # boost clock unknown
    assert max_peak("intel-xeon-gold-6240") == pytest.approx(2.995 * 3900 / 2600)
    assert max_peak("nvidia-a100-sxm-80gb", "bf16") == 312


@pytest.mark.parametrize("device", CATALOGUE.values(), ids=CATALOGUE)
def test_every_device_answers_or_says_why(device):
    known = supported_dtypes(device)
    for op_class in OP_CLASSES:
        for dtype in DTYPE_BYTES:
            ask = {"op_class": op_class, "dtype": dtype, "software": DEFAULTS}
            try:
                rate = peak_tflops(device, **ask)
            except UnsupportedPrecision as error:
                assert device.id in str(error) or "no device has" in str(error)
                tf32_unrated = device.vendor == "nvidia" and dtype in ("fp32", "complex64")
                if op_class in MATRIX_CLASSES and not tf32_unrated:
                    assert dtype not in known
                with pytest.raises(type(error)):
                    max_clock_peak_tflops(device, **ask)
                continue
            assert rate > 0
            assert max_clock_peak_tflops(device, **ask) >= rate
            if op_class in MATRIX_CLASSES:
                assert math.isfinite(rate)
                assert dtype in known or dtype in ("uint8", "complex64", "complex128")
    if device.memory_bw_gbps is not None:
        assert mem_bw_gbps(device) == device.memory_bw_gbps


@pytest.mark.parametrize(
    ("device_id", "op_class", "dtype", "software", "path"),
    [
        ("nvidia-a100-sxm-80gb", "matmul", "fp32", DEFAULTS, "fp32"),
        ("nvidia-a100-sxm-80gb", "matmul", "fp32", HIGH, "tf32"),
        ("nvidia-a100-sxm-80gb", "conv", "fp32", DEFAULTS, "tf32"),
        ("nvidia-a100-sxm-80gb", "recurrent", "fp32", DEFAULTS, "tf32"),
        ("nvidia-a100-sxm-80gb", "norm", "bf16", DEFAULTS, "fp32"),
        ("nvidia-a100-sxm-80gb", "norm", "complex128", DEFAULTS, "fp64"),
        ("nvidia-v100-sxm2-32gb", "conv", "fp32", DEFAULTS, "fp32"),
        ("nvidia-p100-pcie-16gb", "matmul", "fp16", DEFAULTS, "fp32"),
        ("nvidia-v100-sxm2-32gb", "matmul", "fp16", DEFAULTS, "fp16"),
        ("amd-mi300x", "conv", "fp32", DEFAULTS, "fp32"),
        ("google-tpu-v4", "matmul", "fp32", DEFAULTS, "fp32"),  # supported, rate unknown
    ],
)
def test_path_of_the_arithmetic(device_id, op_class, dtype, software, path):
    found = arithmetic_dtype(
        CATALOGUE[device_id], op_class=op_class, dtype=dtype, software=software
    )
    assert found == path


def test_path_of_the_arithmetic_is_refused_like_the_peak():
    with pytest.raises(UnsupportedPrecision, match="no hardware path for bf16"):
        arithmetic_dtype(CATALOGUE["nvidia-t4"], op_class="matmul", dtype="bf16", software=DEFAULTS)


def test_supported_dtypes():
    assert supported_dtypes(CATALOGUE["nvidia-a100-sxm-80gb"]) == (
        "fp64", "fp32", "tf32", "fp16", "bf16", "int8",
    )  # fmt: skip
    assert supported_dtypes(CATALOGUE["nvidia-p100-pcie-16gb"]) == ("fp64", "fp32", "fp16")
    assert supported_dtypes(CATALOGUE["google-tpu-v4"]) == ("bf16", "int8")
    assert supported_dtypes(CATALOGUE["intel-xeon-gold-6240"]) == ("fp64", "fp32")
    assert supported_dtypes(CATALOGUE["qualcomm-hexagon-8gen3"]) == ()
    assert set(supported_dtypes(CATALOGUE["nvidia-b200-sxm-180gb"])) == set(DTYPES)


def test_words_that_are_no_dtype_or_class():
    with pytest.raises(UnsupportedPrecision, match="unknown dtype 'float32'"):
        peak("nvidia-t4", "float32")
    with pytest.raises(UnsupportedPrecision, match="int64"):
        peak("nvidia-t4", "int64")
    with pytest.raises(ValueError, match="matmuls"):
        peak("nvidia-t4", op_class="matmuls")


def test_tf32_only_raises_a_rate():
    """Allowing tf32 never lowers the peak (A10G: tf32 35.0 under fp32 35.02)."""
    for device in CATALOGUE.values():
        if "tf32" not in supported_dtypes(device):
            continue
        without = peak_tflops(device, op_class="matmul", dtype="fp32", software=DEFAULTS)
        allowed = peak_tflops(device, op_class="matmul", dtype="fp32", software=HIGH)
        assert allowed >= without
        bare = dataclasses.replace(device, unsupported_dtypes=("tf32",), peak_tf32_tflops=None)
        assert peak_tflops(bare, op_class="conv", dtype="fp32", software=HIGH) == without
