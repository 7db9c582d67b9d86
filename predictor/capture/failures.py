"""Failures of a program under capture, told as where, why and what to pass instead."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from predictor.errors import CaptureError, PredictorError

PROGRAM_ERRORS: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""What a program can raise while it runs: anything, since it is the user's code with exception
classes of its own, and it may call `sys.exit`. An interrupt passes through."""

_LINE_WIDTH = 100
_REASON_WIDTH = 300
_LIBRARY = (str(Path(torch.__file__).parent), str(Path(__file__).parent))

_REMEDIES: Sequence[tuple[str, str]] = (
    (
        "FlexAttention is only supported",
        "FlexAttention cannot be captured: use torch.nn.functional.scaled_dot_product_attention "
        "(its mask or is_causal), or capture the module without it",
    ),
    (
        "modified by an inplace operation",
        "the program overwrites a value that its own backward needs, on any device: write out of "
        "place there, or capture mode='infer'",
    ),
    (
        "maximum recursion depth",
        "the program calls itself too deeply, on any device: nest its modules less deeply",
    ),
    (
        "size calculation overflowed",
        "a tensor would have more bytes than 64 bits count: take a smaller batch or size",
    ),
    (
        "NestedTensorImpl",
        "nested tensors cannot be captured: use a padded tensor and a mask",
    ),
    (
        "missing",
        "pass every input that forward() needs: positional ones in a tuple, keyword ones in a dict",
    ),
    (
        "unexpected keyword argument",
        "pass the inputs under the names that forward() takes",
    ),
    (
        "positional argument",
        "pass positional inputs in a tuple and keyword ones in a dict",
    ),
    (
        "Torch not compiled with CUDA enabled",
        "the program asks for a CUDA device itself: move it by `.to(x.device)` of an input, or "
        "leave the device out",
    ),
    (
        "Cannot copy out of meta tensor",
        "capture has shapes, not values: read no tensor values inside the program",
    ),
    (
        "cannot be called on meta tensors",
        "capture has shapes, not values: read no tensor values inside the program",
    ),
    (
        "Sparse",
        "sparse matrix products (`sparse @ dense`) are captured, other sparse ops are not: use "
        "gather and scatter_add with dense tensors",
    ),
    (
        "Expected inputs of BF16 type",
        "grouped matrix products take fp32, fp16 and bf16: take one of these (--dtype)",
    ),
    (
        "quantized::",
        "quantised modules cannot be captured: capture the float module they were made from",
    ),
    (
        "no fake impl or Meta kernel",
        "the op has no shape rule in PyTorch: replace it by one with a fixed-size result, or "
        "register a fake implementation (torch.library.register_fake)",
    ),
    (
        "cannot be multiplied",
        "check the shapes of the inputs",
    ),
    (
        "same reduction dim",
        "check the shapes of the inputs",
    ),
    (
        "size of tensor a",
        "check the shapes of the inputs",
    ),
    (
        "xpected",
        "check the shapes and dtypes of the inputs",
    ),
)
"""(part of a message, remedy): the first that matches."""


def capture_failure(name: str, module: str, error: BaseException) -> CaptureError:
    """The error to raise for a program that failed.

    Args:
        name: what is being captured.
        module: path of the module that was running, empty for the top.
        error: what it raised.
    """
    where = [f"module {module!r}"] if module else []
    line = program_line(error.__traceback__)
    if line:
        where.append(line)
    place = f" in {', '.join(where)}" if where else ""
    if isinstance(error, PredictorError):
        return CaptureError(f"cannot capture {name}{place}: {error}")
    reason = first_line(error)
    text = str(error)
    remedy = next((r for part, r in _REMEDIES if part in text), None)
    kind = type(error).__name__
    message = f"cannot capture {name}{place}: {kind}: {reason}"
    return CaptureError(f"{message}; {remedy}" if remedy else message)


def program_line(traceback: TracebackType | None) -> str:
    """The innermost line of the user's own code: `file.py:12 in forward: x = …`."""
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        path = code.co_filename
        if not path.startswith(_LIBRARY) and not path.startswith("<"):
            source = linecache.getline(path, traceback.tb_lineno).strip()[:_LINE_WIDTH]
            shown = f": `{source}`" if source else ""
            found = f"{Path(path).name}:{traceback.tb_lineno} in {code.co_name}{shown}"
        traceback = traceback.tb_next
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's message, cut where it is very long."""
    text = str(error).strip() or "no message"
    return text.splitlines()[0][:_REASON_WIDTH]
