"""Constants of attention kernels: prefill, and the ways in which libraries decode.

One set a kernel, none a device's own: fitted to the training part (split `unseen-attention-shape`)
of TensorRT-LLM's attention on eight GPUs (`attention_tiles.py` says what they mean together).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Constants of prefill."""

    start_clocks: float = 17_090.0
    start_async_us: float = 4.14
    """More of a start where `Chip.copies_async`: libraries launch more kernels there."""
    rate: float = 0.721
    """Share of the sustained rate."""
    rate_async: float = 1.53
    """The same relative to it where `Chip.copies_async`."""
    rate_narrow: float = 0.790
    """The same of 8 bits."""
    rate_narrow_cache: float = 1.33
    """The same where the cache has 8 bits: such kernels then compute partly in 8 bits."""
    exponential: float = 0.928
    """Exponentials a pair."""
    tile_clocks: float = 5_385.0
    """Start and end of a tile of 128 queries."""
    longest: float = 1.05
    """Weight of the longest tile."""
    diagonal: float = 1.09
    """Share of a tile of keys more that the diagonal costs."""
    edge_blocks: float = 3.65
    """Blocks more that a window costs."""
    share: float = 1.05
    edge: float = 0.982
    slope: float = 3.70
    gain: float = 0.358
    """See `read_rate`."""
    rotated: float = 0.743
    """Times that new queries, keys and values are moved."""
    block: float = 0.956
    whole: float = 0.800
    """Powers of the smooth maximum: products and exponentials; arithmetic and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Constants of one way to decode."""

    rows: float
    """Query heads of one tile."""
    start_clocks: float
    start_async_us: float
    split_keys: float
    """Least keys of a part; infinite where keys are not split."""
    occupancy: float
    """Tiles a unit that splitting aims at."""
    step_clocks: float
    """Least clocks of a block, at a width of 128."""
    step_narrow_cache: float = 1.0
    """The same relative to it for a cache of 8 bits before `Chip.copies_async`."""
    rate: float
    cache_rate: float
    tile_clocks: float
    at_once: float
    """Tiles that a unit works on side by side."""
    draw: float
    """Tiles a unit that draw all bandwidth."""
    share: float
    edge: float
    slope: float
    gain: float
    """See `read_rate`."""
    whole: float
    """Power of the smooth maximum."""
    split_us: float
    rotated: float


TOGETHER = Decode(
    rows=32, start_clocks=15_376, start_async_us=2.76, split_keys=373, occupancy=3.85,
    step_clocks=11.5, rate=0.507, cache_rate=4.50, tile_clocks=1_333, at_once=0.670, draw=0.0257,
    share=1.047, edge=0.144, slope=0.168, gain=0.304, whole=7.49, split_us=0.538, rotated=5.98,
)  # fmt: skip
"""Query heads together, compute capability 10."""
TOGETHER_OLD = Decode(
    rows=32, start_clocks=10_961, start_async_us=0.808, split_keys=192.25, occupancy=3.79,
    step_clocks=100, rate=0.538, cache_rate=0.782, tile_clocks=6_524, at_once=0.890, draw=0.348,
    share=1.794, edge=1.074, slope=3.67, gain=0.469, whole=4.85, split_us=1.39, rotated=0.736,
)  # fmt: skip
"""The same before."""
TOGETHER_NARROW = Decode(
    rows=16, start_clocks=9_548, start_async_us=1.22, split_keys=204, occupancy=20.7,
    step_clocks=179, rate=0.325, cache_rate=1.114, tile_clocks=853, at_once=0.855, draw=0.0154,
    share=0.773, edge=11.78, slope=0.618, gain=2.56, whole=1.475, split_us=2.95, rotated=3.66,
)  # fmt: skip
"""The same on a cache of 8 bits, compute capability 9: a kernel of its own."""
EACH = Decode(
    rows=1, start_clocks=14_183, start_async_us=0.059, split_keys=79.9, occupancy=6.51,
    step_clocks=1_388, step_narrow_cache=6.42, rate=0.6, cache_rate=32.8, tile_clocks=2_003,
    at_once=1.14, draw=1.095, share=1.12, edge=2.25, slope=8.51, gain=0.439, whole=2.08,
    split_us=2.71, rotated=0.1,
)  # fmt: skip
"""Each query head alone."""
LATENT = Decode(
    rows=64, start_clocks=15_643, start_async_us=0.646, split_keys=207, occupancy=2.99,
    step_clocks=10.4, rate=1.07, cache_rate=4.12, tile_clocks=3_154, at_once=0.526, draw=0.102,
    share=0.885, edge=0.984, slope=3.04, gain=0.209, whole=10.0, split_us=0.502, rotated=2.90,
)  # fmt: skip
"""Latents, matrix units that read shared memory by themselves."""
LATENT_OLD = Decode(
    rows=64, start_clocks=11_314, start_async_us=0.0, split_keys=math.inf, occupancy=2.5,
    step_clocks=2_181, step_narrow_cache=1.05, rate=1.09, cache_rate=1.084, tile_clocks=255,
    at_once=0.529, draw=0.0149, share=2.03, edge=0.675, slope=17.5, gain=0.277, whole=1.104,
    split_us=0.0, rotated=0.156,
)  # fmt: skip
"""The same before: keys are not split."""
