"""What to measure: the few readings that tell most of some programs on a device. Arrays only.

Legend: N readings, C candidates, T terms, G targets.

The log time of a target is, to first order, a linear functional of the correction's weights: its
slope. Under a normal prior the variance of that functional after some readings does not depend on
what they will show, so the choice can be made before anything is measured: Bayesian experimental
design for a linear functional (c-optimality; Chaloner and Verdinelli, Statistical Science 10,
1995). Candidates are taken one after the other, the one that lowers the targets' mean variance most
first. Where time is limited, a second list takes what lowers it most per second, and is kept where
it leaves hardly more (Leskovec et al., KDD 2007, section 3, keep the better of the two).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.calibrate.prior import Prior
from predictor.calibrate.readings import Floats, Indices, Readings

LEAST_GAIN = 1e-9
"""Fall of the mean variance below which a candidate is not worth its time."""
NEARLY = 1.03
"""Ratio of spreads up to which the quicker of two lists is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """C measurements that could be made; each gives one reading or several."""

    readings: Readings
    """N readings; measured times are not read."""
    owner_N: Indices
    """Which candidate gives each reading; readings of one candidate stand together, in order."""
    seconds_C: Floats
    """How long each takes to be measured."""

    def __len__(self) -> int:
        return len(self.seconds_C)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Candidates worth measuring, in the order in which they were taken."""

    chosen: tuple[int, ...]
    seconds: float
    """How long they take together."""
    mean_variance: tuple[float, ...]
    """Of the targets' log time before the first and after each of them, noise left out."""
    before_G: Floats
    """Variance of each target's log ratio of measured to predicted time, before any."""
    after_G: Floats
    """The same after all of them."""


def choose(
    candidates: Candidates,
    targets: Readings,
    prior: Prior,
    *,
    most: int,
    seconds: float = np.inf,
) -> Choice:
    """The candidates to measure for some targets.

    Args:
        candidates: what could be measured.
        targets: readings to be predicted.
        prior: of the device's corrections.
        most: how many candidates at most; fewer where no further one tells anything, or time ends.
        seconds: how long they may take together.
    """
    assert most >= 1 and len(candidates) and len(targets)
    work = _Work(candidates, targets, prior)
    found = work.greedy(most, seconds, per_second=False)
    noise_G = prior.noise_of(targets.kind_N)
    if np.isfinite(seconds):
        quick = work.greedy(most, seconds, per_second=True)
        left, quick_left = (float(path[-1] + noise_G.mean()) for _, path in (found, quick))
        if quick_left <= NEARLY**2 * left:
            found = quick
    taken, path = found
    before_G, after_G = work.variances(()), work.variances(taken)
    return Choice(
        chosen=tuple(taken), seconds=float(candidates.seconds_C[list(taken)].sum()),
        mean_variance=tuple(path), before_G=before_G + noise_G, after_G=after_G + noise_G,
    )  # fmt: skip


class _Work:
    """Slopes at the uncorrected times, and which rows belong to which candidate."""

    def __init__(self, candidates: Candidates, targets: Readings, prior: Prior) -> None:
        zero_T = np.zeros(len(prior.variance_T))
        slope_NT = candidates.readings.corrected(zero_T)[1]
        slope_GT = targets.corrected(zero_T)[1]
        told_T = (slope_NT != 0).any(axis=0) | (slope_GT != 0).any(axis=0)
        on_T = told_T & (prior.variance_T > 0)
        self.slope_NT, self.slope_GT = slope_NT[:, on_T], slope_GT[:, on_T]
        self.noise_N = prior.noise_of(candidates.readings.kind_N)
        self.prior_TT = np.diag(prior.variance_T[on_T])
        self.seconds_C = candidates.seconds_C
        edges = np.searchsorted(candidates.owner_N, np.arange(len(candidates) + 1))
        self.rows = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
        self.first_C, self.single_C = edges[:-1], np.diff(edges) == 1

    def greedy(
        self, most: int, seconds: float, *, per_second: bool
    ) -> tuple[list[int], list[float]]:
        """Candidates one after the other, and the mean variance before and after each."""
        variance_TT, left = self.prior_TT.copy(), seconds
        free_C = np.diff([s.stop for s in self.rows], prepend=0) > 0
        taken: list[int] = []
        path = [self._mean_variance(variance_TT)]
        while len(taken) < most:
            free_C &= self.seconds_C <= left
            if not free_C.any():
                break
            gain_C = np.where(free_C, self._gains(variance_TT, free_C), -np.inf)
            worth_C = gain_C / self.seconds_C if per_second else gain_C
            best = int(np.argmax(worth_C))
            if gain_C[best] <= LEAST_GAIN:
                break
            taken.append(best)
            free_C[best] = False
            left -= float(self.seconds_C[best])
            variance_TT = self._after(variance_TT, best)
            path.append(self._mean_variance(variance_TT))
        return taken, path

    def variances(self, taken: Sequence[int]) -> Floats:
        """(G,) variance of every target's slope after some candidates."""
        variance_TT = self.prior_TT
        for candidate in taken:
            variance_TT = self._after(variance_TT, candidate)
        return np.asarray(np.einsum("gt,tu,gu->g", self.slope_GT, variance_TT, self.slope_GT,
                                    optimize=True))  # fmt: skip

    def _mean_variance(self, variance_TT: Floats) -> float:
        return float(np.mean(((self.slope_GT @ variance_TT) * self.slope_GT).sum(axis=1)))

    def _gains(self, variance_TT: Floats, free_C: NDArray[np.bool_]) -> Floats:
        """(C,) fall of the targets' mean variance with each candidate that is free."""
        with_target_TG = variance_TT @ self.slope_GT.T
        gain_C = np.zeros(len(self.rows))
        one_C = free_C & self.single_C
        a_NT = self.slope_NT[self.first_C[one_C]]
        spread_N = ((a_NT @ variance_TT) * a_NT).sum(axis=1) + self.noise_N[self.first_C[one_C]]
        gain_C[one_C] = ((a_NT @ with_target_TG) ** 2).mean(axis=1) / spread_N
        for c in np.flatnonzero(free_C & ~self.single_C):
            root_KK, pull_KG = self._block(variance_TT, int(c), with_target_TG)
            gain_C[c] = (np.linalg.solve(root_KK, pull_KG) ** 2).sum(axis=0).mean()
        return gain_C

    def _block(
        self, variance_TT: Floats, candidate: int, with_target_TG: Floats
    ) -> tuple[Floats, Floats]:
        """Cholesky root of the covariance of a candidate's readings, and theirs with targets."""
        a_KT = self.slope_NT[self.rows[candidate]]
        spread_KK = a_KT @ variance_TT @ a_KT.T + np.diag(self.noise_N[self.rows[candidate]])
        root_KK = np.asarray(np.linalg.cholesky(spread_KK), dtype=np.float64)
        return root_KK, np.asarray(a_KT @ with_target_TG)

    def _after(self, variance_TT: Floats, candidate: int) -> Floats:
        """Covariance of the weights once a candidate was measured."""
        root_KK, pull_KT = self._block(variance_TT, candidate, variance_TT)
        part_KT = np.linalg.solve(root_KK, pull_KT)
        return np.asarray(variance_TT - part_KT.T @ part_KT)
