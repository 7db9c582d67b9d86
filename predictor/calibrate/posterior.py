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
off weigh less (Student's t, the same, section 17.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.calibrate.prior import Prior
from predictor.calibrate.readings import Floats, Indices, Readings

STEPS = 4
"""Gauss-Newton steps: the last changed no weight by more than 0.01 on the rows tried."""
NORMAL_90 = 1.645
"""Half of the central 90% of a normal distribution, in standard deviations."""
HALVINGS = 8
"""How often a Gauss-Newton step is halved where it overshoots."""
FREEDOM = 4.0
"""Degrees of freedom of the noise of one reading."""
WIDTHS: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
WIDTH_SPREAD = 0.7
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
    weights_T = np.zeros(len(prior.variance_T))
    _, slope_NT = readings.corrected(weights_T)
    active_A = np.flatnonzero((np.abs(slope_NT) > 1e-9).any(axis=0) & (prior.variance_T > 0))
    noise_N = prior.noise_of(readings.kind_N)
    prior = prior.widened(
        _width(slope_NT[:, active_A], ratio_N, noise_N, prior.variance_T[active_A])
    )
    precision_A = 1.0 / prior.variance_T[active_A]
    trust_N = np.ones(len(ratio_N))
    mean_A, covariance_AA, scale = np.zeros(len(active_A)), np.zeros((0, 0)), 1.0
    for _ in range(STEPS):
        log_N, slope_NT = readings.corrected(weights_T)
        slope_NA = slope_NT[:, active_A]
        target_N = ratio_N - log_N + slope_NA @ mean_A
        weighted_NA = slope_NA * (trust_N / noise_N)[:, None]
        precision_AA = weighted_NA.T @ slope_NA + np.diag(precision_A)
        covariance_AA = np.asarray(np.linalg.inv(precision_AA), dtype=np.float64)
        found_A = covariance_AA @ (weighted_NA.T @ target_N)
        mean_A, left_N, cost = _downhill(
            readings, weights_T, active_A, found_A, (trust_N / noise_N, precision_A)
        )
        weights_T[active_A] = mean_A
        scale = (ROWS_OF_PRIOR + cost) / (ROWS_OF_PRIOR + len(ratio_N))
        trust_N = (FREEDOM + 1.0) / (FREEDOM + left_N**2 / (noise_N * scale))
    return Posterior(
        active_A=active_A, mean_A=mean_A, covariance_AA=covariance_AA * scale, prior=prior,
        noise_scale=scale,
    )  # fmt: skip


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


def _width(slope_NA: Floats, ratio_N: Floats, noise_N: Floats, variance_A: Floats) -> float:
    """Factor on the prior's spread that makes the readings likeliest, noise scale left open.

    A processor may lie farther from the predictions than the GPUs that the prior knows; each
    factor's own likelihood falls with its distance from 1 (`WIDTH_SPREAD` in log).
    """
    weighted_NA = slope_NA / noise_N[:, None]
    gram_AA, pull_A = weighted_NA.T @ slope_NA, weighted_NA.T @ ratio_N
    plain = float((ratio_N**2 / noise_N).sum())
    found = []
    for width in WIDTHS:
        own_A = variance_A * width**2
        precision_AA = gram_AA + np.diag(1.0 / own_A)
        root_AA = np.linalg.cholesky(precision_AA)
        part_A = np.linalg.solve(root_AA, pull_A)
        log_det = 2.0 * float(np.log(np.diag(root_AA)).sum()) + float(np.log(own_A).sum())
        cost = ROWS_OF_PRIOR + plain - float(part_A @ part_A)
        likely = -0.5 * log_det - 0.5 * (ROWS_OF_PRIOR + len(ratio_N)) * np.log(cost)
        found.append(likely - 0.5 * (np.log(width) / WIDTH_SPREAD) ** 2)
    return WIDTHS[int(np.argmax(found))]


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


def leave_one_out(posterior: Posterior, readings: Readings) -> Floats:
    """(N,) log of measured over predicted of each reading by the fit on the others.

    From the fit on all (Gelman et al., section 7.2): what a reading leaves, over what it did not
    say itself.
    """
    log_N, slope_NT = readings.corrected(posterior.weights_T())
    slope_NA = slope_NT[:, posterior.active_A]
    covariance_AA = posterior.covariance_AA / posterior.noise_scale
    own_N = np.einsum("na,ab,nb->n", slope_NA, covariance_AA, slope_NA, optimize=True)
    own_N = own_N / posterior.prior.noise_of(readings.kind_N)
    return np.asarray((readings.log_ratio_N - log_N) / np.maximum(1.0 - own_N, LEAST_LEFT))
