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
    x = fitted.kernels.x_NF.numpy()
    token = fitted.kernels.token_N.numpy()
    if fitted.steps is not None:
        x = np.concatenate([x, fitted.steps.x_NF.numpy()])
        token = np.concatenate([token, fitted.steps.token_N.numpy()])
    if fitted.models is not None:
        x = np.concatenate([x, fitted.models.x_CF.numpy()])
        token = np.concatenate([token, fitted.models.token_C.numpy()])
    slack = RANGE_SLACK * x.std(axis=0)
    big = np.float32(1e30)
    low = np.full((len(TOKENS), x.shape[1]), big, dtype=np.float32)
    high = np.full((len(TOKENS), x.shape[1]), -big, dtype=np.float32)
    for t in np.unique(token):
        low[t] = x[token == t].min(axis=0) - slack
        high[t] = x[token == t].max(axis=0) + slack
    return low, high
