"""Products whose time is the host's."""

import numpy as np
import pytest

from predictor.hardware.catalogue import load_catalogue
from predictor.traces.sources.aiconfigurator_host import host_bound

H100 = load_catalogue()["nvidia-h100-sxm-80gb"]


def marked(latency_us, flops, moved_bytes, device=H100, dtype="fp8"):
    times, work, moved = (np.array(v, dtype=float) for v in (latency_us, flops, moved_bytes))
    return host_bound(times, work, moved, dtype, device).tolist()


def test_times_near_a_floor_that_no_size_explains():
    assert marked([80, 100, 170, 900], [1e8, 1e10, 1e11, 1e12], [1e6, 1e7, 1e8, 5e8]) == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("latency_us", "moved_bytes"),
    [([8, 9], [1e6, 1e6]),  # a launch
     ([80, 90], [1e8, 1e8])],  # 1e8 bytes take 30 us: its size
)  # fmt: skip
def test_other_floors(latency_us, moved_bytes):
    assert marked(latency_us, [1e8, 1e8], moved_bytes) == [False, False]


def test_times_that_are_none_neither_decide_nor_count():
    assert marked([0, np.nan, 80], [1e8] * 3, [1e6] * 3) == [False, False, True]
    assert marked([0], [1e8], [1e6]) == [False]


def test_a_dtype_without_a_path():
    assert marked([80], [1e8], [1e6], load_catalogue()["nvidia-v100-sxm2-32gb"]) == [False]
