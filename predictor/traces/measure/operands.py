"""Real operands of a case: the same each call (warm cache), or new ones each call (cold cache).

Operands are views of one buffer of random numbers a dtype, which is larger than the last-level
cache. A warm case has one set of them. A cold case has as many sets, one behind the other, as it
takes to walk through the buffer: when a set comes round again, the cache has held other data since.
Results go to whatever memory the framework's allocator hands out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from predictor.traces.measure.cases import DTYPES, Case, Operand
from predictor.traces.measure.timer import Call

WALK = 2.0
"""How often the last-level cache fits into the operands of a cold case."""
MOST_SETS = 4096
MOST_PREPARED_SETS = 32
"""The same where each set needs work before it can be timed (a forward pass, an optimizer)."""
ALIGN_BYTES = 256
_POSITIVE_FROM = 0.1


class Operands:
    """Makes operands on one device.

    Args:
        device: `cpu` or `cuda`.
        cache_bytes: last-level cache of the device.
    """

    def __init__(self, device: str, cache_bytes: int) -> None:
        self.device = device
        self.cache_bytes = cache_bytes
        self.buffer_bytes = math.ceil(WALK * cache_bytes)
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._generator = torch.Generator(device).manual_seed(0)

    def can_be_cold(self, case: Case) -> bool:
        """Whether sets of the case can walk through the cache."""
        return case.bytes * _most_sets(case) >= self.buffer_bytes

    def calls(self, case: Case, *, cold: bool) -> list[Call]:
        """What is timed: one call for a warm cache, one for each set of operands for a cold one."""
        sets = 1
        if cold:
            sets = min(_most_sets(case), max(2, math.ceil(self.buffer_bytes / max(1, case.bytes))))
        return [case.bound(self._set(case.operands, i)) for i in range(sets)]

    def _set(self, operands: Sequence[Operand], number: int) -> list[Tensor]:
        """Set `number`: operands of one dtype lie one behind the other."""
        bytes_of: dict[tuple[str, str], int] = {}
        for operand in operands:
            key = (operand.dtype, operand.fill)
            bytes_of[key] = bytes_of.get(key, 0) + _aligned(operand.bytes)
        at = {key: number * size for key, size in bytes_of.items()}
        made = []
        for operand in operands:
            key = (operand.dtype, operand.fill)
            made.append(self._operand(operand, at[key], bytes_of[key]))
            at[key] += _aligned(operand.bytes)
        return made

    def _operand(self, operand: Operand, offset: int, needed: int) -> Tensor:
        dtype, shape = DTYPES[operand.dtype], operand.shape
        if operand.fill == "index":
            return torch.randint(
                operand.below, shape, dtype=dtype, device=self.device, generator=self._generator
            )
        if operand.fill == "state":
            return torch.rand(shape, device=self.device, generator=self._generator).to(dtype)
        buffer = self._buffer(operand.dtype, operand.fill, needed)
        room = buffer.numel() * dtype.itemsize - _aligned(operand.bytes)
        start = offset % max(1, room + 1) // ALIGN_BYTES * ALIGN_BYTES
        return buffer.as_strided(shape, operand.strides, start // dtype.itemsize)

    def _buffer(self, dtype: str, fill: str, needed: int) -> Tensor:
        """Random numbers of a dtype, as many as the walk or the operands take."""
        numel = max(self.buffer_bytes, needed) // DTYPES[dtype].itemsize + ALIGN_BYTES
        held = self._buffers.get((dtype, fill))
        if held is None or held.numel() < numel:
            self._buffers.pop((dtype, fill), None)
            held = self._buffers[dtype, fill] = self._filled(dtype, fill, numel)
        return held

    def _filled(self, dtype: str, fill: str, numel: int) -> Tensor:
        to = DTYPES[dtype]
        if fill == "bool":
            return torch.rand(numel, device=self.device, generator=self._generator) < 0.5
        if fill == "positive":
            numbers = torch.rand(numel, device=self.device, generator=self._generator)
            return (numbers + _POSITIVE_FROM).to(to)
        if to.is_complex:
            return torch.randn(numel, dtype=to, device=self.device, generator=self._generator)
        return torch.randn(numel, device=self.device, generator=self._generator).to(to)


def _most_sets(case: Case) -> int:
    return MOST_PREPARED_SETS if case.wanted or case.bind is not None else MOST_SETS


def _aligned(size: int) -> int:
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES
