"""A device that measures nothing: its clock counts the calls of a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from predictor.hardware.catalogue import resolve_device
from predictor.traces.measure.local import LocalDevice
from predictor.traces.measure.timer import Limits


class CountingClock:
    """Every call takes 100 us, whatever it is."""

    sample_us = 200.0
    resolution_us = 0.1

    def elapsed_us(self, calls: Sequence[Callable[[], object]]) -> float:
        for call in calls:
            call()
        return 100.0 * len(calls)


@pytest.fixture
def device() -> LocalDevice:
    return LocalDevice(
        type="cpu", device=resolve_device("amd-epyc-9004-2vcpu"), clock=CountingClock(),
        cache_bytes=4096, threads=1,
    )  # fmt: skip


@pytest.fixture
def limits() -> Limits:
    return Limits(seconds=0.001, warmup_seconds=0.0)
