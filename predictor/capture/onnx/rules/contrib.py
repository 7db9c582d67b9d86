"""Operators of `com.microsoft`, which ONNX Runtime's optimiser writes."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Rule

CONTRIB: Mapping[tuple[str, str], Rule] = {}
"""Rule by domain and operator."""
