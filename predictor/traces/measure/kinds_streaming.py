"""Kinds that stream elements: pointwise calls, their gradients, fills, random numbers, updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.capture.torch import capture_module
from predictor.graph.ir import OpGraph, Phase
from predictor.traces.measure.cases import DTYPES, Case, Fill, Operand
from predictor.traces.measure.kinds import FLOATS, Sizes, kind, tensor
from predictor.traces.measure.timer import Call

aten = torch.ops.aten
_NUMEL: dict[str, int | None] = {"numel": None}


def _pointwise(
    name: str,
    call: Callable[..., Any],
    op: str,
    *,
    operands: int = 1,
    phase: Phase = "forward",
    fill: Fill = "normal",
    mask: int | None = None,
) -> None:
    """A kind of equal operands; `mask` is the place of one that holds booleans."""

    def build(s: Sizes, dtype: str) -> Case:
        shape = (s["numel"],)
        given = [
            Operand(shape=shape, dtype="bool", fill="bool") if i == mask
            else Operand(shape=shape, dtype=dtype, fill=fill)
            for i in range(operands)
        ]  # fmt: skip
        return Case(call=call, operands=tuple(given), op=op, phase=phase)

    kind(name, _NUMEL)(build)


_pointwise("add", torch.add, "add", operands=2)
_pointwise("sub", torch.sub, "add", operands=2)
_pointwise("add_scalar", partial(torch.add, other=1.5), "add")
_pointwise("mul", torch.mul, "mul", operands=2)
_pointwise("mul_scalar", partial(torch.mul, other=1.5), "mul")
_pointwise("div", torch.div, "div", operands=2, fill="positive")
_pointwise("pow", partial(torch.pow, exponent=3), "pow")
_pointwise("relu", torch.relu, "relu")
_pointwise("leaky_relu", functional.leaky_relu, "relu")
_pointwise("gelu", functional.gelu, "gelu")
_pointwise("tanh", torch.tanh, "tanh")
_pointwise("exp", torch.exp, "exp")
_pointwise("log", torch.log, "exp", fill="positive")
_pointwise("sigmoid", torch.sigmoid, "exp")
_pointwise("silu", functional.silu, "exp")
_pointwise("erf", torch.erf, "exp")
_pointwise("sin", torch.sin, "exp")
_pointwise("sqrt", torch.sqrt, "pointwise", fill="positive")
_pointwise("rsqrt", torch.rsqrt, "pointwise", fill="positive")
_pointwise("neg", torch.neg, "pointwise")
_pointwise("maximum", torch.maximum, "pointwise", operands=2)
_pointwise("addcmul", torch.addcmul, "pointwise", operands=3)
_pointwise("where", torch.where, "where", operands=3, mask=0)
_pointwise("gt", torch.gt, "where", operands=2)
_pointwise("dropout", partial(functional.dropout, p=0.1, training=True), "dropout")
_pointwise("gelu_backward", aten.gelu_backward, "gelu_backward", operands=2, phase="backward")
_pointwise("silu_backward", aten.silu_backward, "gelu_backward", operands=2, phase="backward")
_pointwise("tanh_backward", aten.tanh_backward, "tanh_backward", operands=2, phase="backward")
_pointwise("sigmoid_backward", aten.sigmoid_backward, "tanh_backward", operands=2, phase="backward")
_pointwise("mul_in_backward", torch.mul, "mul", operands=2, phase="backward")
_pointwise("add_in_backward", torch.add, "add", operands=2, phase="backward")


@kind("mse_loss", _NUMEL)
def mse_loss(s: Sizes, dtype: str) -> Case:
    """Squared differences and their mean, in one call."""
    x = tensor(dtype, s["numel"])
    return Case(call=functional.mse_loss, operands=(x, x), op="pointwise", covers=("reduction",))


@kind("relu_backward", _NUMEL)
def relu_backward(s: Sizes, dtype: str) -> Case:
    """Gradient of a rectifier."""

    def call(grad: Tensor, output: Tensor) -> Any:
        return aten.threshold_backward(grad, output, 0)

    x = tensor(dtype, s["numel"])
    return Case(call=call, operands=(x, x), op="relu_backward", phase="backward")


@kind("dropout_backward", _NUMEL)
def dropout_backward(s: Sizes, dtype: str) -> Case:
    """Gradient of dropout."""

    def call(grad: Tensor, mask: Tensor) -> Any:
        return aten.native_dropout_backward(grad, mask, 1.25)

    mask = Operand(shape=(s["numel"],), dtype="bool", fill="bool")
    return Case(
        call=call, operands=(tensor(dtype, s["numel"]), mask), op="dropout_backward",
        phase="backward",
    )  # fmt: skip


@kind("masked_fill", _NUMEL)
def masked_fill(s: Sizes, dtype: str) -> Case:
    """A number where a mask is set."""

    def call(x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(mask, -1.0)

    mask = Operand(shape=(s["numel"],), dtype="bool", fill="bool")
    return Case(call=call, operands=(tensor(dtype, s["numel"]), mask), op="where", covers=("copy",))


@kind("add_bias", {"rows": None, "cols": None})
def add_bias(s: Sizes, dtype: str) -> Case:
    """A row added to every row."""
    x = tensor(dtype, s["rows"], s["cols"])
    return Case(call=torch.add, operands=(x, tensor(dtype, s["cols"])), op="add")


@kind("mul_column", {"rows": None, "cols": None})
def mul_column(s: Sizes, dtype: str) -> Case:
    """Every row times a number of its own."""
    x = tensor(dtype, s["rows"], s["cols"])
    return Case(call=torch.mul, operands=(x, tensor(dtype, s["rows"], 1)), op="mul")


@kind("zeros", _NUMEL)
def zeros(s: Sizes, dtype: str) -> Case:
    """A new tensor of zeros."""

    def call(like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    return Case(call=call, operands=(tensor(dtype, s["numel"]),), op="fill")


@kind("rand", _NUMEL)
def rand(s: Sizes, dtype: str) -> Case:
    """New uniform numbers."""
    return Case(call=torch.rand_like, operands=(tensor(dtype, s["numel"]),), op="random")


@kind("randn", _NUMEL)
def randn(s: Sizes, dtype: str) -> Case:
    """New normal numbers."""
    return Case(call=torch.randn_like, operands=(tensor(dtype, s["numel"]),), op="random")


_UPDATE: dict[str, int | None] = {"numel": None, "tensors": None}


@kind("adamw", _UPDATE, dtypes=FLOATS)
def adamw(s: Sizes, dtype: str) -> Case:
    """One AdamW step over equal tensors."""
    return _update(s, dtype, "adamw", partial(torch.optim.AdamW, lr=1e-6))


@kind("sgd", _UPDATE, dtypes=FLOATS)
def sgd(s: Sizes, dtype: str) -> Case:
    """One step of plain SGD over equal tensors."""
    return _update(s, dtype, "sgd", partial(torch.optim.SGD, lr=1e-6))


class _Parameters(nn.Module):
    """Parameters that all meet in a sum, so that each gets a gradient."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__()
        self.held = nn.ParameterList(parameters)

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for parameter in self.held:
            total = total + parameter.sum()
        return total


def _update(
    s: Sizes, dtype: str, op: Literal["adamw", "sgd"], make: Callable[..., torch.optim.Optimizer]
) -> Case:
    tensors, each = s["tensors"], math.ceil(s["numel"] / s["tensors"])
    parameter = Operand(shape=(each,), dtype=dtype, fill="state")

    def graph() -> OpGraph:
        held: list[Tensor] = [
            nn.Parameter(torch.empty(each, dtype=DTYPES[dtype], device="meta"))
            for _ in range(tensors)
        ]
        x = torch.empty((), dtype=DTYPES[dtype], device="meta")
        return capture_module(_Parameters(held), x, mode="train", optimizer=op, loss=_itself)

    def bind(*operands: Tensor) -> Call:
        held = [nn.Parameter(t) for t in operands[:tensors]]
        for parameter, gradient in zip(held, operands[tensors:], strict=True):
            parameter.grad = gradient
        return make(held).step

    return Case(
        call=_itself, operands=(parameter,) * (2 * tensors), op=op, phase="optimizer", bind=bind,
        graph=graph,
    )  # fmt: skip


def _itself(output: Any) -> Any:
    return output
