"""Time of attention from the way libraries cut it: query tiles, heads, blocks of keys, splits.

Prefill (several queries a sequence) gives each unit tiles of queries of one head. A tile walks over
the blocks of 64 keys that its mask leaves: half of them under a causal mask, those of the window
under a window. A block costs two matrix products and an exponential for every pair, which share
the unit. Units are kept busy in turn, and none ends before its longest tile; keys and values come
from the cache, and all operands once from memory.

Decode (one query a sequence) reads keys and values, as fast as memory gives them or as fast as one
unit walks over its blocks. Where too few sequences and heads keep the units busy, the keys are
split and added up afterwards. Kernels for matrix units take the query heads of a key head together
as rows of one tile; others take each query head alone. TensorRT-LLM chooses between them by a rule
of its own (`_ways`), which decides by a factor of up to four.

Calls of TensorRT-LLM also rotate queries and keys and write the new ones to the cache: a start and
bytes of its own (`Call`). A sequence of one key is a prefill of one token.

No constant is a device's own: one set a kernel, fitted to the training part (split
`unseen-attention-shape`) of TensorRT-LLM's attention on eight GPUs.

Legend: N attention kernels on one device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.attention_ways import (
    EACH,
    LATENT,
    LATENT_OLD,
    TOGETHER,
    TOGETHER_NARROW,
    TOGETHER_OLD,
    Decode,
    Prefill,
)
from predictor.features.chip import Chip, Floats, latest, read_rate

KEYS = 64.0
"""Keys of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a call of attention does beside attention."""

    rotates: bool
    """Whether it also rotates queries and keys and feeds the cache, with starts of its own."""
    prefill_clocks: float = 0.0
    decode_clocks: float = 0.0
    """Starts of a call that does not."""


WHOLE = Call(rotates=True)
KERNEL = Call(rotates=False, prefill_clocks=13_000.0, decode_clocks=16_000.0)
"""Serving without the rotation: plans, scales and sums of splits around the kernel (SGLang, vLLM:
median error of prefill by library 17 to 25% with these, 30 to 45% with those of `WHOLE`)."""
BARE = Call(rotates=False, prefill_clocks=4_000.0, decode_clocks=4_000.0)
"""A launched kernel alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """N attention kernels as a library sees them."""

    batch: Floats
    heads: Floats
    kv_heads: Floats
    queries: Floats
    keys: Floats
    window: Floats
    """Keys that a query sees at most; all where there is no window."""
    pairs: Floats
    """Query-key pairs that the mask leaves, a head."""
    causal: Floats
    width: Floats
    """Of a key."""
    v_width: Floats
    latent: NDArray[np.bool_]
    """Values are a part of the keys."""
    item: Floats
    """Bytes of an element of the cache."""
    narrow: NDArray[np.bool_]
    """Computes in 8 bits."""
    narrow_cache: NDArray[np.bool_]
    """Computes in 16 bits on a cache of 8."""
    flop_per_us: Floats
    """Sustained rate of the whole device."""

    @property
    def cached_width(self) -> Floats:
        """Elements that a key and its value take together."""
        return np.where(self.latent, self.width, self.width + self.v_width)

    @property
    def query_bytes(self) -> Floats:
        """Bytes of one query of all sequences and heads, and of its result."""
        return self.batch * self.heads * (self.width + self.v_width) * 2.0

    def take(self, rows: NDArray[np.bool_]) -> Attention:
        """The kernels at `rows`."""
        return Attention(**{name: getattr(self, name)[rows] for name in self.__slots__})


MOST_TOGETHER = 32.0
"""Query heads of a key head that kernels take together at most."""
HISTORY_KEYS, BUSY = 128.0, 4.0
"""TensorRT-LLM takes query heads together where (sequences x key heads x blocks of so many keys) x
`BUSY` reach the units (`mayHavePerfGain` in its decoder, before compute capability 10)."""


def attention_us(a: Attention, chip: Chip, call: Call) -> Floats:
    """(N,) time of each kernel, microseconds.

    Args:
        a: the kernels.
        chip: the device.
        call: what is timed with them.
    """
    out = np.zeros(len(a.batch))
    prefill = (a.queries > 1) | ((a.keys <= 1) & ~a.latent)
    if prefill.any():
        out[prefill] = _prefill_us(a.take(prefill), chip, Prefill(), call)
    for way, rows in _ways(a, chip):
        rows = rows & ~prefill
        if rows.any():
            out[rows] = _decode_us(a.take(rows), chip, way, call)
    return out


def packs(a: Attention, chip: Chip) -> NDArray[np.bool_]:
    """(N,) whether a decoding kernel takes the query heads of a key head together."""
    group = a.heads / a.kv_heads
    whole = (np.mod(a.heads, a.kv_heads) == 0) & (group <= MOST_TOGETHER)
    if chip.capability >= 10.0 or not chip.capability:
        return np.asarray(whole & ~a.latent)
    blocks = np.maximum(np.floor(np.minimum(a.keys, a.window) / HISTORY_KEYS), 1.0)
    busy = a.batch * a.kv_heads * blocks * BUSY >= chip.units
    if chip.capability >= 9.0:
        busy |= a.narrow_cache
    return np.asarray(whole & (group > 1) & busy & ~a.latent)


def _ways(a: Attention, chip: Chip) -> list[tuple[Decode, NDArray[np.bool_]]]:
    """Ways to decode, and the rows of each."""
    together = packs(a, chip)
    narrow = together & a.narrow_cache & (9.0 <= chip.capability < 10.0)
    new = chip.capability >= 10.0 or not chip.capability
    return [
        (LATENT if chip.copies_async else LATENT_OLD, a.latent),
        (TOGETHER_NARROW, narrow),
        (TOGETHER if new else TOGETHER_OLD, together & ~narrow),
        (EACH, ~together & ~a.latent),
    ]


def _prefill_us(a: Attention, chip: Chip, c: Prefill, call: Call) -> Floats:
    us = chip.us_per_clock
    rows = 128.0 if chip.copies_async else 64.0
    tiles = a.batch * a.heads * np.ceil(a.queries / rows)
    tall = np.minimum(rows, a.queries)
    windowed = a.window < a.keys
    seen = a.pairs / a.queries + a.causal * tall * c.diagonal + windowed * KEYS * c.edge_blocks
    seen = np.minimum(seen, a.keys)
    rate = a.flop_per_us * c.rate * np.where(a.narrow, c.rate_narrow, 1.0)
    if chip.copies_async:
        rate = rate * c.rate_async * np.where(a.narrow_cache, c.rate_narrow_cache, 1.0)
    flop = 2.0 * KEYS * rows * (np.ceil(a.width / 32.0) + np.ceil(a.v_width / 32.0)) * 32.0
    exponentials = rows * KEYS / chip.exponentials * us * c.exponential
    block = latest(c.block, flop * chip.units / rate, exponentials)
    ends = c.tile_clocks * us * rows / 128.0
    all_us = tiles / chip.units * ((seen / KEYS + 0.5) * block + ends)
    longest = np.ceil(np.minimum(a.keys, a.window + tall) / KEYS) * block + ends
    cached = a.kv_heads * np.minimum(a.keys, a.window + a.queries) * a.cached_width * a.item
    traffic = a.query_bytes * a.queries + a.batch * cached
    moved = read_rate(chip, traffic, share=c.share, edge=c.edge, slope=c.slope, gain=c.gain)
    work = latest(c.whole, latest(4.0, all_us, longest * c.longest), traffic / moved)
    if not call.rotates:
        return work + call.prefill_clocks * us
    new = a.batch * a.queries * (a.heads * a.width + a.kv_heads * a.cached_width) * 2.0
    start = c.start_clocks * us + (c.start_async_us if chip.copies_async else 0.0)
    return np.asarray(start + work + c.rotated * new / moved)


def _decode_us(a: Attention, chip: Chip, c: Decode, call: Call) -> Floats:
    us = chip.us_per_clock
    keys = np.minimum(a.keys, a.window)
    each = c.rows == 1.0
    tiles = a.batch * (a.heads if each else a.kv_heads * np.ceil(a.heads / a.kv_heads / c.rows))
    room = np.maximum(keys / c.split_keys, 1.0)
    slow = a.narrow_cache & (not chip.copies_async)
    if c is TOGETHER_OLD:
        room = np.where(slow, 1.0, room)
    split = np.clip(chip.units * c.occupancy / tiles, 1.0, room)
    active = tiles * split
    flop = KEYS * c.rows * 2.0 * (a.width + a.v_width)
    step = latest(
        4.0, c.step_clocks * us * a.width / 128.0 * np.where(slow, c.step_narrow_cache, 1.0),
        0.0 * keys if each else flop * chip.units / (a.flop_per_us * c.rate),
        KEYS * a.cached_width * a.item * chip.units / (chip.cache * c.cache_rate),
    )  # fmt: skip
    waves = latest(4.0, np.ones_like(active), active / (chip.units * c.at_once))
    walk = waves * (np.ceil(keys / split / KEYS) * step + c.tile_clocks * us)
    cached = a.batch * a.kv_heads * keys * a.cached_width * a.item
    rate = read_rate(chip, cached, share=c.share, edge=c.edge, slope=c.slope, gain=c.gain)
    rate = rate * np.minimum(active / (chip.units * c.draw), 1.0)
    work = latest(c.whole, walk, (cached + a.query_bytes) / rate)
    work = work + c.split_us * (split > 1.01)
    if not call.rotates:
        return work + call.decode_clocks * us
    new = a.query_bytes + 2.0 * a.batch * a.kv_heads * a.width
    start = c.start_clocks * us + (c.start_async_us if chip.copies_async else 0.0)
    return np.asarray(start + work + c.rotated * new / chip.memory)
