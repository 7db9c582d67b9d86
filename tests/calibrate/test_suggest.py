"""Which readings are chosen, on cases whose best choice is known by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from predictor.calibrate.posterior import apply, fit_adapter
from predictor.calibrate.prior import prior_of
from predictor.calibrate.readings import KINDS, NO_HOST_US, Readings, joined
from predictor.calibrate.suggest import Candidates, Choice, choose
from predictor.calibrate.terms import HOST, PLACE, TERMS

MATMUL, CONV, NORM = (PLACE[f"class {c}"] for c in ("matmul", "conv", "norm"))
PRIOR = prior_of({"class": 0.3}, [0.4, 0.2, 0.1])


def steps(*shares: dict[int, float], kind: str = "step") -> Readings:
    """Readings whose device time is divided among classes, host time none."""
    parts = [(row, term, share) for row, each in enumerate(shares) for term, share in each.items()]
    terms = np.zeros((len(parts), len(TERMS)), dtype=np.float32)
    for i, (_, term, _) in enumerate(parts):
        terms[i, term] = 1.0
    n, sizes = len(shares), [len(each) for each in shares]
    return Readings(
        log_predicted_N=np.zeros(n), log_measured_N=np.full(n, np.nan),
        kind_N=np.full(n, KINDS.index(kind)), start_N=np.concatenate([[0], np.cumsum(sizes)]),
        part_us_P=np.array([share for *_, share in parts]) * 1e3, part_PT=terms,
        host_us_N=np.full(n, NO_HOST_US), sharpness_N=np.full(n, 8.0),
        row_NT=np.zeros((n, len(TERMS)), dtype=np.float32), host_term=HOST,
    )  # fmt: skip


def chosen(readings: Readings, targets: Readings, *, most=1, seconds=np.inf, cost=None, owner=None):
    owner = np.arange(len(readings)) if owner is None else np.array(owner)
    count = int(owner[-1]) + 1
    return choose(
        Candidates(
            readings=readings, owner_N=owner,
            seconds_C=np.ones(count) if cost is None else np.array(cost, dtype=np.float64),
        ),
        targets, PRIOR, most=most, seconds=seconds,
    )  # fmt: skip


def test_the_reading_that_shares_the_target_s_time_is_taken():
    pool = steps({CONV: 1.0}, {MATMUL: 1.0}, {NORM: 1.0})
    found = chosen(pool, steps({MATMUL: 0.9, NORM: 0.1}))
    assert found.chosen == (1,)
    v, s = 0.3**2, 0.1**2
    assert found.mean_variance[0] == pytest.approx((0.9**2 + 0.1**2) * v)
    assert found.mean_variance[1] == pytest.approx(0.9**2 * v * s / (v + s) + 0.1**2 * v)
    assert found.after_G[0] == pytest.approx(found.mean_variance[1] + s)


def test_what_is_known_is_not_measured_again():
    pool = steps({MATMUL: 1.0}, {MATMUL: 1.0}, {NORM: 1.0})
    found = chosen(pool, steps({MATMUL: 0.6, NORM: 0.4}), most=2)
    assert found.chosen == (0, 2)


def test_nothing_is_taken_that_tells_nothing():
    found = chosen(steps({CONV: 1.0}, {MATMUL: 1.0}), steps({MATMUL: 1.0}), most=2)
    assert found.chosen == (1,)


def test_noisier_readings_of_the_same_kernel_come_last():
    alone = steps({MATMUL: 1.0}, kind="alone")
    found = chosen(joined([alone, steps({MATMUL: 1.0})]), steps({MATMUL: 1.0}))
    assert found.chosen == (1,)


def test_in_little_time_cheap_readings_beat_one_that_tells_more():
    pool = steps({MATMUL: 0.5, NORM: 0.5}, {MATMUL: 1.0}, {NORM: 1.0})
    targets = steps({MATMUL: 0.5, NORM: 0.5})
    assert chosen(pool, targets, most=2, cost=[10, 1, 1]).chosen[0] == 0
    assert set(chosen(pool, targets, most=2, cost=[10, 1, 1], seconds=9).chosen) == {1, 2}
    dear = chosen(pool, targets, most=2, cost=[10, 1, 1], seconds=10)
    assert dear.seconds <= 10


def test_a_step_with_its_kernels_is_one_measurement_of_several_readings():
    pool = steps({MATMUL: 0.5, NORM: 0.5}, {MATMUL: 1.0}, {NORM: 1.0}, {MATMUL: 0.6, NORM: 0.4})
    found = chosen(pool, steps({MATMUL: 0.9, NORM: 0.1}), owner=[0, 0, 0, 1])
    assert found.chosen == (0,)
    apart = chosen(pool.take(np.arange(3)), steps({MATMUL: 0.9, NORM: 0.1}), most=3)
    assert found.after_G == pytest.approx(apart.after_G)


def test_every_single_choice_is_the_best_of_all():
    """A first choice is no worse than any other candidate taken alone."""
    rng = np.random.default_rng(0)
    mix = [dict(zip((MATMUL, CONV, NORM), rng.dirichlet([1, 1, 1]), strict=True)) for _ in range(9)]
    targets = steps(*mix[:2])
    pool = steps(*mix[2:])
    best = chosen(pool, targets).mean_variance[1]
    alone = [chosen(pool.take(np.array([i])), targets).mean_variance[-1] for i in range(len(pool))]
    assert best == pytest.approx(min(alone))


def test_three_of_a_few_are_within_the_known_bound_of_the_best_three():
    """Greedy choices lower the variance by at least 1 - 1/e of what the best three could here."""
    rng = np.random.default_rng(1)
    mix = [dict(zip((MATMUL, CONV, NORM), rng.dirichlet([1, 1, 1]), strict=True)) for _ in range(8)]
    pool, targets = steps(*mix[1:]), steps(mix[0])
    path = chosen(pool, targets, most=3).mean_variance
    every = [
        chosen(pool.take(np.array(three)), targets, most=3).mean_variance[-1]
        for three in itertools.combinations(range(len(pool)), 3)
    ]
    assert path[0] - path[-1] >= (1 - 1 / np.e) * (path[0] - min(every))


def test_the_expected_variance_is_the_one_that_a_fit_leaves():
    """Measurements that show just what was predicted leave the variance that was promised."""
    pool, targets = steps({MATMUL: 0.7, NORM: 0.3}, {CONV: 1.0}), steps({MATMUL: 0.5, CONV: 0.5})
    found: Choice = chosen(pool, targets, most=2)
    measured = pool.take(np.array(found.chosen))
    posterior = fit_adapter(replace(measured, log_measured_N=np.zeros(2)), PRIOR)
    width = np.sqrt(posterior.prior.variance_T[MATMUL] / PRIOR.variance_T[MATMUL])
    again = choose(
        Candidates(readings=pool, owner_N=np.arange(2), seconds_C=np.ones(2)), targets,
        PRIOR.widened(width), most=2,
    )  # fmt: skip
    _, variance = apply(posterior, targets)
    trust = (again.after_G * posterior.noise_scale)[0]
    assert variance[0] == pytest.approx(trust, rel=0.2)


def test_times_fall_with_every_measurement():
    rng = np.random.default_rng(2)
    mix = [dict(zip((MATMUL, CONV, NORM), rng.dirichlet([1, 1, 1]), strict=True)) for _ in range(6)]
    path = chosen(steps(*mix[1:]), steps(mix[0]), most=5).mean_variance
    assert all(b < a for a, b in itertools.pairwise(path))
