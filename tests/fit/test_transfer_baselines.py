"""Baselines recover the laws that times were made by."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.fit.transfer_baselines import (
    ProxyPredictor,
    flops_law,
    line,
    log_work,
    proxies_of,
)
from predictor.hardware.catalogue import resolve_device

NEW, TWIN = "nvidia-a100-pcie-80gb", "nvidia-a100-sxm-40gb"
NONE = np.zeros(0, dtype=np.int64)
SIZES = np.array([3.0, 10.0, 40.0, 55.0, 90.0, 200.0, 1000.0, 5000.0])


def rows(device: str, times: np.ndarray, units: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame({
        "device": device, "proxy_setting": "", "key": [f"k{i}" for i in range(len(times))],
        "measured_us": times, "units": units, "dtype": "fp32", "flops": SIZES * 1e9,
    })  # fmt: skip


def bw(device: str) -> float:
    found = resolve_device(device).memory_bw_gbps
    assert found is not None
    return found


def predictor(*others: pd.DataFrame) -> ProxyPredictor:
    own = rows(NEW, SIZES)
    return ProxyPredictor(own, NEW, proxies_of(pd.concat([own, *others]), NEW))


def test_a_line_needs_rows() -> None:
    x = np.arange(6.0)
    assert line(x, 2 * x + 1) == pytest.approx((2.0, 1.0))
    assert line(x[:3], x[:3] + 4) == (1.0, 4.0)
    assert line(np.zeros(6), np.full(6, 2.0)) == (1.0, 2.0)


def test_the_flops_law_is_exact_where_it_holds() -> None:
    work = np.log(SIZES)
    at = np.arange(5)
    law = flops_law(work, work[at], 0.8 * work[at] + 1, {})
    assert law is not None
    np.testing.assert_allclose(law, 0.8 * work + 1)


def test_without_rows_other_devices_tell_the_factor() -> None:
    work = np.log(SIZES)
    law = flops_law(work, NONE.astype(float), NONE.astype(float), {"a": 1.0, "b": 2.0, "c": 9.0})
    assert law is not None
    np.testing.assert_allclose(law, work + 2.0)
    assert flops_law(work, NONE.astype(float), NONE.astype(float), {}) is None


def test_work_is_time_at_the_peak() -> None:
    peak = resolve_device("nvidia-l4").peak_fp32_tflops
    assert peak is not None
    found = np.exp(log_work(rows("nvidia-l4", SIZES), "nvidia-l4"))
    np.testing.assert_allclose(found, SIZES * 1e9 / peak)


def test_bandwidth_scales_the_nearest_device_at_first() -> None:
    near, far = "nvidia-v100-pcie-32gb", "nvidia-l4"
    two = predictor(rows(near, 2 * SIZES), rows(far, 7 * SIZES))
    scaled = two.bandwidth(NONE.astype(float), NONE)
    assert scaled is not None
    np.testing.assert_allclose(np.exp(scaled), 2 * SIZES * bw(near) / bw(NEW))


def test_measured_rows_choose_the_device_that_fits() -> None:
    far = "nvidia-l4"
    two = predictor(rows("nvidia-v100-pcie-32gb", 90 * SIZES), rows(far, SIZES * bw(NEW) / bw(far)))
    at = np.array([1, 4])
    scaled = two.bandwidth(np.log(SIZES[at]), at)
    assert scaled is not None
    np.testing.assert_allclose(np.exp(scaled), SIZES)


def test_the_proxy_is_a_line_through_the_measured_rows() -> None:
    one = predictor(rows("nvidia-l4", SIZES**0.5))
    at = np.arange(5)
    fitted = one.proxy(np.log(SIZES[at]), at)
    assert fitted is not None
    np.testing.assert_allclose(np.exp(fitted), SIZES)


def test_a_proxy_of_another_batch_counts_by_sample() -> None:
    one = predictor(rows("nvidia-l4", 4 * SIZES, units=4.0))
    scaled = one.bandwidth(NONE.astype(float), NONE)
    assert scaled is not None
    np.testing.assert_allclose(np.exp(scaled), SIZES * bw("nvidia-l4") / bw(NEW))


def test_twins_are_no_proxies() -> None:
    alone = predictor(rows(TWIN, SIZES))
    assert alone.bandwidth(NONE.astype(float), NONE) is None
    assert alone.proxy(np.log(SIZES[:2]), np.array([0, 1])) is None
