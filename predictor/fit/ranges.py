"""Training range of every feature, by token."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.fit.fitting import FitData
from predictor.graph.ops import TOKENS

Singles: TypeAlias = NDArray[np.float32]
RANGE_SLACK = 0.25
"""How far outside the training range of its token a feature may lie, in training deviations."""


def training_ranges(fitted: FitData) -> tuple[Singles, Singles]:
    """Both (T, F): lowest and highest feature values by token, with slack; empty where unseen."""
    parts = [(fitted.kernels.x_NF.numpy(), fitted.kernels.token_N.numpy())]
    if fitted.steps is not None:
        parts.append((fitted.steps.x_NF.numpy(), fitted.steps.token_N.numpy()))
    if fitted.models is not None:
        parts.append((fitted.models.x_CF.numpy(), fitted.models.token_C.numpy()))
    slack = RANGE_SLACK * _spread([x for x, _ in parts])
    big = np.float32(1e30)
    low = np.full((len(TOKENS), len(slack)), big, dtype=np.float32)
    high = np.full((len(TOKENS), len(slack)), -big, dtype=np.float32)
    for x, token in parts:
        for t in np.unique(token):
            low[t] = np.minimum(low[t], x[token == t].min(axis=0) - slack)
            high[t] = np.maximum(high[t], x[token == t].max(axis=0) + slack)
    return low, high


def _spread(parts: list[Singles]) -> Singles:
    """(F,) standard deviation over the rows of all parts: a column at a time, for memory."""
    columns = range(parts[0].shape[1])
    whole = [np.concatenate([x[:, f] for x in parts], dtype=np.float64).std() for f in columns]
    return np.array(whole, dtype=np.float32)
