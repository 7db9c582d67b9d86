"""Errors on a device that was not trained on, after k measured rows: adapter and baselines.

A network that never saw the device predicts all its rows; an adapter is fitted on k of them
(`predictor.calibrate.posterior`), and the rows of other groups are scored.

Legend: N rows of a pool, K measured ones, S scored ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.calibrate.posterior import NORMAL_90, apply, fit_adapter, variance_before
from predictor.calibrate.prior import Prior, shipped_interval_scale
from predictor.calibrate.readings import Readings
from predictor.fit.transfer_baselines import Proxy, ProxyPredictor, flops_law, log_work
from predictor.fit.transfer_draws import BUDGETS, DRAWS, Draw, draw
from predictor.fit.transfer_networks import UnseenNetworks
from predictor.fit.transfer_rows import DeviceRows
from predictor.fit.transfer_suites import TransferSuite
from predictor.fit.transfer_tuning import predicted_log_us, tuned
from predictor.nn.ensemble import Ensemble

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Score = dict[str, Any]
OURS = "adapter"
METHODS: tuple[str, ...] = (
    OURS, "flops_law", "bandwidth", "proxy", "gradient_boosting", "fine_tuning",
)  # fmt: skip
LEAST_ROWS = 3
"""Rows below which a device, or a setting of it, is left out."""
TREE_ROWS = 4000
"""Rows of other devices that boosted trees see."""
OWN_WEIGHT = 20.0
"""Weight of a measured row of the new device in them: a leaf needs so many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is drawn and fitted."""

    budgets: tuple[int, ...] = BUDGETS
    draws: int = DRAWS
    costly_budgets: tuple[int, ...] = (0, 10, 50)
    """Budgets of boosted trees and fine-tuning, each of which is a fit by itself."""
    costly_draws: int = 2
    tuned_rows: int = 300
    """Rows that a fine-tuned network is scored on, at most."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What other devices than the new one and its twins measured."""

    rows: Sequence[DeviceRows]
    """A sample of their rows of the target's kind."""
    proxies: list[Proxy]

    def law(self) -> dict[str, float]:
        """Median of log time less `log_work`, by device."""
        return {
            rows.device: float(np.median(rows.log_us_N - log_work(rows.frame, rows.device)))
            for rows in self.rows
        }


def curves(
    suite: TransferSuite,
    evidence: DeviceRows,
    target: DeviceRows,
    elsewhere: Elsewhere,
    unseen: UnseenNetworks,
    prior: Prior,
    plan: Plan,
) -> list[Score]:
    """Scores of every budget, draw and method, in each setting where the suite asks for it."""
    known = evidence.readings(unseen.networks, unseen.learned)
    asked = known if target is evidence else target.readings(unseen.networks, unseen.learned)
    setting_N = target.frame["setting"].to_numpy(dtype=np.str_)
    every = np.arange(len(setting_N))
    pools = (
        {str(s): np.flatnonzero(setting_N == s) for s in np.unique(setting_N)}
        if suite.by_setting
        else {"": every}
    )
    found: list[Score] = []
    pools = {setting: at_N for setting, at_N in pools.items() if len(at_N) >= LEAST_ROWS}
    for i, (setting, at_N) in enumerate(pools.items()):
        own = at_N if suite.same_kind else np.arange(len(known))
        pool = _Pool(
            suite=suite, evidence=evidence, target=target, evidence_N=own, target_N=at_N,
            known=known, asked=asked, unseen=unseen, prior=prior, plan=plan, elsewhere=elsewhere,
            costly=i == 0,
        )  # fmt: skip
        facts = {
            "suite": suite.name, "device": target.device, "setting": setting,
            "network": unseen.name, "fold": unseen.fold, "rows": len(at_N),
        }  # fmt: skip
        found += [{**facts, **score} for score in pool.scores()]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Rows that draws are taken from, and rows that are scored."""

    suite: TransferSuite
    evidence: DeviceRows
    target: DeviceRows
    evidence_N: Indices
    target_N: Indices
    known: Readings
    asked: Readings
    unseen: UnseenNetworks
    prior: Prior
    plan: Plan
    elsewhere: Elsewhere
    costly: bool
    """Whether trees and fine-tuning are fitted: in the first setting of a device."""

    def scores(self) -> Iterator[Score]:
        """All budgets that the pool is large enough for."""
        group_N = self.evidence.frame["group"].to_numpy(dtype=np.str_)[self.evidence_N]
        name = f"{self.suite.name} {self.target.device} {len(self.target_N)}"
        rival = self._rival() if self.suite.same_kind else None
        for k in self.plan.budgets:
            for i in range(self.plan.draws if k else 1):
                rng = np.random.default_rng([self.plan.seed, zlib.crc32(name.encode()), k, i])
                drawn = draw(group_N, k, rng, spread=self.suite.spread)
                if drawn is None:
                    continue
                scored = self._scored(drawn)
                if not scored.any():
                    continue
                at = {"k": k, "draw": i}
                yield {**at, **self._ours(drawn, scored)}
                if rival is None:
                    continue
                for method, log_us in self._cheap(rival, drawn):
                    yield {**at, "method": method, **self._errors(log_us[scored], scored)}
                if self.costly and k in self.plan.costly_budgets and i < self.plan.costly_draws:
                    for score in self._costly(drawn, scored, rng):
                        yield {**at, **score}

    def _scored(self, drawn: Draw) -> NDArray[np.bool_]:
        """Rows of the pool in groups that no measured row is of."""
        group_N = self.target.frame["group"].to_numpy(dtype=np.str_)[self.target_N]
        return ~np.isin(group_N, list(drawn.groups))

    def _errors(self, log_us_S: Floats, scored: NDArray[np.bool_]) -> Score:
        measured_S = self.target.log_us_N[self.target_N[scored]]
        return errors(log_us_S, measured_S)

    def _ours(self, drawn: Draw, scored: NDArray[np.bool_]) -> Score:
        asked = self.asked.take(self.target_N[scored])
        if len(drawn.index_K):
            measured = self.known.take(self.evidence_N[drawn.index_K])
            factor_S, variance_S = apply(fit_adapter(measured, self.prior), asked)
        else:
            factor_S, variance_S = np.zeros(len(asked)), variance_before(self.prior, asked)
        log_us_S = asked.log_predicted_N + factor_S
        half_S = NORMAL_90 * shipped_interval_scale() * np.sqrt(variance_S)
        covered = np.abs(asked.log_measured_N - log_us_S) <= half_S
        return {
            "method": OURS, **errors(log_us_S, asked.log_measured_N),
            "covered": float(covered.mean()), "half_width": float(np.median(half_S)),
        }  # fmt: skip

    def _rival(self) -> _Rival:
        frame = self.target.frame.iloc[self.target_N]
        law = bool(np.isfinite(frame["flops"]).all())
        return _Rival(
            log_us_N=self.target.log_us_N[self.target_N],
            work_N=log_work(frame, self.target.device) if law else None,
            law=self.elsewhere.law() if law else {},
            proxy=ProxyPredictor(frame, self.target.device, self.elsewhere.proxies),
        )

    def _cheap(self, rival: _Rival, drawn: Draw) -> Iterator[tuple[str, Floats]]:
        """(N,) log times of the whole pool by each baseline that there is."""
        at = drawn.index_K
        log_us_K = rival.log_us_N[at]
        if rival.work_N is not None:
            law = flops_law(rival.work_N, rival.work_N[at], log_us_K, rival.law)
            if law is not None:
                yield "flops_law", law
        scaled = rival.proxy.bandwidth(log_us_K, at)
        if scaled is not None:
            yield "bandwidth", scaled
        if len(at) and (fitted := rival.proxy.proxy(log_us_K, at)) is not None:
            yield "proxy", fitted

    def _costly(
        self, drawn: Draw, scored: NDArray[np.bool_], rng: np.random.Generator
    ) -> Iterator[Score]:
        measured = self.target_N[drawn.index_K]
        if self.elsewhere.rows:
            log_us_S = boosted_log_us(
                self.elsewhere.rows, self.target, measured, self.target_N[scored]
            )
            yield {"method": "gradient_boosting", **self._errors(log_us_S, scored)}
        networks = self.unseen.networks
        if not len(measured) or not isinstance(networks, Ensemble):
            return
        some = np.flatnonzero(scored)
        if len(some) > self.plan.tuned_rows:
            some = np.sort(rng.choice(some, self.plan.tuned_rows, replace=False))
        after = tuned(networks, self.target, measured)
        at = self.target_N[some]
        log_us = predicted_log_us(after, self.target, at)
        yield {"method": "fine_tuning", **errors(log_us, self.target.log_us_N[at])}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rival:
    """What the cheap baselines know of a pool."""

    log_us_N: Floats
    work_N: Floats | None
    law: Mapping[str, float]
    proxy: ProxyPredictor


def errors(log_us_S: Floats, measured_S: Floats) -> Score:
    """Errors of the rows that were predicted, and their share of all."""
    there = np.isfinite(log_us_S)
    if not there.any():
        return {"n": 0, "share": 0.0, "mape": None, "median_ape": None}
    size = np.abs(np.exp(log_us_S[there] - measured_S[there]) - 1.0)
    return {
        "n": int(there.sum()), "share": float(there.mean()), "mape": float(size.mean()),
        "median_ape": float(np.median(size)),
    }  # fmt: skip


def boosted_log_us(
    others: Sequence[DeviceRows], rows: DeviceRows, measured_K: Indices, scored_S: Indices
) -> Floats:
    """(S,) log times by trees retrained on rows of other devices and the measured ones."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    x = np.concatenate([part.x_NF for part in others])
    y = np.concatenate([part.log_us_N - np.log(part.base_us_N) for part in others])
    if len(x) > TREE_ROWS:
        at = np.random.default_rng(0).choice(len(x), TREE_ROWS, replace=False)
        x, y = x[at], y[at]
    own = rows.log_us_N[measured_K] - np.log(rows.base_us_N[measured_K])
    model = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=100, learning_rate=0.1, random_state=0,
        early_stopping=False,
    )  # fmt: skip
    model.fit(
        np.concatenate([x, rows.x_NF[measured_K]]), np.concatenate([y, own]),
        sample_weight=np.concatenate([np.ones(len(x)), np.full(len(own), OWN_WEIGHT)]),
    )  # fmt: skip
    return np.asarray(np.log(rows.base_us_N[scored_S]) + model.predict(rows.x_NF[scored_S]))
