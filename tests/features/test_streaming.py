"""What the cache leaves of the traffic of streaming kernels, and second reads of norms."""

from __future__ import annotations

import math

import pytest

from predictor.features.columns import COLUMNS, node_features
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software

L4, T4, A100, MI210, CPU = (
    "nvidia-l4", "nvidia-t4", "nvidia-a100-pcie-40gb", "amd-mi210", "intel-i9-10940x",
)  # fmt: skip
MIB = 2**20


@pytest.fixture
def streamed(table):
    """Time that the column says, over the roofline's, by call."""

    def of(calls, device):
        found = node_features(table(calls), resolve_device(device), Software())
        return [math.exp(v) for v in found.x[:, COLUMNS.index("log_streamed")]], found.roofline

    return of


def relu(mib):
    """A call with this traffic: half is read, half written."""
    return ("relu", (int(mib * MIB / 8), 1, 1), "fp32")


def us(streamed, call, device):
    (ratio,), roof = streamed([call], device)
    return ratio * roof.base_us[0]


def test_what_fits_is_served_by_the_cache(streamed):
    # 32 of 48 MiB: 33.55 MB at 58 units x 2.04 GHz x 22 bytes, and 2 us of launch
    hit = 1 / (1 + (32 / 48) ** 10)
    expected = 33_554_432 * (hit / 2603.04 + (1 - hit) / 234) * 1e-3 + 2
    assert us(streamed, relu(32), L4) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("device", "mib"), [(L4, 480), (T4, 40), (A100, 400)])
def test_far_beyond_the_cache_nothing_changes(streamed, device, mib):
    (ratio,), _ = streamed([relu(mib)], device)
    assert ratio == pytest.approx(1.0, abs=0.02)


def test_a_split_cache_holds_less(streamed):
    # 0.9 of the cache: an A100 streams nearly all of it, a T4 about half
    far, near = us(streamed, relu(36), A100), us(streamed, relu(36 * 4), A100)
    assert far - 2 > 0.2 * (near - 2)
    (ratio,), _ = streamed([relu(3.6)], T4)
    assert ratio < 0.6


def test_time_rises_with_traffic(streamed):
    for device in (L4, T4, A100):
        times = [us(streamed, relu(mib), device) for mib in (1, 2, 4, 8, 16, 32, 40, 48, 64, 96)]
        assert times == sorted(times)


def test_a_norm_reads_wide_rows_twice(streamed):
    # 65,536 rows of 4 and of 64 KiB on an A100: 1,728 of them are in flight
    (narrow, wide), _ = streamed(
        [("layer_norm", (65_536, 1024), "fp32"), ("layer_norm", (65_536, 16_384), "fp32")], A100
    )
    assert narrow == pytest.approx(1.0, abs=0.02)
    assert wide == pytest.approx(1.5, abs=0.02)


def test_few_rows_are_read_once(streamed):
    (ratio,), _ = streamed([("layer_norm", (64, 16_384), "fp32")], A100)
    assert ratio <= 1.0


@pytest.mark.parametrize(
    ("call", "device"),
    [
        (("matmul", (1, 512, 512, 512), "fp32"), L4),
        (relu(4), MI210),
        (relu(4), CPU),
        (("layer_norm", (65_536, 16_384), "fp32"), MI210),
    ],
)
def test_zero_where_it_does_not_speak(streamed, call, device):
    (ratio,), _ = streamed([call], device)
    assert ratio == 1.0
