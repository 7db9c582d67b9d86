"""Small values: what a graph computes of its shapes and constants, worked out with NumPy.

Only operators whose results are at most `KNOWN_LIMIT` elements are worked out, and each checks that
before it allocates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from predictor.capture.onnx.call import Call
from predictor.capture.onnx.node import ints
from predictor.capture.onnx.reading import values_of
from predictor.capture.onnx.values import KNOWN_LIMIT, NUMPY, Array, Value, dtype_of, numel_of
from predictor.errors import CaptureError

Results: TypeAlias = "list[Array] | None"
"""Values of each result; None when they are too many or cannot be told."""
Evaluate: TypeAlias = Callable[[Call, list[Array]], Results]


def evaluate(call: Call) -> Results:
    """The results of a call whose operands are all known, None where they cannot be told.

    Raises:
        CaptureError: the operands do not fit together.
    """
    rule = EVALUATE.get(call.node.op) if not call.node.domain else None
    if rule is None:
        return None
    operands: list[Array] = []
    for item in call.items:
        if item is None:
            operands.append(np.empty(0, dtype=np.float32))
            continue
        if not isinstance(item, Value) or item.known is None:
            return None
        operands.append(item.known)
    try:
        with np.errstate(all="ignore"):
            found = rule(call, operands)
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise CaptureError(f"{call.node.title}: its operands do not fit: {error}") from None
    if found is None or any(a.size > KNOWN_LIMIT or a.dtype == object for a in found):
        return None
    return found


def _unary(function: Callable[[Any], Any]) -> Evaluate:
    def run(call: Call, x: list[Array]) -> Results:
        return [np.asarray(function(x[0])).astype(x[0].dtype)]

    return run


def _binary(function: Callable[[Any, Any], Any], *, same: bool = True) -> Evaluate:
    def run(call: Call, x: list[Array]) -> Results:
        if _large(np.broadcast_shapes(x[0].shape, x[1].shape)):
            return None
        out = np.asarray(function(x[0], x[1]))
        return [out.astype(x[0].dtype) if same else out]

    return run


def _many(function: Callable[[Any, Any], Any]) -> Evaluate:
    def run(call: Call, x: list[Array]) -> Results:
        if _large(np.broadcast_shapes(*(a.shape for a in x))):
            return None
        out = x[0]
        for other in x[1:]:
            out = function(out, other)
        return [np.asarray(out)]

    return run


def _large(shape: tuple[int, ...]) -> bool:
    return numel_of(shape) > KNOWN_LIMIT


def _divide(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        if np.any(b == 0):
            raise ZeroDivisionError("division by zero")
        return np.asarray(np.trunc(np.true_divide(a, b)))
    return np.asarray(a / b)


def _mod(call: Call, x: list[Array]) -> Results:
    if np.issubdtype(x[0].dtype, np.integer) and np.any(x[1] == 0):
        raise ZeroDivisionError("division by zero")
    return _binary(np.fmod if call.attr("fmod", 0) else np.mod)(call, x)


def _power(call: Call, x: list[Array]) -> Results:
    return [np.power(x[0].astype(np.float64), x[1].astype(np.float64)).astype(x[0].dtype)]


def _cast(call: Call, x: list[Array]) -> Results:
    name, _ = dtype_of(call.integer("to", 1), call.node.title)
    return [x[0].astype(NUMPY[name])] if name in NUMPY else None


def _concat(call: Call, x: list[Array]) -> Results:
    return None if sum(a.size for a in x) > KNOWN_LIMIT else [np.concatenate(x, call.attr("axis"))]


def _gather(call: Call, x: list[Array]) -> Results:
    axis = call.axis(x[0].ndim)
    shape = x[0].shape[:axis] + x[1].shape + x[0].shape[axis + 1 :]
    return None if _large(shape) else [np.asarray(np.take(x[0], x[1].astype(np.int64), axis=axis))]


def _slice(call: Call, x: list[Array]) -> Results:
    if "starts" in call.node.attrs:
        starts, ends = call.ints("starts"), call.ints("ends")
        axes, steps = call.ints("axes"), []
    else:
        starts, ends = [int(v) for v in x[1]], [int(v) for v in x[2]]
        axes = [int(v) for v in x[3]] if call.has(3) else []
        steps = [int(v) for v in x[4]] if call.has(4) else []
    axes = axes or list(range(len(starts)))
    cut = [slice(None)] * x[0].ndim
    for i, axis in enumerate(axes):
        step = steps[i] if steps else 1
        start, end = starts[i], ends[i]
        if step < 0:
            size = x[0].shape[axis]
            cut[axis] = slice(start, None if end < -size else end, step)
        else:
            cut[axis] = slice(start, end, step)
    return [x[0][tuple(cut)]]


def _unsqueeze(call: Call, x: list[Array]) -> Results:
    axes = call.axes() or []
    rank = x[0].ndim + len(axes)
    return [np.expand_dims(x[0], tuple(sorted(call.inside(a, rank) for a in axes)))]


def _squeeze(call: Call, x: list[Array]) -> Results:
    axes = call.axes()
    return [np.squeeze(x[0], None if not axes else tuple(axes))]


def _reshape(call: Call, x: list[Array]) -> Results:
    shape = call.ints("shape") if "shape" in call.node.attrs else [int(v) for v in x[1]]
    if not call.attr("allowzero", 0):
        shape = [x[0].shape[i] if s == 0 else s for i, s in enumerate(shape)]
    return [x[0].reshape(shape)]


def _transpose(call: Call, x: list[Array]) -> Results:
    return [np.transpose(x[0], call.ints("perm") or None)]


def _expand(call: Call, x: list[Array]) -> Results:
    shape = np.broadcast_shapes(x[0].shape, tuple(int(v) for v in x[1].reshape(-1)))
    return None if _large(shape) else [np.broadcast_to(x[0], shape).copy()]


def _tile(call: Call, x: list[Array]) -> Results:
    times = [int(v) for v in x[1].reshape(-1)]
    if any(t < 0 for t in times) or x[0].size * math.prod(times) > KNOWN_LIMIT:
        return None
    return [np.tile(x[0], times)]


def _filled(call: Call, x: list[Array]) -> Results:
    shape = tuple(int(v) for v in x[0].reshape(-1))
    if any(s < 0 for s in shape) or _large(shape):
        return None
    tensor = call.attr("value")
    value = np.zeros(1, np.float32) if tensor is None else values_of(tensor, call.node.title)
    return None if value is None else [np.full(shape, value.reshape(-1)[0], dtype=value.dtype)]


def _range(call: Call, x: list[Array]) -> Results:
    start, limit, step = (v.reshape(-1)[0] for v in x[:3])
    if step == 0:
        raise ZeroDivisionError("a step of zero")
    count = max(0, math.ceil((float(limit) - float(start)) / float(step)))
    return None if count > KNOWN_LIMIT else [(start + np.arange(count) * step).astype(x[0].dtype)]


def _split(call: Call, x: list[Array]) -> Results:
    parts = call.ints("split") or (call.known_ints(1) if call.has(1) else None)
    count = len(call.node.outputs)
    axis = call.axis(x[0].ndim)
    if not parts:
        each = -(-x[0].shape[axis] // count)
        parts = [min(each, x[0].shape[axis] - i * each) for i in range(count)]
    return list(np.split(x[0], np.cumsum(parts)[:-1], axis))


def _reduce(function: Callable[..., Any]) -> Evaluate:
    def run(call: Call, x: list[Array]) -> Results:
        axes = call.axes()
        if not axes and call.attr("noop_with_empty_axes", 0):
            return [x[0]]
        keep = bool(call.attr("keepdims", 1))
        out = function(x[0], axis=tuple(axes) if axes else None, keepdims=keep)
        return [np.asarray(out).astype(x[0].dtype)]

    return run


def _clip(call: Call, x: list[Array]) -> Results:
    low = call.attr("min", None if not call.has(1) else x[1])
    high = call.attr("max", None if not call.has(2) else x[2])
    out = x[0] if low is None else np.maximum(x[0], low)
    return [np.asarray(out if high is None else np.minimum(out, high)).astype(x[0].dtype)]


def _where(call: Call, x: list[Array]) -> Results:
    if _large(np.broadcast_shapes(*(a.shape for a in x))):
        return None
    return [np.asarray(np.where(x[0], x[1], x[2])).astype(x[1].dtype)]


def _cumsum(call: Call, x: list[Array]) -> Results:
    if call.attr("exclusive", 0) or call.attr("reverse", 0):
        return None
    return [np.cumsum(x[0], axis=int(x[1].reshape(-1)[0])).astype(x[0].dtype)]


def _nonzero(call: Call, x: list[Array]) -> Results:
    return [np.array(np.nonzero(np.atleast_1d(x[0])), dtype=np.int64)]


def _scatter_nd(call: Call, x: list[Array]) -> Results:
    if call.attr("reduction", "none") != "none":
        return None
    out = x[0].copy()
    index = x[1].astype(np.int64)
    out[tuple(index.reshape(-1, index.shape[-1]).T)] = x[2].reshape(
        -1, *x[0].shape[index.shape[-1] :]
    )
    return [out]


def _trilu(call: Call, x: list[Array]) -> Results:
    k = int(x[1].reshape(-1)[0]) if call.has(1) else 0
    return [np.triu(x[0], k) if call.attr("upper", 1) else np.tril(x[0], k)]


def _flatten(call: Call, x: list[Array]) -> Results:
    axis = call.inside(call.integer("axis", 1), x[0].ndim + 1)
    return [x[0].reshape(math.prod(x[0].shape[:axis]), -1)]


def _arg(function: Callable[..., Any]) -> Evaluate:
    def run(call: Call, x: list[Array]) -> Results:
        axis = call.axis(x[0].ndim)
        out = function(x[0], axis=axis, keepdims=bool(call.attr("keepdims", 1)))
        return [np.asarray(out).astype(np.int64)]

    return run


def _pad(call: Call, x: list[Array]) -> Results:
    pads = call.ints("pads") or (call.known_ints(1) if call.has(1) else None)
    if not pads or call.attr("mode", "constant") != "constant" or call.has(3) or min(pads) < 0:
        return None
    half = len(pads) // 2
    if sum(pads) > KNOWN_LIMIT:
        return None
    value = x[2].reshape(-1)[0] if call.has(2) else 0
    return [np.pad(x[0], list(zip(pads[:half], pads[half:], strict=True)), constant_values=value)]


def _size(call: Call, x: list[Array]) -> Results:
    return [np.array(x[0].size, dtype=np.int64)]


def _shape(call: Call, x: list[Array]) -> Results:
    return [np.array(x[0].shape, dtype=np.int64)]


def shape_values(shape: tuple[int, ...], start: object, end: object) -> Array:
    """What `Shape` gives, with its cut."""
    first = ints(start)[0] if start is not None else 0
    last = ints(end)[0] if end is not None else len(shape)
    return np.array(shape[first:last], dtype=np.int64)


def _round(a: Array) -> Array:
    return np.asarray(np.rint(a))


EVALUATE: Mapping[str, Evaluate] = {
    "Identity": _unary(lambda a: a), "Neg": _unary(np.negative), "Abs": _unary(np.abs),
    "Floor": _unary(np.floor), "Ceil": _unary(np.ceil), "Round": _unary(_round),
    "Sqrt": _unary(np.sqrt), "Exp": _unary(np.exp), "Log": _unary(np.log), "Sign": _unary(np.sign),
    "Reciprocal": _unary(np.reciprocal), "Not": _unary(np.logical_not), "Sin": _unary(np.sin),
    "Cos": _unary(np.cos), "Tanh": _unary(np.tanh), "BitwiseNot": _unary(np.bitwise_not),
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply),
    "Div": _binary(_divide), "Mod": _mod, "Pow": _power,
    "And": _binary(np.logical_and), "Or": _binary(np.logical_or), "Xor": _binary(np.logical_xor),
    "Equal": _binary(np.equal, same=False), "Greater": _binary(np.greater, same=False),
    "Less": _binary(np.less, same=False), "LessOrEqual": _binary(np.less_equal, same=False),
    "GreaterOrEqual": _binary(np.greater_equal, same=False),
    "Min": _many(np.minimum), "Max": _many(np.maximum), "Sum": _many(np.add),
    "Cast": _cast, "Concat": _concat, "Gather": _gather, "Slice": _slice,
    "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Reshape": _reshape, "Transpose": _transpose,
    "Expand": _expand, "Tile": _tile, "ConstantOfShape": _filled, "Range": _range,
    "Split": _split, "Where": _where, "CumSum": _cumsum, "NonZero": _nonzero, "Clip": _clip,
    "ReduceProd": _reduce(np.prod), "ReduceSum": _reduce(np.sum), "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min), "ReduceMean": _reduce(np.mean), "ScatterND": _scatter_nd,
    "Trilu": _trilu, "Flatten": _flatten, "ArgMax": _arg(np.argmax), "ArgMin": _arg(np.argmin),
    "Pad": _pad, "Size": _size, "Shape": _shape,
}  # fmt: skip
"""How each operator is worked out."""
