"""Corrections in closed form, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.calibrate.empirical_bayes import estimate_prior
from predictor.calibrate.posterior import apply, fit_adapter, leave_one_out, variance_before
from predictor.calibrate.prior import WIDTHS, prior_of, shipped_prior
from predictor.calibrate.readings import KINDS, NO_HOST_US, Readings, joined
from predictor.calibrate.terms import (
    GROUPS,
    HEADS,
    HOST,
    PLACE,
    TERM_GROUP,
    TERMS,
    part_terms,
    step_terms,
)
from predictor.graph.ops import TOKENS


def kernels(ratios, *, token="gemm", time_us=1000.0, kind="kernel", host_us=NO_HOST_US):
    """Readings of one kernel each, `ratios` times as long as predicted."""
    n = len(ratios)
    terms = part_terms(
        token_P=np.full(n, TOKENS.index(token)), dtype_P=np.full(n, "fp32"),
        bound_P=np.zeros(n, dtype=np.int64), launch_P=np.zeros(n), size_P=np.zeros(n),
        head_PH=np.zeros((n, HEADS)), alone=False,
    )  # fmt: skip
    predicted = np.log(np.full(n, time_us))
    return Readings(
        log_predicted_N=predicted, log_measured_N=predicted + np.log(ratios),
        kind_N=np.full(n, KINDS.index(kind)), start_N=np.arange(n + 1),
        part_us_P=np.full(n, time_us), part_PT=terms, host_us_N=np.full(n, host_us),
        sharpness_N=np.full(n, 8.0), row_NT=np.zeros((n, len(TERMS)), dtype=np.float32),
        host_term=HOST,
    )  # fmt: skip


def step_of(first_us, second_us, *, ratio=1.0, host_us=NO_HOST_US):
    """A step of a matrix product and a softmax."""
    gemm, soft = kernels([1.0], time_us=first_us), kernels([1.0], token="softmax")
    both = joined([gemm, replace(soft, part_us_P=np.array([second_us]))])
    total = np.log(max(first_us + second_us, host_us))
    return Readings(
        log_predicted_N=np.array([total]), log_measured_N=np.array([total + np.log(ratio)]),
        kind_N=np.array([KINDS.index("step")]), start_N=np.array([0, 2]),
        part_us_P=both.part_us_P, part_PT=both.part_PT, host_us_N=np.array([host_us]),
        sharpness_N=np.array([8.0]), row_NT=step_terms({}, 1), host_term=HOST,
    )  # fmt: skip


def test_one_row_moves_half_way_where_prior_and_noise_are_alike():
    rows = kernels([np.exp(0.2)])
    found = fit_adapter(rows, prior_of({"all": 0.1}, (0.1, 0.1, 0.1)))
    log_factor, _ = apply(found, rows)
    assert log_factor[0] == pytest.approx(0.1, abs=0.03)  # 0.2 * 0.01 / (0.01 + 0.01), but for t


def test_many_rows_give_their_mean_and_shrink_the_variance():
    rows = kernels(np.full(400, 1.5))
    prior = prior_of({"all": 0.3}, (0.1, 0.1, 0.1))
    log_factor, variance = apply(fit_adapter(rows, prior), rows)
    assert log_factor[0] == pytest.approx(np.log(1.5), abs=0.01)
    assert variance[0] < variance_before(prior, rows)[0]


def test_a_step_is_the_share_weighted_sum_of_its_kernels_corrections():
    weights = np.zeros(len(TERMS))
    weights[PLACE["class matmul"]], weights[PLACE["class softmax"]] = np.log(2.0), np.log(0.5)
    log_factor, slope = step_of(300.0, 100.0).corrected(weights)
    assert log_factor[0] == pytest.approx(np.log((600.0 + 50.0) / 400.0))
    assert slope[0, PLACE["class matmul"]] == pytest.approx(600.0 / 650.0)
    assert slope[0, PLACE["step"]] == 1.0


def test_the_slope_is_the_derivative_also_where_the_host_waits():
    step = step_of(300.0, 100.0, host_us=420.0)
    weights = np.linspace(-0.2, 0.2, len(TERMS))
    _, slope = step.corrected(weights)
    for place in (PLACE["all"], PLACE["class matmul"], PLACE["step"], HOST):
        up, down = weights.copy(), weights.copy()
        up[place] += 1e-5
        down[place] -= 1e-5
        numeric = (step.corrected(up)[0] - step.corrected(down)[0]) / 2e-5
        assert slope[0, place] == pytest.approx(numeric[0], rel=1e-4)


def test_kernels_and_steps_are_fitted_together():
    rows = joined([kernels(np.full(50, 2.0)), step_of(200.0, 800.0, ratio=1.0)])
    prior = prior_of({"token": 1.0, "step": 0.01}, (0.05, 0.05, 0.05))
    weights = fit_adapter(rows, prior).weights_T()
    assert np.exp(weights[PLACE["token gemm"]]) == pytest.approx(2.0, rel=0.05)
    # 2 * 200 + f * 800 = 1000: the step says what its softmax must be
    assert np.exp(weights[PLACE["token softmax"]]) == pytest.approx(0.75, rel=0.05)


def test_one_wild_row_does_not_drag_the_others():
    rows = kernels([1.0] * 9 + [50.0])
    log_factor, _ = apply(fit_adapter(rows, prior_of({"all": 0.3}, (0.1, 0.1, 0.1))), rows)
    assert abs(log_factor[0]) < 0.05


def test_a_fit_far_from_the_prior_costs_no_more_than_none():
    """Small kernels of a step may be far off: a full step of the fit would overshoot."""
    prior = prior_of({"token": 5.0, "all": 0.3}, (0.1, 0.1, 0.1))
    steps = ((1.44, 3.13, 133.0), (1.92, 950.0, 4.74), (1.96, 21.9, 7.84))
    rows = joined([step_of(first, second, ratio=ratio) for first, second, ratio in steps])
    found = fit_adapter(rows, prior)
    log_factor, _ = apply(found, rows)
    noise = prior.noise_of(rows.kind_N)
    cost = ((rows.log_ratio_N - log_factor) ** 2 / noise).sum()
    cost += (found.mean_A**2 / found.prior.variance_T[found.active_A]).sum()
    assert cost <= (rows.log_ratio_N**2 / noise).sum()
    assert np.abs(log_factor).max() < 6.0


def test_a_device_far_off_is_followed_farther_than_the_prior_alone_would():
    prior, rows = prior_of({"all": 0.1, "token": 0.1}, (0.3, 0.3, 0.3)), kernels(np.full(6, 3.0))
    log_factor, _ = apply(fit_adapter(rows, prior), rows)
    assert log_factor[0] > 0.8 * np.log(3.0)
    assert fit_adapter(rows, prior).prior.variance_T[0] > prior.variance_T[0]
    near = kernels([1.0, 1.02, 0.98, 1.01, 0.99, 1.0])
    assert fit_adapter(near, prior).prior.variance_T[0] <= prior.variance_T[0]


def test_one_wild_row_of_three_is_not_taken_for_a_device_far_off():
    """What began with all rows alike would stay with the wild one."""
    steps = ((100.0, 300.0, 0.91), (10.0, 390.0, 0.95), (390.0, 10.0, 3.5))
    rows = joined([step_of(first, second, ratio=ratio) for first, second, ratio in steps])
    log_factor, _ = apply(fit_adapter(rows, shipped_prior()), rows)
    assert np.abs(log_factor).max() < 0.1
    far = joined([step_of(300.0, 100.0, ratio=r) for r in (2.7, 3.3, 3.0)])
    log_factor, _ = apply(fit_adapter(far, shipped_prior()), far)
    assert log_factor.min() > 0.7


def test_a_prior_sure_that_nothing_is_off_corrects_nothing():
    """The widths of the prior are averaged, and one of them is none."""
    even = prior_of({"all": 0.3}, (0.1, 0.1, 0.1))
    rows = kernels([1.1, 1.12])
    sure = replace(even, chance_W=np.where(np.array(WIDTHS) == 0.0, 1.0, 1e-12))
    assert abs(apply(fit_adapter(rows, sure), rows)[0][0]) < 1e-3
    wide = replace(even, chance_W=np.where(np.array(WIDTHS) == 4.0, 1.0, 1e-12))
    between = [apply(fit_adapter(rows, prior), rows)[0][0] for prior in (even, wide)]
    assert 0.02 < between[0] < between[1]


def test_a_step_is_left_out_of_the_fit_that_tells_its_error():
    """The wild one of three says nothing of itself."""
    steps = ((390.0, 10.0, 1.5), (300.0, 100.0, 1.4), (10.0, 390.0, 4.0))
    rows = joined([step_of(first, second, ratio=ratio) for first, second, ratio in steps])
    prior = shipped_prior()
    left = leave_one_out(fit_adapter(rows, prior), rows, prior)
    alone, others = rows.take(np.array([2])), rows.take(np.array([0, 1]))
    told, _ = apply(fit_adapter(others, prior), alone)
    assert left[2] == pytest.approx(np.log(4.0) - told[0])
    assert left[2] > 1.0


def test_leaving_out_the_only_row_leaves_the_prediction_as_it_was():
    prior = shipped_prior()
    for row in (kernels([1.5]), step_of(300.0, 100.0, ratio=1.5)):
        left = leave_one_out(fit_adapter(row, prior), row, prior)
        assert left.tolist() == row.log_ratio_N.tolist()


def test_take_cuts_what_joined_put_together():
    whole = joined([step_of(300.0, 100.0), kernels([2.0]), step_of(10.0, 20.0)])
    part = whole.take(np.array([2, 0]))
    assert part.part_us_P.tolist() == [10.0, 20.0, 300.0, 100.0]
    assert part.start_N.tolist() == [0, 2, 4]
    assert part.log_predicted_N.tolist() == whole.log_predicted_N[[2, 0]].tolist()


def test_the_prior_is_found_again_from_devices_that_were_drawn_from_it():
    draw = np.random.default_rng(0)
    true_spread, true_noise = 0.4, 0.1
    devices = []
    for _ in range(60):
        shift = draw.normal(0.0, true_spread)
        devices.append(kernels(np.exp(shift + draw.normal(0.0, true_noise, 20))))
    spread, noise = estimate_prior(devices, {"all": 0.1}, (0.3, 0.3, 0.3))
    assert spread["all"] == pytest.approx(true_spread, rel=0.2)
    assert noise[KINDS.index("kernel")] == pytest.approx(true_noise, rel=0.1)


def test_every_term_has_a_group_and_the_shipped_prior_knows_them_all():
    assert len(TERM_GROUP) == len(TERMS) == len(set(TERMS)) == len(PLACE)
    assert set(TERM_GROUP) == set(GROUPS)
    prior = shipped_prior()
    assert (prior.variance_T > 0).all()
    assert (prior.noise_K > 0).all()
