"""Every operator of `com.microsoft` with a rule: result, FLOPs of products, bytes, by hand.

Batch 2, length 8, 16 features, 4 heads of 4, fp32 (4 bytes an element) unless a case says else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from predictor.capture.onnx.capture import capture_onnx
from predictor.capture.onnx.rules.contrib import CONTRIB
from predictor.lower.eager import lower_eager

I8, U8, I32, I64 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64
X = {"x": (2, 8, 16)}
T = 2 * 8 * 16 * 4
"""Bytes of a tensor of the usual shape."""
Q = {"sx": (1,), "zx": (1,), "sb": (1,), "zb": (1,), "sy": (1,), "zy": (1,)}
OF_Q = {"x": U8, "b": U8, "zx": U8, "zb": U8, "zy": U8}
"""Scales and zero points of two quantised operands and the result, and their elements."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operator with its operands, and what it must come to."""

    op: str
    inputs: Mapping[str, Sequence[int]]
    weights: Mapping[str, Sequence[int] | np.ndarray] = field(default_factory=dict)
    operands: Sequence[str] | None = None
    """In order; inputs, then weights, by default."""
    elements: Mapping[str, int] = field(default_factory=dict)
    attrs: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1
    shape: tuple[int, ...] = (2, 8, 16)
    dtype: str = "fp32"
    flops: int = 0
    """Of products and attention."""
    bytes: int
    kernels: int

    def model(self, made: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
        names = self.operands or [*self.inputs, *self.weights]
        results = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, results, domain="com.microsoft", **self.attrs)
        return made(
            [node], self.inputs, ["y0"], self.weights, elements=self.elements,
            domains={"com.microsoft": 1},
        )  # fmt: skip


def attention(q_len: int, kv_len: int) -> int:
    """FLOPs of two products for 2 x 4 heads of 4."""
    return 2 * (2 * 2 * 4 * q_len * kv_len * 4)


QKV = {"w": (16, 48), "b": (48,)}
PROJECTED = 2 * 16 * 16 * 48
HEADS = {"num_heads": 4}
TABLES = {"w": (100, 16), "p": (32, 16), "k": (2, 16), "g": (16,), "b": (16,)}
CASES = [
    # x, weight and bias read, query, key and value written; then they are read
    Case(op="Attention", inputs=X, weights=QKV, attrs=HEADS, kernels=2,
         flops=PROJECTED + attention(8, 8), bytes=T + 3072 + 192 + 3 * T + 4 * T),
    # six keys of before: key and value are joined with them; scores have something added
    Case(op="Attention", inputs={**X, "past": (2, 2, 4, 6, 4), "a": (2, 4, 8, 14)}, weights=QKV,
         operands=["x", "w", "b", "", "past", "a"], attrs=HEADS, outputs=2, kernels=4,
         flops=PROJECTED + attention(8, 14),
         bytes=(T + 3072 + 192 + 3 * T) + 2 * (2 * 1792) + (T + 2 * 1792 + 3584 + T)),
    Case(op="DecoderMaskedSelfAttention", inputs={"x": (2, 1, 16), "past": (2, 2, 4, 7, 4)},
         weights=QKV, operands=["x", "w", "b", "", "past"], attrs=HEADS, outputs=2,
         shape=(2, 1, 16), kernels=4, flops=2 * 2 * 16 * 48 + attention(1, 8),
         bytes=(128 + 3072 + 192 + 384) + 2 * (2 * 1024) + (128 + 2 * 1024 + 128)),
    # the product reads integers; what comes out is in the dtype of the scales
    Case(op="QAttention", inputs=X, weights={**QKV, "s": (1,), "t": (1,)},
         elements={"x": U8, "w": I8}, attrs=HEADS, kernels=2, flops=PROJECTED + attention(8, 8),
         bytes=256 + 768 + 192 + 3 * T + 4 * T),
    Case(op="QAttention", inputs={**X, "past": (2, 2, 4, 6, 4)},
         weights={**QKV, "s": (1,), "t": (1,), "z": (1,)},
         operands=["x", "w", "b", "s", "t", "", "z", "z", "past"],
         elements={"x": U8, "w": I8, "z": U8}, attrs=HEADS, outputs=2, kernels=4,
         flops=PROJECTED + attention(8, 14),
         bytes=(256 + 768 + 192 + 3 * T) + 2 * (2 * 1792) + (T + 2 * 1792 + T)),
    Case(op="MultiHeadAttention", inputs={"q": (2, 8, 16), "k": (2, 6, 16), "v": (2, 6, 16)},
         attrs=HEADS, kernels=1, flops=attention(8, 6), bytes=2 * T + 2 * 768),
    # the bias is a pass over each of the three
    Case(op="MultiHeadAttention", inputs={"q": (2, 8, 16), "k": (2, 6, 16), "v": (2, 6, 16)},
         weights={"b": (48,)}, attrs=HEADS, kernels=4, flops=attention(8, 6),
         bytes=(2 * T + 64) + 2 * (2 * 768 + 64) + 2 * T + 2 * 768),
    Case(op="MultiHeadAttention", inputs={"q": (2, 8, 4, 3, 4)}, attrs=HEADS, kernels=1,
         flops=attention(8, 8), bytes=4 * T),  # all three packed
    Case(op="MultiHeadAttention",
         inputs={"q": (2, 8, 16), "k": (2, 8, 16), "v": (2, 8, 16), "pk": (2, 4, 6, 4),
                 "pv": (2, 4, 6, 4)},
         operands=["q", "k", "v", "", "", "", "pk", "pv"], attrs=HEADS, outputs=3, kernels=3,
         flops=attention(8, 14), bytes=2 * (2 * 1792) + 2 * T + 2 * 1792),
    Case(op="DecoderMaskedMultiHeadAttention",
         inputs={"q": (2, 1, 16), "k": (2, 1, 16), "v": (2, 1, 16), "pk": (2, 4, 7, 4),
                 "pv": (2, 4, 7, 4)},
         operands=["q", "k", "v", "", "", "pk", "pv"], attrs=HEADS, outputs=3,
         shape=(2, 1, 16), kernels=3, flops=attention(1, 8),
         bytes=2 * (2 * 1024) + 128 + 2 * 1024 + 128),
    # a buffer of 32 places of which 8 are used, the newest written into it
    Case(op="GroupQueryAttention",
         inputs={"q": (2, 1, 16), "k": (2, 1, 8), "v": (2, 1, 8), "pk": (2, 2, 32, 4),
                 "pv": (2, 2, 32, 4), "l": (2,)},
         weights={"t": np.array([8], dtype=np.int32)}, elements={"l": I32},
         attrs={**HEADS, "kv_num_heads": 2}, outputs=3, shape=(2, 1, 16), kernels=3,
         flops=attention(1, 8), bytes=2 * (2 * 64) + 128 + 2 * 512 + 128),
    # how much of the buffer is used only a run knows: taken as full, and growing
    Case(op="GroupQueryAttention",
         inputs={"q": (2, 1, 16), "k": (2, 1, 8), "v": (2, 1, 8), "pk": (2, 2, 7, 4),
                 "pv": (2, 2, 7, 4)},
         attrs={**HEADS, "kv_num_heads": 2}, outputs=3, shape=(2, 1, 16), kernels=3,
         flops=attention(1, 8), bytes=2 * (2 * 512) + 128 + 2 * 512 + 128),
    Case(op="GroupQueryAttention", inputs={"q": (2, 8, 32)}, attrs={**HEADS, "kv_num_heads": 2},
         kernels=1, flops=attention(8, 8), bytes=T + 2 * 512 + T),  # all three packed
    Case(op="RotaryEmbedding", inputs={**X, "p": (1,)}, weights={"c": (8, 2), "s": (8, 2)},
         elements={"p": I64}, kernels=1, bytes=2 * T + 8 + 2 * 64),
    Case(op="SkipLayerNormalization", inputs={**X, "s": (2, 8, 16)},
         weights={"g": (16,), "b": (16,), "c": (16,)}, kernels=3,
         bytes=3 * T + (2 * T + 64) + (2 * T + 2 * 64 + 2 * 64)),  # two parameters, two statistics
    Case(op="SkipSimplifiedLayerNormalization", inputs={**X, "s": (2, 8, 16)},
         weights={"g": (16,)}, kernels=2, bytes=3 * T + (2 * T + 64 + 64)),
    Case(op="SimplifiedLayerNormalization", inputs=X, weights={"g": (16,)}, kernels=1,
         bytes=2 * T + 64 + 64),
    # rows of words and of places gathered, two kinds read whole; two sums; the norm
    Case(op="EmbedLayerNormalization", inputs={"i": (2, 8), "t": (2, 8)}, weights=TABLES,
         elements={"i": I32, "t": I32}, kernels=6,
         bytes=2 * (64 + 2 * T) + (64 + 128 + T) + 2 * 3 * T + (2 * T + 2 * 64 + 2 * 64)),
    Case(op="FusedMatMul", inputs={"a": (4, 8, 16), "b": (4, 32, 16)}, attrs={"transB": 1},
         shape=(4, 8, 32), kernels=1, flops=2 * 4 * 8 * 16 * 32, bytes=2048 + 8192 + 4096),
    Case(op="TransposeMatMul", inputs={"a": (16, 8)}, weights={"w": (16, 32)},
         attrs={"transA": 1}, shape=(8, 32), kernels=1, flops=2 * 8 * 16 * 32,
         bytes=512 + 2048 + 1024),
    Case(op="GemmFastGelu", inputs={"a": (8, 16)}, weights={"w": (16, 32), "b": (32,)},
         shape=(8, 32), kernels=2, flops=2 * 8 * 16 * 32, bytes=512 + 2048 + 128 + 3 * 1024),
    Case(op="FusedGemm", inputs={"a": (8, 16)}, weights={"w": (32, 16), "b": (32,)},
         attrs={"transB": 1, "activation": "Relu"}, shape=(8, 32), kernels=2,
         flops=2 * 8 * 16 * 32, bytes=512 + 2048 + 128 + 3 * 1024),
    # convolution, bias, activation: eager PyTorch launches three
    *(Case(op=op, inputs={"x": (1, 4, 8, 8)}, weights={"w": (4, 4, 3, 3), "b": (4,)},
           attrs={"pads": [1, 1, 1, 1], "activation": "Relu"}, shape=(1, 4, 8, 8), kernels=3,
           flops=2 * 64 * 4 * 4 * 9, bytes=(2 * 1024 + 576) + (2 * 1024 + 16) + 2 * 1024)
      for op in ("FusedConv", "NhwcFusedConv")),
    *(Case(op=op, inputs=X, kernels=1, bytes=2 * T) for op in ("Gelu", "QuickGelu", "FastGelu")),
    *(Case(op=op, inputs=X, weights={"b": (16,)}, kernels=1, bytes=2 * T + 64)
      for op in ("BiasGelu", "FastGelu", "BiasAdd")),
    Case(op="BiasAdd", inputs={**X, "s": (2, 8, 16)}, weights={"b": (16,)},
         operands=["x", "b", "s"], kernels=2, bytes=2 * T + 64 + 3 * T),
    Case(op="BiasSplitGelu", inputs=X, weights={"b": (16,)}, shape=(2, 8, 8), kernels=1,
         bytes=T + 64 + T // 2),
    Case(op="BiasSoftmax", inputs={"x": (2, 4, 8, 8), "b": (2, 1, 8, 8)},
         attrs={"axis": 3, "is_inner_broadcast": 0}, shape=(2, 4, 8, 8), kernels=1,
         bytes=2 * 2048 + 512),
    Case(op="GroupNorm", inputs={"x": (2, 8, 8, 16)}, weights={"g": (16,), "b": (16,)},
         attrs={"groups": 4, "activation": 1}, shape=(2, 8, 8, 16), kernels=2,
         bytes=(2 * 8192 + 2 * 64 + 2 * 32) + 2 * 8192),  # norm with statistics, SiLU
    # weights of half a byte, a scale for each 32 (or 64) of them
    Case(op="MatMulNBits", inputs={"x": (2, 8, 32)}, weights={"w": (16, 1, 16), "s": (16,)},
         elements={"w": U8}, attrs={"K": 32, "N": 16, "bits": 4, "block_size": 32}, kernels=1,
         flops=2 * 16 * 32 * 16, bytes=2048 + 256 + 64 + T),
    Case(op="MatMulBnb4", inputs={"x": (2, 8, 32)}, weights={"w": (256,), "s": (8,)},
         elements={"w": U8}, attrs={"K": 32, "N": 16, "block_size": 64, "quant_type": 1},
         kernels=1, flops=2 * 16 * 32 * 16, bytes=2048 + 256 + 32 + T),
    # range, conversion, product with bias
    Case(op="DynamicQuantizeMatMul", inputs={"x": (8, 16)},
         weights={"w": (16, 32), "s": (1,), "z": (1,), "b": (32,)}, elements={"w": I8, "z": I8},
         shape=(8, 32), kernels=3, flops=2 * 8 * 16 * 32,
         bytes=(512 + 8) + (512 + 128) + (128 + 512 + 128 + 1024)),
    Case(op="MatMulIntegerToFloat", inputs={"x": (8, 16)},
         weights={"w": (16, 32), "s": (1,), "t": (1,)}, elements={"x": U8, "w": I8},
         shape=(8, 32), kernels=1, flops=2 * 8 * 16 * 32, bytes=128 + 512 + 1024),
    Case(op="QuantizeLinear", inputs={"x": (8, 16)}, weights={"s": (1,), "z": (1,)},
         elements={"z": I8}, shape=(8, 16), dtype="int8", kernels=1, bytes=512 + 128),
    Case(op="DequantizeLinear", inputs={"x": (8, 16)}, weights={"s": (1,), "z": (1,)},
         elements={"x": I8, "z": I8}, shape=(8, 16), kernels=1, bytes=128 + 512),
    *(Case(op=op, inputs={**X, "b": (2, 8, 16)}, weights=Q, elements=OF_Q, dtype="uint8",
           operands=["x", "sx", "zx", "b", "sb", "zb", "sy", "zy"], kernels=1, bytes=3 * 256)
      for op in ("QLinearAdd", "QLinearMul")),
    *(Case(op=op, inputs=X, weights=Q, operands=["x", "sx", "zx", "sy", "zy"], elements=OF_Q,
           dtype="uint8", kernels=1, bytes=2 * 256)
      for op in ("QLinearSigmoid", "QLinearLeakyRelu")),
    Case(op="QLinearGlobalAveragePool", inputs={"x": (2, 16, 8, 8)}, weights=Q,
         operands=["x", "sx", "zx", "sy", "zy"], elements=OF_Q, shape=(2, 16, 1, 1),
         dtype="uint8", kernels=1, bytes=2 * 16 * 64 + 2 * 16),
    Case(op="QLinearConcat", inputs={**X, "b": (2, 8, 4)}, weights=Q, elements=OF_Q,
         operands=["sy", "zy", "x", "sx", "zx", "b", "sb", "zb"], attrs={"axis": -1},
         shape=(2, 8, 20), dtype="uint8", kernels=1, bytes=2 * (256 + 64)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_result_flops_and_bytes(made, case: Case):
    graph = capture_onnx(case.model(made))
    kernels = lower_eager(graph).kernels
    result = graph.nodes[-1].outputs[0]
    assert (result.shape, result.dtype) == (case.shape, case.dtype)
    assert sum(k.matmul_flops for k in kernels) == case.flops
    assert sum(k.bytes for k in kernels) == case.bytes
    assert len(kernels) == case.kernels
    assert not graph.workload.warnings


def test_every_rule_has_a_case():
    assert {op for _, op in CONTRIB} == {case.op for case in CASES}


def test_a_dequantised_result_is_a_kernel_in_the_standard_too(made):
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    model = made([node], {"x": [8, 16]}, ["y"], {"s": []}, elements={"x": I8})
    (kernel,) = lower_eager(capture_onnx(model)).kernels
    assert kernel.bytes == 128 + 512
