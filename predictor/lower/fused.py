"""A call with others taken in, as `predictor.lower.inference` makes it: one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from predictor.cost.rules import flops
from predictor.cost.streaming import FLOPS_PER_ELEMENT
from predictor.graph.ir import OpNode
from predictor.graph.ops import OPS
from predictor.lower.draft import Draft, as_int, as_ints

NORM_FLOPS = 2
"""Of an element: a norm whose statistics are constants is a product and a sum."""


def fused(node: OpNode, op: str) -> list[Draft]:
    """The root's kernel, which also reads what the others read and writes what they write."""
    from predictor.lower.aten_table import find, packet

    attrs = node.attrs
    own, root_op = as_int(attrs["own"], 0), str(attrs["root"])
    taken = [str(name) for name in cast(Sequence[object], attrs["taken"])]
    given = attrs["root_attrs"]
    out = replace(node.outputs[0], shape=as_ints(attrs["root_shape"]))
    kept = node.outputs[: as_int(attrs["root_outputs"], 1)]
    root = OpNode(
        op=root_op, phase=node.phase, inputs=node.inputs[:own], outputs=(out, *kept[1:]),
        attrs=given if isinstance(given, dict) else {}, module=node.module,
    )  # fmt: skip
    row = find(root_op)
    assert row is not None, root_op
    draft = row[1](root, row[0])[0]
    work = 0.0
    for name in taken:
        found = find(name)
        each = FLOPS_PER_ELEMENT.get(found[0], NORM_FLOPS) if found is not None else 1
        work += each * out.numel
    draft.flops = float(flops(draft.op, draft.dims)) + work
    read = {id(spec) for spec in draft.reads}
    draft.reads = (*draft.reads, *(spec for spec in node.inputs if id(spec) not in read))
    draft.writes = node.outputs
    if OPS[draft.op].op_class == "elementwise":
        many = sum(1 for spec in node.inputs if spec.numel > 1 or out.numel == 1)
        draft.dims = {**draft.dims, "inputs": many}
    names = [packet(name).strip("_") for name in (root_op, *taken)]
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    draft.name = "+".join(shown)
    return [draft]
