"""FLOPs of StableHLO operations as XLA's own cost analysis counts them.

An elementwise operation counts 1 an element, a transcendental nothing (XLA lists those apart), a
product 2 a multiply-add; a convolution counts the products with elements that exist, not with
padding. This is what a report states for a JAX program; the time of a kernel comes from
`predictor.cost.rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from predictor.graph.ir import OpNode

_TRANSCENDENTAL = (
    "exponential exponential_minus_one log log_plus_one logistic power sqrt cbrt rsqrt tanh sine "
    "cosine tan atan2 erf erfc erf_inv lgamma digamma sinh cosh asin acos atan asinh acosh atanh "
    "bessel_i1e polygamma zeta"
)
_ARITHMETIC = (
    "add subtract multiply divide remainder maximum minimum abs negate sign floor ceil and or xor "
    "not compare select clamp convert round_nearest_even round_nearest_afz shift_left "
    "shift_right_logical shift_right_arithmetic is_finite count_leading_zeros popcnt complex real "
    "imag reduce_precision map is_inf is_pos_inf is_neg_inf square conj next_after"
)
TRANSCENDENTAL: frozenset[str] = frozenset(_TRANSCENDENTAL.split())
"""Operations that take a polynomial or a special unit an element."""
ARITHMETIC: frozenset[str] = frozenset(_ARITHMETIC.split())
"""Operations of one step an element."""


def short(op: str) -> str:
    """Name of an operation without its dialect."""
    return op.rpartition(".")[2]


def xla_flops(node: OpNode) -> float:
    """FLOPs of one run of an operation; 0 of what moves data or is a library's own."""
    name = short(node.op)
    if name in ARITHMETIC:
        return float(node.outputs[0].numel)
    count = _COUNTS.get(name)
    return 0.0 if count is None else float(count(node))


def body_flops(node: OpNode) -> int:
    """Steps of a region that combines two values: additions and the like, no transcendentals."""
    held = node.attrs.get("body")
    names = held if isinstance(held, Sequence) else ()
    return sum(1 for name in names if name in ARITHMETIC)


def numbers(node: OpNode, name: str, default: Sequence[int] = ()) -> list[int]:
    """Integers of an attribute."""
    value = node.attrs.get(name)
    if isinstance(value, int):
        return [value]
    return [int(v) for v in value] if isinstance(value, Sequence) else list(default)


def contracted(node: OpNode) -> int:
    """Length of the sum of a product."""
    lhs = node.inputs[0].shape
    places = numbers(node, "lhs_contract", (len(lhs) - 1,))
    return math.prod(lhs[i] for i in places)


def _dot(node: OpNode) -> float:
    return 2.0 * node.outputs[0].numel * contracted(node)


def _reduce(node: OpNode) -> float:
    return float((node.inputs[0].numel - node.outputs[0].numel) * body_flops(node))


def _window(node: OpNode) -> float:
    size = math.prod(numbers(node, "window_dimensions", (1,)))
    return float(node.outputs[0].numel * max(0, size - 1) * body_flops(node))


def _select_and_scatter(node: OpNode) -> float:
    size = math.prod(numbers(node, "window_dimensions", (1,)))
    return float(node.inputs[1].numel * size)


def _scatter(node: OpNode) -> float:
    return float(node.inputs[-1].numel * body_flops(node))


def _fft(node: OpNode) -> float:
    """4 multiply-adds of reals for each complex product, log2 of the length an element."""
    points = math.prod(numbers(node, "length", (1,)))
    numel = max(s.numel for s in (*node.inputs, *node.outputs))
    return 8.0 * numel * math.log2(max(points, 2))


def _sort(node: OpNode) -> float:
    numel = node.inputs[0].numel
    return float(numel * math.ceil(math.log2(max(numel, 2))))


def _all_reduce(node: OpNode) -> float:
    return float(sum(spec.numel for spec in node.outputs) * body_flops(node))


def convolution_products(node: OpNode) -> float:
    """Multiply-adds of a convolution with input elements that exist."""
    x, kernel, out = node.inputs[0].shape, node.inputs[1].shape, node.outputs[0].shape
    spatial = numbers(node, "input_spatial_dimensions")
    axes = len(spatial)
    padding = numbers(node, "padding", (0,) * (2 * axes))
    valid = 1
    for i in range(axes):
        valid *= valid_positions(
            size=x[spatial[i]],
            taps=kernel[numbers(node, "kernel_spatial_dimensions")[i]],
            places=out[numbers(node, "output_spatial_dimensions")[i]],
            stride=numbers(node, "window_strides", (1,) * axes)[i],
            low=padding[2 * i],
            base=numbers(node, "lhs_dilation", (1,) * axes)[i],
            window=numbers(node, "rhs_dilation", (1,) * axes)[i],
        )
    features = kernel[numbers(node, "kernel_input_feature_dimension")[0]]
    channels = out[numbers(node, "output_feature_dimension")[0]]
    groups = numbers(node, "batch_group_count", (1,))[0]
    batch = x[numbers(node, "input_batch_dimension")[0]] // max(1, groups)
    return float(valid) * features * channels * batch


@lru_cache(maxsize=4096)
def valid_positions(
    *, size: int, taps: int, places: int, stride: int, low: int, base: int, window: int
) -> int:
    """Pairs of an output place and a tap of the window that meet an element, along one axis.

    Args:
        size: input elements.
        taps: elements of the window.
        places: output elements.
        stride: of the window.
        low: padding before the first element.
        base: dilation of the input.
        window: dilation of the window.
    """
    last = (size - 1) * base
    count = 0
    for tap in range(taps) if taps <= places else range(places):
        if taps <= places:  # places where this tap meets the input
            start, step, many = tap * window - low, stride, places
        else:  # taps that meet the input at this place
            start, step, many = tap * stride - low, window, taps
        period = base // math.gcd(base, step) if base > 1 else 1
        offset = next((j for j in range(period) if (start + j * step) % base == 0), None)
        if offset is None:
            continue
        first = start + offset * step
        hop = step * period
        skip = max(0, -(first // hop)) if first < 0 else 0
        low_index = offset + skip * period
        if first + skip * hop > last:
            continue
        high_index = offset + ((last - first) // hop) * period
        high_index = min(high_index, offset + ((many - 1 - offset) // period) * period)
        if high_index >= low_index:
            count += (high_index - low_index) // period + 1
    return count


_COUNTS: Mapping[str, Callable[[OpNode], float]] = {
    "dot_general": _dot,
    "dot": _dot,
    "convolution": lambda node: 2.0 * convolution_products(node),
    "reduce": _reduce,
    "reduce_window": _window,
    "select_and_scatter": _select_and_scatter,
    "sort": _sort,
    "scatter": _scatter,
    "fft": _fft,
    "all_reduce": _all_reduce,
    "reduce_scatter": _all_reduce,
}
"""Operations whose count is not one an element."""
