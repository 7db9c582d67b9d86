"""How many rows the experts of the measured rank get: the publisher's routing, in expectation.

The tables time one rank of an expert-parallel group. It is given all tokens of the group and works
on those that meet its experts. Under `balanced` that is an even share. Under `power_law_A` each
expert draws a weight from a power law with exponent A (between 1 and 0.8 x tokens, or 0.01 and 2
when there are fewer token-expert pairs than experts); the pairs are split by weight, no expert
gets more than all tokens, and the rank with the most pairs is the measured one. The draw is not
published: its mean over fixed draws stands here. With `_eplb` replicas even the load out.
Described upstream in collector/helper.py and docs of its power-law workload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DRAWS = 16
"""Draws that the expectation is taken over."""
_POWER_LAW = re.compile(r"power_law_(?P<alpha>\d+(?:\.\d+)?)(?P<eplb>_eplb)?")
_EVEN = ("balanced", "uniform")


def is_known(distribution: str) -> bool:
    """Whether the load of a routing can be told."""
    return distribution in _EVEN or _POWER_LAW.fullmatch(distribution) is not None


def rank_load(
    columns: Mapping[str, NDArray[np.int64]], distribution: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token-expert pairs of the measured rank and experts of it that meet one, for N rows.

    Args:
        columns: (N,) `tokens` of the group, `topk`, `experts` (or slots) of the layer, and
            `ranks` that share them.
        distribution: a routing that `is_known`.
    """
    keys = np.stack([columns[c] for c in ("tokens", "topk", "experts", "ranks")], axis=1)
    unique, where = np.unique(keys, axis=0, return_inverse=True)
    found = np.array(
        [_load(*(int(v) for v in key), distribution) for key in unique], dtype=np.int64
    ).reshape(-1, 2)
    pairs, active = found[where.reshape(-1)].T
    return pairs, active


@lru_cache(maxsize=65_536)
def _load(tokens: int, topk: int, experts: int, ranks: int, distribution: str) -> tuple[int, int]:
    if min(tokens, topk, experts, ranks) < 1 or experts % ranks:
        return -1, -1  # no such layer: dropped as not plausible
    match = _POWER_LAW.fullmatch(distribution)
    if match is None or match["eplb"]:
        pairs = math.ceil(tokens * topk / ranks)
        return pairs, min(pairs, experts // ranks)
    return _hottest(tokens, topk, experts, ranks, float(match["alpha"]))


def _hottest(tokens: int, topk: int, experts: int, ranks: int, alpha: float) -> tuple[int, int]:
    """Mean pairs and mean active experts of the most loaded rank."""
    low, high = (1.0, 0.8 * tokens) if tokens * topk > experts else (0.01, 2.0)
    power = 1.0 - alpha
    uniform = np.random.default_rng(0).random((DRAWS, experts))
    if power == 0.0:
        weight = low * (high / low) ** uniform
    else:
        weight = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    share = weight / weight.sum(axis=1, keepdims=True)
    counts = np.minimum(np.round(share * tokens * topk), tokens).reshape(DRAWS, ranks, -1)
    left = (tokens * topk - counts.sum(axis=(1, 2)))[:, None] / ranks  # dealt out rank by rank
    load = counts.sum(axis=2) + left
    idle = (counts == 0).sum(axis=2)
    active = counts.shape[2] - idle + np.clip(left, 0, idle)  # the least loaded come first
    hot = load.argmax(axis=1)
    draws = np.arange(DRAWS)
    pairs = max(1, round(float(load[draws, hot].mean())))
    return pairs, min(pairs, max(1, round(float(active[draws, hot].mean()))))
