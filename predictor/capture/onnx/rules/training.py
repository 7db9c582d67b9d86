"""Training graphs: optimizers, and the backward operators that runtimes write."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Rule

TRAINING: Mapping[tuple[str, str], Rule] = {}
"""Rule by domain and operator."""
