"""Samples of large sources: bounded, spread, and the same whatever the parts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import DataError
from predictor.traces import sampling
from predictor.traces.sampling import STRATA, KernelSample, priorities, quota_of, sampled
from predictor.traces.schema import Imported, filled
from predictor.traces.sources.registry import read_source


def kernels(sizes: dict[tuple[str, str], int]) -> pd.DataFrame:
    """Rows of several (device, framework) strata, by size."""
    frames = [
        filled("kernels", {
            "row_id": [f"x:{device}/{framework}/t.parquet:{i}" for i in range(n)],
            "device": device, "framework": framework, "row": np.arange(n),
            "file": f"{device}/{framework}/t.parquet", "dtype": "bf16",
        }, n)
        for (device, framework), n in sizes.items()
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def sample_of(parts: list[pd.DataFrame], limit: int) -> pd.DataFrame:
    sample = KernelSample(limit=limit)
    for part in parts:
        sample.add(part)
    return sample.finish()


@pytest.mark.parametrize(
    ("counts", "limit", "quota"),
    [([5, 5], 10, 5), ([5, 5], 9, 4), ([1, 100, 100], 61, 30), ([1, 2, 3], 6, 3), ([4], 0, 0),
     ([10, 20, 30], 59, 29), ([3, 3, 3], 2, 0), ([], 5, 0)],
)  # fmt: skip
def test_quota_by_hand(counts, limit, quota):
    assert quota_of(np.array(counts, dtype=np.int64), limit) == quota


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=8), limit=st.integers(0, 200))
def test_quota_is_the_largest_that_fits(counts, limit):
    sizes = np.array(counts)
    q = quota_of(sizes, limit)
    assert np.minimum(sizes, q).sum() <= limit
    if sizes.sum() > limit:
        assert np.minimum(sizes, q + 1).sum() > limit
    else:
        assert q == sizes.max()


def test_small_strata_come_whole_and_large_ones_are_thinned():
    rows = kernels({("a", "x"): 3, ("a", "y"): 500, ("b", "x"): 40})
    found = sample_of([rows], 83)
    counts = found.groupby(["device", "framework"]).size().to_dict()
    assert counts == {("a", "x"): 3, ("a", "y"): 40, ("b", "x"): 40}


def test_the_rows_of_least_priority_are_taken():
    rows = kernels({("a", "x"): 100})
    found = sample_of([rows], 10)
    order = np.argsort(priorities(rows["row_id"]))
    assert found["row_id"].tolist() == rows["row_id"].iloc[order[:10]].tolist()


def test_priorities_do_not_change():
    # a sample of an earlier day is the sample of today
    assert priorities(pd.Series(["aiconfigurator:a:0", "aiconfigurator:a:1"])).tolist() == [
        4155440573631249149, 1301377277920095627,
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), limit=st.integers(1, 120),
    seed=st.integers(0, 99), cuts=st.integers(1, 12),
)  # fmt: skip
def test_neither_the_order_nor_the_size_of_parts_matters(sizes, limit, seed, cuts):
    rows = kernels({(f"d{i}", "x"): n for i, n in enumerate(sizes)})
    whole = sample_of([rows], limit)
    rng = np.random.default_rng(seed)
    shuffled = rows.take(rng.permutation(len(rows)))
    bounds = np.sort(rng.integers(0, len(rows) + 1, size=cuts))
    parts = [shuffled.iloc[a:b] for a, b in zip([0, *bounds], [*bounds, len(rows)], strict=True)]
    pd.testing.assert_frame_equal(sample_of(parts, limit), whole)
    assert len(whole) <= limit
    assert set(whole["row_id"]) <= set(rows["row_id"])


def test_memory_is_bounded(monkeypatch):
    held = []
    add = KernelSample.add
    monkeypatch.setattr(
        KernelSample, "add", lambda self, rows: (add(self, rows), held.append(self._total()))
    )
    rows = kernels({("a", "x"): 4000, ("b", "x"): 100})
    sample_of([rows.iloc[i : i + 50] for i in range(0, len(rows), 50)], 400)
    assert max(held) <= 1.25 * 400


def test_other_tables_of_a_source_stay():
    parts = [Imported.empty("s") for _ in range(2)]
    for part, device in zip(parts, "ab", strict=True):
        part.kernels = kernels({(device, "x"): 30})
        part.dropped["unknown_op"] = 2
    data = sampled(parts, limit=20)
    assert data.kernels.groupby("device").size().to_dict() == {"a": 10, "b": 10}
    assert data.dropped == {"unknown_op": 4}
    with pytest.raises(DataError, match="nothing to read"):
        sampled([])


def test_a_source_within_the_limit_comes_whole():
    rows = kernels({("a", "x"): 20, ("b", "y"): 7})
    found = sample_of([rows], sampling.LIMIT)
    assert set(found["row_id"]) == set(rows["row_id"])
    assert sample_of([], 5).empty


def test_strata_are_columns():
    assert set(STRATA) <= set(kernels({("a", "x"): 1}).columns)


def test_a_sample_is_taken_of_the_rows_that_are_chosen(aiconfigurator, tmp_path):
    folder = aiconfigurator.complete(tmp_path)
    every = read_source("aiconfigurator", [folder])
    chosen = read_source("aiconfigurator", [folder], chosen=lambda rows: rows["op"] == "matmul")
    assert 0 < len(chosen.kernels) == (every.kernels["op"] == "matmul").sum()
    few = read_source("aiconfigurator", [folder], sample_rows=6)
    assert len(few.kernels) <= 6
    assert few.dropped["not_sampled"] == len(every.kernels) - len(few.kernels)
