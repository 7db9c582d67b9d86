"""The pass that looks for decompositions in the nodes of one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import GraphProto

from predictor.capture.onnx.node import Node, subgraphs
from predictor.capture.onnx.patterns import activations, norms, products
from predictor.capture.onnx.patterns.index import Index, Lookup

Pattern = Callable[[Node, Index], bool]
"""Replaces the decomposition around a node, where there is one."""

ANCHORS: Mapping[str, Pattern] = {
    "Erf": activations.gelu, "Tanh": activations.gelu_tanh, "Sigmoid": activations.gated,
    "HardSigmoid": activations.gated, "Softplus": activations.mish, "Sqrt": norms.layer_norm,
    "InstanceNormalization": norms.group_norm, "Softmax": products.attention,
    "Add": products.linear,
}  # fmt: skip
"""Pattern by the operator that gives it away."""
_ORDER: tuple[Sequence[str], ...] = (
    ("Erf", "Tanh", "Sigmoid", "HardSigmoid", "Softplus", "Sqrt", "InstanceNormalization"),
    ("Softmax",),
    ("Add",),
)
"""What is looked for first: later patterns read the results of earlier ones."""


def recognise(nodes: list[Node], results: Sequence[str], lookup: Lookup) -> list[Node]:
    """The nodes, decompositions replaced by the one call that they came from.

    Args:
        nodes: of one graph or function body, in order.
        results: names that must stay.
        lookup: what a name from outside the nodes stands for.
    """
    nodes = _without_aliases(nodes, results)
    if not any(node.op in ANCHORS for node in nodes):
        return _needed(nodes, results)
    index = Index(nodes, results, lookup)
    for group in _ORDER:
        for node in nodes:
            there = id(node) not in index.gone and id(node) not in index.instead
            if node.op in group and not node.domain and there:
                ANCHORS[node.op](node, index)
    return _needed(index.result(nodes), results)


def _needed(nodes: list[Node], results: Sequence[str]) -> list[Node]:
    """The nodes that some result follows from: every runtime drops the others."""
    needed = set(results)
    kept: list[Node] = []
    for node in reversed(nodes):
        if needed.isdisjoint(node.outputs):
            continue
        kept.append(node)
        needed.update(node.inputs)
        for graph in subgraphs(node):
            _read_inside(graph, needed)
    kept.reverse()
    return kept


def _read_inside(graph: GraphProto, names: set[str]) -> None:
    for proto in graph.node:
        names.update(proto.input)
        for attribute in proto.attribute:
            if attribute.HasField("g"):
                _read_inside(attribute.g, names)
    names.update(o.name for o in graph.output)


def _without_aliases(nodes: list[Node], results: Sequence[str]) -> list[Node]:
    """The nodes with every reader of an `Identity` reading what it passes on.

    Exporters write equal weights once and give them their other names so. Names that subgraphs may
    read keep their node.
    """
    kept = set(results)
    alias: dict[str, str] = {}
    for node in nodes:
        if node.op == "Identity" and not node.domain and len(node.inputs) == 1:
            alias[node.outputs[0]] = alias.get(node.inputs[0], node.inputs[0])
    if not alias:
        return nodes
    nested = any(subgraphs(node) for node in nodes)
    for node in nodes:
        node.inputs = [alias.get(name, name) for name in node.inputs]
    if nested:
        return nodes
    return [n for n in nodes if n.op != "Identity" or n.domain or n.outputs[0] in kept]
