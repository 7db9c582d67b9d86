"""Order of training rows: by seed and epoch alone, so that a resumed run sees the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.fit.fitting import EpochShuffle
from predictor.fit.recipe import OptimizerRecipe


def shuffle(
    kernels: int, batch: int, seed: int, models: int = 0, share: float = 1.0
) -> EpochShuffle:
    optimizer = OptimizerRecipe.model_construct(
        batch_size=batch, model_batch_size=7, model_share=share
    )
    return EpochShuffle(kernels, models, optimizer, seed)


def order(sampler: EpochShuffle, epoch: int) -> list[tuple[list[int], list[int]]]:
    sampler.set_epoch(epoch)
    return list(sampler)


@given(
    rows=st.integers(0, 200), models=st.integers(0, 200), batch=st.integers(1, 64),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_all_rows_once_in_batches(rows, models, batch, seed):
    sampler = shuffle(rows, batch, seed, models)
    for epoch in (0, 1):
        batches = order(sampler, epoch)
        for kind, count in enumerate((rows, models)):
            assert sorted(i for part in batches for i in part[kind]) == list(range(count))
        assert len(batches) == len(sampler)
        assert all(len(k) <= batch and len(m) <= 7 for k, m in batches)


def test_kernel_rows_alone_fill_their_batches():
    assert [len(k) for k, _ in order(shuffle(25, 10, 0), 0)] == [10, 10, 5]


def test_model_rows_decide_where_they_need_more_batches():
    found = order(shuffle(25, 10, 0, models=35), 0)
    assert [(len(k), len(m)) for k, m in found] == [(5, 7)] * 5


def test_a_share_of_the_model_rows_is_another_one_in_each_epoch():
    sampler = shuffle(25, 10, 0, models=35, share=0.4)
    first, second = ([i for _, m in order(sampler, e) for i in m] for e in (0, 1))
    assert len(set(first)) == len(first) == len(second) == 14
    assert set(first) != set(second)
    assert len(order(sampler, 0)) == 3  # the kernel rows decide again


def test_same_seed_and_epoch_give_the_same_order() -> None:
    first, second = shuffle(100, 10, 7), shuffle(100, 10, 7)
    epochs = [order(first, e) for e in range(3)]
    assert order(second, 2) == epochs[2]  # without having seen the epochs before
    assert order(first, 0) == epochs[0]


@pytest.mark.parametrize(("seed", "epoch"), [(8, 0), (7, 1)])
def test_another_seed_or_epoch_gives_another_order(seed: int, epoch: int) -> None:
    assert order(shuffle(100, 10, seed), epoch) != order(shuffle(100, 10, 7), 0)
