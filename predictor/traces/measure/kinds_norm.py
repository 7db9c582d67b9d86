"""Kinds that work along rows: softmax, norms, reductions, scans, sorting, pooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from predictor.traces.measure.cases import Case, Operand
from predictor.traces.measure.kinds import FLOATS, Sizes, kind, statistic_dtype, tensor

aten = torch.ops.aten
_ROWS: dict[str, int | None] = {"rows": None, "cols": None}
_MAPS: dict[str, int | None] = {"batch": None, "channels": None, "size": None}


@kind("softmax", _ROWS)
def softmax(s: Sizes, dtype: str) -> Case:
    """Softmax of each row."""
    return Case(call=partial(torch.softmax, dim=-1), operands=(_rows(s, dtype),), op="softmax")


@kind("log_softmax", _ROWS)
def log_softmax(s: Sizes, dtype: str) -> Case:
    """Log-softmax of each row."""
    return Case(call=partial(torch.log_softmax, dim=-1), operands=(_rows(s, dtype),), op="softmax")


@kind("softmax_backward", _ROWS)
def softmax_backward(s: Sizes, dtype: str) -> Case:
    """Its gradient."""
    return _softmax_backward(s, dtype, aten._softmax_backward_data)


@kind("log_softmax_backward", _ROWS)
def log_softmax_backward(s: Sizes, dtype: str) -> Case:
    """Its gradient."""
    return _softmax_backward(s, dtype, aten._log_softmax_backward_data)


def _softmax_backward(s: Sizes, dtype: str, call: Callable[..., Any]) -> Case:
    kind_of_input = torch.bfloat16 if dtype == "bf16" else None
    kind_of_input = torch.float16 if dtype == "fp16" else kind_of_input or torch.float32

    def run(grad: Tensor, output: Tensor) -> Any:
        return call(grad, output, -1, kind_of_input)

    operands = (_rows(s, dtype), _rows(s, dtype))
    return Case(call=run, operands=operands, op="softmax_backward", phase="backward")


@kind("layer_norm", _ROWS)
def layer_norm(s: Sizes, dtype: str) -> Case:
    """Layer norm with weight and bias."""
    w = tensor(dtype, s["cols"])

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (x.shape[-1],), weight, bias)

    return Case(call=call, operands=(_rows(s, dtype), w, w), op="layer_norm")


@kind("layer_norm_backward", _ROWS)
def layer_norm_backward(s: Sizes, dtype: str) -> Case:
    """Its three gradients."""
    x, w, statistic = (
        _rows(s, dtype),
        tensor(dtype, s["cols"]),
        tensor(statistic_dtype(s, dtype), s["rows"], 1),
    )
    cols = s["cols"]

    def call(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor, b: Tensor) -> Any:
        return aten.native_layer_norm_backward(g, x, [cols], mean, rstd, w, b, [True] * 3)

    return Case(
        call=call, operands=(x, x, statistic, statistic, w, w), op="layer_norm_backward",
        phase="backward",
    )  # fmt: skip


@kind("rms_norm", _ROWS)
def rms_norm(s: Sizes, dtype: str) -> Case:
    """RMS norm with weight."""

    def call(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    return Case(call=call, operands=(_rows(s, dtype), tensor(dtype, s["cols"])), op="rms_norm")


@kind("group_norm", {"groups": 8, **_MAPS})
def group_norm(s: Sizes, dtype: str) -> Case:
    """Group norm with weight and bias."""
    w = tensor(dtype, s["channels"])
    groups = s["groups"]

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.group_norm(x, groups, weight, bias)

    return Case(call=call, operands=(_maps(s, dtype), w, w), op="group_norm")


@kind("group_norm_backward", {"groups": 8, **_MAPS})
def group_norm_backward(s: Sizes, dtype: str) -> Case:
    """Its three gradients."""
    n, c, hw, groups = s["batch"], s["channels"], s["size"] ** 2, s["groups"]
    statistic = tensor(dtype, n, groups)

    def call(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor) -> Any:
        return aten.native_group_norm_backward(g, x, mean, rstd, w, n, c, hw, groups, [True] * 3)

    maps = _maps(s, dtype)
    return Case(
        call=call, operands=(maps, maps, statistic, statistic, tensor(dtype, c)),
        op="group_norm_backward", phase="backward",
    )  # fmt: skip


@kind("batch_norm", {"train": 1, **_MAPS})
def batch_norm(s: Sizes, dtype: str) -> Case:
    """Batch norm, with the batch's statistics or the running ones."""
    c, train = s["channels"], bool(s["train"])
    running = Operand(shape=(c,), dtype=dtype, fill="state")
    w = tensor(dtype, c)

    def call(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.batch_norm(x, mean, var, weight, bias, train)

    return Case(call=call, operands=(_maps(s, dtype), running, running, w, w), op="batch_norm")


@kind("batch_norm_backward", _MAPS)
def batch_norm_backward(s: Sizes, dtype: str) -> Case:
    """Its three gradients."""
    statistic = Operand(shape=(s["channels"],), dtype=statistic_dtype(s, dtype), fill="positive")
    w = tensor(dtype, s["channels"])

    def call(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, inv_std: Tensor) -> Any:
        return aten.native_batch_norm_backward(
            g, x, w, None, None, mean, inv_std, True, 1e-5, [True] * 3
        )

    maps = _maps(s, dtype)
    return Case(
        call=call, operands=(maps, maps, w, statistic, statistic), op="batch_norm_backward",
        phase="backward",
    )  # fmt: skip


def _along(name: str, call: Callable[..., Any], op: str, dtypes: tuple[str, ...] = FLOATS) -> None:
    """A kind that reduces, scans or sorts the rows of one matrix."""

    def build(s: Sizes, dtype: str) -> Case:
        return Case(call=call, operands=(_rows(s, dtype),), op=op)

    kind(name, _ROWS, dtypes=dtypes)(build)


_along("sum", partial(torch.sum, dim=-1), "reduction")
_along("mean", partial(torch.mean, dim=-1), "reduction")
_along("amax", partial(torch.amax, dim=-1), "reduction")
_along("argmax", partial(torch.argmax, dim=-1), "reduction")
_along("var", partial(torch.var, dim=-1), "reduction")
_along("sum_columns", partial(torch.sum, dim=0), "reduction")
_along("sum_all", torch.sum, "reduction")
_along("cumsum", partial(torch.cumsum, dim=-1), "scan")
_along("sort", torch.sort, "sort", ("fp32", "bf16"))
_along("argsort", torch.argsort, "sort", ("fp32", "bf16"))


@kind("topk", {"k": 8, **_ROWS})
def topk(s: Sizes, dtype: str) -> Case:
    """The largest of each row."""
    return Case(call=partial(torch.topk, k=s["k"]), operands=(_rows(s, dtype),), op="sort")


_POOL: dict[str, int | None] = {**_MAPS, "window": 2, "stride": 2}


@kind("max_pool", _POOL)
def max_pool(s: Sizes, dtype: str) -> Case:
    """Maximum of windows, with the indices that a gradient needs."""
    call = partial(functional.max_pool2d, kernel_size=s["window"], stride=s["stride"])
    return Case(call=call, operands=(_maps(s, dtype),), op="pool")


@kind("avg_pool", _POOL)
def avg_pool(s: Sizes, dtype: str) -> Case:
    """Mean of windows."""
    call = partial(functional.avg_pool2d, kernel_size=s["window"], stride=s["stride"])
    return Case(call=call, operands=(_maps(s, dtype),), op="pool")


@kind("avg_pool_backward", _POOL)
def avg_pool_backward(s: Sizes, dtype: str) -> Case:
    """Its gradient."""
    out = (s["size"] - s["window"]) // s["stride"] + 1
    window, stride = [s["window"]] * 2, [s["stride"]] * 2

    def call(grad: Tensor, x: Tensor) -> Any:
        return aten.avg_pool2d_backward(grad, x, window, stride, [0, 0], False, True, None)

    grad = tensor(dtype, s["batch"], s["channels"], out, out)
    return Case(call=call, operands=(grad, _maps(s, dtype)), op="pool_backward", phase="backward")


@kind("max_pool_backward", _POOL)
def max_pool_backward(s: Sizes, dtype: str) -> Case:
    """Its gradient."""
    out = (s["size"] - s["window"]) // s["stride"] + 1
    window, stride = [s["window"]] * 2, [s["stride"]] * 2

    def call(grad: Tensor, x: Tensor, picked: Tensor) -> Any:
        return aten.max_pool2d_with_indices_backward(
            grad, x, window, stride, [0, 0], [1, 1], False, picked
        )

    shape = (s["batch"], s["channels"], out, out)
    picked = Operand(shape=shape, dtype="int64", fill="index", below=s["size"] ** 2)
    return Case(
        call=call, operands=(tensor(dtype, *shape), _maps(s, dtype), picked),
        op="pool_backward", phase="backward",
    )  # fmt: skip


@kind("global_pool", _MAPS)
def global_pool(s: Sizes, dtype: str) -> Case:
    """Mean of each map to half its size."""
    call = partial(functional.adaptive_avg_pool2d, output_size=max(1, s["size"] // 2))
    return Case(call=call, operands=(_maps(s, dtype),), op="pool")


@kind("upsample", _MAPS)
def upsample(s: Sizes, dtype: str) -> Case:
    """Nearest neighbours, twice the size."""
    call = partial(functional.interpolate, scale_factor=2.0, mode="nearest")
    return Case(call=call, operands=(_maps(s, dtype),), op="pool")


def _rows(s: Sizes, dtype: str) -> Operand:
    return tensor(dtype, s["rows"], s["cols"])


def _maps(s: Sizes, dtype: str) -> Operand:
    return tensor(dtype, s["batch"], s["channels"], s["size"], s["size"])
