"""The tile model at shapes whose time can be worked out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.columns import COLUMNS, node_features
from predictor.features.tiles import START_CLOCKS, STEP_CLOCKS, Products, tiled_us
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Device, Software

A100 = resolve_device("nvidia-a100-sxm-80gb")  # 108 SMs, 1410 MHz
L40S = resolve_device("nvidia-l40s")
FLOP_PER_US = 250e6


def product(
    m: float, n: float, k: float, *, batch: float = 1.0, log_reuse: float = 4.0
) -> Products:
    one = np.ones(1)
    traffic = 2.0 * batch * (m * k + n * k + m * n)
    return Products(
        m=m * one, n=n * one, k=k * one, batch=batch * one, step=64.0 * one,
        traffic=traffic * one, flop_per_us=FLOP_PER_US * one, log_reuse=log_reuse * one,
    )  # fmt: skip


def us(*sizes: float, device: Device = A100, **more: float) -> float:
    return float(tiled_us(product(*sizes, **more), device)[0])


def test_a_large_product_takes_its_arithmetic():
    sizes = (8192, 8192, 8192)
    ideal = 2.0 * 8192**3 / FLOP_PER_US
    assert ideal < us(*sizes) < 1.3 * ideal


def test_a_skinny_product_takes_its_weights_from_memory():
    weights_us = 2.0 * 16384 * 16384 / 1935e3  # at the peak of the memory
    assert 1.1 * weights_us < us(1, 16384, 16384) < 1.6 * weights_us


def test_resident_weights_stream_faster():
    cold = us(1, 4096, 4096, log_reuse=4.0, device=L40S)
    assert us(1, 4096, 4096, log_reuse=-4.0, device=L40S) < 0.8 * cold


def test_one_tile_more_than_a_wave_takes_another_wave():
    full, more = us(128, 128 * 108, 8192), us(128, 128 * 109, 8192)
    assert more > 1.05 * full
    assert us(128, 128 * 107, 8192) == pytest.approx(full, rel=0.02)


def test_few_tiles_split_along_k():
    alone_us = 65536 / 64 * STEP_CLOCKS / 1410  # one tile that walks all of k
    assert us(64, 64, 65536) < 0.5 * alone_us


def test_nothing_is_faster_than_a_launch():
    assert us(1, 1, 1) > START_CLOCKS / 1410


def test_a_batch_is_so_many_tiles_more():
    wide, many = product(128, 128 * 864, 512), product(128, 128, 512, batch=864)
    many = replace(many, traffic=wide.traffic)
    assert tiled_us(many, A100) == pytest.approx(tiled_us(wide, A100), rel=0.1)


def test_the_column_is_the_ratio_to_the_base_time(table):
    calls = [("matmul", (1, 4096, 4096, 4096), "bf16"), ("relu", (4096, 1, 1), "bf16")]
    found = node_features(table(calls), A100, Software())
    ratio = found.x[:, COLUMNS.index("log_tiled")]
    assert ratio[1] == 0.0 and 0.0 < ratio[0] < 0.6
    assert np.isfinite(found.x).all()
    without_units = node_features(table(calls), replace(A100, units=None), Software())
    assert (without_units.x[:, COLUMNS.index("log_tiled")] == 0.0).all()
