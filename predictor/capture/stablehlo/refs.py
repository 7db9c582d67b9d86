"""What stands behind a value while a program is flattened, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from predictor.capture.stablehlo.loops import FOLDS, SAME
from predictor.capture.stablehlo.records import TOKEN, Body, Instr, TensorType, Value
from predictor.graph.ir import TensorSpec

SHARDING_CALLS: frozenset[str] = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
)
"""Custom calls that say where data lies."""
EFFECTS: frozenset[str] = frozenset({
    "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv",
    "stablehlo.custom_call",
})  # fmt: skip
"""Operations that are kept although nobody reads their results."""
IN_PLACE: frozenset[str] = frozenset({"stablehlo.dynamic_update_slice", "stablehlo.scatter"})
"""Operations that update their first operand where nobody else needs it any more."""
VIEWS: frozenset[str] = frozenset({"stablehlo.reshape", "stablehlo.bitcast_convert"})


@dataclass(frozen=True, slots=True)
class Ref:
    """What stands behind a value: its tensor, who made it, and its number where it is known."""

    spec: TensorSpec
    node: int | None
    known: int | None = None
    one: bool = False
    """Whether every element is the floating-point number 1."""
    owned: bool = True
    """Whether its memory may be written again: not that of constants and of arguments that the
    caller keeps."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the program: the loop, how often it runs, the depth of calls."""

    loop: str = ""
    trips: int = 1
    depth: int = 0
    where: str = ""
    """Name stack of the call that led here."""

    @property
    def marks(self) -> Mapping[str, object]:
        """Attributes of a node here: its loop and how often it runs."""
        return {"trips": self.trips, "loop": self.loop} if self.loop else {}

    def inside(self, instr: Instr, *, loop: str | None = None, trips: int = 1) -> Place:
        """Within a call or a region of `instr`."""
        return Place(
            self.loop if loop is None else loop, self.trips * trips, self.depth + 1,
            f"{self.where}/{instr.where}",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Carry:
    """A tensor that a loop hands from one iteration to the next."""

    before: TensorSpec
    after: TensorSpec
    first: int
    end: int
    """Nodes of the loop's body: from `first` up to `end`."""
    place: Place


def is_sharding(instr: Instr) -> bool:
    """Whether a custom call only says where data lies."""
    return instr.op == "stablehlo.custom_call" and instr.attrs.get("target") in SHARDING_CALLS


def retyped(ref: Ref, kind: TensorType) -> Ref:
    """The same storage seen in another shape, and cut to it."""
    spec = ref.spec
    if spec.shape == kind.shape and spec.dtype == kind.dtype:
        return ref
    size = min(spec.touched_bytes, kind.size_bytes) if spec.touched_bytes else 0
    made = TensorSpec(
        shape=kind.shape, dtype="bool" if kind.dtype == TOKEN else kind.dtype,
        storage_id=spec.storage_id, storage_bytes=spec.storage_bytes, touched_bytes=size,
        role=spec.role,
    )  # fmt: skip
    return replace(ref, spec=made)


def captured(body: Body) -> set[Value]:
    """Values that a region and those inside it read."""
    found = set(body.results)
    for instr in body.instrs:
        found.update(instr.operands)
        for inner in instr.bodies:
            found |= captured(inner)
    return found


def folded(instr: Instr, refs: Sequence[Ref]) -> int | None:
    """The integer that an operation gives, where its operands are known."""
    if instr.op in SAME or instr.op in VIEWS:
        return refs[0].known if len(refs) == 1 else None
    fold = FOLDS.get(instr.op)
    if fold is None or len(refs) != 2:
        return None
    a, b = refs[0].known, refs[1].known
    return None if a is None or b is None else fold(a, b)


def module(where: str) -> str:
    """The path of a name stack, without the function that was jitted and the primitive."""
    return "/".join(where.split("/")[1:-1])
