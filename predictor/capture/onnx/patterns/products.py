"""Linear layers and fused attention as exporters write them out."""

from __future__ import annotations

from predictor.capture.onnx.node import Node
from predictor.capture.onnx.patterns.index import Index

INTERNAL = "predictor"
"""Domain of operators that patterns alone write."""


def linear(plus: Node, index: Index) -> bool:
    """A product and the vector that is added to it, from its `Add`."""
    for name, other in (plus.inputs, list(reversed(plus.inputs))):
        product = index.made_by(name, "MatMul")
        shape = index.shape(other)
        if product is None or shape is None or len(product.inputs) != 2:
            continue
        if not index.read_once(product) or len(shape) != 1:
            continue
        made = Node("MatMul", "", [*product.inputs, other], plus.outputs, {}, product.name)
        index.replace(plus, [product, plus], made)
        return True
    return False


def attention(softmax: Node, index: Index) -> bool:
    """Scaled-dot-product attention, from its softmax.

    PyTorch's fused call is written with query and key both scaled by the root of the scale, or
    with a guard for rows without keys; a program's own attention scales the scores, and PyTorch
    runs it call by call.
    """
    whole = [softmax]
    name, mask = softmax.inputs[0], ""
    plus = index.made_by(name, "Add")
    if plus is not None:
        for scores, other in (plus.inputs, list(reversed(plus.inputs))):
            if index.made_by(scores, "MatMul") is not None:
                name, mask = scores, other
                whole.append(plus)
                break
    scores_of = index.made_by(name, "MatMul")
    if scores_of is None or not index.read_once(scores_of):
        return False
    whole.append(scores_of)
    last = _weighted(softmax, whole, index)
    if last is None:
        return False
    guarded = any(node.op == "IsNaN" for node in whole)
    factors: list[str] = []
    for factor in scores_of.inputs:
        scaled = index.made_by(factor, "Mul")
        if scaled is None or not index.read_once(scaled):
            if not guarded:
                return False
            factors.append(factor)  # a scale of one is left out
            continue
        sides = [n for n in scaled.inputs if not index.is_scalar(n)]
        if len(sides) != 1:
            return False
        factors.append(sides[0])
        whole.append(scaled)
    values = last.inputs[1]
    inputs = [*factors, values, *([mask] if mask else [])]
    attrs = {"causal": int(bool(mask) and _is_causal(mask, index))}
    plain = _untransposed(factors[1], index)
    if plain is not None:
        inputs[1] = plain
        attrs["plain_key"] = 1
    made = Node("Attention", INTERNAL, inputs, last.outputs, attrs, softmax.name)
    index.replace(last, whole, made)
    return True


def _untransposed(key: str, index: Index) -> str | None:
    """The key before the newer exporter turned it around, heads folded into the batch meanwhile."""
    unfolded = index.made_by(key, "Reshape")
    turned = index.made_by(unfolded.inputs[0], "Transpose") if unfolded is not None else None
    folded = index.made_by(turned.inputs[0], "Reshape") if turned is not None else None
    if turned is None or folded is None or turned.attrs.get("perm") != [0, 2, 1]:
        return None
    return folded.inputs[0]


def _weighted(softmax: Node, whole: list[Node], index: Index) -> Node | None:
    """The product with the values, past what guards rows without keys and dropout."""
    name = softmax.outputs[0]
    readers = index.readers.get(name, [])
    guard = next((r for r in readers if r.op == "IsNaN"), None)
    if guard is not None and len(readers) == 2:
        where = index.only_reader(guard.outputs[0], "Where")
        if where is None or name not in where.inputs:
            return None
        whole += [guard, where]
        name = where.outputs[0]
        readers = index.readers.get(name, [])
    if len(readers) != 1:
        return None
    last = index.only_reader(name, "MatMul")
    if last is None or last.inputs[0] != name:
        return None
    whole.append(last)
    return last


def _is_causal(mask: str, index: Index, depth: int = 6) -> bool:
    """Whether a mask is built as a triangle."""
    held = index.stored(mask)
    if held is not None and held.known is not None and held.known.ndim >= 2:
        rows = held.known.reshape(-1, *held.known.shape[-2:])[0]
        n = min(rows.shape)
        return n > 1 and bool(rows[0, 0] == 0 and rows[0, n - 1] < -1.0)
    node = index.maker.get(mask)
    if node is None or depth == 0:
        return False
    if node.op == "Trilu":
        return True
    follows = ("Where", "Cast", "Unsqueeze", "Expand", "Mul", "Sub", "Not", "Slice", "Reshape")
    return node.op in follows and any(_is_causal(n, index, depth - 1) for n in node.inputs if n)
