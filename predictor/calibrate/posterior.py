"""Bayesian linear regression of corrections on readings, in closed form: `fit_adapter`, `apply`.

`fit_adapter(readings, prior)` gives a `Posterior` of the terms' weights; `apply(posterior,
readings)` gives every reading's log factor and its variance. Both are plain numpy over
`predictor.calibrate.readings.Readings`, which `take` cuts: a draw of k rows of a device is
`fit_adapter(pool.take(drawn), prior)`, and a fit of 100 rows takes a few milliseconds.

Model: log(measured / predicted) of reading i is `f_i(w)` plus noise of variance `s_i²`, `w` normal
around 0 with the prior's variances. `f_i` is nearly linear: a step's log ratio is the sum of its
kernels' corrections, weighted by their shares of time (Gauss-Newton steps take the shares at the
corrected times). Noise is scaled by what the rows show, with the prior's own as so many rows' worth
(an inverse-gamma posterior, Gelman et al., Bayesian Data Analysis, section 14.2), and readings far
off weigh less (Student's t, the same, section 17.2). How wide the prior is for the device at hand
is left open: fits under all of `WIDTHS`, no correction among them, are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.calibrate.prior import WIDTHS, Prior
from predictor.calibrate.readings import KINDS, Floats, Indices, Readings

STEPS = 4
"""Gauss-Newton steps: the last changed no weight by more than 0.01 on the rows tried."""
NORMAL_90 = 1.645
"""Half of the central 90% of a normal distribution, in standard deviations."""
HALVINGS = 8
"""How often a Gauss-Newton step is halved where it overshoots."""
FREEDOM = 4.0
"""Degrees of freedom of the noise of one reading."""
MOST_REFITS = 20
"""Steps up to which each is left out of a fit of its own."""
LEAST_WIDTH = 1e-3
"""Of the prior that a Gauss-Newton step is held against."""
LEAST_LEFT = 0.05
"""Of a reading that the fit follows wholly."""
ROWS_OF_PRIOR = 8.0
"""How many readings' worth the prior's noise counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Weights of A active terms after a fit; all others keep their prior."""

    active_A: Indices
    """Places of the terms that some reading tells of."""
    mean_A: Floats
    covariance_AA: Floats
    prior: Prior
    noise_scale: float
    """Factor on the prior's noise variances and on all that the fit leaves uncertain."""

    def weights_T(self) -> Floats:
        """(T,) mean of every term's weight."""
        out_T = np.zeros(len(self.prior.variance_T))
        out_T[self.active_A] = self.mean_A
        return out_T


def fit_adapter(readings: Readings, prior: Prior) -> Posterior:
    """Posterior of the weights given measured readings of one device.

    Args:
        readings: at least one; `log_measured_N` finite.
        prior: variances of the weights and of the noise.
    """
    ratio_N = readings.log_ratio_N
    weights_T, scale = np.zeros(len(prior.variance_T)), 1.0
    _, slope_NT = readings.corrected(weights_T)
    active_A = np.flatnonzero((np.abs(slope_NT) > 1e-9).any(axis=0) & (prior.variance_T > 0))
    variance_A = prior.variance_T[active_A]
    noise_N = prior.noise_of(readings.kind_N)
    certain_N = _trust(_off_middle(readings), noise_N) / noise_N
    for _ in range(STEPS):
        log_N, slope_NT = readings.corrected(weights_T)
        slope_NA = slope_NT[:, active_A]
        target_N = ratio_N - log_N + slope_NA @ weights_T[active_A]
        mixed = _mixed(slope_NA, target_N, certain_N, variance_A, prior.chance_W)
        width = float(np.sqrt(mixed.chance_W @ np.square(WIDTHS)))
        precision_A = 1.0 / (variance_A * max(width, LEAST_WIDTH) ** 2)
        mean_A, left_N, cost = _downhill(
            readings, weights_T, active_A, mixed.mean_A, (certain_N, precision_A)
        )
        weights_T[active_A] = mean_A
        scale = (ROWS_OF_PRIOR + cost) / (ROWS_OF_PRIOR + len(ratio_N))
        certain_N = _trust(left_N, noise_N * scale) / noise_N
    return Posterior(
        active_A=active_A, mean_A=mean_A, covariance_AA=mixed.covariance_AA * scale,
        prior=prior.widened(width), noise_scale=scale,
    )  # fmt: skip


def _trust(left_N: Floats, variance_N: Floats) -> Floats:
    """How much each reading counts (Student's t), given what a fit leaves of it."""
    return np.asarray((FREEDOM + 1.0) / (FREEDOM + left_N**2 / variance_N))


def _off_middle(readings: Readings) -> Floats:
    """(N,) log ratio less the median of its kind.

    A wild reading counts less from the start on: of three, a fit that began with all of them would
    take the wild one for a device far off, and never leave it again (Huber and Ronchetti, Robust
    Statistics, section 7.8, on where reweighting begins).
    """
    ratio_N = readings.log_ratio_N
    left_N = np.zeros_like(ratio_N)
    for kind in np.unique(readings.kind_N):
        own_N = readings.kind_N == kind
        left_N[own_N] = ratio_N[own_N] - np.median(ratio_N[own_N])
    return left_N


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixed:
    """Weights under all widths of the prior, each as much as the readings make it likely."""

    chance_W: Floats
    mean_A: Floats
    covariance_AA: Floats


def _mixed(
    slope_NA: Floats, target_N: Floats, certain_N: Floats, variance_A: Floats, before_W: Floats
) -> _Mixed:
    """Linear regression under every width of the prior, averaged; the noise scale is left open.

    A device may lie farther from the predictions than the prior knows, or nowhere off: no width is
    chosen, all are averaged (Hoeting et al., Statistical Science 14, 1999).

    Args:
        slope_NA: of the readings.
        target_N: what the weights shall explain.
        certain_N: inverse noise variances.
        variance_A: of the weights, at a width of 1.
        before_W: chance of each width before the readings.
    """
    # in R directions that the readings tell of apart from each other, all widths have one answer
    sure_N, root_A = np.sqrt(certain_N), np.sqrt(variance_A)
    left_NR, size_R, right_RA = np.linalg.svd(
        sure_N[:, None] * slope_NA * root_A, full_matrices=False
    )
    told_R, rows = left_NR.T @ (sure_N * target_N), ROWS_OF_PRIOR + len(target_N)
    square_WR = np.square(np.outer(WIDTHS, size_R))
    spare = ROWS_OF_PRIOR + float((certain_N * target_N**2).sum() - (told_R**2).sum())
    cost_W = spare + (told_R**2 / (1.0 + square_WR)).sum(axis=1)
    likely_W = (
        np.log(before_W) - 0.5 * np.log1p(square_WR).sum(axis=1) - 0.5 * rows * np.log(cost_W)
    )
    chance_W = np.exp(likely_W - likely_W.max())
    chance_W /= chance_W.sum()
    shares_WR = square_WR / (1.0 + square_WR)
    mean_WR = shares_WR * told_R / np.maximum(size_R, np.finfo(float).tiny)
    mean_R = chance_W @ mean_WR
    basis_AR, wide = (right_RA * root_A).T, np.square(WIDTHS)
    off_WR = mean_WR - mean_R
    inner_RR = (off_WR * chance_W[:, None]).T @ off_WR
    inner_RR -= np.diag(chance_W @ (wide[:, None] * shares_WR))
    covariance_AA = np.diag(float(chance_W @ wide) * variance_A) + basis_AR @ inner_RR @ basis_AR.T
    mean_A = basis_AR @ mean_R
    return _Mixed(chance_W=chance_W, mean_A=mean_A, covariance_AA=covariance_AA)


def _downhill(
    readings: Readings,
    weights_T: Floats,
    active_A: Indices,
    found_A: Floats,
    certainty: tuple[Floats, Floats],
) -> tuple[Floats, Floats, float]:
    """Weights on the way to `found_A` as far as it lowers the cost; what is left there; that cost.

    Shares of a step's time shift as its kernels are corrected, so that far from the prior a full
    Gauss-Newton step can overshoot: it is halved (Nocedal and Wright, Numerical Optimization,
    section 10.3).
    """
    trust_N, precision_A = certainty
    start_A, to_T = weights_T[active_A], weights_T.copy()

    def at(share: float) -> tuple[Floats, Floats, float]:
        to_T[active_A] = start_A + share * (found_A - start_A)
        mean_A = to_T[active_A]
        left_N = readings.log_ratio_N - readings.corrected(to_T)[0]
        cost = float((trust_N * left_N**2).sum() + (precision_A * mean_A**2).sum())
        return mean_A, left_N, cost

    _, _, before = at(0.0)
    for halving in range(HALVINGS):
        found = at(0.5**halving)
        if found[2] <= before * (1 + 1e-9):
            return found
    return at(0.0)


def apply(posterior: Posterior, readings: Readings) -> tuple[Floats, Floats]:
    """(N,) log factor on every reading, and the variance of its log ratio (noise included)."""
    log_N, slope_NT = readings.corrected(posterior.weights_T())
    slope_NA = slope_NT[:, posterior.active_A]
    known_N = np.einsum("na,ab,nb->n", slope_NA, posterior.covariance_AA, slope_NA, optimize=True)
    rest_T = posterior.prior.variance_T.copy()
    rest_T[posterior.active_A] = 0.0
    unknown_N = (slope_NT**2) @ rest_T
    noise_N = posterior.prior.noise_of(readings.kind_N) * posterior.noise_scale
    return log_N, known_N + unknown_N + noise_N


def variance_before(prior: Prior, readings: Readings) -> Floats:
    """(N,) variance of the log ratio that the prior alone expects."""
    _, slope_NT = readings.corrected(np.zeros(len(prior.variance_T)))
    return np.asarray((slope_NT**2) @ prior.variance_T + prior.noise_of(readings.kind_N))


def leave_one_out(posterior: Posterior, readings: Readings, prior: Prior) -> Floats:
    """(N,) log of measured over predicted of each reading by the fit on the others.

    Whole steps, of a few, are each left out of a fit of their own; for others the fit on all tells
    (Gelman et al., section 7.2): what a reading leaves, over what it did not say itself. A reading
    that the fit hardly trusted said little.

    Args:
        posterior: of the fit on all.
        readings: those it was fitted on.
        prior: that it was fitted with.
    """
    if len(readings) == 1:
        return readings.log_ratio_N  # without it there is nothing to fit
    log_N, slope_NT = readings.corrected(posterior.weights_T())
    slope_NA = slope_NT[:, posterior.active_A]
    covariance_AA = posterior.covariance_AA / posterior.noise_scale
    own_N = np.einsum("na,ab,nb->n", slope_NA, covariance_AA, slope_NA, optimize=True)
    noise_N, left_N = posterior.prior.noise_of(readings.kind_N), readings.log_ratio_N - log_N
    own_N = own_N * _trust(left_N, noise_N * posterior.noise_scale) / noise_N
    out_N = np.asarray(left_N / np.maximum(1.0 - own_N, LEAST_LEFT))
    steps = np.flatnonzero(readings.kind_N == KINDS.index("step"))
    for i in steps if len(steps) <= MOST_REFITS else ():
        others = fit_adapter(readings.take(np.arange(len(readings)) != i), prior)
        out_N[i] = readings.log_ratio_N[i] - apply(others, readings.take(np.array([i])))[0][0]
    return out_N
