"""Memory bandwidth: quiet windows count, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from predictor.traces.measure.bandwidth import Bandwidth, best_window, stream_bandwidth
from predictor.traces.measure.conditions import Load

QUIET = Load(seconds=1.0, other_share=0.01, stolen=0.0)
BUSY = Load(seconds=1.0, other_share=0.6, stolen=0.1)


class Windows:
    """Loads told beforehand; a window lasts as long as one rate takes."""

    def __init__(self, *loads: Load | None) -> None:
        self.loads, self.looks = list(loads), 0

    def seconds(self) -> float:
        return 1.0

    def look(self) -> Load | None:
        self.looks += 1
        return self.loads.pop(0) if self.looks % 2 == 0 else None


def rates(*told: float) -> Iterator[float]:
    return iter(told)


def test_the_best_quiet_window_counts():
    told = rates(90.0, 30.0, 31.0)  # the first is not quiet
    found = best_window(lambda: next(told), Windows(BUSY, QUIET, QUIET))
    assert found == Bandwidth(gbps=31.0)


def test_where_no_window_is_quiet_the_best_counts_and_says_so():
    told = rates(*map(float, range(1, 9)))
    found = best_window(lambda: next(told), Windows(*[BUSY] * 8))
    assert found == Bandwidth(gbps=8.0, other_share=0.7)


def test_a_load_that_cannot_be_told_is_none():
    told = rates(3.0, 4.0)
    assert best_window(lambda: next(told), Windows(None, None)) == Bandwidth(gbps=4.0)


def test_all_cores_are_asked_and_the_threads_stay(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(
        "predictor.traces.measure.bandwidth.best_window", lambda once, watch: Bandwidth(gbps=once())
    )
    before = torch.get_num_threads()
    assert stream_bandwidth(2**10, threads=3).gbps > 0
    assert asked == [3, before]
