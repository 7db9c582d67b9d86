"""Tensors of an ONNX model as capture sees them: shape, dtype, storage, strides, small values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from predictor.errors import CaptureError
from predictor.graph.ir import TensorSpec

Array: TypeAlias = NDArray[Any]

KNOWN_LIMIT = 4096
"""Elements of the largest tensor whose values are followed (shapes, axes, scales, masks)."""

_DTYPES: Mapping[int, tuple[str, float]] = {
    TensorProto.FLOAT: ("fp32", 4), TensorProto.DOUBLE: ("fp64", 8),
    TensorProto.FLOAT16: ("fp16", 2), TensorProto.BFLOAT16: ("bf16", 2),
    TensorProto.INT64: ("int64", 8), TensorProto.UINT64: ("int64", 8),
    TensorProto.INT32: ("int32", 4), TensorProto.UINT32: ("int32", 4),
    TensorProto.INT16: ("int16", 2), TensorProto.UINT16: ("int16", 2),
    TensorProto.INT8: ("int8", 1), TensorProto.UINT8: ("uint8", 1), TensorProto.BOOL: ("bool", 1),
    TensorProto.COMPLEX64: ("complex64", 8), TensorProto.COMPLEX128: ("complex128", 16),
    TensorProto.STRING: ("int64", 8),
}  # fmt: skip
_NARROW = {"FLOAT8": ("fp8", 1.0), "FLOAT4": ("fp4", 0.5), "INT4": ("int8", 0.5),
           "UINT4": ("uint8", 0.5), "INT2": ("int8", 0.25), "UINT2": ("uint8", 0.25)}  # fmt: skip
NUMPY: Mapping[str, Any] = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": np.float32,
    "int64": np.int64, "int32": np.int32, "int16": np.int16, "int8": np.int8,
    "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip
"""What values of a dtype are computed in (bf16 in fp32)."""
FLOATING: frozenset[str] = frozenset({"fp64", "fp32", "fp16", "bf16", "fp8", "fp4"})


class MisfitError(CaptureError):
    """A rule asks a tensor for more than it has: the operator is given one that does not fit."""


class Shape(tuple[int, ...]):
    """Sizes of a tensor of the model; what is not there is a fault of the file."""

    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        """A size, or some of them.

        Raises:
            MisfitError: the tensor has no such axis.
        """
        try:
            return tuple.__getitem__(self, at)
        except IndexError:
            raise MisfitError(f"a tensor of shape {list(self)} has no axis {at}") from None

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """All sizes of a tensor that must have so many axes.

        Raises:
            MisfitError: it has more or fewer.
        """
        if len(self) != rank:
            raise MisfitError(f"a tensor of shape {list(self)}, where one of {rank} axes is needed")
        return self


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the model."""

    spec: TensorSpec
    strides: tuple[int, ...]
    node: int = -1
    """The recorded call that made it, -1 for inputs and constants."""
    known: Array | None = None
    """Its values, where they follow from the model and the sizes alone and are few."""
    constant: bool = False
    """Whether it follows from the model's own tensors alone: computed once, before any run."""
    narrow: Value | None = None
    """The quantised tensor behind a dequantised one."""
    pending: bool = False
    """Whether its dequantisation is still to be recorded, should something need it."""
    shape: Shape = field(init=False)
    """Sizes, of `spec`."""

    def __post_init__(self) -> None:
        self.shape = Shape(self.spec.shape)

    @property
    def dtype(self) -> str:
        """Name as in `DTYPE_BYTES`."""
        return self.spec.dtype

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.spec.numel


@dataclass(slots=True, eq=False)
class Sequence_:
    """An ONNX sequence or optional: its items."""

    items: list[Item]


Item: TypeAlias = "Value | Sequence_ | None"


def dtype_of(element: int, where: str) -> tuple[str, float]:
    """Name and bytes of an ONNX element type.

    Raises:
        CaptureError: this library knows no such type.
    """
    found = _DTYPES.get(element)
    if found is not None:
        return found
    name = TensorProto.DataType.Name(element) if element in TensorProto.DataType.values() else ""
    for start, kind in _NARROW.items():
        if name.startswith(start):
            return kind
    raise CaptureError(f"{where} has element type {name or element}, which has no cost vocabulary")


def numel_of(shape: Sequence[int]) -> int:
    """Product of sizes."""
    return math.prod(shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor."""
    out: list[int] = []
    step = 1
    for size in reversed(shape):
        out.append(step)
        step *= max(size, 1)
    return tuple(reversed(out))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the tensor is row-major; axes of size one may have any stride."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill one block of memory without gaps or overlap, in any order."""
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def dense_like(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of a new tensor without gaps whose axes lie in memory in the same order."""
    order = sorted(range(len(shape)), key=lambda i: (strides[i], -i))
    out = [0] * len(shape)
    step = 1
    for i in order:
        out[i] = step
        step *= max(shape[i], 1)
    return tuple(out)


def viewed_strides(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of the tensor under another shape, None where that takes a copy.

    Neighbouring axes that lie one after the other in memory form a block; a new axis must divide
    one.
    """
    if 0 in new or is_contiguous(shape, strides):
        return contiguous_strides(new)
    kept = [(s, st) for s, st in zip(shape, strides, strict=True) if s != 1]
    out: list[int] = []
    at = len(new) - 1
    i = len(kept) - 1
    while i >= 0:
        block, base = kept[i]
        while i > 0 and kept[i - 1][1] == block * base:
            i -= 1
            block *= kept[i][0]
        left, step = block, base
        while at >= 0 and (left > 1 or new[at] == 1):
            if left % new[at]:
                return None
            out.append(step)
            step *= new[at]
            left //= new[at]
            at -= 1
        if left > 1:
            return None
        i -= 1
    while at >= 0:
        if new[at] != 1:
            return None
        out.append(1)
        at -= 1
    return tuple(reversed(out))


def broadcast(shapes: Sequence[tuple[int, ...]], where: str = "operands") -> tuple[int, ...]:
    """The common shape of operands.

    Raises:
        CaptureError: they do not fit together.
    """
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):
        return first
    rank = max(len(s) for s in shapes)
    out = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if out[i] not in (1, size):
                    listed = ", ".join(str(list(s)) for s in shapes)
                    raise CaptureError(f"{where} do not fit together: {listed}")
                out[i] = size
    return tuple(out)
