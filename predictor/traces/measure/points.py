"""Kernels of a captured program as points of a grid, so that each can be measured by itself.

Not every kernel has a kind that calls it: a table's rows of an embedding, a copy of some slice. A
kernel without one is none of these points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from predictor.graph.ir import Kernel
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kinds import kinds

Sizes = Mapping[str, int]
_ROW_OPS = {
    "softmax": "softmax", "softmax_backward": "softmax_backward", "layer_norm": "layer_norm",
    "layer_norm_backward": "layer_norm_backward", "rms_norm": "rms_norm", "reduction": "sum",
    "scan": "cumsum", "sort": "sort",
}  # fmt: skip
"""Kind of the ops that work along rows."""
_POINTWISE: Mapping[tuple[str, int], str] = {
    ("add", 2): "add", ("mul", 2): "mul", ("add", 1): "add_scalar", ("mul", 1): "mul_scalar",
    ("div", 2): "div", ("pow", 1): "pow", ("relu", 1): "relu", ("gelu", 1): "gelu",
    ("tanh", 1): "tanh", ("exp", 1): "exp", ("where", 3): "where", ("dropout", 1): "dropout",
    ("gelu_backward", 2): "gelu_backward", ("tanh_backward", 2): "tanh_backward",
    ("relu_backward", 2): "relu_backward", ("copy", 1): "clone", ("pointwise", 2): "maximum",
    ("pointwise", 1): "neg", ("pointwise", 3): "addcmul",
}  # fmt: skip
"""Kind by op and number of tensors read."""


def points_of(kernels: Iterable[Kernel]) -> list[Point]:
    """The points of some kernels, each once, in the order in which they first run."""
    found = (point_of(kernel) for kernel in kernels)
    return list({point.key: point for point in found if point is not None}.values())


def point_of(kernel: Kernel) -> Point | None:
    """The point whose call launches a kernel of the same op and dimensions; None for none."""
    rule = _RULES.get(kernel.op)
    named = _row_or_pointwise(kernel) if rule is None else rule(kernel)
    if named is None:
        return None
    name, sizes = named
    if kernel.dtype not in kinds()[name].dtypes or any(size < 0 for size in sizes.values()):
        return None
    return Point(kind=name, dtype=kernel.dtype, sizes=dict(sizes))


Named = tuple[str, Sizes]


def _row_or_pointwise(kernel: Kernel) -> Named | None:
    dims = kernel.dims
    if kernel.op in _ROW_OPS:
        return _ROW_OPS[kernel.op], {"rows": dims["rows"], "cols": dims["cols"]}
    name = _POINTWISE.get((kernel.op, dims.get("inputs", 0)))
    return None if name is None else (name, {"numel": dims["numel"]})


def _product(kernel: Kernel) -> Named | None:
    d = kernel.dims
    sizes = {name: d[name] for name in ("m", "n", "k")}
    if kernel.op == "bmm":
        return "bmm", {"batch": d["batch"], **sizes}
    if d["batch"] != 1:
        return None
    if kernel.op == "linear":
        return "linear", sizes
    return ("matmul" if kernel.phase == "forward" else "matmul_dgrad"), sizes


def _convolution(kernel: Kernel) -> Named | None:
    d = kernel.dims
    window, size, out = d["kh"], d["h_in"], d["h_out"]
    square = size == d["w_in"] and window == d["kw"] and out == d["w_out"]
    if not square or not window % 2 or out < 1:
        return None
    stride = max(1, round(size / out))
    if (size + 2 * (window // 2) - window) // stride + 1 != out:
        return None
    depthwise = d["groups"] == d["c_in"] == d["c_out"] and d["groups"] > 1
    shape = {"batch": d["batch"], "c_in": d["c_in"], "c_out": d["c_out"], "size": size}
    groups = {"depthwise": 1} if depthwise else {"groups": d["groups"]}
    return kernel.op, {**shape, "window": window, "stride": stride, **groups}


def _attention(kernel: Kernel) -> Named | None:
    d = kernel.dims
    if "window" in d or "v_head_dim" in d or d["heads"] % d["kv_heads"]:
        return None
    sizes = {name: d[name] for name in ("batch", "heads", "q_len", "kv_len", "head_dim", "causal")}
    return kernel.op, {**sizes, "per_kv": d["heads"] // d["kv_heads"]}


def _update(kernel: Kernel) -> Named | None:
    return kernel.op, {"numel": kernel.dims["numel"], "tensors": kernel.dims["tensors"]}


_RULES: Mapping[str, Callable[[Kernel], Named | None]] = {
    "linear": _product, "matmul": _product, "bmm": _product,
    "conv": _convolution, "conv_dgrad": _convolution, "conv_wgrad": _convolution,
    "attention": _attention, "attention_backward": _attention,
    "adamw": _update, "sgd": _update,
}  # fmt: skip
