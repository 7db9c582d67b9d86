"""The table of operators: each domain's rules."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Rule
from predictor.capture.onnx.rules.contrib import CONTRIB
from predictor.capture.onnx.rules.control import CONTROL
from predictor.capture.onnx.rules.internal import INTERNALS
from predictor.capture.onnx.rules.matrix import MATRIX
from predictor.capture.onnx.rules.movement import MOVEMENT
from predictor.capture.onnx.rules.norms import NORMS
from predictor.capture.onnx.rules.pointwise import POINTWISE
from predictor.capture.onnx.rules.quantised import QUANTISED
from predictor.capture.onnx.rules.recurrent import RECURRENT
from predictor.capture.onnx.rules.sequences import SEQUENCES
from predictor.capture.onnx.rules.shapes import SHAPES
from predictor.capture.onnx.rules.training import TRAINING
from predictor.capture.onnx.rules.windows import WINDOWS

RULES: Mapping[tuple[str, str], Rule] = {
    **{("", op): rule
       for table in (POINTWISE, MATRIX, WINDOWS, NORMS, SHAPES, MOVEMENT, QUANTISED, RECURRENT,
                     SEQUENCES, CONTROL)
       for op, rule in table.items()},
    **CONTRIB,
    **TRAINING,
    **INTERNALS,
}  # fmt: skip
"""Rule by domain and operator."""

HOST: frozenset[tuple[str, str]] = frozenset({("", "Shape"), ("", "Size")})
"""Operators that need no values to be worked out."""
NARROW: frozenset[tuple[str, str]] = frozenset({
    ("", "MatMul"), ("", "Gemm"), ("", "Conv"), ("", "ConvTranspose"), ("", "DequantizeLinear"),
    ("", "If"), ("", "Loop"), ("", "Scan"),
})  # fmt: skip
"""Operators that take dequantised operands as they were before, and decide what to do with them."""
