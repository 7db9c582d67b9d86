"""The dtype of a step by the dtypes of its matrix work."""

from __future__ import annotations

from predictor.graph.ops import OPS
from predictor.traces.kineto.measured import Measured

_MATRIX = ("matmul", "conv", "attention", "grouped_matmul", "recurrent")


def step_dtype(measured: Measured) -> str:
    """`fp32`, `bf16`, `amp-bf16`, …; empty where it is not known.

    Half precision beside fp32 matrix work, or beside casts of fp32 tensors, is autocast.
    """
    kernels = [entry.kernel for entry in measured.kernels]
    found = {k.dtype for k in kernels if OPS[k.op].op_class in _MATRIX}
    halves = found & {"fp16", "bf16"}
    if found == {"fp32"}:
        return "fp32"
    if len(halves) != 1 or found - halves - {"fp32"}:
        return ""
    (half,) = halves
    casts = any(k.op == "cast" and k.dtype == "fp32" for k in kernels)
    return f"amp-{half}" if casts or "fp32" in found else half
