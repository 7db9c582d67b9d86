"""Failures of a program under capture, told as where, why and what to pass instead."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from predictor.errors import CaptureError, PredictorError

PROGRAM_ERRORS: tuple[type[Exception], ...] = (
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError,
    LookupError, MemoryError, NameError, OSError, RuntimeError, StopIteration, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip
"""What a program can raise while it runs (`NotImplementedError` is a `RuntimeError`)."""

_LINE_WIDTH = 100
_LIBRARY = (str(Path(torch.__file__).parent), str(Path(__file__).parent))

_REMEDIES: Sequence[tuple[str, str]] = (
    (
        "FlexAttention is only supported",
        "FlexAttention cannot be captured: use torch.nn.functional.scaled_dot_product_attention "
        "(its mask or is_causal), or capture the module without it",
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


def capture_failure(name: str, module: str, error: Exception) -> CaptureError:
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
    reason = _first_line(error)
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


def _first_line(error: Exception) -> str:
    text = str(error).strip() or "no message"
    return text.splitlines()[0][:300]
