"""Layer norm and group norm as exporters write them out."""

from __future__ import annotations

from predictor.capture.onnx.node import Node, ints
from predictor.capture.onnx.patterns.index import Index


def layer_norm(root: Node, index: Index) -> bool:
    """`(x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b`, from its `Sqrt`."""
    quotient = index.only_reader(root.outputs[0], "Div")
    plus = index.made_by(root.inputs[0], "Add")
    held = index.with_scalar(plus) if plus is not None else None
    if quotient is None or plus is None or held is None:
        return False
    variance = index.made_by(held[0], "ReduceMean")
    square = index.maker.get(variance.inputs[0]) if variance is not None else None
    if variance is None or square is None:
        return False
    if square.op == "Pow":
        if not index.near(square.inputs[1], 2.0):
            return False
    elif square.op != "Mul" or square.inputs[0] != square.inputs[1]:
        return False
    centred = index.made_by(square.inputs[0], "Sub")
    if centred is None:
        return False
    x = centred.inputs[0]
    mean = index.made_by(centred.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] != x:
        return False
    above = index.made_by(quotient.inputs[0], "Sub")
    if above is None or above.inputs[0] != x or above.inputs[1] != centred.inputs[1]:
        return False
    axes = _axes(variance, index)
    if not axes:
        return False
    whole = [mean, centred, square, variance, plus, root, quotient]
    if above is not centred:
        whole.append(above)
    last, parameters = quotient, []
    scale = index.only_reader(last.outputs[0], "Mul")
    weight = _parameter(scale, last, index)
    if scale is not None and weight is not None:
        whole.append(scale)
        last, parameters = scale, [weight]
        shift = index.only_reader(last.outputs[0], "Add")
        bias = _parameter(shift, last, index)
        if shift is not None and bias is not None:
            whole.append(shift)
            last, parameters = shift, [weight, bias]
    attrs = {"axis": min(axes), "epsilon": held[1]}
    made = Node("LayerNormalization", "", [x, *parameters], last.outputs, attrs, last.name)
    index.replace(last, whole, made)
    return True


def _axes(node: Node, index: Index) -> list[int]:
    """Trailing axes of a reduction that keeps them."""
    axes = ints(node.attrs.get("axes"))
    if not axes and len(node.inputs) > 1:
        maker = index.maker.get(node.inputs[1])
        one = index.scalar(node.inputs[1])
        held = index.stored(node.inputs[1])
        if one is not None:
            axes = [int(one)]
        elif held is not None and held.known is not None:
            axes = [int(v) for v in held.known.reshape(-1)]
        elif maker is not None and "value_ints" in maker.attrs:
            axes = ints(maker.attrs["value_ints"])
    if not node.attrs.get("keepdims", 1) or not axes:
        return []
    trailing = sorted(axes) == list(range(-len(axes), 0))
    return axes if trailing or (len(axes) == 1 and axes[0] >= 0) else []


def _parameter(node: Node | None, before: Node, index: Index) -> str | None:
    """The constant that a node combines with the result before it."""
    if node is None:
        return None
    other = node.inputs[1] if node.inputs[0] == before.outputs[0] else node.inputs[0]
    shape = index.shape(other)
    return other if shape is not None and len(shape) >= 1 else None


def group_norm(norm: Node, index: Index) -> bool:
    """Reshape, instance norm over groups, reshape, weight and bias, from the instance norm."""
    before = index.made_by(norm.inputs[0], "Reshape")
    after = index.only_reader(norm.outputs[0], "Reshape")
    groups = index.shape(norm.inputs[1])
    if before is None or after is None or groups is None or not index.read_once(before):
        return False
    scale = index.only_reader(after.outputs[0], "Mul")
    weight = _parameter(scale, after, index)
    if scale is None or weight is None:
        return False
    shift = index.only_reader(scale.outputs[0], "Add")
    bias = _parameter(shift, scale, index)
    if shift is None or bias is None:
        return False
    attrs = {"num_groups": groups[0], "epsilon": norm.attrs.get("epsilon", 1e-5)}
    inputs = [before.inputs[0], weight, bias]
    made = Node("GroupNormalization", "", inputs, shift.outputs, attrs, norm.name)
    index.replace(shift, [before, norm, after, scale, shift], made)
    return True
