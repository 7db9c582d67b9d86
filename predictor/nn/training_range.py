"""How far kernels lie outside of what training saw.

Legend: N kernels, T tokens, F features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.features.columns import COLUMNS

MEASURING_COLUMNS = np.isin(COLUMNS, ["isolated", "boost_room", "boost_room_x_time"])
RELEASE_COLUMNS = np.isin(COLUMNS, ["release", "scripted_attention"])
MOST_OUTSIDE = 4.0
"""Largest score: beyond it nothing is known of how much worse it gets."""


def outside_range(
    x_NF: NDArray[np.float32],
    token_N: NDArray[np.int64],
    low_TF: NDArray[np.float32],
    high_TF: NDArray[np.float32],
    *,
    release_known: bool = True,
) -> NDArray[np.float64]:
    """(N,) how far each kernel lies outside of the training range of its token; 0 inside.

    The sum over the features of how far each lies beyond its range, as a share of the range's
    width and at most 1; at most `MOST_OUTSIDE`.

    How a kernel was measured is no part of it: some tokens were only measured alone. Neither is the
    framework's release where nobody told it: its columns hold an assumption then, which lies
    outside of the rows of any single release.

    Args:
        x_NF: features.
        token_N: vocabulary token of each kernel.
        low_TF: lowest values that training saw by token; above `high_TF` where it saw none.
        high_TF: highest values.
        release_known: whether the framework's release was told.
    """
    free = MEASURING_COLUMNS if release_known else MEASURING_COLUMNS | RELEASE_COLUMNS
    score = np.zeros(len(token_N))
    for token in np.unique(token_N):
        at = np.flatnonzero(token_N == token)
        low, high = low_TF[token, ~free], high_TF[token, ~free]
        if (low > high).any():
            score[at] = MOST_OUTSIDE
            continue
        x = x_NF[at][:, ~free]
        over = np.maximum(np.maximum(low - x, x - high), 0.0)
        width = np.maximum(high - low, np.finfo(np.float32).tiny)
        # the least share keeps a value that is outside by rounding alone apart from one inside
        share = np.where(over > 0, np.maximum(np.minimum(over, width) / width, 1e-6), 0.0)
        score[at] = np.minimum(share.sum(axis=1, dtype=np.float64), MOST_OUTSIDE)
    return score
