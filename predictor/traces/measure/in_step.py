"""Which profiled call is which captured call: the two sequences are laid side by side.

A captured step and a profiled one make the same calls in the same order, up to what a device does
in its own way: it may split a call (dropout on a CPU), fuse calls, or make some of its own. Calls
are matched in order by name and shapes of operands, and what has no partner is counted on either
side. A call that capture keeps whole (attention, a recurrent layer) and a device takes apart in the
backward pass is found by the numbers that its forward calls share with their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from predictor.graph.ir import Kernel, KernelGraph, OpGraph, OpNode
from predictor.lower.aten_table import MAYBE_COPY, find, launches_nothing, packet
from predictor.lower.eager import lower_eager
from predictor.traces.measure.profiled import CallNode

WHOLE: Mapping[str, tuple[str, ...]] = {
    "predictor.sdpa": ("scaled_dot_product_attention",),
    "predictor.rnn": ("lstm", "gru", "rnn_tanh", "rnn_relu"),
    "aten.native_dropout": ("native_dropout", "dropout"),
    "aten._fused_rms_norm": ("rms_norm", "_fused_rms_norm"),
    "aten.softmax": ("softmax", "_softmax"),
    "aten.addmm": ("addmm", "linear"),
}
"""Names that a device's call may have where they are not the captured call's own."""
BACKWARD_OF: Mapping[str, str] = {
    "predictor.sdpa_backward": "predictor.sdpa",
    "predictor.rnn_backward": "predictor.rnn",
    "aten.native_dropout_backward": "aten.native_dropout",
    "aten._fused_rms_norm_backward": "aten._fused_rms_norm",
}
"""Gradients that are found through the forward call they belong to."""
OPTIMIZERS = ("predictor.adamw", "predictor.sgd", "predictor.optimizer_other")
_GRADIENT = "autograd::engine::evaluate_function"
_UPDATE = "Optimizer.step#"


@dataclass(slots=True, kw_only=True)
class Captured:
    """One captured call that launches something, and its kernels."""

    node: OpNode
    kernels: tuple[Kernel, ...]
    calls: list[CallNode] = field(default_factory=list)
    """The profiled calls that did its work."""


@dataclass(slots=True, kw_only=True)
class Joined:
    """A captured step beside a profiled one."""

    captured: list[Captured]
    unmatched: list[CallNode]
    """Profiled calls that compute and belong to no captured one."""


def captured_calls(graph: OpGraph, kernels: KernelGraph) -> list[Captured]:
    """The calls of a captured step that launch something, in order."""
    known: dict[tuple[object, ...], tuple[Kernel, ...]] = {}
    found: list[Captured] = []
    for node in graph.nodes:
        alone = replace(node, deps=())
        key = (node.op, node.phase, node.inputs, node.outputs, repr(sorted(node.attrs.items())))
        if key not in known:
            known[key] = lower_eager(replace(graph, nodes=(alone,)), allow_opaque=True).kernels
        own = tuple(replace(k, module=node.module) for k in known[key])
        if own:
            found.append(Captured(node=node, kernels=own))
    assert sum(len(c.kernels) for c in found) == len(kernels.kernels)
    return found


def joined(captured: Sequence[Captured], step: CallNode) -> Joined:
    """Lay a profiled step beside captured calls.

    Args:
        captured: of the same program; their `calls` are filled.
        step: with shapes.
    """
    for one in captured:
        one.calls.clear()
    for phase in ("forward", "backward", "optimizer"):
        inside = [c for root in step.inside if root.phase == phase for c in root.every()]
        own = [c for c in captured if c.node.phase == phase]
        if phase == "backward":
            _join_gradients(captured, own, inside)
        _join_in_order([c for c in own if not c.calls], _free(inside, captured))
        for update in (c for c in own if c.node.op in OPTIMIZERS):
            update.calls.extend(c for c in inside if c.name.startswith(_UPDATE))
    taken = {id(call) for one in captured for call in one.calls}
    return Joined(captured=list(captured), unmatched=_unmatched(step, taken))


def _join_gradients(
    captured: Sequence[Captured], own: Sequence[Captured], inside: Sequence[CallNode]
) -> None:
    """Find the gradients of `BACKWARD_OF` by the sequence numbers of their forward calls."""
    by_number: dict[int, list[CallNode]] = {}
    for call in inside:
        if call.name.startswith(_GRADIENT) and call.sequence >= 0:
            by_number.setdefault(call.sequence, []).append(call)
    for op, forward_op in BACKWARD_OF.items():
        forwards = [c for c in captured if c.node.op == forward_op and c.calls]
        for gradient in (c for c in own if c.node.op == op):
            partner = next(
                (c for c in reversed(forwards) if c.node.module == gradient.node.module), None
            )
            if partner is None:
                continue
            forwards.remove(partner)
            numbers = {c.sequence for call in partner.calls for c in call.every()} - {-1}
            for number in sorted(numbers, reverse=True):
                gradient.calls.extend(by_number.pop(number, ()))


def _free(inside: Sequence[CallNode], captured: Sequence[Captured]) -> list[CallNode]:
    """Calls that are neither taken nor inside a taken one."""
    taken = {id(c) for one in captured for call in one.calls for c in call.every()}
    return [c for c in inside if id(c) not in taken]


def _join_in_order(own: Sequence[Captured], calls: Sequence[CallNode]) -> None:
    """Longest common subsequence by name; equal shapes count more."""
    wanted = [_names(c.node.op) for c in own]
    every = frozenset[str]().union(*wanted) if wanted else frozenset()
    calls = [c for c in calls if _packet(c) in every]
    if not own or not calls:
        return
    names = np.array([_packet(c) for c in calls])
    known: dict[tuple[tuple[int, ...], ...], int] = {}
    theirs = np.array([known.setdefault(tuple(sorted(c.shapes)), len(known)) for c in calls])
    score = np.zeros((len(own), len(calls)), dtype=np.int32)
    for i, (one, allowed) in enumerate(zip(own, wanted, strict=True)):
        shapes = tuple(sorted(s.shape for s in one.node.inputs if s.shape))
        same = theirs == known.get(shapes, -1)
        score[i] = np.where(np.isin(names, list(allowed)), np.where(same, 3, 1), 0)
    used: set[int] = set()
    for i, j in _alignment(score):
        inner = {id(c) for c in calls[j].every()}
        if inner & used:
            continue
        used |= inner
        own[i].calls.append(calls[j])


def _alignment(score: np.ndarray) -> list[tuple[int, int]]:
    """Pairs (i, j), both rising, of the largest total score."""
    n, m = score.shape
    best = np.zeros((n + 1, m + 1), dtype=np.int32)
    for i in range(n):
        row = np.maximum(best[i, 1:], np.where(score[i] > 0, best[i, :-1] + score[i], 0))
        best[i + 1, 1:] = np.maximum.accumulate(row)
    pairs: list[tuple[int, int]] = []
    i, j = n, m
    while i > 0 and j > 0:
        if best[i, j] == best[i, j - 1]:
            j -= 1
        elif score[i - 1, j - 1] > 0 and best[i, j] == best[i - 1, j - 1] + score[i - 1, j - 1]:
            pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        else:
            i -= 1
    return pairs[::-1]


def _unmatched(call: CallNode, taken: set[int]) -> list[CallNode]:
    """Calls that compute and neither are taken, nor hold a taken one, nor stand inside one."""
    if id(call) in taken:
        return []
    held = any(id(c) in taken for c in call.every())
    if not held and call.name.startswith("aten::") and _computes(call):
        return [call]
    return [found for inner in call.inside for found in _unmatched(inner, taken)]


def _computes(call: CallNode) -> bool:
    """Whether a call is one that launches; what may be a view as well shows a copy inside."""
    op = "aten." + call.name.removeprefix("aten::")
    return find(op) is not None and not launches_nothing(op) and packet(op) not in MAYBE_COPY


def _names(op: str) -> frozenset[str]:
    own = frozenset({packet(op)}) if op.startswith("aten.") else frozenset()
    return own | frozenset(WHOLE.get(op, ()))


def _packet(call: CallNode) -> str:
    return packet(call.name.replace("::", ".")) if call.name.startswith("aten::") else ""
