"""Refusals of options that several kinds of targets share, in one wording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from predictor.errors import CaptureError, UnknownTargetError


def no_file(path: Path, hint: str = "") -> UnknownTargetError:
    """A target names a file that is none."""
    said = f"{str(path)!r} is a folder, not a file" if path.is_dir() else f"no file {str(path)!r}"
    return UnknownTargetError(f"{said}; {hint}" if hint else said)


def no_free_sizes(dims: Mapping[str, int]) -> CaptureError:
    """Sizes were given for a target that has none to give."""
    return CaptureError(
        f"dims ({', '.join(dims)}) size the free dimensions of an exported program or ONNX model, "
        "and trips the loops of a JAX program; this target has none: leave --dim out (batch and "
        "seq size a named target)"
    )


def optimizer_without_training(optimizer: str) -> CaptureError:
    """An optimizer was named for a forward."""
    return CaptureError(f"optimizer {optimizer!r} needs a training step: mode='train' (--train)")
