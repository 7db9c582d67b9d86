"""Operators that compute each element by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.tape import common_strides
from predictor.capture.onnx.values import Item, Value, broadcast, dtype_of

UNARY: Mapping[str, str] = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Celu": "celu",
    "Clip": "clamp", "Cos": "cos", "Cosh": "cosh", "Elu": "elu", "Erf": "erf", "Exp": "exp",
    "Floor": "floor", "Gelu": "gelu", "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish",
    "LeakyRelu": "leaky_relu", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "logical_not",
    "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Selu": "selu",
    "Shrink": "hardshrink", "Sigmoid": "sigmoid", "Sign": "sgn", "Sin": "sin", "Sinh": "sinh",
    "Softplus": "softplus", "Softsign": "softplus", "Sqrt": "sqrt", "Swish": "silu", "Tan": "tan",
    "Tanh": "tanh", "ThresholdedRelu": "threshold", "Silu": "silu", "Rsqrt": "rsqrt",
    "ImageScaler": "mul", "ParametricSoftplus": "softplus", "ScaledTanh": "tanh",
    "Affine": "mul", "Trilu": "tril",
}  # fmt: skip
BINARY: Mapping[str, str] = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "PRelu": "prelu",
    "BitShift": "bitwise_left_shift", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Mod": "remainder",
}  # fmt: skip
COMPARE: Mapping[str, str] = {
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
TEST: Mapping[str, str] = {"IsInf": "isinf", "IsNaN": "isnan"}
CHAINED: Mapping[str, str] = {"Max": "maximum", "Min": "minimum", "Sum": "add", "Mean": "add"}


def tensors(values: Sequence[Value]) -> list[Value]:
    """Operands that a call is given as tensors: a constant of one element is a plain number."""
    kept = [v for v in values if not (v.constant and v.numel == 1)]
    return kept or list(values[:1])


def elementwise(call: Call, op: str, operands: Sequence[Value], dtype: str) -> Value:
    """Record one elementwise call over operands that broadcast."""
    shape = broadcast([v.shape for v in operands], call.node.title)
    strides = common_strides(operands, shape)
    return call.tape.call(f"aten.{op}", tensors(operands), [(shape, dtype)], None, strides)[0]


def unary(op: str) -> Rule:
    """One operand; further ones are bounds and settings."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        strides = common_strides((x,), x.shape)
        return list(call.tape.call(f"aten.{op}", (x,), [(x.shape, x.dtype)], None, strides))

    return run


def binary(op: str, dtype: str | None = None) -> Rule:
    """Two operands."""

    def run(call: Call) -> list[Item]:
        a, b = call.value(0), call.value(1)
        return [elementwise(call, op, (a, _aligned(call, a, b)), dtype or a.dtype)]

    return run


def _aligned(call: Call, a: Value, b: Value) -> Value:
    """The second operand with trailing axes: before opset 7 an axis said where it starts."""
    if call.version >= 7 or len(b.shape) >= len(a.shape) or not b.shape:
        return b
    at = call.integer("axis", 1 if call.node.op == "PRelu" else len(a.shape) - len(b.shape))
    behind = len(a.shape) - len(b.shape) - call.inside(at, len(a.shape))
    return call.tape.reshape(b, (*b.shape, *(1 for _ in range(behind)))) if behind > 0 else b


def chained(op: str) -> Rule:
    """Any number of operands, two at a time."""

    def run(call: Call) -> list[Item]:
        operands = [call.value(0), *call.values(1)]
        out = operands[0]
        for other in operands[1:]:
            out = elementwise(call, op, (out, other), out.dtype)
        if call.node.op == "Mean" and len(operands) > 1:
            out = elementwise(call, "div", (out,), out.dtype)
        return [out]

    return run


def where(call: Call) -> list[Item]:
    """`Where`: condition and two choices."""
    operands = call.values()
    return [elementwise(call, "where", operands, operands[1].dtype)]


def cast(call: Call) -> list[Item]:
    """`Cast`, `CastLike`, `BitCast`: a copy in another dtype; nothing where it is the same."""
    x = call.value(0)
    if call.node.op == "CastLike":
        dtype = call.value(1).dtype
    else:
        dtype, _ = dtype_of(call.integer("to", 1), call.node.title)
    if dtype == x.dtype:
        return [x]
    strides = common_strides((x,), x.shape)
    return list(call.tape.call("aten._to_copy", (x,), [(x.shape, dtype)], None, strides))


def dropout(call: Call) -> list[Item]:
    """Nothing at inference; a mask besides where it trains."""
    x = call.value(0)
    training = call.known(2)
    trains = training is not None and bool(training.reshape(-1)[0])
    if call.version < 7:
        trains = not call.attr("is_test", 0) and call.version < 7 and len(call.node.outputs) > 1
    if not trains:
        mask = call.walk.tape.fresh(x.shape, "bool", role="buffer")
        return [x, mask]
    return list(
        call.tape.call("aten.native_dropout", (x,), [(x.shape, x.dtype), (x.shape, "bool")])
    )


def swiglu(call: Call) -> list[Item]:
    """A gate: half of the last axis times the activation of the other half."""
    x = call.value(0)
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    if call.has(1):
        shape = x.shape
    return [call.tape.one("aten.glu", call.values(), shape, x.dtype)]


def identity(call: Call) -> list[Item]:
    """The operand itself."""
    return [call.items[0] if call.items else None]


POINTWISE: Mapping[str, Rule] = {
    **{op: unary(aten) for op, aten in UNARY.items()},
    **{op: binary(aten) for op, aten in BINARY.items()},
    **{op: binary(aten, "bool") for op, aten in COMPARE.items()},
    **{op: chained(aten) for op, aten in CHAINED.items()},
    "IsInf": lambda call: _test(call, "isinf"),
    "IsNaN": lambda call: _test(call, "isnan"),
    "Where": where,
    "Cast": cast,
    "CastLike": cast,
    "BitCast": cast,
    "Dropout": dropout,
    "SwiGLU": swiglu,
    "Identity": identity,
}  # fmt: skip
"""Rules of the standard domain."""


def _test(call: Call, op: str) -> list[Item]:
    x = call.value(0)
    return [call.tape.one(f"aten.{op}", (x,), x.shape, "bool")]
