"""Kinds of matrix work: products, convolutions, attention, recurrent layers."""

from __future__ import annotations

import warnings
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from predictor.graph.ir import Phase
from predictor.traces.measure.cases import Case, Operand
from predictor.traces.measure.kinds import Sizes, kind, tensor

_MM: dict[str, int | None] = {"m": None, "n": None, "k": None}
_CONV: dict[str, int | None] = {
    "batch": None, "c_in": None, "c_out": None, "size": None, "window": 3, "stride": 1,
    "groups": 1, "depthwise": 0, "nhwc": 0,
}  # fmt: skip
_ATTENTION: dict[str, int | None] = {
    "batch": None, "heads": None, "per_kv": 1, "q_len": None, "kv_len": 0, "head_dim": None,
    "causal": 0,
}  # fmt: skip
_RNN: dict[str, int | None] = {
    "steps": None, "batch": None, "input_size": None, "hidden_size": None, "layers": 1,
    "directions": 1,
}  # fmt: skip


@kind("linear", _MM)
def linear(s: Sizes, dtype: str) -> Case:
    """A linear layer with bias, weight stored [n, k]."""
    x, w = tensor(dtype, s["m"], s["k"]), tensor(dtype, s["n"], s["k"])
    return Case(call=functional.linear, operands=(x, w, tensor(dtype, s["n"])), op="linear")


@kind("matmul", _MM)
def matmul(s: Sizes, dtype: str) -> Case:
    """A linear layer without bias."""
    x, w = tensor(dtype, s["m"], s["k"]), tensor(dtype, s["n"], s["k"])
    return Case(call=functional.linear, operands=(x, w), op="matmul")


@kind("matmul_dgrad", _MM)
def matmul_dgrad(s: Sizes, dtype: str) -> Case:
    """The gradient of a linear layer's input: both operands as they are stored."""
    g, w = tensor(dtype, s["m"], s["k"]), tensor(dtype, s["k"], s["n"])
    return Case(call=torch.mm, operands=(g, w), op="matmul", phase="backward")


@kind("matmul_wgrad", _MM)
def matmul_wgrad(s: Sizes, dtype: str) -> Case:
    """The gradient of a linear layer's weight: the first operand read across its rows."""
    g = Operand(shape=(s["m"], s["k"]), dtype=dtype, order=(1, 0))
    return Case(
        call=torch.mm, operands=(g, tensor(dtype, s["k"], s["n"])), op="matmul", phase="backward"
    )


@kind("matmul_fp8", _MM, dtypes=("fp8",), devices=("cuda",))
def matmul_fp8(s: Sizes, dtype: str) -> Case:
    """fp8 operands with one scale each, bf16 out."""
    one = Operand(shape=(), dtype="fp32", fill="positive")
    x = tensor(dtype, s["m"], s["k"])
    w = Operand(shape=(s["k"], s["n"]), dtype=dtype, order=(1, 0))

    def call(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
        out: Tensor = torch._scaled_mm(
            x, w, scale_a=scale_x, scale_b=scale_w, out_dtype=torch.bfloat16
        )
        return out

    return Case(call=call, operands=(x, w, one, one), op="matmul")


@kind("bmm", {"batch": None, **_MM})
def bmm(s: Sizes, dtype: str) -> Case:
    """A batch of products."""
    a = tensor(dtype, s["batch"], s["m"], s["k"])
    return Case(call=torch.bmm, operands=(a, tensor(dtype, s["batch"], s["k"], s["n"])), op="bmm")


@kind("bmm_nt", {"batch": None, **_MM})
def bmm_nt(s: Sizes, dtype: str) -> Case:
    """A batch of products with the second operand transposed, as attention scores."""
    shape = (s["batch"], s["k"], s["n"])
    b = Operand(shape=shape, dtype=dtype, order=(0, 2, 1))
    return Case(call=torch.bmm, operands=(tensor(dtype, s["batch"], s["m"], s["k"]), b), op="bmm")


@kind("conv", _CONV)
def conv(s: Sizes, dtype: str) -> Case:
    """A convolution without bias."""
    x, w, _ = _conv_operands(s, dtype)
    call = partial(
        functional.conv2d, stride=s["stride"], padding=s["window"] // 2, groups=_groups(s)
    )
    return Case(call=call, operands=(x, w), op="conv", layout=_layout(s))


@kind("conv_dgrad", _CONV)
def conv_dgrad(s: Sizes, dtype: str) -> Case:
    """The gradient of a convolution's input."""
    return _conv_backward(s, dtype, (True, False, False), "conv_dgrad")


@kind("conv_wgrad", _CONV)
def conv_wgrad(s: Sizes, dtype: str) -> Case:
    """The gradient of a convolution's weight."""
    return _conv_backward(s, dtype, (False, True, False), "conv_wgrad")


def _conv_backward(s: Sizes, dtype: str, mask: tuple[bool, bool, bool], op: str) -> Case:
    stride, pad, groups = s["stride"], s["window"] // 2, _groups(s)

    def call(grad: Tensor, x: Tensor, w: Tensor) -> Any:
        return torch.ops.aten.convolution_backward(
            grad, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, mask
        )

    x, w, grad = _conv_operands(s, dtype)
    return Case(call=call, operands=(grad, x, w), op=op, phase="backward", layout=_layout(s))


def _conv_operands(s: Sizes, dtype: str) -> tuple[Operand, Operand, Operand]:
    """Image, weight, and the gradient of the result."""
    order = (0, 2, 3, 1) if s["nhwc"] else ()
    window, size = s["window"], s["size"]
    out = (size + 2 * (window // 2) - window) // s["stride"] + 1
    x = Operand(shape=(s["batch"], s["c_in"], size, size), dtype=dtype, order=order)
    c_out = s["c_in"] if s["depthwise"] else s["c_out"]
    w = Operand(shape=(c_out, s["c_in"] // _groups(s), window, window), dtype=dtype, order=order)
    return x, w, Operand(shape=(s["batch"], c_out, out, out), dtype=dtype, order=order)


def _groups(s: Sizes) -> int:
    return s["c_in"] if s["depthwise"] else s["groups"]


def _layout(s: Sizes) -> str:
    return "nhwc" if s["nhwc"] else "nchw"


@kind("attention", _ATTENTION)
def attention(s: Sizes, dtype: str) -> Case:
    """Fused attention."""
    return _attention(s, dtype, "forward")


@kind("attention_backward", _ATTENTION)
def attention_backward(s: Sizes, dtype: str) -> Case:
    """Its gradients, by autograd."""
    return _attention(s, dtype, "backward")


def _attention(s: Sizes, dtype: str, phase: Phase) -> Case:
    shared = s["per_kv"] if s["heads"] % s["per_kv"] == 0 else 1
    kv_heads, kv_len = s["heads"] // shared, s["kv_len"] or s["q_len"]
    call = partial(
        functional.scaled_dot_product_attention, is_causal=bool(s["causal"]),
        enable_gqa=kv_heads != s["heads"],
    )  # fmt: skip
    kv = tensor(dtype, s["batch"], kv_heads, kv_len, s["head_dim"])
    q = tensor(dtype, s["batch"], s["heads"], s["q_len"], s["head_dim"])
    backward = phase == "backward"
    return Case(
        call=call, operands=(q, kv, kv), phase=phase, wanted=(0, 1, 2) if backward else (),
        op="attention_backward" if backward else "attention",
    )  # fmt: skip


@kind("lstm", _RNN)
def lstm(s: Sizes, dtype: str) -> Case:
    """An LSTM over whole sequences."""
    return _recurrent(s, dtype, "lstm", "forward")


@kind("lstm_backward", _RNN)
def lstm_backward(s: Sizes, dtype: str) -> Case:
    """Its gradients, by autograd."""
    return _recurrent(s, dtype, "lstm", "backward")


@kind("gru", _RNN)
def gru(s: Sizes, dtype: str) -> Case:
    """A GRU over whole sequences."""
    return _recurrent(s, dtype, "gru", "forward")


@kind("gru_backward", _RNN)
def gru_backward(s: Sizes, dtype: str) -> Case:
    """Its gradients, by autograd."""
    return _recurrent(s, dtype, "gru", "backward")


@kind("rnn", _RNN)
def rnn(s: Sizes, dtype: str) -> Case:
    """A plain recurrent layer with tanh."""
    return _recurrent(s, dtype, "rnn_tanh", "forward")


@kind("rnn_backward", _RNN)
def rnn_backward(s: Sizes, dtype: str) -> Case:
    """Its gradients, by autograd."""
    return _recurrent(s, dtype, "rnn_tanh", "backward")


def _recurrent(s: Sizes, dtype: str, mode: str, phase: Phase) -> Case:
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[mode]
    hidden, layers, directions = s["hidden_size"], s["layers"], s["directions"]
    weights: list[Operand] = []
    for layer in range(layers):
        width = s["input_size"] if layer == 0 else hidden * directions
        for _ in range(directions):
            weights += [
                tensor(dtype, gates * hidden, width), tensor(dtype, gates * hidden, hidden),
                tensor(dtype, gates * hidden), tensor(dtype, gates * hidden),
            ]  # fmt: skip
    states = [tensor(dtype, layers * directions, s["batch"], hidden)] * (1 + (mode == "lstm"))
    run = getattr(torch, mode)
    backward = phase == "backward"

    def call(x: Tensor, *rest: Tensor) -> Any:
        start, params = list(rest[: len(states)]), list(rest[len(states) :])
        hx = tuple(start) if mode == "lstm" else start[0]
        return run(x, hx, params, True, layers, 0.0, backward, directions == 2, True)

    x = tensor(dtype, s["batch"], s["steps"], s["input_size"])
    operands = (x, *states, *weights)
    wanted = (0, *range(1 + len(states), len(operands))) if backward else ()
    return Case(
        call=call, operands=operands, op="rnn_backward" if backward else "rnn", phase=phase,
        wanted=wanted,
    )  # fmt: skip


@kind("grouped_mm", {"groups": None, **_MM}, dtypes=("bf16",))
def grouped_mm(s: Sizes, dtype: str) -> Case:
    """Products of equal groups of rows, each with a weight of its own; m is rows of all groups."""

    @cache
    def ends(device: torch.device) -> Tensor:
        counts = torch.arange(1, s["groups"] + 1, dtype=torch.int32, device=device)
        return counts * (s["m"] // s["groups"])

    ends(torch.device("meta"))  # not among the calls that are captured

    def call(x: Tensor, w: Tensor) -> Tensor:
        out: Tensor = torch._grouped_mm(x, w, offs=ends(x.device))
        return out

    return Case(
        call=call, operands=(tensor(dtype, s["m"], s["k"]),
                             tensor(dtype, s["groups"], s["k"], s["n"])), op="grouped_mm",
    )  # fmt: skip


@kind("sparse_mm", {"nnz_row": None, **_MM}, dtypes=("fp32",), devices=("cpu",))
def sparse_mm(s: Sizes, dtype: str) -> Case:
    """A sparse matrix (CSR, equal rows) times a dense one."""
    m, k, row = s["m"], s["k"], s["nnz_row"]
    columns = (torch.arange(row) * max(1, k // row)).repeat(m)
    starts = torch.arange(m + 1) * row
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)  # beta
        matrix = torch.sparse_csr_tensor(starts, columns % k, torch.ones(m * row), size=(m, k))

    def call(dense: Tensor) -> Tensor:
        product: Tensor = torch.sparse.mm(matrix, dense)
        return product

    return Case(call=call, operands=(tensor(dtype, k, s["n"]),), op="sparse_mm")
