"""Who makes and who reads each name of a graph, and the scalars among its constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto

from predictor.capture.onnx.node import Node, subgraphs, tensor_of
from predictor.capture.onnx.reading import values_of
from predictor.capture.onnx.values import Value, numel_of

Lookup = Callable[[str], object]
"""What a name outside the nodes stands for, None for nothing."""


class Index:
    """Producers and readers of the names of one list of nodes."""

    def __init__(self, nodes: Sequence[Node], results: Sequence[str], lookup: Lookup) -> None:
        self.maker: dict[str, Node] = {}
        self.readers: dict[str, list[Node]] = {}
        self.gone: set[int] = set()
        """Nodes (by identity) that a pattern has taken in."""
        self.instead: dict[int, Node] = {}
        """What stands at the place of a pattern's last node."""
        self._kept: set[str] = set(results)
        self._lookup = lookup
        for node in nodes:
            for name in node.outputs:
                self.maker[name] = node
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
            for graph in subgraphs(node):
                self._keep_all(graph)

    def _keep_all(self, graph: GraphProto) -> None:
        """Names that a subgraph reads stay as they are."""
        for proto in graph.node:
            self._kept.update(proto.input)
            for attribute in proto.attribute:
                if attribute.HasField("g"):
                    self._keep_all(attribute.g)
        self._kept.update(o.name for o in graph.output)

    # -- who makes and reads --------------------------------------------------------------------

    def made_by(self, name: str, op: str, domain: str = "") -> Node | None:
        """The node that makes a name, where it is such an operator and still there."""
        node = self.maker.get(name)
        if node is None or node.op != op or node.domain != domain or id(node) in self.gone:
            return None
        return node

    def only_reader(self, name: str, op: str | None = None) -> Node | None:
        """The one node that reads a name and makes it needless, where it is such an operator."""
        found = self.readers.get(name, ())
        if len(found) != 1 or name in self._kept or id(found[0]) in self.gone:
            return None
        return found[0] if op is None or (found[0].op == op and not found[0].domain) else None

    def read_once(self, node: Node) -> bool:
        """Whether a node's result has one reader."""
        name = node.outputs[0]
        return name not in self._kept and len(self.readers.get(name, ())) == 1

    # -- constants ------------------------------------------------------------------------------

    def stored(self, name: str) -> Value | None:
        """A tensor of the model (or of what surrounds the graph) by name."""
        found = self._lookup(name)
        return found if isinstance(found, Value) else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a constant, None for anything else."""
        held = self.stored(name)
        if held is not None and held.constant:
            return held.shape
        node = self.maker.get(name)
        if node is not None and node.op == "Constant" and "value" in node.attrs:
            return tuple(tensor_of(node.attrs["value"], node.title).dims)
        return None

    def scalar(self, name: str) -> float | None:
        """The number that a constant of one element holds."""
        held = self.stored(name)
        if held is not None:
            known = held.known
            one = held.constant and known is not None and known.size == 1
            return float(known.reshape(-1)[0]) if one and known is not None else None
        node = self.maker.get(name)
        if node is None:
            return None
        if node.op in ("Cast", "Identity", "CastLike", "Unsqueeze", "Reshape"):
            return self.scalar(node.inputs[0]) if node.inputs else None
        if node.op != "Constant":
            return None
        if "value_float" in node.attrs or "value_int" in node.attrs:
            return float(node.attrs.get("value_float", node.attrs.get("value_int", 0)))
        if "value" not in node.attrs:
            return None
        tensor = tensor_of(node.attrs["value"], node.title)
        if numel_of(tensor.dims) != 1:
            return None
        values = values_of(tensor, node.title)
        return None if values is None else float(values.reshape(-1)[0])

    def is_scalar(self, name: str) -> bool:
        """Whether a name stands for one number, known or worked out from shapes."""
        if self.scalar(name) is not None:
            return True
        node = self.maker.get(name)
        return (
            node is not None
            and node.op in ("Sqrt", "Div")
            and all(self.scalar(n) is not None or self._from_shape(n) for n in node.inputs)
        )

    def _from_shape(self, name: str, depth: int = 8) -> bool:
        node = self.maker.get(name)
        if node is None or depth == 0:
            return False
        if node.op in ("Shape", "Constant"):
            return True
        follows = ("Slice", "Cast", "Sqrt", "Div", "Gather", "Squeeze", "CastLike", "Mul",
                   "Reciprocal", "Unsqueeze")  # fmt: skip
        return node.op in follows and all(
            self._from_shape(n, depth - 1) or self.scalar(n) is not None for n in node.inputs if n
        )

    def near(self, name: str, value: float, tolerance: float = 2e-3) -> bool:
        """Whether a name is a constant close to a number."""
        found = self.scalar(name)
        return found is not None and bool(np.isclose(found, value, rtol=tolerance))

    def with_scalar(self, node: Node) -> tuple[str, float] | None:
        """The other operand and the number, of a node that combines a tensor with a number."""
        if len(node.inputs) != 2:
            return None
        for tensor, number in (node.inputs, reversed(node.inputs)):
            found = self.scalar(number)
            if found is not None:
                return tensor, found
        return None

    # -- replacing ------------------------------------------------------------------------------

    def replace(self, last: Node, whole: Sequence[Node], made: Node) -> None:
        """Put `made` where `last` stands; `whole` are the nodes that it stands for."""
        for node in whole:
            if node is not last:
                self.gone.add(id(node))
        self.instead[id(last)] = made
        for name in made.outputs:
            self.maker[name] = made
        for name in made.inputs:
            readers = [r for r in self.readers.get(name, []) if not _among(r, whole)]
            self.readers[name] = [*readers, made]

    def result(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes in order, patterns replaced; what replaced ones are replaced themselves."""
        out: list[Node] = []
        for node in nodes:
            current = node
            while id(current) in self.instead:
                current = self.instead[id(current)]
            if id(current) not in self.gone and id(node) not in self.gone:
                out.append(current)
        return out


def _among(node: Node, whole: Sequence[Node]) -> bool:
    return any(node is other for other in whole)
