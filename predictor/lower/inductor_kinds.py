"""Which recipe each call follows."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.graph.ir import OpNode
from predictor.graph.ops import OPS
from predictor.lower.aten_table import find, packet
from predictor.lower.draft import Draft
from predictor.lower.inductor_rules import BY_NAME, RECIPES, Recipe

NEEDS_STORED: frozenset[Recipe] = frozenset({"library", "convolution", "scattering", "pooling"})
"""Recipes whose operands must be stored tensors."""
_NORMS = frozenset({"native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
                    "_batch_norm_with_update", "batch_norm", "miopen_batch_norm"})  # fmt: skip


def recipe_of(node: OpNode, drafts: Sequence[Draft]) -> Recipe:
    """The recipe of a call that launches something."""
    name = packet(node.op)
    if name in BY_NAME:
        return BY_NAME[name]
    if name in _NORMS and node.attrs.get("training") is False:
        return "scaled"
    row = find(node.op)
    op = drafts[0].op if row is None else row[0]
    if op in RECIPES:
        return RECIPES[op]
    pointwise = OPS[op].op_class in ("elementwise", "copy") and "foreach" not in name
    return "pointwise" if pointwise else "library"
