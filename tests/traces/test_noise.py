"""Noise of measured kernels: which rows make a pair, and what their ratio is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.traces.hashing import hashed_columns
from predictor.traces.noise import CURVE, Noise, NoiseMeter, version_order
from predictor.traces.schema import filled
from predictor.traces.sources.registry import SOURCES


def kernels(*rows: dict[str, object]) -> pd.DataFrame:
    """bf16 products of 64^3 on an H100, unless a row says otherwise."""
    usual = {
        "source": "s", "device": "nvidia-h100-sxm-80gb", "op": "matmul", "phase": "forward",
        "dtype": "bf16", "context": "device", "framework": "trt", "framework_version": "1.0",
        "library": "lib", "latency_us": 100.0, "flag": "", "dim_batch": 1, "dim_m": 64,
        "dim_n": 64, "dim_k": 64,
    }  # fmt: skip
    made = pd.DataFrame([{**usual, **row} for row in rows])
    return filled("kernels", {c: made[c].array for c in made.columns}, len(made))


def measured(*rows: dict[str, object]) -> Noise:
    meter = NoiseMeter()
    meter.add(kernels(*rows))
    return meter.measured()


def pairs(noise: Noise) -> dict[str, tuple[int, float]]:
    """n and median by pair."""
    return {
        str(g["pair"]): (int(g["n"]), float(g["median"])) for g in noise.groups.to_dict("records")
    }


@pytest.mark.parametrize(
    ("changes", "pair"),
    [
        ({}, "repeat"),
        ({"library": "other"}, "library"),
        ({"execution": "cuda_graph"}, "library"),
        ({"power_limit_w": 350.0}, "library"),
        ({"framework_version": "1.1"}, "release"),
        ({"framework": "vllm", "framework_version": "0.2"}, "framework"),
        ({"source": "t"}, "source"),
        ({"source": "t", "framework": "vllm"}, "source"),
    ],
)
def test_what_differs_names_the_pair(changes, pair):
    found = pairs(measured({}, {"latency_us": 110.0, **changes}))
    assert found == {pair: (1, pytest.approx(0.1, rel=1e-5))}


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "nvidia-h200-sxm-141gb"}, {"op": "bmm"}, {"dtype": "fp16"}, {"dim_k": 65},
        {"scheme": "w4a16"}, {"phase": "backward"}, {"context": "isolated"}, {"layout": "nhwc"},
        {"flag": "throttled"}, {"dim_m": 32, "dim_n": 128}, {"routing": "power_law_1.2"},
        {"interconnect": "nvlink_pairs"}, {"ranks_per_node": 4.0},
    ],
)  # fmt: skip
def test_other_kernels_make_no_pair(changes):
    noise = measured({}, {"latency_us": 110.0, **changes})
    assert noise.groups.empty and not noise.curves


def test_the_order_of_two_measurements_does_not_matter():
    faster, slower = {"latency_us": 100.0}, {"latency_us": 125.0}
    for rows in ((faster, slower), (slower, faster)):
        assert pairs(measured(*rows))["repeat"] == (1, pytest.approx(0.25, rel=1e-5))


def test_rows_that_may_differ_in_what_has_no_column_are_no_repeats():
    meter = NoiseMeter(unstated=frozenset({"deepbench"}))
    for source, us in (("deepbench", 150.0), ("s", 110.0)):
        meter.add(
            kernels(
                {"source": source, "dtype": "fp16" if us > 120 else "bf16"},
                {"source": source, "dtype": "fp16" if us > 120 else "bf16", "latency_us": us},
            )
        )
    assert pairs(meter.measured()) == {
        "repeat": (1, pytest.approx(0.1, rel=1e-5)), "unstated": (1, pytest.approx(0.5, rel=1e-5)),
    }  # fmt: skip
    assert SOURCES["deepbench"].unstated_facts and not SOURCES["neusight"].unstated_facts


def test_a_release_is_compared_with_the_next_one_that_measured_the_kernel():
    versions = {"1.3.0rc9": 100.0, "1.3.0rc10": 110.0, "1.3.0": 121.0}
    noise = measured(*({"framework_version": v, "latency_us": t} for v, t in versions.items()))
    assert pairs(noise) == {"release": (2, pytest.approx(0.1, rel=1e-5))}
    sides = noise.details[["a", "b"]].to_records(index=False).tolist()
    assert sorted(sides) == [("trt 1.3.0rc10", "trt 1.3.0"), ("trt 1.3.0rc9", "trt 1.3.0rc10")]


def test_frameworks_are_compared_in_their_newest_versions_each_with_each():
    rows = [
        {"framework": "a", "framework_version": "1", "latency_us": 5.0},
        {"framework": "a", "framework_version": "2", "latency_us": 100.0},
        {"framework": "b", "framework_version": "9", "latency_us": 110.0},
        {"framework": "c", "framework_version": "3", "latency_us": 110.0},
    ]
    found = measured(*rows).details
    found = found[found["pair"] == "framework"].set_index(["a", "b"])["median"]
    expected = {("s a", "s b"): 0.1, ("s a", "s c"): 0.1, ("s b", "s c"): 0.0}
    assert {k: round(v, 5) for k, v in found.to_dict().items()} == expected


def test_repeats_are_averaged_before_releases_are_compared():
    rows = [{"latency_us": 80.0}, {"latency_us": 125.0}]  # geometric mean 100
    later = {"latency_us": 103.0, "framework_version": "1.1"}
    assert pairs(measured(*rows, later))["release"] == (1, pytest.approx(0.03, rel=1e-4))


def test_median_and_tail_of_a_group():
    sizes = range(1, 12)  # eleven kernels that differ by 0, 1, ... 10 percent
    rows = [{"dim_m": m} for m in sizes]
    rows += [{"dim_m": m, "latency_us": 100.0 + m - 1, "framework_version": "2"} for m in sizes]
    noise = measured(*rows)
    group = noise.groups.iloc[0]
    assert (group["op_class"], group["dtype"], group["n"]) == ("matmul", "bf16", 11)
    assert group["median"] == pytest.approx(0.05, rel=1e-5)
    assert group["p90"] == pytest.approx(0.09, rel=1e-5)
    curve = noise.curves["release", "matmul"]
    assert len(curve) == len(CURVE)
    assert curve[[0, 50, 90, 100]] == pytest.approx([0, 0.05, 0.09, 0.10], abs=1e-6)


def test_parts_are_compared_with_each_other():
    rows = [{"dim_m": m, "latency_us": 10.0 * t} for t in (1, 2) for m in range(1, 20)]
    meter = NoiseMeter()
    for row in rows:
        meter.add(kernels(row))
    pd.testing.assert_frame_equal(meter.measured().groups, measured(*rows).groups)
    assert meter.rows == len(rows)


def test_attention_is_told_apart_by_phase_of_serving():
    attention = {
        "op": "attention", "dim_m": -1, "dim_n": -1, "dim_k": -1, "dim_heads": 8,
        "dim_kv_heads": 8, "dim_kv_len": 99, "dim_head_dim": 64, "dim_causal": 1,
    }  # fmt: skip
    rows = [{**attention, "dim_q_len": q} for q in (1, 1, 99, 99)]
    assert measured(*rows).groups["op_class"].tolist() == ["attention decode", "attention prefill"]


def test_an_unknown_count_of_ranks_is_one_and_the_same():
    known = {"ranks_per_node": 8.0}
    found = measured({}, {"latency_us": 110.0}, known, {**known, "latency_us": 110.0})
    assert pairs(found) == {"repeat": (2, pytest.approx(0.1, rel=1e-5))}


def test_nothing_measured():
    assert NoiseMeter().measured().groups.empty


def test_versions_sort_by_number_with_candidates_first():
    wanted = ["0.5.6", "0.5.6.post2", "0.5.10", "1.3.0rc9", "1.3.0rc10", "1.3.0", "1.10"]
    assert sorted(reversed(wanted), key=version_order) == wanted  # noqa: C414


def test_hashes_tell_columns_apart_and_forget_what_is_absent():
    rows = pd.DataFrame({"a": [1, 2, 1], "b": [2, 1, -1], "t": ["x", "x", "x"]})
    hashes = hashed_columns(rows, ("a", "b", "t"))
    assert len(set(hashes.tolist())) == 3
    categories = rows.assign(t=rows["t"].astype("category"), a=rows["a"].astype(np.int32))
    assert np.array_equal(hashed_columns(categories, ("t", "b", "a")), hashes)
