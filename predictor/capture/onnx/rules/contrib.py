"""Operators of `com.microsoft`, which ONNX Runtime's optimiser and its model builders write.

Their definitions: docs/ContribOperators.md of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.rules.contrib_attention import ATTENTION
from predictor.capture.onnx.rules.matrix import convolution, product
from predictor.capture.onnx.rules.norms import normalised
from predictor.capture.onnx.rules.pointwise import elementwise, unary
from predictor.capture.onnx.rules.quantised import dequantize, quantize
from predictor.capture.onnx.values import FLOATING, Item, Value

MICROSOFT = "com.microsoft"


def fused_matmul(call: Call) -> list[Item]:
    """`FusedMatMul`, `TransposeMatMul`, `GemmFastGelu`: factors transposed as views."""
    a, b = call.value(0), call.value(1)
    if call.attr("transA", 0):
        a = call.tape.transposed(a)
    if call.attr("transB", 0):
        b = call.tape.transposed(b)
    out = product(call, a, b, a.dtype, call.get(2))
    if call.node.op == "GemmFastGelu":
        out = call.tape.one("aten.gelu", (out,), out.shape, out.dtype)
    return [out]


def fused_gemm(call: Call) -> list[Item]:
    """`FusedGemm`: an activation behind the product."""
    a, b = call.value(0), call.value(1)
    a = call.tape.transposed(a) if call.attr("transA", 0) else a
    b = call.tape.transposed(b) if call.attr("transB", 0) else b
    return [_activated(call, product(call, a, b, a.dtype, call.get(2)))]


def fused_conv(call: Call) -> list[Item]:
    """`FusedConv`, `NhwcConv`: bias, a sum and an activation behind the convolution."""
    x, weight = call.value(0), call.value(1)
    out = convolution(call, x, weight, call.get(2), x.dtype)
    if call.has(3):
        out = elementwise(call, "add", (out, call.value(3)), out.dtype)
    return [_activated(call, out)]


def _activated(call: Call, x: Value) -> Value:
    name = str(call.attr("activation", "") or "").lower()
    known = {"relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "leakyrelu": "leaky_relu",
             "clip": "clamp", "hardsigmoid": "hardsigmoid"}  # fmt: skip
    return call.tape.one(f"aten.{known[name]}", (x,), x.shape, x.dtype) if name in known else x


def bias_gelu(call: Call) -> list[Item]:
    """`BiasGelu`, `FastGelu`: one call that reads the bias."""
    x = call.value(0)
    return [call.tape.one("aten.gelu", call.values(), x.shape, x.dtype)]


def skip_norm(op: str) -> Rule:
    """A sum, then a norm of it; the sum may be a result too."""

    def run(call: Call) -> list[Item]:
        x, skip = call.value(0), call.value(1)
        bias = call.get(4 if op.endswith("layer_norm") else 3)
        summed = elementwise(call, "add", (x, skip), x.dtype)
        if bias is not None:
            summed = elementwise(call, "add", (summed, bias), x.dtype)
        count = 2 if op.endswith("layer_norm") else 1
        parameters = [v for v in (call.get(2), call.get(3))[:count] if v is not None]
        over = summed.shape[-1:]
        out = normalised(call, summed, parameters, over, op)
        return [out[0], out[1], out[-1], summed]

    return run


def simplified_norm(call: Call) -> list[Item]:
    """`SimplifiedLayerNormalization`: an RMS norm."""
    x = call.value(0)
    axis = call.axis(len(x.shape), -1)
    return list(normalised(call, x, call.values(1), x.shape[axis:], "aten._fused_rms_norm"))


def embed_norm(call: Call) -> list[Item]:
    """`EmbedLayerNormalization`: ids, segments, then the three tables, weight, bias."""
    ids, words = call.value(0), call.value(2)
    shape = (*ids.shape, words.shape[-1])
    tape = call.tape
    out = tape.one("aten.embedding", (words, ids), shape, words.dtype)
    places = tape.one("aten.embedding", (call.value(3), ids), shape, words.dtype)
    out = elementwise(call, "add", (out, places), words.dtype)
    if call.has(1) and call.has(4):
        kinds = tape.one("aten.embedding", (call.value(4), call.value(1)), shape, words.dtype)
        out = elementwise(call, "add", (out, kinds), words.dtype)
    parameters = [v for v in (call.get(5), call.get(6)) if v is not None]
    normed = normalised(call, out, parameters, shape[-1:], "aten.native_layer_norm")[0]
    return [normed, tape.fresh(ids.shape[:1], "int32"), out]


def matmul_nbits(call: Call) -> list[Item]:
    """`MatMulNBits`, `MatMulBnb4`: weights of few bits, taken wider on the way in.

    The arithmetic is that of the activations' dtype; the weights are read in their own bits.
    """
    x, packed, scales = call.value(0), call.value(1), call.value(2)
    k, n = call.integer("K", x.shape[-1]), call.integer("N", packed.shape[0])
    if not x.shape or x.shape[-1] != k or n < 1:
        raise call.wrong(f"input {list(x.shape)}, K {k}, N {n}")
    weight = call.tape.seen_as(packed, (k, n), (1, k))
    weight.spec = replace(weight.spec, touched_bytes=packed.spec.touched_bytes)
    rows = call.tape.reshape(x, (max(1, x.numel // max(1, k)), k)) if x.numel else x
    extra = [scales, *[v for v in (call.get(3),) if v is not None]]
    flat = call.tape.one("aten.mm", (rows, weight, *extra), (rows.shape[0], n), x.dtype)
    out = call.tape.reshape(flat, (*x.shape[:-1], n))
    if call.has(5):
        out = elementwise(call, "add", (out, call.value(5)), x.dtype)
    return [out]


def dynamic_matmul(call: Call) -> list[Item]:
    """`DynamicQuantizeMatMul`, `MatMulIntegerToFloat`: an integer product, back in floats."""
    x, weight = call.value(0), call.value(1)
    bias_at = 4 if call.node.op == "DynamicQuantizeMatMul" else 6
    if x.dtype in FLOATING:
        call.tape.call("aten.aminmax", (x,), [((), x.dtype), ((), x.dtype)])
        x = call.tape.one("aten.quantize_per_tensor", (x,), x.shape, "uint8")
    return [product(call, x, weight, "fp32", call.get(bias_at))]


def qlinear(op: str) -> Rule:
    """Elementwise operators on quantised tensors: operand, scale, zero point, each."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        both = (x, call.value(3)) if op in ("add", "mul") else (x,)
        return [elementwise(call, op, both, x.dtype)]

    return run


def qlinear_pool(call: Call) -> list[Item]:
    """`QLinearGlobalAveragePool`."""
    x = call.value(0)
    last = bool(call.attr("channels_last", 0))
    axes = range(1, len(x.shape) - 1) if last else range(2, len(x.shape))
    shape = [1 if i in axes else s for i, s in enumerate(x.shape)]
    return [call.tape.one("aten.mean", (x,), shape, x.dtype, {"dim": list(axes)})]


def qlinear_concat(call: Call) -> list[Item]:
    """`QLinearConcat`: the result's scale and zero point, then three for each part."""
    parts = [call.value(i) for i in range(2, len(call.items), 3)]
    axis = call.axis(len(parts[0].shape))
    total = sum(p.shape[axis] for p in parts)
    shape = [total if i == axis else s for i, s in enumerate(parts[0].shape)]
    return [call.tape.one("aten.cat", parts, shape, parts[0].dtype, {"dim": axis})]


def group_norm(call: Call) -> list[Item]:
    """`GroupNorm`: channels last, with an activation."""
    x = call.value(0)
    stat = (x.shape[0], call.integer("groups", 1))
    results = [(x.shape, x.dtype), (stat, "fp32"), (stat, "fp32")]
    attrs = {"group": stat[1]}
    out = call.tape.call("aten.native_group_norm", call.values()[:3], results, attrs)[0]
    if call.attr("activation", 0):
        out = call.tape.one("aten.silu", (out,), out.shape, out.dtype)
    return [out]


def bias_add(call: Call) -> list[Item]:
    """`BiasAdd`: result, bias and the branch around it."""
    out = elementwise(call, "add", call.values()[:2], call.value(0).dtype)
    return [elementwise(call, "add", (out, call.value(2)), out.dtype)] if call.has(2) else [out]


def biased_softmax(call: Call) -> list[Item]:
    """`BiasSoftmax`: one call that reads what is added first."""
    x = call.value(0)
    return [call.tape.one("aten._softmax", call.values()[:2], x.shape, x.dtype, {"dim": -1})]


def gate(call: Call) -> list[Item]:
    """`BiasSplitGelu`: half of the last axis times the activation of the other."""
    x = call.value(0)
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return [call.tape.one("aten.glu", call.values(), shape, x.dtype)]


_RULES: Mapping[str, Rule] = {
    **ATTENTION,
    "FusedMatMul": fused_matmul, "TransposeMatMul": fused_matmul, "GemmFastGelu": fused_matmul,
    "FusedGemm": fused_gemm, "FusedConv": fused_conv, "NhwcFusedConv": fused_conv,
    "Gelu": unary("gelu"), "QuickGelu": unary("silu"), "BiasGelu": bias_gelu,
    "FastGelu": bias_gelu, "BiasSplitGelu": gate, "BiasAdd": bias_add,
    "SkipLayerNormalization": skip_norm("aten.native_layer_norm"),
    "SkipSimplifiedLayerNormalization": skip_norm("aten._fused_rms_norm"),
    "SimplifiedLayerNormalization": simplified_norm, "EmbedLayerNormalization": embed_norm,
    "GroupNorm": group_norm, "BiasSoftmax": biased_softmax,
    "MatMulNBits": matmul_nbits, "MatMulBnb4": matmul_nbits,
    "DynamicQuantizeMatMul": dynamic_matmul, "MatMulIntegerToFloat": dynamic_matmul,
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize,
    "QLinearAdd": qlinear("add"), "QLinearMul": qlinear("mul"),
    "QLinearSigmoid": qlinear("sigmoid"), "QLinearLeakyRelu": qlinear("leaky_relu"),
    "QLinearGlobalAveragePool": qlinear_pool, "QLinearConcat": qlinear_concat,
}  # fmt: skip
CONTRIB: Mapping[tuple[str, str], Rule] = {
    **{(MICROSOFT, op): rule for op, rule in _RULES.items()},
}
"""Rule by domain and operator."""
