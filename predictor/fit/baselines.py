"""Baselines on the same rows: gradient boosting on the same features, and sums of measured ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.fit.samples import KernelSamples, StepSamples

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 120_000
"""Rows that the boosted trees train on, drawn by a fixed seed: more changes little, costs time."""
TREES = 300


@dataclass(frozen=True, kw_only=True)
class BoostedTrees:
    """scikit-learn's histogram gradient boosting of log(time / base) on the network's features."""

    model: Any

    def kernel_us(
        self, x: NDArray[np.float32], token: NDArray[np.int64], base_us: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Time of each kernel, microseconds."""
        log_ratio = self.model.predict(_inputs(x, token))
        return np.asarray(base_us * np.exp(log_ratio), dtype=np.float64)


def fit_trees(kernels: KernelSamples, steps: StepSamples | None, seed: int = 0) -> BoostedTrees:
    """Boosted trees on isolated kernels and on in-step ops of a single kernel."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, token = kernels.x_NF.numpy(), kernels.token_N.numpy()
    target = np.log(kernels.measured_us_N.numpy() / kernels.base_us_N.numpy())
    if len(x) > MAX_ROWS:
        chosen = np.random.default_rng(seed).choice(len(x), MAX_ROWS, replace=False)
        x, token, target = x[chosen], token[chosen], target[chosen]
    if steps is not None and len(steps.op_us_R):
        label = steps.label_K.numpy()
        single = np.bincount(label, minlength=len(steps.op_us_R))[label] == 1
        kernel, label = steps.kernel_K.numpy()[single], label[single]
        measured = steps.op_us_R.numpy()[label] / steps.base_us_N.numpy()[kernel]
        x = np.concatenate([x, steps.x_NF.numpy()[kernel]])
        token = np.concatenate([token, steps.token_N.numpy()[kernel]])
        target = np.concatenate([target, np.log(measured)])
    model = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=TREES, learning_rate=0.1, max_leaf_nodes=63,
        categorical_features=[x.shape[1]], random_state=seed,
    )  # fmt: skip
    model.fit(_inputs(x, token), target)
    return BoostedTrees(model=model)


def _inputs(x: NDArray[np.float32], token: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.concatenate([x, token[:, None].astype(np.float32)], axis=1)


def op_sums(ops: pd.DataFrame) -> pd.DataFrame:
    """Sum of measured ops by device, graph and phase: what perfect kernels would predict."""
    rows = ops.assign(
        forward=ops["forward_us"] * ops["weight"], backward=ops["backward_us"] * ops["weight"]
    )
    sums = rows.groupby(["device", "graph"])[["forward", "backward"]].sum()
    sums["total"] = sums["forward"] + sums["backward"]
    return sums


def weighted_sums(
    kernel_us: NDArray[np.float64], steps: StepSamples
) -> dict[str, NDArray[np.float64]]:
    """(G,) forward, backward and total of each step by plain summing."""
    phase, graph = steps.phase_N.numpy(), steps.graph_N.numpy()
    weighted = kernel_us * steps.weight_N.numpy()

    def total(index: int) -> NDArray[np.float64]:
        chosen = weighted * (phase == index)
        return np.bincount(graph, weights=chosen, minlength=steps.graphs).astype(np.float64)

    forward, backward = total(0), total(1)
    return {"forward": forward, "backward": backward, "total": forward + backward}
