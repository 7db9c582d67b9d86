"""What a checkpoint learned: kinds of kernel that measured rows cover, and where.

An entry is (token, dtype), or (token, dtype, kind of device) in a checkpoint that learned from
several kinds: an optimizer's kernels measured on a processor say nothing of a GPU. `Measured` tells
one device from another: a GPU on which products alone were measured has convolutions that were
learned on other GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from predictor.graph.ir import HALVES
from predictor.graph.ops import OPS
from predictor.hardware.peaks import MATRIX_CLASSES
from predictor.hardware.twins import twins

Entry: TypeAlias = tuple[str, ...]
TWIN_HALF: Mapping[str, str] = dict(zip(HALVES, reversed(HALVES), strict=True))
CLASS_OF_TOKEN: Mapping[str, str] = {op.token: op.op_class for op in OPS.values()}
ANY_DTYPE = ""
KIND_TOLD = 3
"""Parts of an entry that names a kind of device: those of `on_lanes`, with a device, have more."""
APART: frozenset[str] = frozenset({"reduction"})
"""Op classes whose tokens are unlike kernels (rows, windows, sorting): none tells of another.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """On which device which classes of kernel were measured."""

    devices: frozenset[str]
    """With measured rows of any class."""
    classes: Mapping[str, frozenset[tuple[str, str]]] | None = None
    """(op class, dtype) pairs by device, the dtype told where it decides the units
    (`MATRIX_CLASSES`). None in a release that tells devices alone: all that it learned then counts
    as measured on each."""

    def here(self, device: str, token: str, dtype: str) -> bool:
        """Whether the class of a kernel was measured on a device of these, or on its twin."""
        if device not in self.devices:
            return False
        if self.classes is None:
            return True
        key = _class_of(token, dtype)
        return any(key in self.classes.get(twin, ()) for twin in twins(device))


def measured_of(model: Mapping[str, Any]) -> Measured:
    """What a release's `model` entry tells, checked before."""
    told = model.get("measured")
    classes = None
    if told is not None:
        classes = {
            str(device): frozenset(_class_of(*pair) for pair in with_twins(pairs))
            for device, pairs in told.items()
        }
    return Measured(devices=frozenset(map(str, model["devices"])), classes=classes)


def _class_of(token: str, dtype: str) -> tuple[str, str]:
    op_class = CLASS_OF_TOKEN.get(token, "")
    if op_class in APART:
        return token, ANY_DTYPE
    return op_class, dtype if op_class in MATRIX_CLASSES else ANY_DTYPE


def speaks(learned: Collection[Entry], token: str, dtype: str, kind: str) -> bool:
    """Whether rows of a kind of kernel were measured, on a device of that kind."""
    return (token, dtype) in learned or (token, dtype, kind) in learned


def with_twins(learned: Iterable[Sequence[str]]) -> frozenset[Entry]:
    """The entries, and those of the other half precision.

    fp16 and bf16 run on the same units at the same rate and move the same bytes: what was learned
    of one speaks for the other.
    """
    entries = frozenset(tuple(map(str, entry)) for entry in learned)
    return entries | {
        (token, TWIN_HALF[dtype], *kind) for token, dtype, *kind in entries if dtype in TWIN_HALF
    }


def on_lanes(measured: Mapping[str, Iterable[Sequence[str]]]) -> frozenset[Entry]:
    """Entries (token, dtype, kind, device) of halves that no matrix unit of their device serves.

    There their products run on the fp32 lanes (a P100's), which rows of other devices say nothing
    of; those measured on the device itself, or on its near-twin, do.

    Args:
        measured: (token, dtype) pairs by device, as a release tells them.
    """
    return frozenset(
        (str(token), str(dtype), "", twin)
        for device, pairs in measured.items()
        for token, dtype in pairs
        if dtype in HALVES and CLASS_OF_TOKEN.get(str(token), "") in MATRIX_CLASSES
        for twin in twins(str(device))
    )


def speaks_on_lanes(learned: Collection[Entry], token: str, dtype: str, device: str) -> bool:
    """Whether rows of a kind of kernel were measured on fp32 lanes of this very device."""
    return (token, dtype, "", device) in learned


def entries_of(found: Collection[tuple[str, str, str]]) -> list[list[str]]:
    """Entries of (token, dtype, kind of device) triples, sorted; without kinds if all are one."""
    if len({kind for _, _, kind in found}) > 1:
        return [list(entry) for entry in sorted(found)]
    return [list(pair) for pair in sorted({(token, dtype) for token, dtype, _ in found})]


def by_device(found: Collection[tuple[str, str, str]]) -> dict[str, list[list[str]]]:
    """(token, dtype) pairs of (token, dtype, device) triples by device, all sorted."""
    return {
        device: [list(pair) for pair in sorted({(t, d) for t, d, of in found if of == device})]
        for device in sorted({device for _, _, device in found})
    }
