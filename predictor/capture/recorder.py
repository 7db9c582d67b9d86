"""The recorder: what was called, on which tensors, in which phase, by which module."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from predictor.capture.tensors import TensorTable
from predictor.errors import CaptureError
from predictor.graph.ir import OpNode, Phase

current_autograd_node = torch._C._current_autograd_node
sequence_nr = torch._C._autograd._get_sequence_nr


@dataclass(slots=True)
class _RawNode:
    op: str
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, object]
    deps: tuple[int, ...]
    module: str


@dataclass(slots=True)
class Recorder:
    """Collects raw nodes; `nodes()` turns them into graph records."""

    tensors: TensorTable = field(default_factory=TensorTable)
    optimizing: bool = False
    """True while an optimizer step is running."""
    differentiating: bool = False
    """True while a program that holds its own backward runs it."""
    module_stack: list[str] = field(default_factory=list)
    most: int | None = None
    """Nodes that a program which is not trusted may make; None: no limit."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about the capture."""
    _nodes: list[_RawNode] = field(default_factory=list)
    _last_writer: dict[int, int] = field(default_factory=dict)
    _view_node: dict[int, int] = field(default_factory=dict)
    _sparse_gradients: dict[int, list[int]] = field(default_factory=dict)
    _sequence_marks: list[int] = field(default_factory=list)
    _sequence_modules: list[str] = field(default_factory=list)
    _paused: int = 0

    # -- modules and phases ---------------------------------------------------------------------

    def mark_module(self) -> None:
        """Note which autograd nodes belong to which module: called where the module changes."""
        self._sequence_marks.append(sequence_nr())
        self._sequence_modules.append(self.module_stack[-1] if self.module_stack else "")

    def _here(self) -> tuple[Phase, str]:
        if self.optimizing:
            return "optimizer", ""
        if self.differentiating:
            return "backward", self.module_stack[-1] if self.module_stack else ""
        node = current_autograd_node()
        if node is None or torch.is_grad_enabled():  # grad mode inside backward: a recomputation
            module = self.module_stack[-1] if self.module_stack else ""
            return ("forward" if node is None else "backward"), module
        at = bisect.bisect_right(self._sequence_marks, node._sequence_nr()) - 1
        return "backward", self._sequence_modules[at] if at >= 0 else ""

    @property
    def in_backward(self) -> bool:
        """Whether autograd is running and this is not a recomputation of the forward."""
        return current_autograd_node() is not None and not torch.is_grad_enabled()

    # -- recording ------------------------------------------------------------------------------

    def pause(self) -> _Pause:
        """Context in which nothing is recorded."""
        return _Pause(self)

    @property
    def paused(self) -> bool:
        """Whether recording is off."""
        return self._paused > 0

    @property
    def op_count(self) -> int:
        """Nodes recorded so far."""
        return len(self._nodes)

    def record(
        self,
        op: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        attrs: dict[str, object],
        writes: Sequence[torch.Tensor] = (),
    ) -> None:
        """Append a node; `writes` are the inputs that the op changes in place."""
        index = len(self._nodes)
        if self.most is not None and index >= self.most:
            raise CaptureError(f"the program makes more than {self.most:,} calls: it is damaged")
        ins = tuple([self.tensors.row(t) for t in inputs])
        outs = tuple([self.tensors.row(t) for t in outputs])
        deps = self._dependencies(ins)
        written = {self.tensors.storage_id(t) for t in writes}
        read = {self.tensors.rows[i].sid for i in ins}
        is_view = bool(outs) and not written and all(self.tensors.rows[o].sid in read for o in outs)
        if is_view:
            attrs["view"] = True
            for out in outs:
                self._view_node[out] = index
        else:
            for sid in written.union(self.tensors.rows[o].sid for o in outs):
                self._last_writer[sid] = index
        phase, module = self._here()
        self._nodes.append(_RawNode(op, phase, ins, outs, attrs, deps, module))

    def add_sparse_gradient(self, parameter: torch.Tensor, values: torch.Tensor) -> None:
        """A parameter got a gradient that holds `values` rows only (duplicates included)."""
        sid = self.tensors.storage_id(parameter)
        self._sparse_gradients.setdefault(sid, []).append(self.tensors.row(values))

    def sparse_gradient_rows(self, parameter: torch.Tensor) -> int:
        """Rows in the sparse gradient of a parameter, 0 when it has none."""
        found = self._sparse_gradients.get(self.tensors.storage_id(parameter), [])
        return sum(self.tensors.rows[r].shape[0] for r in found)

    def record_optimizer(
        self,
        op: str,
        parameters: Sequence[torch.Tensor],
        attrs: dict[str, object],
    ) -> None:
        """Append the optimizer's composite node: inputs are parameters, edges are gradients.

        A parameter with a sparse gradient appears as the rows that the update touches.
        """
        index = len(self._nodes)
        ins: list[int] = []
        grads: list[int] = []
        for parameter in parameters:
            rows = self.sparse_gradient_rows(parameter)
            ins.append(
                self.tensors.row_of_part(parameter, rows) if rows else self.tensors.row(parameter)
            )
            if parameter.grad is not None:
                grads.append(self.tensors.row(parameter.grad))
            grads.extend(self._sparse_gradients.get(self.tensors.storage_id(parameter), ()))
        deps = self._dependencies([*ins, *grads])
        for row in ins:
            self._last_writer[self.tensors.rows[row].sid] = index
        self._nodes.append(_RawNode(op, "optimizer", tuple(ins), (), attrs, deps, ""))

    def _dependencies(self, rows: Sequence[int]) -> tuple[int, ...]:
        deps: set[int] = set()
        for row in rows:
            writer = self._last_writer.get(self.tensors.rows[row].sid, -1)
            latest = max(writer, self._view_node.get(row, -1))
            if latest >= 0:
                deps.add(latest)
        return tuple(sorted(deps))

    # -- result ---------------------------------------------------------------------------------

    def nodes(self) -> tuple[OpNode, ...]:
        """All nodes as graph records."""
        specs = self.tensors.specs()
        tail = self._after_backward()
        return tuple(
            OpNode(
                op=n.op,
                phase=self._phase(i, tail),
                inputs=tuple([specs[k] for k in n.inputs]),
                outputs=tuple([specs[k] for k in n.outputs]),
                attrs=n.attrs,
                deps=n.deps,
                module=n.module,
            )
            for i, n in enumerate(self._nodes)
        )

    def _phase(self, index: int, tail: int) -> Phase:
        node = self._nodes[index]
        if node.phase != "forward":
            return node.phase
        if index >= tail:
            return "optimizer"
        follower = self._nodes[index + 1].phase if index + 1 < len(self._nodes) else ""
        seeds = node.op == "aten.ones_like" and follower == "backward"
        return "backward" if seeds else "forward"

    def _after_backward(self) -> int:
        """Index after the last backward node: what follows prepares the update (clipping)."""
        for index in range(len(self._nodes) - 1, -1, -1):
            if self._nodes[index].phase == "backward":
                return index + 1
        return len(self._nodes)


@dataclass(slots=True)
class _Pause:
    recorder: Recorder

    def __enter__(self) -> None:
        self.recorder._paused += 1

    def __exit__(self, *exc: object) -> None:
        self.recorder._paused -= 1
