"""Order of training rows: by seed and epoch alone, so that a resumed run sees the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.fit.fitting import EpochShuffle


def order(sampler: EpochShuffle, epoch: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return list(sampler)


@given(rows=st.integers(1, 200), batch=st.integers(1, 64), seed=st.integers(0, 2**32 - 1))
def test_all_rows_once_in_batches(rows, batch, seed):
    sampler = EpochShuffle(rows, batch, seed)
    for epoch in (0, 1):
        batches = order(sampler, epoch)
        assert sorted(i for part in batches for i in part) == list(range(rows))
        assert len(batches) == len(sampler)
        assert all(len(part) == batch for part in batches[:-1])


def test_same_seed_and_epoch_give_the_same_order() -> None:
    first, second = EpochShuffle(100, 10, 7), EpochShuffle(100, 10, 7)
    epochs = [order(first, e) for e in range(3)]
    assert order(second, 2) == epochs[2]  # without having seen the epochs before
    assert order(first, 0) == epochs[0]


@pytest.mark.parametrize(("seed", "epoch"), [(8, 0), (7, 1)])
def test_another_seed_or_epoch_gives_another_order(seed: int, epoch: int) -> None:
    assert order(EpochShuffle(100, 10, seed), epoch) != order(EpochShuffle(100, 10, 7), 0)
