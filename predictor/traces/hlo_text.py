"""Optimised HLO text: computations, instructions and shapes as a compiler laid them out.

Reads what XLA prints of a compiled module (`HloModule …`, one computation after the other). Only
what the cost of a kernel needs is kept: shapes with their tiles, operands, attributes as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from predictor.errors import DataError
from predictor.graph.ir import DTYPE_BYTES

DTYPES: Mapping[str, str] = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "s64": "int64", "u64": "int64",
    "s32": "int32", "u32": "int32", "s16": "int16", "u16": "int16", "s8": "int8", "u8": "uint8",
    "pred": "bool", "c64": "complex64", "c128": "complex128", "f8e4m3fn": "fp8", "f8e5m2": "fp8",
}  # fmt: skip
"""Dtype of the library by HLO's name; unsigned integers take the size of the signed."""
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"^(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::((?:[A-Z]\([^)]*\)|\([^)]*\))*))?\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_NAME = re.compile(r"%?([\w.\-]+)$")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One array."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    """Dimensions from the one that lies closest together outwards; empty when not told."""
    tile: tuple[int, ...] = ()
    """Tile of the last dimensions of that order, the outermost first."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def stored_bytes(self) -> float:
        """Bytes in memory, tiles filled up."""
        sizes = [self.dims[i] for i in self.order] or list(self.dims[::-1])
        for place, tile in enumerate(reversed(self.tile)):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // tile) * tile
        return math.prod(sizes) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    """One, or those of a tuple."""
    operands: tuple[str, ...]
    """Names; of a parameter its number, of a constant its text."""
    attributes: str
    """What follows the operands, as text."""
    root: bool

    def attribute(self, name: str) -> str:
        """Text of an attribute without its braces, empty where it has none."""
        found = re.search(rf"\b{name}=(?:\{{([^}}]*)\}}|([^,\s]+))", self.attributes)
        return "" if found is None else (found[1] if found[1] is not None else found[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Computations by name."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str


def parse_hlo(text: str, name: str) -> Module:
    """Read a module.

    Args:
        text: HLO text.
        name: how an error calls it.

    Raises:
        DataError: a line is no instruction, a dtype is unknown, or there is no entry.
    """
    found: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).rstrip()
        head = _HEAD.match(line)
        if head is not None:
            current = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line.strip() == "}":
            current = None
        elif current is not None and line.strip():
            current.append(_instruction(line, f"{name}, line {number}"))
    if not entry:
        raise DataError(f"{name}: no entry computation; expected HLO text (`ENTRY …`)")
    return Module(computations={k: tuple(v) for k, v in found.items()}, entry=entry)


def _instruction(line: str, where: str) -> Instruction:
    head = _LINE.match(line)
    if head is None:
        raise DataError(f"{where}: no HLO instruction: {line.strip()[:60]!r}")
    shapes, rest = _shapes(line[head.end() :], where)
    opcode, opened, rest = rest.strip().partition("(")
    if not opened:
        raise DataError(f"{where}: no operands: {line.strip()[:60]!r}")
    inside, attributes = _balanced("(" + rest)
    operands = [part.strip() for part in _parts(inside) if part.strip()]
    if opcode not in ("parameter", "constant"):
        named = [_NAME.search(part) for part in operands]
        operands = [found[1] for found in named if found is not None]
    return Instruction(
        name=head[2], opcode=opcode, shapes=shapes, operands=tuple(operands),
        attributes=attributes, root=head[1] is not None,
    )  # fmt: skip


def _shapes(text: str, where: str) -> tuple[tuple[Shape, ...], str]:
    """The array or tuple that a text begins with, and what follows."""
    if text.startswith("("):
        inside, rest = _balanced(text)
        parts = [part.strip() for part in _parts(inside)]
        return tuple(s for part in parts if part for s in _shapes(part, where)[0]), rest
    found = _ARRAY.match(text)
    if found is None or found[1] not in DTYPES:
        raise DataError(f"{where}: no shape that is known: {text[:40]!r}")
    tile = _TILE.search(found[4] or "")
    return (
        Shape(
            dtype=DTYPES[found[1]], dims=_ints(found[2]), order=_ints(found[3] or ""),
            tile=_ints(tile[1]) if tile else (),
        ),
    ), text[found.end() :]  # fmt: skip


def _balanced(text: str) -> tuple[str, str]:
    """What the parenthesis that a text begins with holds, and what follows."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if depth == 0:
            return text[1:i], text[i + 1 :]
    return text[1:], ""


def _parts(text: str) -> Sequence[str]:
    """Parts between commas outside of parentheses."""
    found, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if letter == "," and depth == 0:
            found.append(text[start:i])
            start = i + 1
    return [*found, text[start:]]


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
