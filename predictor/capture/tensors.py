"""The tensors that a program touched, by storage; none of them is held.

Identity is the storage, watched through weak references: addresses are never reused while the
capture lasts, and autograd's own reference counting is undisturbed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from predictor.capture.specs import dtype_name, layout_of, touched_bytes
from predictor.graph.ir import Layout, Role, TensorSpec


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor as seen, before its role is known."""

    shape: tuple[int, ...]
    dtype: str
    sid: int
    storage_bytes: int
    touched: int
    layout: Layout


@dataclass(slots=True)
class TensorTable:
    """Rows of distinct (storage, offset, shape, strides, dtype), numbered in order of sight."""

    rows: list[Row] = field(default_factory=list)
    _row_ids: dict[tuple[object, ...], int] = field(default_factory=dict)
    _sids: dict[int, int] = field(default_factory=dict)
    _watched: list[object] = field(default_factory=list)
    _roles: dict[int, Role] = field(default_factory=dict)

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
        row = Row(
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
        return self._add_row(key, Row(tuple(tensor.shape), name, sid, size, size, "strided"))

    def _add_row(self, key: tuple[object, ...], row: Row) -> int:
        index = self._row_ids[key] = len(self.rows)
        self.rows.append(row)
        return index

    def set_role(self, tensor: torch.Tensor, role: Role) -> None:
        """Give the tensor's storage a role; the first role given to a storage stays."""
        self._roles.setdefault(self.rows[self.row(tensor)].sid, role)

    def row_of_part(self, parameter: torch.Tensor, count: int) -> int:
        """Row of `count` leading rows of a parameter, counted as if distinct."""
        whole = self.rows[self.row(parameter)]
        shape = (count, *whole.shape[1:])
        touched = math.prod(shape) * parameter.itemsize
        row = replace(whole, shape=shape, touched=min(touched, whole.storage_bytes))
        return self._add_row(("rows", whole.sid, count), row)

    def specs(self) -> list[TensorSpec]:
        """The rows as graph records, with the roles known by now."""
        return [
            TensorSpec(
                shape=r.shape,
                dtype=r.dtype,
                storage_id=r.sid,
                storage_bytes=r.storage_bytes,
                touched_bytes=r.touched,
                role=self._roles.get(r.sid, "activation"),
                layout=r.layout,
            )
            for r in self.rows
        ]


def sparse_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the index and value arrays behind a sparse tensor."""
    if tensor.layout is torch.sparse_coo:
        parts = (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())  # type: ignore[assignment]
    else:
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())  # type: ignore[assignment]
    return sum(p.numel() * p.itemsize for p in parts)
