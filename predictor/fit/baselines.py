"""Baselines on the same rows: gradient boosting on the same features, and sums of measured ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.fit.samples import KernelSamples, NodeSamples
from predictor.fit.step_samples import StepSamples

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 120_000
"""Rows that the boosted trees train on, drawn by a fixed seed: more changes little, costs time."""
TREES = 300
SEED = 0


@dataclass(frozen=True, kw_only=True)
class BoostedTrees:
    """scikit-learn's histogram gradient boosting of log(time / base) on the network's features."""

    model: Any

    def kernel_us(self, samples: NodeSamples) -> NDArray[np.float64]:
        """(N,) time of each kernel, microseconds."""
        log_ratio = self.model.predict(_inputs(samples.x_NF.numpy(), samples.token_N.numpy()))
        return np.asarray(samples.base_us_N.numpy() * np.exp(log_ratio), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRows:
    """What boosted trees learn from: N kernels and log(time / base)."""

    x_NF: NDArray[np.float32]
    token_N: NDArray[np.int64]
    log_ratio_N: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.token_N)


def kernel_tree_rows(kernels: KernelSamples, chosen_N: NDArray[np.bool_]) -> TreeRows:
    """Rows of kernels measured alone: at most `MAX_ROWS` of the chosen ones."""
    at = np.flatnonzero(chosen_N)
    if len(at) > MAX_ROWS:
        at = at[np.random.default_rng(SEED).choice(len(at), MAX_ROWS, replace=False)]
    ratio = kernels.measured_us_N.numpy()[at] / kernels.base_us_N.numpy()[at]
    return TreeRows(
        x_NF=kernels.x_NF.numpy()[at],
        token_N=kernels.token_N.numpy()[at],
        log_ratio_N=np.log(ratio),
    )


def op_tree_rows(steps: StepSamples, chosen_R: NDArray[np.bool_]) -> TreeRows:
    """Rows of the chosen ops inside steps that are a single kernel."""
    label, kernel = steps.label_K.numpy(), steps.kernel_K.numpy()
    single = np.bincount(label, minlength=len(steps.op_us_R))[label] == 1
    at = single & chosen_R[label] if len(label) else single
    label, kernel = label[at], kernel[at]
    ratio = steps.op_us_R.numpy()[label] / steps.base_us_N.numpy()[kernel]
    return TreeRows(
        x_NF=steps.x_NF.numpy()[kernel], token_N=steps.token_N.numpy()[kernel],
        log_ratio_N=np.log(ratio),
    )  # fmt: skip


def fit_trees(parts: Sequence[TreeRows]) -> BoostedTrees:
    """Boosted trees on the rows of all parts."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    x = np.concatenate([_inputs(part.x_NF, part.token_N) for part in parts])
    model = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=TREES, learning_rate=0.1, max_leaf_nodes=63,
        categorical_features=[x.shape[1] - 1], random_state=SEED,
    )  # fmt: skip
    model.fit(x, np.concatenate([part.log_ratio_N for part in parts]))
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
