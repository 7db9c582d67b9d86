"""Rooflines against numbers worked out by hand, and the laws they keep on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.features.roofline import LAUNCH_US, op_class_of, roofline
from predictor.features.table import concat
from predictor.graph.ops import OPS
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.device import Software
from predictor.hardware.sustained import cache_mib

FRAMEWORK = Software()
ADD = ("add", (2**28, 2, 1), "bf16")
GEMM = ("matmul", (1, 8192, 8192, 8192), "bf16")
PREDICTABLE = [d for d in load_catalogue().values() if d.scope != "package" and d.memory_bw_gbps]


def times(calls, device, software=FRAMEWORK, *, table):
    return roofline(table(calls), resolve_device(device), software)


def test_depthwise_convolution_is_bound_by_its_loads(table):
    # 2*9*102,760,448 FLOPs; 2*(2*102,760,448 + 2,304) bytes at 2,039 GB/s: 201.6 us
    call = ("conv", (128, 256, 56, 56, 256, 56, 56, 3, 3, 256), "bf16")
    kernels = table([call])
    assert kernels.flops[0] == 1_849_688_064
    assert kernels.read_bytes[0] + kernels.write_bytes[0] == 411_046_400
    roof = roofline(kernels, resolve_device("nvidia-a100-sxm-80gb"), FRAMEWORK)
    assert roof.floor_us[0] == pytest.approx(201.6, rel=0.001)
    assert roof.datasheet_us[0] == pytest.approx(201.6, rel=0.001)
    # a quarter of 19.49 TFLOP/s of vector lanes: 379.6 us, and no more from padded matrix units
    assert roof.compute_us[0] == pytest.approx(379.6, rel=0.01)
    assert roof.bound[0] == "compute"


def test_few_channels_a_group_waste_matrix_instructions(table):
    # 32 groups of 4 to 4 channels fill 4 of 8 by 4 of 8: a quarter of 312 TFLOP/s (x 0.88) beats
    # the vector lanes' 19.5; groups of 64 waste nothing
    def rate(groups, channels):
        call = ("conv", (64, channels, 28, 28, channels, 28, 28, 3, 3, groups), "fp16")
        kernels = table([call])
        roof = roofline(kernels, resolve_device("nvidia-a100-sxm-80gb"), FRAMEWORK)
        return kernels.flops[0] / roof.compute_us[0] * 1e-6

    dense = rate(1, 128)
    assert rate(32, 128) == pytest.approx(dense / 4, rel=0.001)
    assert rate(2, 128) == pytest.approx(dense, rel=0.001)


def test_contiguous_half_convolutions_are_turned_and_turned_back(table):
    # twice the own traffic on top, by kernels of their own; channels-last needs none, fp32 none
    shape = (64, 256, 56, 56, 64, 56, 56, 1, 1, 1)
    last = Software(memory_format="channels_last")
    device = "nvidia-rtx-4090"
    calls = [("conv", shape, "fp16"), ("conv", shape, "fp32")]
    plain, turned = (times(calls, device, s, table=table) for s in (last, FRAMEWORK))
    extra = turned.base_us - plain.base_us
    assert extra[0] == pytest.approx(2 * plain.memory_us[0])
    assert extra[1] == 0
    assert (turned.floor_us == plain.floor_us).all()
    amd = [times(calls[:1], "amd-mi300x", s, table=table).base_us[0] for s in (last, FRAMEWORK)]
    assert amd[0] == amd[1]


@pytest.mark.parametrize(
    ("device", "floor_us"),
    [
        ("nvidia-a100-sxm-40gb", 1035.8), ("nvidia-a100-pcie-80gb", 832.4),
        ("nvidia-a100-sxm-80gb", 789.9), ("nvidia-h100-pcie-80gb", 805.3),
        ("nvidia-h100-sxm-80gb", 480.8), ("nvidia-l4", 5368.7), ("nvidia-t4", 5033.2),
    ],
)  # fmt: skip
def test_addition_of_two_gibi_elements(table, device, floor_us):
    # 3 * 2 bytes * 2**28 = 1.611 GB at the peak bandwidth
    roof = times([ADD], device, table=table)
    assert roof.floor_us[0] == pytest.approx(floor_us, rel=0.02)
    assert roof.base_us[0] > roof.floor_us[0]
    assert roof.bound[0] == "memory"


@pytest.mark.parametrize(
    ("device", "floor_us"),
    [
        ("nvidia-h100-sxm-80gb", 1111.3), ("nvidia-h100-pcie-80gb", 1454.4),
        ("nvidia-a100-sxm-40gb", 3524.1), ("nvidia-l4", 9086.9), ("amd-mi250x-gcd", 5741.6),
        ("google-tpu-v5e", 5581.3),
    ],
)  # fmt: skip
def test_large_product_at_the_dense_peak(table, device, floor_us):
    # 2 * 8192**3 FLOPs; half of these times would mean the 2:4 sparse peak
    roof = times([GEMM], device, table=table)
    assert roof.datasheet_us[0] == pytest.approx(floor_us, rel=0.02)
    assert 0.9 * floor_us < roof.floor_us[0] <= floor_us * 1.02  # at the highest clock
    assert roof.bound[0] == "compute"


def test_tf32_is_on_for_convolution_and_off_for_products(table):
    # 2 * 8192**3 FLOPs each: 19.5 TFLOP/s without TF32 (56.4 ms), 156 with it (7.05 ms)
    linear = ("linear", (1, 8192, 8192, 8192), "fp32")
    conv = ("conv", (1, 8192, 128, 64, 8192, 128, 64, 1, 1, 1), "fp32")
    kernels = table([linear, conv])
    assert kernels.flops[0] == kernels.flops[1] == 1_099_511_627_776
    device = resolve_device("nvidia-a100-sxm-40gb")
    default = roofline(kernels, device, FRAMEWORK).floor_us
    assert default == pytest.approx([56_400, 7_050], rel=0.01)
    high = roofline(kernels, device, Software(matmul_tf32=True)).floor_us
    assert high == pytest.approx([7_050, 7_050], rel=0.01)
    off = roofline(kernels, device, Software(conv_tf32=False)).floor_us
    assert off == pytest.approx([56_400, 56_400], rel=0.01)


def test_power_lifts_the_expected_time_of_an_l4_not_its_floor(table):
    roof = times([("linear", (1, 8192, 8192, 8192), "fp32")], "nvidia-l4", table=table)
    # 72 W at 5 nm: about 0.4 of 30.3 TFLOP/s
    assert 2.0 < roof.base_us[0] / roof.floor_us[0] < 2.9
    assert roof.starve[0] > 0.5


def test_tiny_kernels_are_bound_by_the_launch(table):
    roof = times([("add", (1, 2, 1), "fp32")], "nvidia-a100-sxm-80gb", table=table)
    assert roof.bound[0] == "launch"
    assert roof.base_us[0] == pytest.approx(LAUNCH_US, rel=0.01)
    assert roof.floor_us[0] < 1e-3


def test_every_dependent_launch_counts(table):
    call = ("rnn", (100, 8, 64, 64, 1, 1, 4), "fp32")
    roof = times([call], "nvidia-v100-pcie-32gb", table=table)
    assert roof.base_us[0] >= 100 * LAUNCH_US


def test_operands_in_the_cache_have_no_memory_floor(table):
    small, large = ("add", (2**18, 2, 1), "fp32"), ("add", (2**26, 2, 1), "fp32")
    roof = times([small, large], "nvidia-a100-sxm-80gb", table=table)
    assert roof.cache_ratio[0] < 1 < roof.cache_ratio[1]
    assert roof.floor_us[0] < 0.1 < roof.floor_us[1]
    # 3 MiB from 40 MiB of L2 streams faster than DRAM would
    assert roof.memory_us[0] < 3 * 2**20 / 2039e3


def test_copies_need_no_arithmetic_rate(table):
    call = ("copy", (2**26, 1, 1), "int64")
    roof = times([call], "nvidia-t4", table=table)
    assert roof.compute_us[0] == 0
    assert roof.bound[0] == "memory"


def test_precision_without_a_path_is_refused_by_name(table):
    with pytest.raises(UnsupportedPrecision, match="nvidia-v100-pcie-32gb"):
        times([("matmul", (1, 64, 64, 64), "fp8")], "nvidia-v100-pcie-32gb", table=table)


def test_unknown_bandwidth_is_refused_not_guessed(table):
    device = replace(resolve_device("nvidia-t4"), memory_bw_gbps=None)
    with pytest.raises(UnknownRateError, match="bandwidth"):
        roofline(table([ADD]), device, FRAMEWORK)


@pytest.mark.parametrize("device", PREDICTABLE, ids=lambda d: d.id)
def test_the_floor_lies_below_what_is_expected(table, device):
    """For kernels beyond the cache; convolution aside, which may need fewer FLOPs."""
    cache_bytes = (cache_mib(device) or 32) * 2**20
    calls = []
    for dtype in ("fp32", "fp16", "bf16"):
        for factor in (1.01, 1.5, 4, 64):
            n = int(cache_bytes * factor / 4)
            side = int((cache_bytes * factor / 6) ** 0.5)
            calls += [
                ("add", (n, 2, 1), dtype), ("softmax", (n // 1024, 1024), dtype),
                ("layer_norm", (n // 512, 512), dtype), ("embedding", (n // 256, 256), dtype),
                ("matmul", (1, side, side, side), dtype), ("bmm", (64, side, side, 64), dtype),
            ]  # fmt: skip
    for call in calls:
        try:
            roof = roofline(table([call]), device, FRAMEWORK)
        except UnsupportedPrecision:
            continue
        assert 0 < roof.floor_us[0] <= roof.base_us[0], call
        assert np.isfinite(roof.base_us[0])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 4096), cols=st.integers(1, 4096), depth=st.integers(1, 4096),
    device=st.sampled_from(["nvidia-a100-sxm-80gb", "nvidia-l4", "amd-mi210", "google-tpu-v5e"]),
)  # fmt: skip
def test_more_work_is_never_expected_to_take_less(table, rows, cols, depth, device):
    one = table([("matmul", (1, rows, cols, depth), "bf16")])
    two = table([("matmul", (1, 2 * rows, cols, depth), "bf16")])
    small, large = (roofline(t, resolve_device(device), FRAMEWORK) for t in (one, two))
    for name in ("floor_us", "datasheet_us", "compute_us", "memory_us", "base_us"):
        assert getattr(large, name)[0] >= getattr(small, name)[0] * (1 - 1e-12), name


def test_rows_do_not_depend_on_each_other(table, mixed):
    device = resolve_device("nvidia-h100-sxm-80gb")
    together = roofline(table(mixed), device, FRAMEWORK)
    alone = [roofline(table([call]), device, FRAMEWORK) for call in mixed]
    for name in ("floor_us", "compute_us", "memory_us", "base_us"):
        assert getattr(together, name) == pytest.approx([getattr(r, name)[0] for r in alone])


def test_classes_are_those_of_the_vocabulary(table, mixed):
    kernels = concat([table(mixed)])
    assert op_class_of(kernels).tolist() == [OPS[op].op_class for op, _, _ in mixed]
