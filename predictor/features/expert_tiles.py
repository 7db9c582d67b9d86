"""Time of a layer's experts from the way libraries cut it: rows by expert, tiles, weights, moves.

The rows of a rank are sorted by expert, each expert's rows are cut into tiles (the last of each is
not full), and all tiles of all experts run as one grouped product: up (with a gate) and down.
Between and around them rows are gathered, quantised, gated and added up. Few rows an expert leave
the weights of the experts that are met as the whole cost, many leave arithmetic.

Under routing by popularity experts get unequal shares, so each has a last tile that is half full
in the mean; under an even one all experts have the same number.

No constant is a device's own: one set for all, fitted to the training part (split
`unseen-moe-shape`) of TensorRT-LLM's experts on eight GPUs; kernels of some names start faster or
compute slower, which has constants of its own.

Legend: N layers of experts on one device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.features.chip import Chip, Floats, latest, read_rate

TILES: tuple[tuple[float, float], ...] = ((16.0, 0.496), (64.0, 1.081), (128.0, 1.0))
"""Rows of a tile, and the rate that it feeds relative to `Experts.rate`."""
COLUMNS_OF_TILE = 128.0
STEP_BYTES = 128.0
"""Bytes along k that a tile takes at a time."""
STEP_CLOCKS, TILE_CLOCKS = 15.0, 2_376.0
"""Least clocks of such a step; of a tile's start and end."""
RATE = 1.72
"""Share of the sustained rate, arithmetic alone; the smooth maximum takes its part of it."""
BANDWIDTH, CACHE_RATE, DRAW = 1.085, 5.87, 0.0398
"""Share of the memory's and the cache's bandwidth; tiles a unit that draw all of the memory's."""
EDGE, SLOPE, GAIN = 0.608, 4.0, 0.733
"""See `read_rate`."""
SMOOTH = 1.584
"""Power of the smooth maximum."""
LAST_TILE = 0.834
"""Tiles more that an expert has than its rows fill, under unequal shares."""
GATHER, COMBINE, GATE = 0.0249, 4.33, 2.86
"""Times that rows are gathered and quantised, added up, and gated between the products."""
ROUTE_CLOCKS = 0.402
"""Clocks of a unit for a token and expert."""
START_CLOCKS, START_ASYNC_US = 44_360.0, 8.86
"""Clocks of all starts; more where `Chip.copies_async`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a library's kernels do otherwise than its usual ones."""

    start: float = 1.0
    """Starts relative to `START_CLOCKS`."""
    rate: float = 1.0
    """Arithmetic relative to `RATE`."""
    bandwidth: float = 1.0
    """Weights relative to `BANDWIDTH`."""

    def and_also(self, other: Kind) -> Kind:
        """Both."""
        return Kind(
            start=self.start * other.start, rate=self.rate * other.rate,
            bandwidth=self.bandwidth * other.bandwidth,
        )  # fmt: skip


LIBRARY_KINDS: tuple[tuple[str, Kind], ...] = (
    ("nongated", Kind(start=1.84)),
    ("min_latency", Kind(start=0.414 * 0.598)),
    ("deepgemm", Kind(start=0.889, rate=0.389)),
)
"""By a word of the library's name."""
DTYPE_RATES = {"fp8": 1.29, "fp4": 0.387}
"""Arithmetic relative to that in 16 bits, each against its own sustained rate."""
BLOCK_SCALED = Kind(rate=0.248)
"""fp8 with a scale a block, by other libraries than DeepGEMM: sums are scaled outside the unit."""
DEQUANTISED = Kind(rate=0.118, bandwidth=0.300)
"""Weights of 4 bits that are widened before a 16-bit product."""
FUSED = Kind(start=0.598)
"""4-bit weights and 8-bit rows: routing, gating and sums within few kernels."""
SCHEME_KINDS = {
    "fp8_block": BLOCK_SCALED, "w4a16_mxfp4": DEQUANTISED, "int4_wo": DEQUANTISED,
    "w4a8_mxfp4_mxfp8": FUSED,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """N layers of experts, one rank of each."""

    rows: Floats
    """Token-expert pairs."""
    hidden: Floats
    inner: Floats
    gates: Floats
    """2 with a gate, else 1."""
    active: Floats
    """Experts that some row meets."""
    tokens: Floats
    experts: Floats
    """Of the whole layer."""
    weight_item: Floats
    """Bytes of an element of a weight."""
    row_item: Floats
    """Bytes of an element of the rows that enter a product."""
    flop_per_us: Floats
    """Sustained rate of the whole device."""


def kind_of(library: str, scheme: str) -> Kind:
    """What kernels of a library do otherwise, for a scheme of quantisation."""
    name = library.lower()
    out = Kind()
    for word, kind in LIBRARY_KINDS:
        if word in name:
            out = out.and_also(kind)
    if scheme == "fp8_block" and "deepgemm" in name:
        return out
    return out.and_also(SCHEME_KINDS.get(scheme, Kind()))


def experts_us(e: Experts, chip: Chip, kind: Kind, *, even: bool) -> Floats:
    """(N,) time of each layer, microseconds.

    Args:
        e: the layers.
        chip: the device.
        kind: of the kernels (`kind_of`).
        even: whether all experts get the same number of rows.
    """
    products = _grouped_us(e, e.inner * e.gates, e.hidden, chip, kind, even)
    products = products + _grouped_us(e, e.hidden, e.inner, chip, kind, even)
    gathered = e.rows * e.hidden * (2.0 + e.row_item) * GATHER
    combined = (e.tokens + e.rows) * 2.0 * e.hidden * COMBINE
    gated = e.rows * e.inner * (2.0 * e.gates + e.row_item) * GATE
    routed = e.tokens * e.experts / chip.units * chip.us_per_clock * ROUTE_CLOCKS
    start = START_CLOCKS * chip.us_per_clock * kind.start
    start += START_ASYNC_US if chip.copies_async else 0.0
    return np.asarray(start + products + (gathered + combined + gated) / chip.memory + routed)


def _grouped_us(
    e: Experts, columns: Floats, depth: Floats, chip: Chip, kind: Kind, even: bool
) -> Floats:
    """(N,) time of one grouped product: the best tile's."""
    weights = e.active * columns * depth * e.weight_item
    all_weights = e.active * e.inner * e.hidden * (e.gates + 1.0) * e.weight_item
    memory = read_rate(chip, all_weights, share=BANDWIDTH, edge=EDGE, slope=SLOPE, gain=GAIN)
    memory = memory * kind.bandwidth
    depth_of_step = STEP_BYTES / e.row_item
    best = np.full(len(e.rows), np.inf)
    for rows, relative in TILES:
        tiles = e.active * np.ceil(e.rows / e.active / rows)
        if not even:
            tiles = np.maximum(e.active, e.rows / rows + LAST_TILE * e.active)
        tiles = tiles * np.ceil(columns / COLUMNS_OF_TILE)
        flop = 2.0 * rows * COLUMNS_OF_TILE * depth_of_step
        step = flop * chip.units / (e.flop_per_us * RATE * relative * kind.rate)
        step = latest(4.0, step, STEP_CLOCKS * chip.us_per_clock)
        waves = latest(6.0, np.ones_like(tiles), tiles / chip.units)
        walk = np.ceil(depth / depth_of_step) * step + TILE_CLOCKS * chip.us_per_clock
        moved = weights + e.rows * (depth * e.row_item + columns * 2.0)
        drawn = memory * np.minimum(tiles / (chip.units * DRAW), 1.0)
        operands = tiles * (rows * e.row_item + COLUMNS_OF_TILE * e.weight_item) * depth
        time = latest(SMOOTH, waves * walk, moved / drawn, operands / (chip.cache * CACHE_RATE))
        best = np.minimum(best, time)
    return best
