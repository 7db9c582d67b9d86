"""The inputs of an exported program as meta tensors: weights, constants, and what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from predictor.capture.exported.interpret import Interpreter
from predictor.capture.exported.records import Input, TensorMeta
from predictor.capture.exported.symbols import bounded, evaluate
from predictor.capture.session import Session
from predictor.capture.specs import TORCH_DTYPES


def take_inputs(
    session: Session, interpreter: Interpreter, inputs: Sequence[Input], dtype: str | None
) -> tuple[nn.Module, list[Any]]:
    """A module that holds the program's weights, and the values of all inputs in their order.

    Args:
        session: told which tensors are inputs and which values are known.
        interpreter: knows the sizes.
        inputs: of the program.
        dtype: floating-point tensors are taken in it; None keeps theirs.

    Raises:
        CaptureError: a size is not possible.
    """
    held = nn.Module()
    made = _Weights(interpreter, inputs, dtype)
    given: list[Any] = []
    for index, one in enumerate(inputs):
        if one.meta is None:
            given.append(_number(one, interpreter))
            continue
        meta = made.cast(one.meta)
        if one.kind == "input":
            tensor = session.add_input(
                interpreter.sizes(meta.sizes), meta.dtype, interpreter.sizes(meta.strides)
            )
        else:
            tensor = made.tensor(one, meta)
        if one.kind == "parameter":
            held.register_parameter(f"p{index}", tensor)  # type: ignore[arg-type]
        elif one.kind == "buffer":
            held.register_buffer(f"b{index}", tensor)
        elif one.kind == "constant":
            session.recorder.tensors.set_role(tensor, "input")
        given.append(tensor)
    for one, tensor in zip(inputs, given, strict=True):
        if one.known is not None and isinstance(tensor, torch.Tensor):
            session.known.learn(tensor, one.known.to(tensor.dtype))
    return held, given


def _number(one: Input, interpreter: Interpreter) -> Any:
    if one.kind == "input" and isinstance(one.value, str):
        return evaluate(one.value, interpreter.symbols)
    return one.value


class _Weights:
    """Makes weights; those of one storage name share their memory, equal ones are one tensor."""

    def __init__(
        self, interpreter: Interpreter, inputs: Sequence[Input], dtype: str | None
    ) -> None:
        self._interpreter = interpreter
        self._to = None if dtype is None else TORCH_DTYPES[dtype]
        self._made: dict[tuple[object, ...], torch.Tensor] = {}
        self._bytes: dict[str, int] = {}
        self._storages: dict[str, torch.UntypedStorage] = {}
        for one in inputs:
            if one.storage is not None and one.meta is not None:
                needed = self._extent(self.cast(one.meta))
                self._bytes[one.storage] = max(self._bytes.get(one.storage, 0), needed)

    def cast(self, meta: TensorMeta) -> TensorMeta:
        """The description in the dtype that was asked for."""
        if self._to is None or not meta.dtype.is_floating_point:
            return meta
        return replace(meta, dtype=self._to)

    def tensor(self, one: Input, meta: TensorMeta) -> torch.Tensor:
        """The meta tensor of a weight or constant."""
        if one.storage is None:
            return _as_kind(one, meta, self._interpreter.tensor(meta))
        key = (one.storage, one.kind, meta)
        if key not in self._made:
            storage = self._storages.get(one.storage)
            if storage is None:
                size = self._bytes[one.storage]
                storage = torch.UntypedStorage(size, device="meta")
                self._storages[one.storage] = storage
            sizes = self._interpreter.sizes
            tensor = torch.empty(0, dtype=meta.dtype, device="meta")
            with torch.no_grad():
                tensor.set_(
                    storage, sizes((meta.offset,))[0], sizes(meta.sizes), sizes(meta.strides)
                )
            self._made[key] = _as_kind(one, meta, tensor)
        return self._made[key]

    def _extent(self, meta: TensorMeta) -> int:
        """Bytes from the start of the storage to the end of the tensor."""
        sizes, strides = self._interpreter.sizes(meta.sizes), self._interpreter.sizes(meta.strides)
        if 0 in sizes:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        start = self._interpreter.sizes((meta.offset,))[0]
        return int(bounded((start + last + 1) * meta.dtype.itemsize))


def _as_kind(one: Input, meta: TensorMeta, tensor: torch.Tensor) -> torch.Tensor:
    if one.kind != "parameter":
        return tensor
    trained = meta.requires_grad and (meta.dtype.is_floating_point or meta.dtype.is_complex)
    return nn.Parameter(tensor, requires_grad=trained)
