"""The calls behind device events: which op launched what, in which phase.

An event leads to the runtime call with its correlation id, that to the innermost op around it on
its thread; where no runtime call is recorded, the event's external id names the op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from predictor.capture.kineto import RecordedCall
from predictor.graph.ir import PHASES, Phase
from predictor.traces.kineto.activity import HOST, Activity
from predictor.traces.kineto.events import ABSENT, Detail
from predictor.traces.kineto.op_tree import OpTree, op_tree
from predictor.traces.kineto.trace import Trace

_BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::")
_OPTIMIZER = "Optimizer."
Longs = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class HostCalls:
    """Ops of a trace and what each launched on one device; N ops, M device events."""

    tree: OpTree
    phases: NDArray[np.int8]
    """(N,) index into `PHASES`."""
    op_of_event: Longs
    """(M,) the op that launched a device event, -1 without: replays of captured graphs, and calls
    outside of ops."""
    recorded: Mapping[int, RecordedCall] = field(default_factory=dict)
    """Calls that are better known than the trace tells, by their place in the file."""
    _launched: Groups
    _children: Groups

    def name(self, op: int) -> str:
        """The op's name."""
        return self.tree.events.name_of(op)

    def row(self, op: int) -> int:
        """The op's place in the file."""
        return int(self.tree.events["row"][op])

    def call(self, op: int) -> RecordedCall:
        """The op's call as it was recorded."""
        known = self.recorded.get(self.row(op))
        if known is not None:
            return known
        return recorded_call(self.name(op), self.tree.events.detail_of(op))

    def phase(self, op: int) -> Phase:
        """Phase that an op ran in."""
        return PHASES[int(self.phases[op])]

    def phase_of_event(self, event: int) -> Phase:
        """Phase of the op that launched a device event; forward without."""
        op = int(self.op_of_event[event])
        return "forward" if op == ABSENT else self.phase(op)

    def launched(self, op: int) -> list[int]:
        """Device events that an op launched itself, in order."""
        return self._launched.members(op)

    def children(self, op: int) -> list[int]:
        """Ops directly inside an op that launched something, themselves or further inside."""
        return self._children.members(op)

    def outermost(self) -> Longs:
        """Ops in no other op that launched something, themselves or further inside."""
        return self._children.slice_of(ABSENT)

    def launching_inside(self, op: int) -> list[int]:
        """Ops that launched something inside an op, itself included, in order of their start."""
        found, waiting = [], [op]
        while waiting:
            current = waiting.pop()
            if self._launched.has(current):
                found.append(current)
            waiting.extend(self._children.members(current))
        return sorted(found)


@dataclass(slots=True)
class Groups:
    """Numbers by the number that they belong to."""

    owners: Longs
    """Sorted."""
    items: Longs
    """Beside them, in order within an owner."""

    def slice_of(self, owner: int) -> Longs:
        """Numbers of an owner."""
        low, high = np.searchsorted(self.owners, (owner, owner + 1))
        return self.items[low:high]

    def members(self, owner: int) -> list[int]:
        """The same as a list."""
        found: list[int] = self.slice_of(owner).tolist()
        return found

    def has(self, owner: int) -> bool:
        """Whether an owner has any."""
        place = int(np.searchsorted(self.owners, owner))
        return place < len(self.owners) and bool(self.owners[place] == owner)


def _grouped(owner: Longs, items: Longs) -> Groups:
    order = np.argsort(owner, kind="stable")
    return Groups(owner[order], items[order])


def host_calls(trace: Trace, activity: Activity) -> HostCalls:
    """The calls behind the events of one device; on a host all ops are asked."""
    tree = op_tree(trace.ops)
    if activity.device == HOST:
        op = np.full(len(activity), ABSENT, dtype=np.int64)
        busy = np.ones(len(tree.events), dtype=bool)
    else:
        op = _op_of(activity, tree)
        busy = np.zeros(len(tree.events), dtype=bool)
        current = np.unique(op[op != ABSENT])
        while len(current):
            busy[current] = True
            above = np.unique(tree.parent[current])
            current = above[(above != ABSENT) & ~busy[np.maximum(above, 0)]]
    launched = np.flatnonzero(op != ABSENT)
    inside = np.flatnonzero(busy)
    return HostCalls(
        tree=tree, phases=_phases(trace, tree), op_of_event=op,
        _launched=_grouped(op[launched], launched),
        _children=_grouped(tree.parent[inside], inside),
    )  # fmt: skip


def _op_of(activity: Activity, tree: OpTree) -> Longs:
    """Index of the op that launched each device event, -1 without."""
    found = np.full(len(activity), ABSENT, dtype=np.int64)
    known = (activity.launch != ABSENT) & ~activity.replayed
    calls = activity.launch[known]
    found[known] = tree.innermost(
        activity.launches["lane"][calls], activity.launches["ts_ns"][calls]
    )
    left = np.flatnonzero((activity.launch == ABSENT) & (activity.events["external"] >= 0))
    if len(left) and len(tree.events):
        ids = tree.events["external"]
        order = np.argsort(ids, kind="stable")
        asked = activity.events["external"][left]
        place = np.minimum(np.searchsorted(ids[order], asked), len(ids) - 1)
        same = (ids[order][place] == asked) & (asked != activity.events["link"][left])
        found[left[same]] = order[place[same]]
    return found


def _phases(trace: Trace, tree: OpTree) -> NDArray[np.int8]:
    names = tree.events.names
    marks = np.array([name.startswith(_BACKWARD) for name in names], dtype=bool)
    backward = tree.ancestors_where(marks[tree.events["name"]])
    optimizer = np.zeros(len(tree.events), dtype=bool)
    spans = trace.annotations
    of_optimizer = [name.startswith(_OPTIMIZER) for name in spans.names]
    for i, name in enumerate(spans["name"]):
        if of_optimizer[name]:
            start, end = int(spans["ts_ns"][i]), int(spans.end_ns[i])
            low, high = np.searchsorted(tree.events["ts_ns"], (start, end))
            optimizer[low:high] |= tree.events["lane"][low:high] == spans["lane"][i]
    found = np.where(backward, PHASES.index("backward"), PHASES.index("forward"))
    return np.where(optimizer, PHASES.index("optimizer"), found).astype(np.int8)


def recorded_call(name: str, detail: Detail | None) -> RecordedCall:
    """An op's call as it was recorded."""
    if detail is None or not isinstance(detail.dims, list):
        return RecordedCall(name=name)
    return RecordedCall(
        name=name, dims=_frozen(detail.dims), types=detail.types,
        strides=_frozen(detail.strides) if isinstance(detail.strides, list) else None,
        concrete=_frozen(detail.concrete) if isinstance(detail.concrete, list) else None,
    )  # fmt: skip


def _frozen(value: list[object]) -> tuple[object, ...]:
    return tuple(
        _frozen(v) if isinstance(v, list) else repr(v) if isinstance(v, dict) else v for v in value
    )
