"""Jitted JAX functions: lowered for a platform that need not be here, without being run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, Literal

from predictor.capture.failures import PROGRAM_ERRORS, first_line, program_line
from predictor.capture.stablehlo.program import graph_of_module
from predictor.capture.stablehlo.reading import bindings, module_records, read_program
from predictor.errors import CaptureError, PredictorError
from predictor.graph.ir import OpGraph

_ARGUMENTS = "pass its arguments as arrays or jax.ShapeDtypeStruct, static ones as they are"
_HOST_CALL = (
    "a call back into Python (jax.debug.print, jax.pure_callback, jax.experimental.io_callback) is "
    "lowered for the machine at hand alone: leave it out of the program to be estimated"
)


def capture_jitted(
    target: Any, args: Sequence[object], kwargs: Mapping[str, object], *,
    platform: str | None = None, mode: Literal["infer", "train"] | None = None,
    trips: int | None = None,
) -> OpGraph:  # fmt: skip
    """The operations of a JAX program, without running it.

    Args:
        target: what `jax.jit` or `jax.pmap` gave; or `.trace(...)`, `.lower(...)` or `jax.export`
            of it, which hold their arguments already.
        args: positional arguments: arrays, or `jax.ShapeDtypeStruct` for their shapes.
        kwargs: keyword ones.
        platform: `cuda`, `tpu` or `cpu`, to lower for; `cuda` when not given. What was lowered
            already stays as it is.
        mode: see `graph_of_module`.
        trips: see `graph_of_module`.

    Raises:
        CaptureError: tracing or lowering fails, or the program is one of `graph_of_module`'s.
    """
    ir = bindings()
    name = str(getattr(target, "__name__", None) or getattr(target, "fun_name", None) or "jitted")
    try:
        if hasattr(target, "mlir_module_serialized"):
            module = read_program(bytes(target.mlir_module_serialized), name=name)
            return graph_of_module(module, name=name, mode=mode, trips=trips)
        lowered = target
        if hasattr(target, "trace"):
            lowered = target.trace(*args, **kwargs)
        elif isinstance(target, FunctionType):  # of `jax.pmap`, which lowers for what is here alone
            lowered = target.lower(*args, **kwargs)  # type: ignore[attr-defined]
        if hasattr(lowered, "lower"):
            lowered = lowered.lower(lowering_platforms=(platform or "cuda",))
        text = lowered.compiler_ir("stablehlo")
    except PredictorError:
        raise
    except PROGRAM_ERRORS as error:
        line = program_line(error.__traceback__)
        place = f" in {line}" if line else ""
        said = first_line(error)
        hint = _HOST_CALL if "different from the lowering platform" in said else _ARGUMENTS
        raise CaptureError(
            f"cannot lower {name}{place}: {type(error).__name__}: {said}; {hint}"
        ) from error
    if not isinstance(text, ir.Module):
        raise CaptureError(f"{name} was lowered to {type(text).__name__}, not to StableHLO")
    return graph_of_module(module_records(text, name=name), name=name, mode=mode, trips=trips)
