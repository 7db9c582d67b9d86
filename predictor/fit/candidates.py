"""The kinds of model that can be trained, from a few numbers to networks, fitted on the same rows.

Legend: N kernels, C op classes, S nodes of trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.errors import DataError
from predictor.features.columns import COLUMNS
from predictor.fit.baselines import MAX_ROWS, SEED, TREES
from predictor.fit.fitting import AfterEpoch, FitData, fit_networks
from predictor.fit.rates import fit_rates
from predictor.fit.recipe import Recipe
from predictor.graph.ops import OP_CLASSES, TOKENS
from predictor.nn.boosted_trees import LEAF, BoostedTrees, TreeArrays, tree_inputs
from predictor.nn.ensemble import Ensemble
from predictor.nn.fitted_roofline import CLASS_OF_TOKEN, FittedRoofline
from predictor.nn.kernel_model import KernelModel

KINDS: tuple[str, ...] = ("roofline", "boosted_trees", "network")
"""Kinds of model that are compared, the simplest first."""
RATES = "rates"
"""A further kind, for few rows on each of several devices of one kind (TPU generations)."""
NAMED: tuple[str, ...] = (*KINDS, RATES)
"""Every kind that may be asked for."""
OWN_CLASS_ROWS = 5
"""Fewest rows on which an op class has numbers of its own."""
_LAUNCH_QUANTILES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
_LAUNCH_SHARES = (0.5, 0.75, 0.95)
SMALLEST_SHARE = 0.05
"""Of a measured time, that the kernel itself is taken to be at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernels:
    """N kernels with a measured time: alone, inside a step, or the one kernel behind an op."""

    x_NF: NDArray[np.float32]
    token_N: NDArray[np.int64]
    base_us_N: NDArray[np.float64]
    measured_us_N: NDArray[np.float64]
    isolated_N: NDArray[np.bool_]
    weight_N: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.token_N)


def timed_kernels(data: FitData) -> TimedKernels:
    """The kernels that the simple kinds learn from.

    Raises:
        DataError: none was timed; whole steps alone do not tell their kernels apart.
    """
    k = data.kernels
    parts: list[dict[str, Any]] = [{
        "x_NF": k.x_NF, "token_N": k.token_N, "base_us_N": k.base_us_N,
        "measured_us_N": k.measured_us_N, "isolated_N": k.isolated_N > 0, "weight_N": k.weight_N,
    }]  # fmt: skip
    if data.steps is not None and len(data.steps.op_us_R):
        s = data.steps
        single = torch.bincount(s.label_K, minlength=len(s.op_us_R))[s.label_K] == 1
        label, at = s.label_K[single], s.kernel_K[single]
        parts.append({
            "x_NF": s.x_NF[at], "token_N": s.token_N[at], "base_us_N": s.base_us_N[at],
            "measured_us_N": s.op_us_R[label], "isolated_N": torch.zeros(len(at)) > 0,
            "weight_N": torch.ones(len(at)),
        })  # fmt: skip
    joined = {name: torch.cat([p[name] for p in parts]).numpy() for name in parts[0]}
    for name in ("base_us_N", "measured_us_N", "weight_N"):
        joined[name] = joined[name].astype(np.float64)
    if not len(joined["token_N"]):
        raise DataError("no kernel was timed: only the network learns from whole steps alone")
    return TimedKernels(**joined)


def fit_model(
    kind: str,
    recipe: Recipe,
    data: FitData,
    folder: Path | None,
    *,
    progress: bool,
    after_epoch: AfterEpoch | None = None,
) -> KernelModel:
    """A model of one of `NAMED`; arguments as of `fit_networks`.

    Raises:
        DataError: a simple kind, and no kernel was timed; rates, and devices of several kinds.
    """
    if kind == "network":
        nets = fit_networks(recipe, data, folder, progress=progress, after_epoch=after_epoch)
        return Ensemble(members=tuple(nets), devices=data.hosts)
    if kind == RATES:
        return fit_rates(data)
    rows = timed_kernels(data)
    if kind == "roofline":
        return fit_roofline(rows, data.hosts)
    return fit_boosted_trees(rows, data.hosts)


def fit_roofline(rows: TimedKernels, devices: tuple[str, ...]) -> FittedRoofline:
    """Efficiency and launch time by op class; a class of few rows takes those of all."""
    op_class = CLASS_OF_TOKEN.numpy()[rows.token_N]
    log_ratio, launch = _line(rows, np.ones(len(rows), dtype=bool))
    log_ratio_C = np.full(len(OP_CLASSES), log_ratio, dtype=np.float32)
    launch_us_C = np.full(len(OP_CLASSES), launch, dtype=np.float32)
    for c in np.unique(op_class):
        chosen = op_class == c
        if chosen.sum() >= OWN_CLASS_ROWS:
            log_ratio_C[c], launch_us_C[c] = _line(rows, chosen)
    return FittedRoofline(
        devices=devices, log_ratio_C=torch.from_numpy(log_ratio_C),
        launch_us_C=torch.from_numpy(launch_us_C),
    )  # fmt: skip


def _line(rows: TimedKernels, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    """(log ratio, launch) with the smallest weighted mean error of log time, over a grid."""
    time, base = rows.measured_us_N[chosen], rows.base_us_N[chosen]
    alone, weight = rows.isolated_N[chosen], rows.weight_N[chosen]
    launches = [0.0]
    if alone.any():
        quick = np.quantile(time[alone], _LAUNCH_QUANTILES)
        launches += np.unique(np.outer(quick, _LAUNCH_SHARES)).tolist()
    best = (np.inf, 0.0, 0.0)
    for launch in launches:
        on_top = launch * alone
        own = np.maximum(time - on_top, SMALLEST_SHARE * time)
        ratio = _weighted_median(np.log(own / base), weight)
        error = np.abs(np.log(base * np.exp(ratio) + on_top) - np.log(time))
        best = min(best, (float((weight * error).sum()), ratio, launch))
    return best[1], best[2]


def _weighted_median(values: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def fit_boosted_trees(rows: TimedKernels, devices: tuple[str, ...]) -> BoostedTrees:
    """scikit-learn's histogram gradient boosting of log(time / base), as arrays."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    at = np.arange(len(rows))
    if len(at) > MAX_ROWS:
        at = np.random.default_rng(SEED).choice(len(at), MAX_ROWS, replace=False)
    model = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=TREES, learning_rate=0.1, max_leaf_nodes=63,
        min_samples_leaf=int(np.clip(len(at) // 40, 2, 20)), early_stopping=False,
        random_state=SEED,
    )  # fmt: skip
    model.fit(
        tree_inputs(rows.x_NF[at], rows.token_N[at]),
        np.log(rows.measured_us_N[at] / rows.base_us_N[at]),
    )
    return BoostedTrees(
        devices=devices, trees=tree_arrays(model), columns_F=np.arange(len(COLUMNS)),
        token_number_T=np.arange(len(TOKENS)),
    )  # fmt: skip


def tree_arrays(model: Any) -> TreeArrays:
    """The trees of a fitted `HistGradientBoostingRegressor` on numbers without gaps."""
    parts = [predictors[0].nodes for predictors in model._predictors]
    root = np.cumsum([0, *(len(nodes) for nodes in parts)])[:-1]
    nodes = np.concatenate(parts)
    offset = np.repeat(root, [len(part) for part in parts])
    leaf = nodes["is_leaf"] > 0
    return TreeArrays(
        feature_S=np.where(leaf, LEAF, nodes["feature_idx"]).astype(np.int32),
        threshold_S=np.where(leaf, 0.0, nodes["num_threshold"]).astype(np.float64),
        left_S=np.where(leaf, 0, nodes["left"] + offset).astype(np.int32),
        right_S=np.where(leaf, 0, nodes["right"] + offset).astype(np.int32),
        value_S=np.where(leaf, nodes["value"], 0.0).astype(np.float64),
        root_B=root.astype(np.int32),
        start=np.asarray(model._baseline_prediction, dtype=np.float64).reshape(1),
    )
