"""GELU, SiLU, Mish, hard swish: activations that exporters write out."""

from __future__ import annotations

import math

from predictor.capture.onnx.node import Node
from predictor.capture.onnx.patterns.index import Index


def _made(node: Node, op: str, inputs: list[str], **attrs: object) -> Node:
    return Node(op, "", inputs, node.outputs, dict(attrs), node.name)


def gelu(erf: Node, index: Index) -> bool:
    """`x * 0.5 * (1 + erf(x / sqrt(2)))` in any order, from its `Erf`."""
    scaled = index.maker.get(erf.inputs[0])
    if scaled is None or scaled.op not in ("Div", "Mul"):
        return False
    found = index.with_scalar(scaled)
    wanted = math.sqrt(2) if scaled.op == "Div" else 1 / math.sqrt(2)
    if found is None or not math.isclose(found[1], wanted, rel_tol=2e-3):
        return False
    plus = index.only_reader(erf.outputs[0], "Add")
    if plus is None or not any(index.near(n, 1.0) for n in plus.inputs):
        return False
    return _closed(found[0], plus, [scaled, erf, plus], index, "none")


def gelu_tanh(tanh: Node, index: Index) -> bool:
    """The same with `tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))`, from its `Tanh`.

    PyTorch's call multiplies x in before the half; a program's own, which PyTorch runs call by
    call, starts with `0.5 * x` and has a `Pow`.
    """
    outer = index.made_by(tanh.inputs[0], "Mul")
    held = index.with_scalar(outer) if outer is not None else None
    if outer is None or held is None or not math.isclose(held[1], 0.7978845608, rel_tol=2e-3):
        return False
    inner = index.made_by(held[0], "Add")
    if inner is None:
        return False
    for x, cubic in (inner.inputs, list(reversed(inner.inputs))):
        term = index.made_by(cubic, "Mul")
        held = index.with_scalar(term) if term is not None else None
        if term is None or held is None or not math.isclose(held[1], 0.044715, rel_tol=2e-3):
            continue
        power = index.made_by(held[0], "Pow")
        plus = index.only_reader(tanh.outputs[0], "Add")
        if power is not None and power.inputs[0] == x and plus is not None:
            first = index.only_reader(plus.outputs[0], "Mul")
            if first is None or x not in first.inputs or not index.near(power.inputs[1], 3.0):
                return False
            return _closed(x, plus, [outer, inner, term, power, tanh, plus], index, "tanh")
        cube = index.made_by(held[0], "Mul")
        square = next(
            (index.maker[n] for n in cube.inputs if n in index.maker and n != x), None
        ) if cube is not None and x in cube.inputs else None  # fmt: skip
        if cube is None or square is None or plus is None or square.op != "Mul":
            continue
        whole = [outer, inner, term, cube, square, tanh, plus]
        return _closed(x, plus, whole, index, "tanh")
    return False


def _closed(x: str, plus: Node, whole: list[Node], index: Index, kind: str) -> bool:
    """The two products that end a GELU: with x and with a half, in either order."""
    first = index.only_reader(plus.outputs[0], "Mul")
    if first is None:
        return False
    other = first.inputs[1] if first.inputs[0] == plus.outputs[0] else first.inputs[0]
    if other == x:
        last = index.only_reader(first.outputs[0], "Mul")
        if last is None or not any(index.near(n, 0.5) for n in last.inputs):
            return False
        whole = [*whole, first, last]
    elif index.near(other, 0.5):
        last = index.only_reader(first.outputs[0], "Mul")
        if last is None or x not in last.inputs:
            return False
        whole = [*whole, first, last]
    else:
        half = index.made_by(other, "Mul")
        held = index.with_scalar(half) if half is not None else None
        if half is None or held is None or held[0] != x or held[1] != 0.5:
            return False
        if not index.read_once(half):
            return False
        last = first
        whole = [*whole, half, first]
    index.replace(last, _inner(whole, last, index), _made(last, "Gelu", [x], approximate=kind))
    return True


def _inner(whole: list[Node], last: Node, index: Index) -> list[Node]:
    """Those nodes of a pattern whose results nothing outside it reads."""
    return [
        node for node in whole
        if node is last or all(any(r is w for w in whole) for r in index.readers.get(
            node.outputs[0], []))
    ]  # fmt: skip


def gated(gate: Node, index: Index) -> bool:
    """`x * sigmoid(x)` (SiLU) and `x * hardsigmoid(x)` (hard swish), from the gate."""
    last = index.only_reader(gate.outputs[0], "Mul")
    if last is None or gate.inputs[0] not in last.inputs:
        return False
    if gate.op == "HardSigmoid":
        if not math.isclose(float(gate.attrs.get("alpha", 0.2)), 1 / 6, rel_tol=1e-3):
            return False
        index.replace(last, [gate, last], _made(last, "HardSwish", [gate.inputs[0]]))
        return True
    index.replace(last, [gate, last], _made(last, "Silu", [gate.inputs[0]]))
    return True


def mish(softplus: Node, index: Index) -> bool:
    """`x * tanh(softplus(x))`, from its `Softplus`."""
    tanh = index.only_reader(softplus.outputs[0], "Tanh")
    last = index.only_reader(tanh.outputs[0], "Mul") if tanh is not None else None
    if tanh is None or last is None or softplus.inputs[0] not in last.inputs:
        return False
    made = _made(last, "Mish", [softplus.inputs[0]])
    index.replace(last, [softplus, tanh, last], made)
    return True
