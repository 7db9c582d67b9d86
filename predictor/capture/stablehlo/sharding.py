"""Sharding annotations: how each dimension of a tensor is split over the axes of a device mesh.

Two spellings: Shardy's `#sdy.sharding<@mesh, [{"data"}, {}]>` names axes; GSPMD's
`{devices=[4,1]<=[4]}` numbers devices, and an axis is then named by the stride and count of the
device numbers that it spans.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Split: TypeAlias = tuple[tuple[str, ...], ...]
"""Axes that each dimension is split over; empty where it is whole."""
Axes: TypeAlias = Mapping[str, int]
"""Sizes of mesh axes."""

_SDY_DIM = re.compile(r"\{([^{}]*)\}")
_SDY_AXIS = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')
_SDY_MESH = re.compile(r"@(\w+)")
_DEVICES = re.compile(r"devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"devices=\[([\d,]+)\][\d,]+")


class Mesh:
    """Axes that annotations have named so far, with their sizes."""

    def __init__(self, meshes: Mapping[str, Axes]) -> None:
        self.meshes = meshes
        self.sizes: dict[str, int] = {}
        for axes in meshes.values():
            self.sizes.update(axes)

    def split(self, text: str, rank: int) -> Split | None:
        """The split that an annotation states, None where it states none."""
        if not text:
            return None
        if "devices=" in text:
            return self._numbered(text, rank)
        if "[" not in text:
            return ((),) * rank if "replicated" in text or "maximal" in text else None
        return self._named(text, rank)

    def count(self, axes: Sequence[str]) -> int:
        """Devices along some axes."""
        return math.prod(self.sizes.get(axis, 1) for axis in axes)

    def _named(self, text: str, rank: int) -> Split:
        inside = text[text.find("[") + 1 : text.rfind("]")]
        found: list[tuple[str, ...]] = []
        for dim in _SDY_DIM.findall(inside):
            axes = []
            for name, before, size in _SDY_AXIS.findall(dim):
                if size:  # a part of an axis: its own name, as the parts are used one by one
                    name = f"{name}:{before}:{size}"
                    self.sizes[name] = int(size)
                axes.append(name)
            found.append(tuple(axes))
        return tuple(found[:rank]) + ((),) * (rank - len(found))

    def _numbered(self, text: str, rank: int) -> Split | None:
        match = _DEVICES.search(text)
        listed = _LISTED.search(text) if match is None else None
        if match is None and listed is None:
            return None
        tiles = _numbers((match or listed)[1])  # type: ignore[index]
        if match is not None:
            sizes = _numbers(match[2])
            order = _numbers(match[3]) if match[3] else list(range(len(sizes)))
        else:
            sizes, order = [math.prod(tiles)], [0]
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        ordered = [(sizes[i], strides[i]) for i in order]
        found: list[tuple[str, ...]] = []
        for tile in tiles:
            axes, left = [], tile
            while left > 1 and ordered:
                size, stride = ordered.pop(0)
                if size == 1:
                    continue
                take = math.gcd(size, left)
                if take == 1:
                    return None
                rest = size // take
                axes.append(self._axis(take, stride * rest))
                if rest > 1:
                    ordered.insert(0, (rest, stride))
                left //= take
            found.append(tuple(axes))
        return tuple(found[:rank]) + ((),) * (rank - len(found))

    def _axis(self, size: int, stride: int) -> str:
        name = f"{size}@{stride}"
        self.sizes[name] = size
        return name


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def mesh_of(text: str) -> str:
    """Name of the mesh that a Shardy annotation refers to, empty without."""
    match = _SDY_MESH.search(text)
    return match[1] if match else ""
