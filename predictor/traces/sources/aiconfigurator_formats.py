"""Number formats as aiconfigurator names them: what a kernel computes in, and keeps weights in.

Layers take and give bf16 whatever the scheme (the quantisation of the input is inside the time);
an element of a weight or cache counts with its share of the scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from predictor.hardware.device import Device
from predictor.hardware.peaks import has_hardware_path

ACTIVATION_BYTES = 2
"""Inputs and results are bf16 or fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One name of a `*_dtype` column."""

    dtype: str
    """Dtype of the arithmetic."""
    stored_bytes: float
    """Bytes of an element of a weight or cache, scales included."""
    scheme: str = ""
    """Quantisation scheme of the schema."""


def _format(dtype: str, stored_bytes: float, scheme: str = "") -> Format:
    return Format(dtype=dtype, stored_bytes=stored_bytes, scheme=scheme)


FORMATS: Mapping[str, Format] = {
    "bfloat16": _format("bf16", 2),
    "float16": _format("fp16", 2),
    "half": _format("fp16", 2),
    "int8": _format("int8", 1),
    "fp8": _format("fp8", 1, "fp8"),
    "fp8_static": _format("fp8", 1, "fp8_static"),
    "fp8_block": _format("fp8", 1 + 4 / 128**2, "fp8_block"),  # an fp32 scale a 128 x 128 block
    "nvfp4": _format("fp4", 0.5 + 1 / 16, "nvfp4"),  # an fp8 scale a 16 elements
    "int8_wo": _format("bf16", 1, "int8_wo"),
    "int4_wo": _format("bf16", 0.5 + 2 / 128, "int4_wo"),  # a 16-bit scale a 128 elements
    "sq": _format("int8", 1, "sq"),
    "w4a16_mxfp4": _format("bf16", 0.5 + 1 / 32, "w4a16_mxfp4"),  # a byte a 32 elements
    "w4a8_mxfp4_mxfp8": _format("fp8", 0.5 + 1 / 32, "w4a8_mxfp4_mxfp8"),
}  # fmt: skip
"""Formats of weights, activations and messages."""


def on_device(form: Format, device: Device) -> Format:
    """The format as the device runs it.

    Without a hardware path for its dtype, weights alone are narrow and the arithmetic is bf16
    (nvfp4 experts on Hopper, fp8 on Ampere).
    """
    if has_hardware_path(device, form.dtype):
        return form
    return _format("bf16", form.stored_bytes, form.scheme)


def cache_scheme(cache: str) -> str:
    """Scheme of an attention kernel by its key-value cache: `kv_fp8`, empty for 16 bits."""
    return f"kv_{cache}" if FORMATS[cache].stored_bytes < ACTIVATION_BYTES else ""
