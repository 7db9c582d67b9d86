"""What the standard asks of an operator before any rule reads it: operands, results, attributes.

Rules and patterns read operands by place and attributes by kind. A file that leaves one out, or
gives an attribute of another kind, is refused here by name: past this point a missing operand is a
fault of this library and no longer one of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onnx import AttributeProto, defs

from predictor.capture.onnx.node import Node
from predictor.errors import CaptureError

_KINDS: Mapping[int, str] = {
    value: name for name, value in AttributeProto.AttributeType.items() if name != "UNDEFINED"
}
_TAKEN: Mapping[int, frozenset[int]] = {
    AttributeProto.FLOAT: frozenset({AttributeProto.FLOAT, AttributeProto.INT}),
    AttributeProto.FLOATS: frozenset({AttributeProto.FLOATS, AttributeProto.INTS}),
}
"""Kinds of attribute that are taken for another: whole numbers for fractions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a version of an operator takes."""

    least: int
    most: int
    """Operands."""
    needed: tuple[int, ...]
    """Places of operands that may not be left out."""
    attributes: Mapping[str, int]
    """Kind of each attribute."""


@lru_cache(maxsize=1024)
def schema_of(op: str, version: int, domain: str) -> defs.OpSchema | None:
    """The schema of an operator as of a version, None where there is none."""
    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


@lru_cache(maxsize=1024)
def wanted_of(op: str, version: int, domain: str) -> Wanted | None:
    """What the standard says of an operator, None where it does not know it."""
    schema = schema_of(op, version, domain)
    if schema is None:
        return None
    attributes: Mapping[str, Any] = schema.attributes  # its stub knows kinds by name alone
    single = defs.OpSchema.FormalParameterOption.Single
    return Wanted(
        least=schema.min_input,
        most=schema.max_input,
        needed=tuple(i for i, taken in enumerate(schema.inputs) if taken.option == single),
        attributes={name: int(a.type.value) for name, a in attributes.items()},
    )


def check_operators(nodes: Iterable[Node], versions: Mapping[str, int]) -> None:
    """See that operators have the operands and kinds of attributes that the standard asks for.

    Raises:
        CaptureError: one does not; the message names it.
    """
    for node in nodes:
        wanted = wanted_of(node.op, versions.get(node.domain, 1), node.domain)
        if wanted is not None:
            _check(node, wanted)


def _check(node: Node, wanted: Wanted) -> None:
    given = len(node.inputs)
    if not wanted.least <= given <= wanted.most or not node.outputs:
        raise CaptureError(
            f"{node.title}: {given} operand(s) and {len(node.outputs)} result(s); it takes "
            f"{wanted.least} to {wanted.most} operands and gives one result or more"
        )
    for place in wanted.needed:
        if place < given and not node.inputs[place]:
            raise CaptureError(f"{node.title}: operand {place} may not be left out")
    for attribute in () if node.proto is None else node.proto.attribute:
        kind = wanted.attributes.get(attribute.name, attribute.type)
        if attribute.type not in (kind, AttributeProto.UNDEFINED, *_TAKEN.get(kind, ())):
            raise CaptureError(
                f"{node.title}: its attribute {attribute.name!r} is of kind "
                f"{_KINDS.get(attribute.type, attribute.type)}; {_KINDS.get(kind, kind)} is needed"
            )
