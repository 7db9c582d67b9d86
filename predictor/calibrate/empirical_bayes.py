"""The prior's variances from devices that were held out: expectation maximisation, in closed form.

Every device is a draw of weights; the prior that made the draws likely is what a new device is
expected to be like (Gelman et al., Bayesian Data Analysis, section 13.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.calibrate.prior import Prior, prior_of
from predictor.calibrate.readings import KINDS, Floats, Indices, Readings
from predictor.calibrate.terms import GROUPS, TERM_GROUP

LEAST = 0.01
"""Smallest standard deviation of a group of terms: none is taken for exactly 0."""
ROUNDS = 60


def estimate_prior(
    devices: Sequence[Readings], spread: Mapping[str, float], noise: Sequence[float]
) -> tuple[dict[str, float], list[float]]:
    """Standard deviations by group of terms, and of the noise by kind of reading.

    Args:
        devices: readings of each device (one entry a device with its twins) against predictions
            that had not seen it.
        spread: where to begin; groups left out stay switched off.
        noise: the same by kind (`KINDS`).
    """
    group_T = np.array([list(GROUPS).index(group) for group in TERM_GROUP])
    slopes = [readings.corrected(np.zeros(len(TERM_GROUP)))[1] for readings in devices]
    spread, noise = dict(spread), list(noise)
    for _ in range(ROUNDS):
        prior = prior_of(spread, noise)
        square, count = np.zeros(len(GROUPS)), np.zeros(len(GROUPS))
        left, rows = np.zeros(len(KINDS)), np.zeros(len(KINDS))
        for readings, slope_NT in zip(devices, slopes, strict=True):
            active_A, second_A, left_N = _expected(readings, slope_NT, prior)
            square += np.bincount(group_T[active_A], second_A, minlength=len(GROUPS))
            count += np.bincount(group_T[active_A], minlength=len(GROUPS))
            each = np.bincount(readings.kind_N, minlength=len(KINDS))
            share = each / max(len(readings), 1)
            here = np.bincount(readings.kind_N, left_N, minlength=len(KINDS))
            left += share * here / np.maximum(each, 1)
            rows += share
        for i, group in enumerate(GROUPS):
            if group in spread and count[i]:
                spread[group] = max(float(np.sqrt(square[i] / count[i])), LEAST)
        noise = [
            float(np.sqrt(a / b)) if b else n for a, b, n in zip(left, rows, noise, strict=True)
        ]
    return spread, noise


def _expected(readings: Readings, slope_NT: Floats, prior: Prior) -> tuple[Indices, Floats, Floats]:
    """Active terms, the second moment of their weights, and of what is left of each reading."""
    active_A = np.flatnonzero((np.abs(slope_NT) > 1e-9).any(axis=0) & (prior.variance_T > 0))
    slope_NA = slope_NT[:, active_A]
    weighted_NA = slope_NA / prior.noise_of(readings.kind_N)[:, None]
    precision_AA = weighted_NA.T @ slope_NA + np.diag(1.0 / prior.variance_T[active_A])
    covariance_AA = np.linalg.inv(precision_AA)
    mean_A = covariance_AA @ (weighted_NA.T @ readings.log_ratio_N)
    left_N = readings.log_ratio_N - slope_NA @ mean_A
    spare_N = np.einsum("na,ab,nb->n", slope_NA, covariance_AA, slope_NA, optimize=True)
    return active_A, mean_A**2 + np.diag(covariance_AA), np.asarray(left_N**2 + spare_N)
