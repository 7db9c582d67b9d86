"""Sequences and optionals: lists on the host, no calls of the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.values import Item, Sequence_, Value

MOST_ITEMS = 20_000
"""Items of a sequence that are told apart."""


def construct(call: Call) -> list[Item]:
    """`SequenceConstruct`."""
    return [Sequence_(list(call.items))]


def empty(call: Call) -> list[Item]:
    """`SequenceEmpty`."""
    return [Sequence_([])]


def _position(call: Call, index: int, count: int) -> int:
    if not call.has(index):
        return count - 1
    found = call.known_ints(index)
    at = found[0] if found else 0
    if not -count <= at < count:
        raise call.wrong(f"item {at} of a sequence of {count}")
    return at % count


def at(call: Call) -> list[Item]:
    """`SequenceAt`."""
    held = call.sequence(0).items
    return [held[_position(call, 1, len(held))]]


def insert(call: Call) -> list[Item]:
    """`SequenceInsert`."""
    held = list(call.sequence(0).items)
    found = call.known_ints(2) if call.has(2) else None
    held.insert(found[0] if found else len(held), call.items[1])
    return [Sequence_(held)]


def erase(call: Call) -> list[Item]:
    """`SequenceErase`."""
    held = list(call.sequence(0).items)
    del held[_position(call, 1, len(held))]
    return [Sequence_(held)]


def length(call: Call) -> list[Item]:
    """`SequenceLength`."""
    return [call.walk.host(np.array(len(call.sequence(0).items), dtype=np.int64))]


def joined(call: Call) -> list[Item]:
    """`ConcatFromSequence`."""
    parts = [item for item in call.sequence(0).items if isinstance(item, Value)]
    if not parts:
        declared = call.declared()
        if declared is None:
            raise call.unknown("what it joins")
        return [call.tape.fresh(*declared)]
    if call.attr("new_axis", 0):
        where = call.inside(call.integer("axis", 0), len(parts[0].shape) + 1)
        shape = (*parts[0].shape[:where], len(parts), *parts[0].shape[where:])
        return [call.tape.one("aten.stack", parts, shape, parts[0].dtype)]
    axis = call.axis(len(parts[0].shape))
    total = sum(p.shape[axis] for p in parts)
    shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
    return [call.tape.one("aten.cat", parts, shape, parts[0].dtype, {"dim": axis})]


def parted(call: Call) -> list[Item]:
    """`SplitToSequence`: views."""
    x = call.value(0)
    axis = call.axis(len(x.shape))
    whole = x.shape[axis]
    if whole > MOST_ITEMS:
        raise call.wrong(f"a sequence of up to {whole:,} items")
    sizes = [1] * whole
    if call.has(1):
        given = call.known(1)
        if given is None:
            raise call.unknown("where it cuts")
        if given.ndim:
            sizes = [int(v) for v in given]
        else:
            each = max(1, int(given))
            sizes = [min(each, whole - i) for i in range(0, whole, each)]
    drop = not call.has(1) and not call.attr("keepdims", 1)
    items: list[Item] = []
    for size in sizes:
        shape = [*x.shape[:axis], *([] if drop else [size]), *x.shape[axis + 1 :]]
        strides = tuple(s for i, s in enumerate(x.strides) if not (drop and i == axis))
        items.append(call.tape.view("aten.split", x, shape, strides))
    return [Sequence_(items)]


def optional(call: Call) -> list[Item]:
    """`Optional`: something or nothing."""
    return [Sequence_(list(call.items))]


def has_element(call: Call) -> list[Item]:
    """`OptionalHasElement`."""
    item = call.items[0] if call.items else None
    there = bool(item.items) if isinstance(item, Sequence_) else item is not None
    return [call.walk.host(np.array(there))]


def get_element(call: Call) -> list[Item]:
    """`OptionalGetElement`."""
    item = call.items[0] if call.items else None
    if isinstance(item, Sequence_) and len(item.items) == 1:
        return [item.items[0]]
    return [item]


SEQUENCES: Mapping[str, Rule] = {
    "SequenceConstruct": construct, "SequenceEmpty": empty, "SequenceAt": at,
    "SequenceInsert": insert, "SequenceErase": erase, "SequenceLength": length,
    "ConcatFromSequence": joined, "SplitToSequence": parted, "Optional": optional,
    "OptionalHasElement": has_element, "OptionalGetElement": get_element,
}  # fmt: skip
"""Rules of the standard domain."""
