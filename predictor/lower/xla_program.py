"""A captured StableHLO program as values and operations, before anything is fused.

Views are the values they show, equal operations are one, and every operation knows who reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictor.cost.hlo import numbers
from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.xla_ops import KERNEL, Kind, kind_of


@dataclass(slots=True, eq=False)
class Val:
    """One value: what an operation wrote, or an argument or constant of the program."""

    spec: TensorSpec
    maker: Hlo | None
    readers: list[Hlo] = field(default_factory=list)
    free: bool = False
    """Whether it needs no memory: a scalar constant, or what comes from those alone."""


@dataclass(slots=True, eq=False)
class Hlo:
    """One operation."""

    index: int
    node: OpNode
    kind: Kind
    reads: list[Val]
    writes: list[Val] = field(default_factory=list)
    loop: str = ""
    trips: int = 1
    escapes: bool = False

    @property
    def numel(self) -> int:
        """Elements of the (first) result."""
        return self.writes[0].spec.numel if self.writes else 0


_IMPURE = frozenset(
    {"stablehlo.custom_call", "stablehlo.rng", "stablehlo.rng_bit_generator", "stablehlo.send",
     "stablehlo.recv", "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.copy"}
)  # fmt: skip
"""Operations of which two equal ones are two: effects, and memory that is written on."""

_OVER_RANKS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})


def program_of(nodes: Sequence[OpNode]) -> list[Hlo]:
    """Operations in order, without views and repetitions.

    Every node's op is a key of the table (`kind_of`) or has been replaced by `library` before.
    """
    current: dict[int, Val] = {}
    seen: dict[tuple[object, ...], list[Val]] = {}
    merged: dict[int, Hlo] = {}
    found: list[Hlo] = []
    for node in nodes:
        reads = [_value(current, spec) for spec in node.inputs]
        if node.attrs.get("view") or _is_bitcast(node):
            for spec in node.outputs:
                current[spec.storage_id] = reads[0]
            if node.attrs.get("escapes") and reads[0].maker is not None:
                reads[0].maker.escapes = True
            continue
        key = _key(node, reads)
        if key is not None and key in seen:
            for spec, value in zip(node.outputs, seen[key], strict=True):
                current[spec.storage_id] = value
            if node.attrs.get("escapes"):
                merged[id(seen[key][0])].escapes = True
            continue
        made = _operation(len(found), node, reads)
        found.append(made)
        for spec in node.outputs:
            value = Val(spec, made, free=made.kind == "generated" or _free(made))
            made.writes.append(value)
            current[spec.storage_id] = value
        for value in {id(v): v for v in reads}.values():
            value.readers.append(made)
        if key is not None:
            seen[key] = made.writes
            if made.writes:
                merged[id(made.writes[0])] = made
    return found


def _is_bitcast(node: OpNode) -> bool:
    """Whether the result has the operand's elements in the operand's order."""
    if not node.inputs or len(node.outputs) != 1:
        return False
    given, made = node.inputs[0], node.outputs[0]
    if given.numel != made.numel or given.dtype != made.dtype:
        return False
    op = node.op.rpartition(".")[2]
    if op == "transpose":
        order = numbers(node, "permutation")
        long = [i for i in order if given.shape[i] > 1]
        return bool(order) and long == sorted(long)
    if op in ("broadcast_in_dim", "slice", "pad"):
        return True
    if op in _OVER_RANKS:  # of one device: nobody to talk to
        return numbers(node, "replica_groups", (0, 0))[-1] == 1
    return op == "reduce" and len(node.inputs) == 2 and KERNEL not in node.attrs


def _value(current: dict[int, Val], spec: TensorSpec) -> Val:
    value = current.get(spec.storage_id)
    if value is None:
        value = current[spec.storage_id] = Val(spec, None, free=spec.storage_bytes == 0)
    return value


def _operation(index: int, node: OpNode, reads: list[Val]) -> Hlo:
    trips = node.attrs.get("trips", 1)
    return Hlo(
        index=index, node=node, kind=kind_of(node.op) or "library", reads=reads,
        loop=str(node.attrs.get("loop", "")), trips=trips if isinstance(trips, int) else 1,
        escapes=bool(node.attrs.get("escapes")),
    )  # fmt: skip


def _free(hlo: Hlo) -> bool:
    """Whether it is computed from nothing that lies in memory, element by element."""
    stored = hlo.node.op == "stablehlo.copy"  # made to be written on
    return (
        not stored and hlo.kind in ("broadcast", "elementwise") and all(v.free for v in hlo.reads)
    )


def _key(node: OpNode, reads: Sequence[Val]) -> tuple[object, ...] | None:
    """What makes two operations equal; None where they never are."""
    if node.op in _IMPURE or node.attrs.get("in_place") or not node.outputs:
        return None
    if KERNEL in node.attrs:  # views of one storage look alike
        return None
    attrs = repr(sorted((k, v) for k, v in node.attrs.items() if k not in ("escapes", "kept")))
    first = node.outputs[0]
    operands = tuple((id(v), s.shape) for v, s in zip(reads, node.inputs, strict=True))
    return (node.op, operands, attrs, first.shape, first.dtype)
