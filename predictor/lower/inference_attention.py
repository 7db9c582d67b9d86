"""Attention that a program writes out: product, scale, mask, softmax, product."""

from __future__ import annotations

from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.aten_table import packet
from predictor.lower.inference_groups import Groups

_BETWEEN: frozenset[str] = frozenset(
    {"mul", "div", "add", "where", "masked_fill", "_to_copy", "sub"}
)
"""Calls between the scores and their softmax, and behind it."""


def attention(groups: Groups) -> None:
    """Join every attention that is written out."""
    for number, node in enumerate(groups.all):
        if packet(node.op) == "_softmax" and groups.free(number):
            _join(groups, number)


def _join(groups: Groups, number: int) -> None:
    softmax = groups.all[number]
    shape = softmax.outputs[0].shape
    before = _before(groups, softmax.inputs[0])
    after = _after(groups, softmax.outputs[0])
    if before is None or after is None or len(shape) < 3:
        return
    scores, between = before
    weighted, behind = after
    first, second = groups.all[scores], groups.all[weighted]
    query, key = first.inputs[0], first.inputs[1]
    value = second.inputs[1]
    if query.shape[-1] != key.shape[-2] or value.shape[-2] != shape[-1]:
        return
    members = [scores, *between, number, *behind, weighted]
    inner = {s.storage_id for m in members for s in groups.all[m].outputs}
    masks: dict[int, TensorSpec] = {}
    for member in (*between, *behind):
        for spec in groups.all[member].inputs:
            if spec.storage_id not in inner and spec.numel > 1:
                masks[spec.storage_id] = spec
    heads = shape[-3]
    batch = first.outputs[0].numel // max(1, heads * shape[-2] * shape[-1])
    attrs: dict[str, object] = {
        "batch": batch, "heads": heads, "kv_heads": heads, "q_len": shape[-2],
        "kv_len": shape[-1], "head_dim": query.shape[-1], "v_head_dim": value.shape[-1],
        "causal": False, "dropout_p": 0.0, "has_mask": bool(masks),
    }  # fmt: skip
    made = OpNode(
        op="predictor.sdpa", phase=softmax.phase, inputs=(query, key, value, *masks.values()),
        outputs=second.outputs, attrs=attrs, module=softmax.module,
    )  # fmt: skip
    groups.join(sorted(members), made)


def _before(groups: Groups, spec: TensorSpec) -> tuple[int, list[int]] | None:
    """The product that the scores come from, and the calls between."""
    between: list[int] = []
    for _ in range(6):
        number = groups.maker(spec)
        if number is None or groups.only_reader(spec) is None:
            return None
        node = groups.all[number]
        if packet(node.op) in ("bmm", "baddbmm"):
            return number, between
        if packet(node.op) not in _BETWEEN:
            return None
        between.append(number)
        whole = node.outputs[0].numel
        full = [s for s in node.inputs if s.numel == whole and groups.maker(s) is not None]
        if not full:
            return None
        spec = full[0]
    return None


def _after(groups: Groups, spec: TensorSpec) -> tuple[int, list[int]] | None:
    """The product with the values, and the calls between."""
    behind: list[int] = []
    for _ in range(4):
        number = groups.only_reader(spec)
        if number is None:
            return None
        node = groups.all[number]
        if packet(node.op) == "bmm":
            return (number, behind) if node.inputs[0].storage_id == spec.storage_id else None
        if packet(node.op) not in _BETWEEN:
            return None
        behind.append(number)
        spec = node.outputs[0]
    return None
