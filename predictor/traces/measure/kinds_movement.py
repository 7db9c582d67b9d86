"""Kinds that move data: gather and scatter, copies, casts, transforms, host-device copies."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from predictor.traces.measure.cases import DTYPES, Case, Operand
from predictor.traces.measure.kinds import Sizes, kind, tensor
from predictor.traces.measure.timer import Call

aten = torch.ops.aten
_TABLE: dict[str, int | None] = {"rows": None, "cols": None, "table": None}
_ROWS: dict[str, int | None] = {"rows": None, "cols": None}
_NUMEL: dict[str, int | None] = {"numel": None}


def _index(below: int, *shape: int) -> Operand:
    return Operand(shape=shape, dtype="int64", fill="index", below=below)


@kind("embedding", _TABLE)
def embedding(s: Sizes, dtype: str) -> Case:
    """Rows of a table."""
    return Case(
        call=functional.embedding,
        operands=(_index(s["table"], s["rows"]), tensor(dtype, s["table"], s["cols"])),
        op="embedding",
    )


@kind("embedding_backward", _TABLE)
def embedding_backward(s: Sizes, dtype: str) -> Case:
    """Gradient of the whole table: zeros, many indices sorted (on CUDA), and the rows added."""
    table = s["table"]

    def call(grad: Tensor, index: Tensor) -> Any:
        return aten.embedding_dense_backward(grad, index, table, -1, False)

    grad = tensor(dtype, s["rows"], s["cols"])
    return Case(
        call=call, operands=(grad, _index(table, s["rows"])), op="embedding_backward",
        phase="backward", covers=("fill", "sort"),
    )  # fmt: skip


@kind("index_select", _TABLE)
def index_select(s: Sizes, dtype: str) -> Case:
    """Rows of a matrix."""
    table = tensor(dtype, s["table"], s["cols"])

    def call(table: Tensor, index: Tensor) -> Tensor:
        return torch.index_select(table, 0, index)

    return Case(call=call, operands=(table, _index(s["table"], s["rows"])), op="gather")


@kind("gather", _TABLE)
def gather(s: Sizes, dtype: str) -> Case:
    """One element of each column's choice."""

    def call(table: Tensor, index: Tensor) -> Tensor:
        return torch.gather(table, 0, index)

    table = tensor(dtype, s["table"], s["cols"])
    return Case(call=call, operands=(table, _index(s["table"], s["rows"], s["cols"])), op="gather")


@kind("index_add", _TABLE)
def index_add(s: Sizes, dtype: str) -> Case:
    """Rows added into a matrix, in place."""
    table = Operand(shape=(s["table"], s["cols"]), dtype=dtype, fill="state")

    def call(table: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        return table.index_add_(0, index, rows)

    rows = tensor(dtype, s["rows"], s["cols"])
    return Case(call=call, operands=(table, _index(s["table"], s["rows"]), rows), op="scatter")


@kind("scatter_add", _TABLE)
def scatter_add(s: Sizes, dtype: str) -> Case:
    """Elements added into a matrix, in place."""
    table = Operand(shape=(s["table"], s["cols"]), dtype=dtype, fill="state")

    def call(table: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        return table.scatter_add_(0, index, rows)

    rows = tensor(dtype, s["rows"], s["cols"])
    index = _index(s["table"], s["rows"], s["cols"])
    return Case(call=call, operands=(table, index, rows), op="scatter")


@kind("clone", _NUMEL)
def clone(s: Sizes, dtype: str) -> Case:
    """A copy."""
    return Case(call=torch.clone, operands=(tensor(dtype, s["numel"]),), op="copy")


@kind("cat", {"parts": 2, **_ROWS})
def cat(s: Sizes, dtype: str) -> Case:
    """Matrices beside each other."""

    def call(*parts: Tensor) -> Tensor:
        return torch.cat(parts, dim=-1)

    part = tensor(dtype, s["rows"], s["cols"])
    return Case(call=call, operands=(part,) * s["parts"], op="copy")


@kind("cat_rows", {"parts": 2, **_ROWS})
def cat_rows(s: Sizes, dtype: str) -> Case:
    """Matrices below each other."""

    def call(*parts: Tensor) -> Tensor:
        return torch.cat(parts)

    part = tensor(dtype, s["rows"], s["cols"])
    return Case(call=call, operands=(part,) * s["parts"], op="copy")


@kind("transpose", _ROWS)
def transpose(s: Sizes, dtype: str) -> Case:
    """A matrix written across."""

    def call(x: Tensor) -> Tensor:
        return x.t().contiguous()

    return Case(call=call, operands=(tensor(dtype, s["rows"], s["cols"]),), op="transpose")


@kind("split_heads", {"batch": None, "seq": None, "heads": None, "head_dim": None})
def split_heads(s: Sizes, dtype: str) -> Case:
    """`[batch, seq, heads, head_dim]` to `[batch, heads, seq, head_dim]`."""
    shape = (s["batch"], s["seq"], s["heads"], s["head_dim"])

    def call(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous()

    return Case(call=call, operands=(tensor(dtype, *shape),), op="transpose")


@kind("pad", _ROWS)
def pad(s: Sizes, dtype: str) -> Case:
    """A column of zeros on each side."""
    call = partial(functional.pad, pad=(1, 1))
    return Case(
        call=call, operands=(tensor(dtype, s["rows"], s["cols"]),), op="copy", covers=("fill",)
    )


@kind("to_fp32", _NUMEL, dtypes=("bf16", "fp16"))
def to_fp32(s: Sizes, dtype: str) -> Case:
    """A cast up."""
    return _cast(s, dtype, "fp32")


@kind("to_bf16", _NUMEL, dtypes=("fp32",))
def to_bf16(s: Sizes, dtype: str) -> Case:
    """A cast down."""
    return _cast(s, dtype, "bf16")


def _cast(s: Sizes, dtype: str, to: str) -> Case:
    def call(x: Tensor) -> Tensor:
        return x.to(DTYPES[to])

    return Case(call=call, operands=(tensor(dtype, s["numel"]),), op="cast")


@kind("fft", _ROWS, dtypes=("complex64",))
def fft(s: Sizes, dtype: str) -> Case:
    """A complex transform of each row."""
    return Case(call=torch.fft.fft, operands=(tensor(dtype, s["rows"], s["cols"]),), op="fft")


@kind("host_to_device", {"pinned": 1, **_NUMEL}, devices=("cuda",))
def host_to_device(s: Sizes, dtype: str) -> Case:
    """A copy from the host, from pinned or pageable memory."""
    return _transfer(s, dtype, up=True)


@kind("device_to_host", {"pinned": 1, **_NUMEL}, devices=("cuda",))
def device_to_host(s: Sizes, dtype: str) -> Case:
    """A copy to the host, into pinned or pageable memory."""
    return _transfer(s, dtype, up=False)


def _transfer(s: Sizes, dtype: str, *, up: bool) -> Case:
    pinned = bool(s["pinned"])

    def bind(on_device: Tensor) -> Call:
        on_host = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=pinned)
        target, source = (on_device, on_host) if up else (on_host, on_device)
        return partial(target.copy_, source, non_blocking=pinned)

    def call(x: Tensor) -> Tensor:
        return torch.zeros(x.shape, dtype=x.dtype).to(x.device)

    return Case(
        call=call, operands=(Operand(shape=(s["numel"],), dtype=dtype, fill="state"),),
        op="transfer", bind=bind,
    )  # fmt: skip
