"""A StableHLO module as plain records: what the rest of the capture works on, free of MLIR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from predictor.graph.ir import DTYPE_BYTES

TOKEN = "token"
"""Dtype of values that order side effects and hold nothing."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a value."""

    shape: tuple[int, ...]
    dtype: str
    """A key of `DTYPE_BYTES`, or `TOKEN`."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements; 0 of a token."""
        return 0 if self.dtype == TOKEN else int(self.numel * DTYPE_BYTES[self.dtype])


@dataclass(slots=True, eq=False)
class Value:
    """One SSA value."""

    type: TensorType


@dataclass(slots=True, eq=False)
class Instr:
    """One operation."""

    op: str
    operands: list[Value]
    results: list[Value]
    attrs: dict[str, object]
    bodies: list[Body]
    where: str = ""
    """Name stack that the front end left (`jit(step)/jvp()/dot_general`), empty without."""


@dataclass(slots=True, eq=False)
class Body:
    """A region or function: arguments, operations in order, and what it returns."""

    args: list[Value]
    instrs: list[Instr] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What a module says of one argument of its entry function."""

    name: str = ""
    """Path in the caller's arguments (`params['w']`), empty when unknown."""
    sharding: str = ""
    """Sharding annotation as text (`sdy.sharding` or `mhlo.sharding`), empty without."""
    updated: bool = False
    """Whether a result may take its memory: a donated argument."""
    replicated: bool = False
    """Whether all replicas hold the same data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A whole program."""

    name: str
    functions: Mapping[str, Body]
    main: Body
    arguments: tuple[Argument, ...]
    result_shardings: tuple[str, ...]
    partitions: int = 1
    replicas: int = 1
    meshes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Sizes of the axes of each device mesh, by mesh and axis."""
