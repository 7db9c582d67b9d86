"""The tape: framework calls as ONNX rules record them, with views and storages as PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from predictor.capture.onnx.values import (
    MisfitError,
    Value,
    contiguous_strides,
    dense_like,
    is_contiguous,
    viewed_strides,
)
from predictor.capture.specs import touched_bytes
from predictor.errors import CaptureError
from predictor.graph.ir import DTYPE_BYTES, Layout, OpNode, Phase, Role, TensorSpec

MOST_BYTES = 2**50
"""A tensor above this (a pebibyte) is a mistake in the file."""
MOST_AXES = 64
MOST_NODES = 1_000_000
"""Calls that one capture records at most; loops are unrolled."""
Result = tuple[tuple[int, ...], str]
"""Shape and dtype of a result."""


class Tape:
    """Records calls; `nodes` is the graph."""

    def __init__(self) -> None:
        self.nodes: list[OpNode] = []
        self.module = ""
        self.phase: Phase = "forward"
        """Of the calls that follow."""
        self.where = ""
        """The operator that is being translated, for messages."""
        self.narrowed: str | None = None
        """What fp32 tensors are taken in; None as they are."""
        self._storages = 0
        self._muted = 0

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Nothing is recorded inside: what runtimes compute once, before any run."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    # -- tensors --------------------------------------------------------------------------------

    def fresh(
        self,
        shape: Sequence[int],
        dtype: str,
        *,
        role: Role = "activation",
        strides: tuple[int, ...] | None = None,
        element_bytes: float | None = None,
        node: int = -1,
    ) -> Value:
        """A tensor with a storage of its own.

        Raises:
            CaptureError: a size below zero, or more bytes than any machine has.
        """
        shape = tuple(shape)
        if self.narrowed is not None and dtype == "fp32":
            dtype, element_bytes = self.narrowed, None
        if len(shape) > MOST_AXES:
            raise CaptureError(f"{self.where} makes a tensor of {len(shape)} axes")
        count = 1
        for size in shape:
            if size < 0:
                raise CaptureError(f"{self.where} makes a tensor of shape {list(shape)}")
            count *= size
        held = int(count * (element_bytes or DTYPE_BYTES[dtype]))
        if held > MOST_BYTES:
            raise CaptureError(
                f"{self.where} makes a tensor of shape {list(shape)[:8]}, {held:.1e} bytes: no "
                "machine holds it; check the sizes"
            )
        self._storages += 1
        layout: Layout = "contiguous"
        if strides is None:
            strides = contiguous_strides(shape)
        else:
            layout = layout_of(shape, strides)
        spec = TensorSpec(
            shape=shape, dtype=dtype, storage_id=self._storages - 1, storage_bytes=held,
            touched_bytes=held, role=role, layout=layout,
        )  # fmt: skip
        return Value(spec=spec, strides=strides, node=node)

    def seen_as(self, value: Value, shape: Sequence[int], strides: tuple[int, ...]) -> Value:
        """The same storage under another shape, without a call."""
        shape = tuple(shape)
        spec = value.spec
        width = spec.storage_bytes / max(1, spec.numel) if spec.numel else 1.0
        width = min(width, DTYPE_BYTES[spec.dtype])
        seen = TensorSpec(
            shape=shape, dtype=spec.dtype, storage_id=spec.storage_id,
            storage_bytes=spec.storage_bytes, touched_bytes=touched_bytes(shape, strides, width),
            role=spec.role, layout=layout_of(shape, strides),
        )  # fmt: skip
        return Value(spec=seen, strides=strides, node=value.node, constant=value.constant)

    # -- calls ----------------------------------------------------------------------------------

    def call(
        self,
        op: str,
        inputs: Sequence[Value],
        results: Sequence[Result],
        attrs: Mapping[str, object] | None = None,
        strides: tuple[int, ...] | None = None,
    ) -> list[Value]:
        """Record a call that computes; the first result may have strides of its own."""
        index = self._next()
        outputs = [
            self.fresh(shape, dtype, strides=None if i else strides, node=index)
            for i, (shape, dtype) in enumerate(results)
        ]
        self._append(op, inputs, outputs, dict(attrs or {}))
        return outputs

    def one(
        self,
        op: str,
        inputs: Sequence[Value],
        shape: Sequence[int],
        dtype: str,
        attrs: Mapping[str, object] | None = None,
    ) -> Value:
        """Record a call with one result."""
        return self.call(op, inputs, [(tuple(shape), dtype)], attrs)[0]

    def view(self, op: str, value: Value, shape: Sequence[int], strides: tuple[int, ...]) -> Value:
        """Record a call that only looks at a tensor's storage in another way."""
        index = self._next()
        out = self.seen_as(value, shape, strides)
        out.node = index
        self._append(op, (value,), (out,), {"view": True})
        return out

    def realised(self, value: Value) -> Value:
        """The tensor itself: a dequantisation that nothing has taken in is recorded now."""
        if value.pending and value.narrow is not None:
            value.pending = False
            value.node = self._next()
            self._append("aten.dequantize", (value.narrow,), (value,), {})
        return value

    def _next(self) -> int:
        return -1 if self._muted else len(self.nodes)

    def _append(
        self,
        op: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        attrs: Mapping[str, object],
    ) -> None:
        if self._muted:
            return
        if len(self.nodes) >= MOST_NODES:
            raise CaptureError(
                f"{self.where}: more than {MOST_NODES:,} calls; loops are unrolled: give a smaller "
                "trip count"
            )
        made = {v.node for v in inputs if v.node >= 0}
        self.nodes.append(
            OpNode(
                op=op,
                phase=self.phase,
                inputs=tuple([v.spec for v in inputs]),
                outputs=tuple([v.spec for v in outputs]),
                attrs=attrs,
                deps=tuple(sorted(made)) if len(made) > 1 else tuple(made),
                module=self.module,
            )
        )

    # -- what many rules need -------------------------------------------------------------------

    def contiguous(self, value: Value) -> Value:
        """The tensor in row-major order: itself, or a copy."""
        if is_contiguous(value.shape, value.strides):
            return value
        return self.one("aten.clone", (value,), value.shape, value.dtype)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The tensor under another shape: a view where its memory allows, else of a copy."""
        shape = tuple(shape)
        if shape == value.shape:
            return value
        strides = viewed_strides(value.shape, value.strides, shape)
        if strides is not None:
            return self.view("aten.view", value, shape, strides)
        copied = self.one("aten.clone", (value,), value.shape, value.dtype)
        return self.view("aten._unsafe_view", copied, shape, contiguous_strides(shape))

    def permute(self, value: Value, order: Sequence[int], op: str = "aten.permute") -> Value:
        """Axes in another order: a view."""
        shape = [value.shape[i] for i in order]
        return self.view(op, value, shape, tuple([value.strides[i] for i in order]))

    def transposed(self, value: Value) -> Value:
        """The last two axes swapped: a view.

        Raises:
            MisfitError: it has fewer than two.
        """
        if len(value.shape) < 2:
            raise MisfitError(f"a tensor of shape {list(value.shape)} cannot be transposed")
        order = list(range(len(value.shape)))
        order[-1], order[-2] = order[-2], order[-1]
        op = "aten.t" if len(order) == 2 else "aten.transpose"
        return self.permute(value, order, op)

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        """Axes of size one repeated without a copy."""
        shape = tuple(shape)
        if shape == value.shape:
            return value
        lead = len(shape) - len(value.shape)
        strides = [0] * lead
        for i, stride in enumerate(value.strides):
            kept = value.shape[i] == shape[lead + i]
            strides.append(stride if kept else 0)
        return self.view("aten.expand", value, shape, tuple(strides))


def layout_of(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """`contiguous`, `channels_last` (4-d and 5-d) or `strided`."""
    if is_contiguous(shape, strides):
        return "contiguous"
    rank = len(shape)
    if rank in (4, 5):
        order = (0, *range(2, rank), 1)
        if is_contiguous([shape[i] for i in order], [strides[i] for i in order]):
            return "channels_last"
    return "strided"


def common_strides(values: Sequence[Value], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of an elementwise result: those of its full-size operands where they agree."""
    found: tuple[int, ...] | None = None
    for value in values:
        if value.shape != shape:
            continue
        if found is None:
            found = value.strides
        elif found != value.strides:
            return None
    if found is None or is_contiguous(shape, found) or 0 in found:
        return None
    return dense_like(shape, found)
