"""Quantised operators: integer products, and the conversions around them."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.rules.matrix import convolution, product
from predictor.capture.onnx.values import FLOATING, Item, dtype_of


def quantize(call: Call) -> list[Item]:
    """`QuantizeLinear`: to the dtype of the zero point."""
    x = call.value(0)
    dtype = "uint8"
    if call.has(2):
        dtype = call.value(2).dtype
    elif call.attr("output_dtype", 0):
        dtype = dtype_of(call.integer("output_dtype"), call.node.title)[0]
    out = call.tape.one("aten.quantize_per_tensor", (x,), x.shape, dtype)
    return [out]


def dequantize(call: Call) -> list[Item]:
    """`DequantizeLinear`: recorded only where nothing takes the integers themselves."""
    x, scale = call.value(0), call.value(1)
    given = call.integer("output_dtype", 0)
    dtype = dtype_of(given, call.node.title)[0] if given else scale.dtype
    out = call.tape.fresh(x.shape, dtype if dtype in FLOATING else "fp32")
    out.narrow, out.pending, out.constant, out.node = x, True, x.constant, x.node
    return [out]


def dynamic(call: Call) -> list[Item]:
    """`DynamicQuantizeLinear`: the range first, then the conversion."""
    x = call.value(0)
    call.tape.call("aten.aminmax", (x,), [((), x.dtype), ((), x.dtype)])
    out = call.tape.one("aten.quantize_per_tensor", (x,), x.shape, "uint8")
    return [out, call.tape.fresh((), "fp32", node=out.node),
            call.tape.fresh((), "uint8", node=out.node)]  # fmt: skip


def qlinear_conv(call: Call) -> list[Item]:
    """`QLinearConv`: x, scale, zero, w, scale, zero, result's scale and zero, bias."""
    x, weight = call.value(0), call.value(3)
    dtype = call.value(7).dtype
    return [convolution(call, x, weight, call.get(8), dtype)]


def conv_integer(call: Call) -> list[Item]:
    """`ConvInteger`."""
    return [convolution(call, call.value(0), call.value(1), None, "int32")]


def qlinear_matmul(call: Call) -> list[Item]:
    """`QLinearMatMul`: a, scale, zero, b, scale, zero, result's scale and zero."""
    return [product(call, call.value(0), call.value(3), call.value(7).dtype)]


def matmul_integer(call: Call) -> list[Item]:
    """`MatMulInteger`."""
    return [product(call, call.value(0), call.value(1), "int32")]


QUANTISED: Mapping[str, Rule] = {
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "DynamicQuantizeLinear": dynamic,
    "QLinearConv": qlinear_conv, "ConvInteger": conv_integer, "QLinearMatMul": qlinear_matmul,
    "MatMulInteger": matmul_integer,
}  # fmt: skip
"""Rules of the standard domain."""
