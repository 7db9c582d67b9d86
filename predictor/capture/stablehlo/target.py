"""Capture of the targets that are StableHLO files or JAX programs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from predictor.capture.stablehlo.jitted import capture_jitted
from predictor.capture.stablehlo.program import graph_of_module
from predictor.capture.stablehlo.reading import read_file
from predictor.capture.stablehlo.recognise import PLATFORMS
from predictor.errors import CaptureError
from predictor.graph.ir import OpGraph

TRIPS = "trips"
"""Name in `dims` of the iterations of loops whose number the program does not fix."""


def capture_stablehlo(
    target: object, inputs: object, more: tuple[object, ...], *,
    mode: Literal["infer", "train"] | None, dims: Mapping[str, int] | None,
    platform: str | None, **refused: object,
) -> OpGraph:  # fmt: skip
    """The operations of a StableHLO file or JAX program.

    Args:
        target: file name, or jitted function (see `capture_jitted`).
        inputs: first argument of a jitted function, or all of them as a tuple, or keyword ones as
            a mapping whose keys are its parameters. A list is one argument where the function can
            be called with one, else all of them; a tuple that fits as one alone is that one.
        more: its further arguments.
        mode: see `graph_of_module`.
        dims: `trips` alone.
        platform: see `capture_jitted`.
        refused: options that a lowered program has decided itself, by name.

    Raises:
        CaptureError: an option that a lowered program has decided, or what the capture raises.
        UnknownTargetError: no such file.
        MissingExtraError: jax is not installed.
    """
    for name, value in refused.items():
        if value is not None and value is not False:
            raise CaptureError(
                f"a JAX or StableHLO program decides its own {name}: leave {name} out, and lower "
                "the program that you mean"
            )
    if platform not in (None, *PLATFORMS.values()):
        raise CaptureError(
            f"platform {platform!r} is unknown; one of: {', '.join(PLATFORMS.values())}"
        )
    given = dict(dims or {})
    trips = given.pop(TRIPS, None)
    if given:
        raise CaptureError(
            f"a StableHLO program has no free size {', '.join(given)}: only {TRIPS} can be given "
            "(iterations of loops whose number the program does not fix)"
        )
    if isinstance(target, str):
        if inputs is not None or more:
            raise CaptureError(f"target {target!r} has its inputs in it: give none")
        return graph_of_module(read_file(Path(target)), name=target, mode=mode, trips=trips)
    args, kwargs = _arguments(target, inputs, more)
    return capture_jitted(target, args, kwargs, platform=platform, mode=mode, trips=trips)


def _arguments(
    target: object, inputs: object, more: tuple[object, ...]
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Positional and keyword arguments of a jitted function."""
    if more:
        return (inputs, *more), {}
    if inputs is None:
        return (), {}
    if isinstance(inputs, Mapping):
        names = _parameters(target)
        return ((), inputs) if inputs and set(inputs) <= names else ((inputs,), {})
    if isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields"):
        pair = len(inputs) == 2 and isinstance(inputs[0], tuple) and isinstance(inputs[1], Mapping)
        if pair and set(inputs[1]) <= _parameters(target):
            return inputs[0], inputs[1]
        if _takes(target, inputs) and (isinstance(inputs, list) or not _takes(target, *inputs)):
            return (inputs,), {}
        return tuple(inputs), {}
    return (inputs,), {}


def _takes(target: object, *args: object) -> bool:
    """Whether a function can be called with these positional arguments."""
    try:
        inspect.signature(target).bind(*args)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _parameters(target: object) -> set[str]:
    try:
        return set(inspect.signature(target).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return set()
