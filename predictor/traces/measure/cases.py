"""One call to be timed, and what the captured kernel of just this call says of it.

A case is labelled by capturing it as any program is captured: op, dimensions, FLOPs and bytes are
those that an estimate would see. A call that does not come out as its one kernel is no case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from predictor.capture.specs import TORCH_DTYPES
from predictor.capture.torch import capture_step
from predictor.errors import DataError
from predictor.graph.ir import Kernel, OpGraph, Phase
from predictor.graph.ops import OPS
from predictor.lower.eager import lower_eager
from predictor.traces.measure.timer import Call

DTYPES: Mapping[str, torch.dtype] = {
    **TORCH_DTYPES, "fp8": torch.float8_e4m3fn, "int64": torch.int64, "int32": torch.int32,
    "int8": torch.int8, "bool": torch.bool, "complex64": torch.complex64,
}  # fmt: skip
"""Dtypes of operands."""
Fill: TypeAlias = Literal["normal", "positive", "index", "bool", "state"]
"""What stands in an operand; `state`: what the call overwrites, so each has memory of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor that a case reads."""

    shape: tuple[int, ...]
    dtype: str
    fill: Fill = "normal"
    below: int = 0
    """For indices: the number of rows that they point into."""
    order: tuple[int, ...] = ()
    """Axes from the slowest in memory to the fastest; contiguous when not given."""

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * DTYPES[self.dtype].itemsize

    @property
    def numel(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides, elements."""
        strides, step = [0] * len(self.shape), 1
        for axis in reversed(self.order or range(len(self.shape))):
            strides[axis] = step
            step *= self.shape[axis]
        return tuple(strides)

    def meta(self) -> Tensor:
        """The operand without memory."""
        return torch.empty_strided(
            self.shape, self.strides, dtype=DTYPES[self.dtype], device="meta"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call and its operands."""

    call: Callable[..., object]
    operands: tuple[Operand, ...]
    op: str
    """The op of the vocabulary that it must come out as."""
    phase: Phase = "forward"
    wanted: tuple[int, ...] = ()
    """Operands whose gradient is timed, by autograd, instead of the call itself."""
    covers: tuple[str, ...] = ()
    """Further ops that the same call launches: their work counts with it."""
    layout: str = ""
    """`nchw` or `nhwc`, of convolutions."""
    bind: Callable[..., Call] | None = field(default=None)
    """Makes what is timed from real operands; `partial(call, *operands)` when not given."""
    graph: Callable[[], OpGraph] | None = field(default=None)
    """Captures the case where the call alone does not tell (an optimizer)."""

    @property
    def bytes(self) -> int:
        """Bytes of all operands."""
        return sum(operand.bytes for operand in self.operands)

    def bound(self, operands: Sequence[Tensor]) -> Call:
        """What is timed, on real operands."""
        if self.bind is not None:
            return self.bind(*operands)
        if not self.wanted:
            return partial(self.call, *operands)
        output, sources = _forward(self, operands)
        return partial(
            torch.autograd.grad, output, sources, torch.randn_like(output), retain_graph=True
        )


def kernel_of(case: Case) -> Kernel:
    """The kernel that the case launches, as an estimate sees it.

    Raises:
        DataError: it launches other kernels than it should.
        CaptureError, CostRuleError: it cannot be captured.
    """
    graph = case.graph() if case.graph is not None else capture_step(_program(case), _metas(case))
    kernels = lower_eager(graph).kernels
    if case.wanted:
        kernels = tuple(k for k in kernels if k.phase == "backward")
    if case.phase == "optimizer":
        kernels = tuple(k for k in kernels if k.phase == "optimizer")
    found = [k for k in kernels if k.op == case.op]
    rest = [k for k in kernels if k.op != case.op]
    if len(found) != 1 or not {k.op for k in rest} <= set(case.covers):
        seen = ", ".join(k.op for k in kernels) or "no kernel"
        raise DataError(f"a case of {case.op!r} launches {seen}; it must be this one kernel alone")
    return replace(
        found[0], phase=case.phase,
        flops=sum(k.flops for k in kernels),
        read_bytes=sum(k.read_bytes for k in kernels),
        write_bytes=sum(k.write_bytes for k in kernels),
    )  # fmt: skip


def phase_of(op: str) -> Phase:
    """The phase that a kernel of an op usually has."""
    if OPS[op].op_class == "optimizer":
        return "optimizer"
    return "backward" if OPS[op].forward_op is not None else "forward"


def _metas(case: Case) -> tuple[Tensor, ...]:
    return tuple(operand.meta() for operand in case.operands)


def _program(case: Case) -> Callable[..., object]:
    """The step that is captured: the call, and its gradient where that is timed."""
    if not case.wanted:
        return case.call

    def step(*operands: Tensor) -> object:
        output, sources = _forward(case, operands)
        return torch.autograd.grad(output, sources, torch.empty_like(output))

    return step


def _forward(case: Case, operands: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The call's first output, and the operands that its gradient is asked of."""
    given = [t.detach().requires_grad_() if i in case.wanted else t for i, t in enumerate(operands)]
    output = case.call(*given)
    first = output[0] if isinstance(output, (tuple, list)) else output
    assert isinstance(first, Tensor)
    return first, [given[i] for i in case.wanted]
