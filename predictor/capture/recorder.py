"""The recorder: what was called, on which storages, in which phase, by which module.

It holds no tensor: identity is the storage, watched through weak references so that addresses
are never reused while the capture lasts and autograd's own reference counting is undisturbed.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from predictor.capture.specs import dtype_name, layout_of, touched_bytes
from predictor.graph.ir import Layout, OpNode, Phase, Role, TensorSpec

current_autograd_node = torch._C._current_autograd_node
sequence_nr = torch._C._autograd._get_sequence_nr


@dataclass(frozen=True, slots=True)
class _Row:
    """A tensor as seen, before its role is known."""

    shape: tuple[int, ...]
    dtype: str
    sid: int
    storage_bytes: int
    touched: int
    layout: Layout


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

    optimizing: bool = False
    """True while an optimizer step is running."""
    module_stack: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the user should know about the capture."""
    _rows: list[_Row] = field(default_factory=list)
    _row_ids: dict[tuple[object, ...], int] = field(default_factory=dict)
    _nodes: list[_RawNode] = field(default_factory=list)
    _sids: dict[int, int] = field(default_factory=dict)
    _watched: list[object] = field(default_factory=list)
    _roles: dict[int, Role] = field(default_factory=dict)
    _last_writer: dict[int, int] = field(default_factory=dict)
    _view_node: dict[int, int] = field(default_factory=dict)
    _sparse_gradients: dict[int, list[int]] = field(default_factory=dict)
    _sequence_marks: list[int] = field(default_factory=list)
    _sequence_modules: list[str] = field(default_factory=list)
    _paused: int = 0

    # -- identity -------------------------------------------------------------------------------

    def storage_id(self, tensor: torch.Tensor) -> int:
        """Small stable integer of the storage behind a dense tensor."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        sid = self._sids.get(key)
        if sid is None:
            sid = self._sids[key] = len(self._sids)
            self._watched.append(StorageWeakRef(storage))
        return sid

    def row(self, tensor: torch.Tensor) -> int:
        """Index of the tensor's row, created at first sight."""
        if tensor.layout is not torch.strided:
            return self._sparse_row(tensor)
        storage = tensor.untyped_storage()
        cdata = storage._cdata
        key = (cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        found = self._row_ids.get(key)
        if found is not None:
            return found
        shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
        row = _Row(
            shape,
            dtype,
            self.storage_id(tensor),
            storage.nbytes(),
            touched_bytes(shape, tensor.stride(), tensor.itemsize),
            layout_of(tensor),
        )
        return self._add_row(key, row)

    def _sparse_row(self, tensor: torch.Tensor) -> int:
        key = ("sparse", id(tensor))
        found = self._row_ids.get(key)
        if found is not None:
            return found
        self._watched.append(tensor)  # keeps the id from being reused
        size = sparse_bytes(tensor)
        sid = self._sids[-1 - len(self._sids)] = len(self._sids)
        name = dtype_name(tensor.dtype)
        return self._add_row(key, _Row(tuple(tensor.shape), name, sid, size, size, "strided"))

    def _add_row(self, key: tuple[object, ...], row: _Row) -> int:
        index = self._row_ids[key] = len(self._rows)
        self._rows.append(row)
        return index

    def set_role(self, tensor: torch.Tensor, role: Role) -> None:
        """Give the tensor's storage a role; the first role given to a storage stays."""
        self._roles.setdefault(self._rows[self.row(tensor)].sid, role)

    # -- modules and phases ---------------------------------------------------------------------

    def mark_module(self) -> None:
        """Note which autograd nodes belong to which module: called where the module changes."""
        self._sequence_marks.append(sequence_nr())
        self._sequence_modules.append(self.module_stack[-1] if self.module_stack else "")

    def _here(self) -> tuple[Phase, str]:
        if self.optimizing:
            return "optimizer", ""
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
        ins = tuple([self.row(t) for t in inputs])
        outs = tuple([self.row(t) for t in outputs])
        deps = self._dependencies(ins)
        written = {self._rows[self.row(t)].sid for t in writes}
        read = {self._rows[i].sid for i in ins}
        is_view = bool(outs) and not written and all(self._rows[o].sid in read for o in outs)
        if is_view:
            attrs["view"] = True
            for out in outs:
                self._view_node[out] = index
        else:
            for sid in written.union(self._rows[o].sid for o in outs):
                self._last_writer[sid] = index
        phase, module = self._here()
        self._nodes.append(_RawNode(op, phase, ins, outs, attrs, deps, module))

    def add_sparse_gradient(self, parameter: torch.Tensor, values: torch.Tensor) -> None:
        """A parameter got a gradient that holds `values` rows only (duplicates included)."""
        sid = self.storage_id(parameter)
        self._sparse_gradients.setdefault(sid, []).append(self.row(values))

    def sparse_gradient_rows(self, parameter: torch.Tensor) -> int:
        """Rows in the sparse gradient of a parameter, 0 when it has none."""
        found = self._sparse_gradients.get(self.storage_id(parameter), [])
        return sum(self._rows[r].shape[0] for r in found)

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
            ins.append(self._rows_of(parameter, rows) if rows else self.row(parameter))
            if parameter.grad is not None:
                grads.append(self.row(parameter.grad))
            grads.extend(self._sparse_gradients.get(self.storage_id(parameter), ()))
        deps = self._dependencies([*ins, *grads])
        for row in ins:
            self._last_writer[self._rows[row].sid] = index
        self._nodes.append(_RawNode(op, "optimizer", tuple(ins), (), attrs, deps, ""))

    def _rows_of(self, parameter: torch.Tensor, count: int) -> int:
        whole = self._rows[self.row(parameter)]
        shape = (count, *whole.shape[1:])
        touched = math.prod(shape) * parameter.itemsize
        row = replace(whole, shape=shape, touched=min(touched, whole.storage_bytes))
        return self._add_row(("rows", whole.sid, count), row)

    def _dependencies(self, rows: Sequence[int]) -> tuple[int, ...]:
        deps: set[int] = set()
        for row in rows:
            writer = self._last_writer.get(self._rows[row].sid, -1)
            latest = max(writer, self._view_node.get(row, -1))
            if latest >= 0:
                deps.add(latest)
        return tuple(sorted(deps))

    # -- result ---------------------------------------------------------------------------------

    def nodes(self) -> tuple[OpNode, ...]:
        """All nodes as graph records."""
        specs = [
            TensorSpec(
                shape=r.shape,
                dtype=r.dtype,
                storage_id=r.sid,
                storage_bytes=r.storage_bytes,
                touched_bytes=r.touched,
                role=self._roles.get(r.sid, "activation"),
                layout=r.layout,
            )
            for r in self._rows
        ]
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

    def roles(self) -> Mapping[int, Role]:
        """Role of each storage that has one."""
        return self._roles


@dataclass(slots=True)
class _Pause:
    recorder: Recorder

    def __enter__(self) -> None:
        self.recorder._paused += 1

    def __exit__(self, *exc: object) -> None:
        self.recorder._paused -= 1


def sparse_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the index and value arrays behind a sparse tensor."""
    if tensor.layout is torch.sparse_coo:
        parts = (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())  # type: ignore[assignment]
    else:
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())  # type: ignore[assignment]
    return sum(p.numel() * p.itemsize for p in parts)
