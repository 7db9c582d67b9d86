"""One operator of an ONNX graph, read once from its protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from predictor.errors import CaptureError

Attributes: TypeAlias = Mapping[str, Any]
STANDARD = ""
"""Domain of the standard operators, whichever of its two names the file uses."""


@dataclass(slots=True, eq=False)
class Node:
    """An operator call."""

    op: str
    domain: str
    inputs: list[str]
    """Names; empty for an optional input that is left out."""
    outputs: list[str]
    attrs: dict[str, Any]
    name: str = ""
    proto: NodeProto | None = None
    overload: str = ""

    @property
    def title(self) -> str:
        """What messages call it."""
        kind = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{kind} {self.name!r}" if self.name else f"{kind} of {', '.join(self.outputs)!r}"


def read_nodes(protos: Iterable[NodeProto], given: Attributes | None = None) -> list[Node]:
    """The nodes of a graph or function body; `given` are the attributes of the function's call."""
    return [_read(proto, given) for proto in protos]


def statistics_of(graph: GraphProto) -> frozenset[str]:
    """Names of the running means and variances of batch norms: kept, not trained."""
    return frozenset(
        name
        for node in graph.node
        if node.op_type == "BatchNormalization"
        for name in node.input[3:5]
    )


def _read(proto: NodeProto, given: Attributes | None) -> Node:
    if not all(isinstance(n, str) for n in (proto.op_type, proto.domain, proto.name, *proto.input,
                                            *proto.output)):  # fmt: skip
        raise CaptureError(f"a name of node {proto.name!r} is no text: the file is damaged")
    domain = proto.domain
    attrs: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            if given is not None and attribute.ref_attr_name in given:
                attrs[attribute.name] = given[attribute.ref_attr_name]
            continue
        attrs[attribute.name] = value_of(attribute)
    return Node(
        op=proto.op_type,
        domain=STANDARD if domain == "ai.onnx" else domain,
        inputs=list(proto.input),
        outputs=list(proto.output),
        attrs=attrs,
        name=proto.name,
        proto=proto,
        overload=proto.overload,
    )


def value_of(attribute: AttributeProto) -> Any:
    """The value of an attribute: numbers, strings, lists of them, tensors and graphs as they are.

    Raises:
        CaptureError: a kind of attribute that ONNX does not have.
    """
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.FLOATS:
        return list(attribute.floats)
    if kind == AttributeProto.TENSOR:
        return attribute.t
    if kind == AttributeProto.GRAPH:
        return attribute.g
    if kind == AttributeProto.STRINGS:
        return [s.decode("utf-8", "replace") for s in attribute.strings]
    if kind == AttributeProto.SPARSE_TENSOR:
        return attribute.sparse_tensor
    if kind == AttributeProto.TYPE_PROTO:
        return attribute.tp
    if kind == AttributeProto.GRAPHS:
        return list(attribute.graphs)
    if kind in (AttributeProto.TENSORS, AttributeProto.SPARSE_TENSORS):
        return list(attribute.tensors)
    if kind == AttributeProto.TYPE_PROTOS:
        return list(attribute.type_protos)
    if kind == AttributeProto.UNDEFINED:  # files of IR version 1 leave the kind out
        return _untyped(attribute)
    raise CaptureError(f"attribute {attribute.name!r} has kind {kind}, which ONNX does not have")


def _untyped(attribute: AttributeProto) -> Any:
    for field, single in (("ints", False), ("floats", False), ("t", True), ("g", True)):
        if single:
            if attribute.HasField(field):
                return getattr(attribute, field)
        elif len(getattr(attribute, field)):
            return list(getattr(attribute, field))
    if attribute.HasField("s"):
        return attribute.s.decode("utf-8", "replace")
    return attribute.f if attribute.HasField("f") else attribute.i


def ints(value: object) -> list[int]:
    """A list of integers, whatever an attribute or a small tensor holds."""
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [int(v) for v in value]
    if isinstance(value, (int, float)):
        return [int(value)]
    return []


def subgraphs(node: Node) -> list[GraphProto]:
    """Graphs among a node's attributes."""
    return [value for value in node.attrs.values() if isinstance(value, GraphProto)]


def tensor_of(value: object, where: str) -> TensorProto:
    """An attribute that must be a tensor.

    Raises:
        CaptureError: it is something else.
    """
    if not isinstance(value, TensorProto):
        raise CaptureError(f"{where}: its value is no tensor")
    return value
