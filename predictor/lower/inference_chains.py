"""What stands behind a product or convolution, and chains of pointwise calls."""

from __future__ import annotations

from dataclasses import replace

from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.aten_table import find, packet
from predictor.lower.inference_groups import Groups, fused_node

CONVOLUTIONS: frozenset[str] = frozenset({"convolution"})
PRODUCTS: frozenset[str] = frozenset({"mm", "addmm", "bmm", "baddbmm"})
ACTIVATIONS: frozenset[str] = frozenset({
    "relu", "relu6", "clamp", "hardtanh", "leaky_relu", "silu", "hardswish", "hardsigmoid", "gelu",
    "sigmoid", "tanh", "elu", "mish", "prelu", "quantize_per_tensor",
})  # fmt: skip
"""What both runtimes compute on the way out of a product."""
NORMS: frozenset[str] = frozenset({"native_layer_norm", "_fused_rms_norm"})
MOST_IN_CHAIN = 32
MOST_READ = 8
"""Tensors that one pointwise kernel reads at most."""


def chains(groups: Groups) -> None:
    """Join what stands behind each call, products first."""
    for number, node in enumerate(groups.all):
        name = packet(node.op)
        if groups.free(number) and name in CONVOLUTIONS | PRODUCTS and node.outputs:
            _behind_product(groups, number, convolution=name in CONVOLUTIONS)
    for number, node in enumerate(groups.all):
        if groups.free(number) and packet(node.op) in NORMS:
            _sum_before_norm(groups, number)
    for number, node in enumerate(groups.all):
        if groups.free(number) and packet(node.op) in ("pow", "mul"):
            _written_out_rms(groups, number)
    for number, node in enumerate(groups.all):
        if groups.free(number) and is_pointwise(node):
            _pointwise_chain(groups, number)


def is_pointwise(node: OpNode) -> bool:
    """Whether a call computes each element by itself."""
    row = find(node.op)
    if row is None or node.attrs.get("view") or node.attrs.get("opaque") or not node.outputs:
        return False
    return (row[1].__name__ == "pointwise" and len(node.outputs) == 1) or packet(
        node.op
    ) == "_to_copy"


def _behind_product(groups: Groups, number: int, *, convolution: bool) -> None:
    root = groups.all[number]
    members, out = [number], root.outputs[0]
    channels = _channels(out, convolution=convolution)
    full = activated = False
    while (after := groups.only_reader(out)) is not None:
        node = groups.all[after]
        name = packet(node.op)
        if node.outputs[0].numel != out.numel if node.outputs else True:
            break
        others = [s for s in node.inputs if s.storage_id != out.storage_id]
        if name in ACTIVATIONS and not activated:
            activated = name != "quantize_per_tensor"
        elif activated:
            break
        elif (name == "native_batch_norm" and convolution and not node.attrs.get("training")) or (
            name in ("add", "sub", "mul") and all(s.numel in (1, channels) for s in others)
        ):
            pass
        elif name == "add" and convolution and not full and len(others) == 1:
            if others[0].numel != out.numel:
                break
            full = True
        else:
            break
        members.append(after)
        out = node.outputs[0]
    if len(members) > 1 or (convolution and len(root.inputs) > 2):
        others_in = [groups.all[m] for m in members[1:]]
        groups.join(members, fused_node(root, others_in, (out,)))


def _channels(out: TensorSpec, *, convolution: bool) -> int:
    if convolution and len(out.shape) > 1:
        return out.shape[1]
    return out.shape[-1] if out.shape else 1


def _sum_before_norm(groups: Groups, number: int) -> None:
    norm = groups.all[number]
    before = groups.maker(norm.inputs[0])
    if before is None:
        return
    node = groups.all[before]
    whole = node.outputs[0]
    if packet(node.op) != "add" or any(s.numel not in (1, whole.numel) for s in node.inputs):
        return
    later = [r for r in groups.readers.get(whole.storage_id, ()) if r != number]
    if any(r < number for r in later):
        return
    addend = next((s for s in node.inputs if s.shape == whole.shape), None)
    if addend is None:
        return
    root = replace(norm, inputs=(addend, *norm.inputs[1:]))
    outputs = (*norm.outputs, whole) if later else norm.outputs
    groups.join([before, number], fused_node(root, [node], outputs))


def _written_out_rms(groups: Groups, number: int) -> None:
    """`x * rsqrt(mean(x^2) + eps) * w`, from its square."""
    square = groups.all[number]
    x = square.inputs[0]
    if any(s.storage_id != x.storage_id for s in square.inputs) or len(square.outputs) != 1:
        return
    members, at = [number], square.outputs[0]
    steps: list[str] = []
    while (after := groups.only_reader(at)) is not None and len(steps) < 8:
        node = groups.all[after]
        name = packet(node.op)
        wanted = ("mean", "add", "sqrt rsqrt", "reciprocal div", "mul _to_copy")
        position = next((i for i, names in enumerate(wanted) if name in names.split()), None)
        if position is None or len(node.outputs) != 1:
            break
        if name in ("mul", "div"):
            others = [s for s in node.inputs if s.storage_id != at.storage_id]
            plain = all(
                s.storage_id == x.storage_id or s.numel in (1, *x.shape[-1:]) for s in others
            )
            if not plain:
                break
        steps.append(name)
        members.append(after)
        at = node.outputs[0]
    if steps[:2] != ["mean", "add"] or at.numel != x.numel or len(steps) < 4:
        return
    inputs = [x]
    for member in members:
        for spec in groups.all[member].inputs:
            if spec.role == "parameter" and spec.numel == x.shape[-1]:
                inputs.append(spec)
    groups.join(
        members,
        OpNode(op="aten._fused_rms_norm", phase=square.phase, inputs=tuple(inputs), outputs=(at,),
               attrs={"normalized_shape": [x.shape[-1]]}, module=square.module),
    )  # fmt: skip


def _pointwise_chain(groups: Groups, number: int) -> None:
    root = groups.all[number]
    members, out = [number], root.outputs[0]
    read = {s.storage_id for s in root.inputs}
    while (after := groups.only_reader(out)) is not None and len(members) < MOST_IN_CHAIN:
        node = groups.all[after]
        if not is_pointwise(node) or node.outputs[0].numel != out.numel:
            break
        read |= {s.storage_id for s in node.inputs} - {out.storage_id}
        if len(read) > MOST_READ:
            break
        members.append(after)
        out = node.outputs[0]
    if len(members) > 1:
        groups.join(members, fused_node(root, [groups.all[m] for m in members[1:]], (out,)))
