"""Loops and values: what a compiler computes, and what of it is ever stored.

A pointwise result is not stored at once. Whoever reads it computes it again from the stored
tensors behind it, until one of `Limits` says that storing is cheaper or a library call needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictor.graph.ir import DTYPE_BYTES, Kernel, Phase, TensorSpec
from predictor.lower.draft import product, width
from predictor.lower.inductor_rules import Limits

WHOLE, ROW, COLUMN, ONE, OTHER = "whole", "row", "column", "one", "other"
"""How a loop reads a tensor: all of it in its own order, one element a row (broadcast along the
last axes), one row for all (broadcast along the first), a single element, or any other way."""


@dataclass(slots=True, kw_only=True, eq=False)
class Value:
    """One result: stored by a loop, or still an expression over stored ones."""

    shape: tuple[int, ...]
    dtype: str
    phase: Phase
    layout: str = "contiguous"
    stored: bool = True
    loop: int = -1
    """The loop that stores it; -1 for what the program is given."""
    free: bool = False
    """Whether keeping it for backward costs nothing: parameters, inputs."""
    reads: dict[Access, float] = field(default_factory=dict)
    """Of an expression: stored tensors behind it, and bytes read of each."""
    ops: int = 0
    work: dict[int, float] = field(default_factory=dict)
    """Of an expression: arithmetic by call, FLOP."""
    heavy: bool = False
    names: tuple[str, ...] = ()
    module: str = ""
    used: tuple[int, ...] = ()
    """Calls of its own phase that read it."""
    kept: bool = False
    """Whether it is read after its phase, or by nobody: a result of the phase."""
    later: bool = False
    """Whether it is read after its phase."""
    after: tuple[int, ...] = ()
    """Calls of later phases that read it."""
    parts: list[Value] = field(default_factory=list)
    """Of a tensor that several loops write side by side: what each of them writes."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> float:
        """Bytes of all elements."""
        return self.numel * width_of(self.dtype)


@dataclass(frozen=True, slots=True)
class Access:
    """A stored value, and the way that it is read."""

    value: Value
    way: str
    part: int = 0
    """Tells different parts of one tensor apart."""

    def __hash__(self) -> int:
        return hash((id(self.value), self.way, self.part))


@dataclass(slots=True, kw_only=True, eq=False)
class Loop:
    """One stored result (or several of one shape), or one library call."""

    numel: int
    """Results."""
    rnumel: int = 1
    """Elements reduced to each."""
    axes: str = ""
    """Of a reduction along other than the last axes: which; they fuse with their like alone."""
    reads: dict[Access, float]
    writes: list[Value]
    phase: Phase
    names: tuple[str, ...]
    module: str = ""
    work: dict[int, float] = field(default_factory=dict)
    """Arithmetic by call, FLOP."""
    library: tuple[Kernel, ...] = ()
    """Kernels of a library call."""
    fusable: bool = True
    mutates: bool = False
    """Whether it writes into a tensor in place and by index: nothing reads that in one kernel."""

    @property
    def reduces(self) -> bool:
        """Whether it is a reduction."""
        return self.rnumel > 1


def width_of(dtype: str) -> float:
    """Bytes of one element."""
    return DTYPE_BYTES[dtype]


def way_of(spec: TensorSpec, value: Value, shape: Sequence[int]) -> str:
    """How loops over `shape` read a tensor that a spec shows of a value.

    Args:
        spec: the operand, maybe a view.
        value: what is stored or computed behind it.
        shape: of the loops; the operand is broadcast to it.
    """
    if spec.numel == 1:
        return ONE if product(shape) > 1 else WHOLE
    if spec.numel != value.numel or _permuted(spec, value):
        return OTHER
    own = (1,) * (len(shape) - len(spec.shape)) + tuple(spec.shape)
    if len(own) != len(shape) or any(a != b and a != 1 for a, b in zip(own, shape, strict=True)):
        return WHOLE if spec.numel == product(shape) else OTHER
    spread = [i for i, (a, b) in enumerate(zip(own, shape, strict=True)) if a != b]
    if not spread:
        return WHOLE
    real = [i for i, b in enumerate(own) if b != 1]
    if not real:
        return ONE
    if min(spread) > max(real):
        return ROW
    return COLUMN if max(spread) < min(real) else OTHER


def _permuted(spec: TensorSpec, value: Value) -> bool:
    """Whether elements stand in another order than they were made in."""
    if spec.layout == value.layout or tuple(spec.shape) == value.shape:
        return False
    return spec.layout != "contiguous" or value.layout == "strided"


def composed(inner: str, outer: str) -> str:
    """The way in which stored tensors are read through an expression that is itself read so."""
    if outer == WHOLE or inner == ONE:
        return inner
    if inner == WHOLE:
        return outer
    return inner if inner == outer else OTHER


def read_bytes(spec: TensorSpec, value: Value) -> float:
    """Bytes that reading an operand once touches."""
    return float(min(spec.touched_bytes, spec.numel * width(spec))) or value.bytes


def inlined(
    operands: Sequence[tuple[TensorSpec, Value]], shape: Sequence[int], reach: int = 1
) -> dict[Access, float]:
    """Stored tensors that a loop over `shape` reads to see its operands.

    Args:
        operands: what the loop computes with.
        shape: of the loop.
        reach: elements of an operand that one result needs: the window of a pooling.
    """
    found: dict[Access, float] = {}
    most = product(shape) * reach
    for spec, value in operands:
        way = way_of(spec, value, shape)
        part = id(spec) if way == OTHER and spec.numel != value.numel else 0
        if value.parts:
            for piece in value.parts:
                found[Access(piece, OTHER)] = piece.bytes
            continue
        if value.stored:
            access = Access(value, way, part)
            traffic = min(read_bytes(spec, value), most * width_of(spec.dtype))
            found[access] = max(found.get(access, 0.0), traffic)
            continue
        share = min(1.0, spec.numel / max(1, value.numel))
        for access, traffic in value.reads.items():
            seen = Access(access.value, composed(access.way, way), access.part or part)
            found[seen] = max(found.get(seen, 0.0), traffic * share)
    return found


def stores_for_broadcast(value: Value, shape: Sequence[int], limits: Limits) -> bool:
    """Whether an expression is stored since a broadcast would compute it many times over."""
    if value.stored or value.parts or value.numel >= product(shape):
        return False
    tensors = len({id(a.value) for a in value.reads if a.way != ONE})
    heavy = limits.heavy_stored and value.heavy
    return heavy or value.ops > limits.most_ops or tensors > limits.most_reads_reused


def stores_early(value: Value, limits: Limits, needs_stored: bool) -> bool:
    """Whether a pointwise result is stored where it is made, and not where it is read.

    Args:
        value: the result, not stored yet.
        limits: of the backend.
        needs_stored: whether a library call is among its readers.
    """
    tensors = len({id(a.value) for a in value.reads if a.way != ONE})
    users = len(value.used) + value.kept
    if users > 1:
        if value.kept and tensors:
            return True
        if needs_stored and tensors > 1:
            return True
        if limits.heavy_stored and value.heavy:
            return True
        if value.ops > limits.most_ops or tensors > limits.most_reads_reused:
            return True
    return tensors > limits.most_reads or (value.ops > limits.most_ops and tensors > 1)
