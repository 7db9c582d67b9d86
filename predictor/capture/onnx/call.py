"""`Call`: an operator call with its operands at hand, what every rule takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from predictor.capture.onnx.node import Node, ints
from predictor.capture.onnx.tape import Tape
from predictor.capture.onnx.values import Array, Item, MisfitError, Sequence_, Value
from predictor.errors import CaptureError

if TYPE_CHECKING:
    from predictor.capture.onnx.walk import Walk


class UnknownValuesError(CaptureError):
    """A rule needs values that only a run has."""


@dataclass(slots=True, eq=False)
class Call:
    """One operator call while it is translated."""

    node: Node
    items: list[Item]
    """Operands in order, None for those left out."""
    version: int
    """Of the operator's set."""
    walk: Walk

    @property
    def tape(self) -> Tape:
        """Where calls are recorded."""
        return self.walk.tape

    # -- operands -------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether the operand is given."""
        return index < len(self.items) and self.items[index] is not None

    def get(self, index: int) -> Value | None:
        """An operand, None when it is left out."""
        return self.value(index) if self.has(index) else None

    def value(self, index: int) -> Value:
        """An operand that must be a tensor.

        Raises:
            CaptureError: it is not.
        """
        item = self.items[index] if index < len(self.items) else None
        if not isinstance(item, Value):
            what = "a sequence" if isinstance(item, Sequence_) else "missing"
            raise CaptureError(f"{self.node.title}: operand {index} is {what}; a tensor is needed")
        return item

    def values(self, start: int = 0) -> list[Value]:
        """All given operands from `start`, tensors each."""
        return [self.value(i) for i in range(start, len(self.items)) if self.items[i] is not None]

    def sequence(self, index: int) -> Sequence_:
        """An operand that must be a sequence.

        Raises:
            CaptureError: it is not.
        """
        item = self.items[index] if index < len(self.items) else None
        if not isinstance(item, Sequence_):
            raise CaptureError(f"{self.node.title}: operand {index} is no sequence")
        return item

    # -- numbers --------------------------------------------------------------------------------

    def known(self, index: int) -> Array | None:
        """The values of an operand, where they are known."""
        item = self.items[index] if index < len(self.items) else None
        return item.known if isinstance(item, Value) else None

    def known_ints(self, index: int) -> list[int] | None:
        """The integers of an operand, where they are known.

        Raises:
            MisfitError: it holds what is no number.
        """
        array = self.known(index)
        if array is None:
            return None
        if not np.isfinite(array).all():
            raise MisfitError(f"operand {index} holds what is no number; whole ones are needed")
        return [int(v) for v in array.reshape(-1)]

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.node.attrs.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """An attribute that is a whole number.

        Raises:
            MisfitError: it is left out and has no default, or is something else.
        """
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
            raise MisfitError(f"its attribute {name!r} is {value!r}; a whole number is needed")
        return int(value)

    def scalar(self, index: int) -> int | None:
        """The whole number that an operand holds, None where its values are not known.

        Raises:
            MisfitError: it holds none, or more than one.
        """
        found = self.known_ints(index)
        if found is not None and len(found) != 1:
            raise MisfitError(f"operand {index} holds {len(found)} numbers; one is needed")
        return None if found is None else found[0]

    def ints(self, name: str) -> list[int]:
        """An attribute that holds integers; empty when it is left out."""
        return ints(self.node.attrs.get(name))

    def axes(self, index: int = 1, name: str = "axes") -> list[int] | None:
        """Axes from the attribute or, in newer versions, from an operand; None when left out.

        Raises:
            CaptureError: the operand is there and its values are not known.
        """
        if name in self.node.attrs:
            return self.ints(name)
        if not self.has(index):
            return None
        found = self.known_ints(index)
        if found is None:
            raise self.unknown(f"its {name}")
        return found

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        """The attribute `axis` counted from the front.

        Raises:
            CaptureError: outside the tensor.
        """
        return self.inside(self.integer(name, default), rank)

    def inside(self, axis: int, rank: int) -> int:
        """An axis counted from the front.

        Raises:
            CaptureError: outside the tensor.
        """
        if not -rank <= axis < max(rank, 1):
            raise CaptureError(f"{self.node.title}: axis {axis} of a tensor of rank {rank}")
        return axis % rank if rank else 0

    # -- failures -------------------------------------------------------------------------------

    def unknown(self, what: str) -> UnknownValuesError:
        """The error for what depends on values that capture does not have."""
        names = [n for n in self.node.outputs if n]
        return UnknownValuesError(
            f"{self.node.title}: {what} depend(s) on values that only a run has; give the size of "
            f"its result by name where it has one (--dim NAME=N), or the value of a scalar "
            f"operand ({', '.join(n for n in self.node.inputs if n)}) that it follows from; "
            f"results: {', '.join(names)}"
        )

    def wrong(self, what: str) -> CaptureError:
        """The error for operands that do not fit."""
        return CaptureError(f"{self.node.title}: {what}")

    def declared_shape(self, what: str) -> tuple[int, ...]:
        """Shape that the file declares for the first result of a call whose values are not known.

        Raises:
            UnknownValuesError: it does not; `what` depends on values that only a run has.
        """
        found = self.declared()
        if found is None:
            raise self.unknown(what)
        return found[0]

    def declared(self, index: int = 0) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype that the file declares for a result, sizes bound; None if open."""
        names = self.node.outputs
        return self.walk.declared(names[index]) if index < len(names) else None


Rule: TypeAlias = Callable[[Call], Sequence[Item]]
"""Records what an operator does and gives its results."""
