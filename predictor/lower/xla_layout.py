"""Copies that put operands into the order that a batched product takes, and one that is none.

A library product wants the batch axes first and the summed axes together; where a program has them
elsewhere (heads behind the sequence), XLA transposes the operand, in one kernel with what made it
where that is elementwise. A window that is turned around before a convolution is read backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.cost.hlo import numbers
from predictor.graph.ir import OpNode


def with_layouts(nodes: Sequence[OpNode]) -> list[OpNode]:
    """The nodes with a transpose before every product whose operand is out of order."""
    found: list[OpNode] = []
    storage = max(
        (s.storage_id for n in nodes for s in (*n.inputs, *n.outputs)), default=0
    )  # fmt: skip
    turned: dict[int, OpNode] = {}
    for node in nodes:
        if node.op == "stablehlo.reverse":
            turned[node.outputs[0].storage_id] = node
        if node.op == "stablehlo.convolution" and node.inputs[1].storage_id in turned:
            kernel = turned[node.inputs[1].storage_id].inputs[0]
            attrs = {**node.attrs, "reversed_kernel": True}
            found.append(replace(node, inputs=(node.inputs[0], kernel), attrs=attrs))
            continue
        if node.op != "stablehlo.dot_general" or not numbers(node, "lhs_batch"):
            found.append(node)
            continue
        inputs = list(node.inputs)
        for place, side in enumerate(("lhs", "rhs")):
            spec = node.inputs[place]
            if _in_order(
                spec.shape, numbers(node, f"{side}_batch"), numbers(node, f"{side}_contract")
            ):
                continue
            storage += 1
            inputs[place] = replace(
                spec, storage_id=storage, role="activation",
                storage_bytes=max(spec.touched_bytes, spec.storage_bytes),
            )  # fmt: skip
            loop = {name: node.attrs[name] for name in ("trips", "loop") if name in node.attrs}
            found.append(
                replace(
                    node,
                    op="stablehlo.transpose",
                    inputs=(spec,),
                    outputs=(inputs[place],),
                    attrs={"permutation": [], **loop},
                )
            )
        found.append(replace(node, inputs=tuple(inputs)))
    return found


def _in_order(shape: Sequence[int], batch: Sequence[int], contract: Sequence[int]) -> bool:
    """Whether the batch axes come first and the summed axes stand together, at one end."""
    long = [i for i in range(len(shape)) if shape[i] > 1]
    first = [i for i in long if i in batch]
    rest = [i for i in long if i not in batch]
    if long[: len(first)] != first or first != [i for i in batch if shape[i] > 1]:
        return False
    summed = [i for i in contract if shape[i] > 1]
    return rest[: len(summed)] == summed or rest[len(rest) - len(summed) :] == summed
