"""Named targets: a model of the bundled zoo, one of timm, or the user's own `file.py:function`."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torch import nn

from predictor import zoo
from predictor.capture import timm_models
from predictor.capture.failures import PROGRAM_ERRORS, first_line, program_line
from predictor.capture.refusals import no_free_sizes, optimizer_without_training
from predictor.capture.stablehlo.recognise import FILES, is_jax_program
from predictor.capture.stablehlo.target import capture_stablehlo
from predictor.capture.torch import capture_module
from predictor.errors import CaptureError, NotYetError, UnknownTargetError
from predictor.graph.ir import OpGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked, word for word: a JAX program takes or refuses it itself."""

    mode: Literal["infer", "train"] | None = None
    optimizer: str | None = None
    dims: Mapping[str, int] | None = None
    platform: str | None = None


DTYPES = ("fp32", "fp16", "bf16", "amp-fp16", "amp-bf16")
_MODULE_NAME = "_predictor_target"


def capture_target(
    target: str,
    *,
    mode: Literal["infer", "train"] = "infer",
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    optimizer: str | None = "adamw",
    recompute: bool = False,
    asked: Asked = Asked(),
) -> OpGraph:
    """The framework calls of one step of a named target.

    Args:
        target: a name of the zoo; `timm:NAME` or `timm:NAME@SIZE` (pixels a side); or
            `file.py:function`, where the function returns `(module, inputs)`: inputs are a
            tensor, a tuple or list of positional ones, or a mapping of keyword ones, pytrees
            allowed.
        mode: `infer` or `train`.
        batch: batch size; a function must take a `batch` keyword for it.
        seq: sequence length; a function must take a `seq` keyword for it.
        dtype: one of `DTYPES`; None keeps the dtypes that the target has.
        optimizer: `adamw`, `sgd` or None; training only.
        recompute: see `capture_module`.
        asked: the options as they were given; `dims` and `platform` are of JAX programs alone.

    Raises:
        UnknownTargetError: no such name, file or function, or the file fails to import.
        CaptureError: the program cannot be captured.
        MissingExtraError: a timm model without timm.
        NotYetError: for `fp8`.
    """
    cast, amp = _precision(dtype)
    if target in zoo.ZOO:
        program = zoo.build(target, mode=mode, batch=batch, seq=seq)
        return capture_module(
            program.module, (), program.inputs,
            mode=mode, optimizer=optimizer, amp=amp, dtype=cast, recompute=recompute, name=target,
        )  # fmt: skip
    if target.startswith(timm_models.PREFIX):
        model, images = timm_models.program(target, batch=batch, seq=seq)
        return capture_module(
            model, images,
            mode=mode, optimizer=optimizer, amp=amp, dtype=cast, recompute=recompute, name=target,
        )  # fmt: skip
    path, function = _split(target)
    with _loaded(path) as loaded:
        module, inputs = _called(loaded, path, function, {"batch": batch, "seq": seq})
        if is_jax_program(module):
            return capture_stablehlo(
                module, inputs, (), mode=asked.mode, dims=asked.dims, platform=asked.platform,
                dtype=dtype, optimizer=asked.optimizer, recompute=recompute,
            )  # fmt: skip
        if asked.dims:
            raise no_free_sizes(asked.dims)
        if asked.optimizer is not None and mode != "train":
            raise optimizer_without_training(asked.optimizer)
        named = isinstance(inputs, Mapping)
        return capture_module(
            module, () if named else inputs, inputs if named else None,
            mode=mode, optimizer=optimizer, amp=amp, dtype=cast, recompute=recompute, name=target,
        )  # fmt: skip


def load_program(
    target: str, *, batch: int | None = None, seq: int | None = None
) -> tuple[nn.Module, Any]:
    """What the function of `file.py:function` returns: a module and its inputs, as they are.

    Raises:
        UnknownTargetError: no such file or function, or the file fails to import.
        CaptureError: the function fails, or returns something else.
    """
    path, function = _split(target)
    with _loaded(path) as loaded:
        return _called(loaded, path, function, {"batch": batch, "seq": seq})


def _precision(dtype: str | None) -> tuple[str | None, str | None]:
    """(dtype to cast to, autocast dtype)."""
    if dtype == "fp8":
        raise NotYetError(f"dtype fp8 does not work yet; {', '.join(DTYPES)} do")
    if dtype is not None and dtype not in DTYPES:
        raise CaptureError(f"dtype {dtype!r} is unknown; one of: {', '.join(DTYPES)}")
    if dtype is None:
        return None, None
    return (None, dtype[4:]) if dtype.startswith("amp-") else (dtype, None)


def _split(target: str) -> tuple[Path, str]:
    """File and function of `file.py:function`."""
    file, colon, function = target.rpartition(":")
    path = Path(file or target)
    if path.suffix == ".py":
        if not path.is_file():
            raise UnknownTargetError(f"no file {str(path)!r} (target {target!r})")
        if not colon or not function.isidentifier():
            raise UnknownTargetError(
                f"target {target!r} names no function: write {path.name}:FUNCTION, where the "
                "function returns (module, inputs)"
            )
        return path, function
    if path.is_file():
        raise UnknownTargetError(
            f"file {str(path)!r} ends like no program: {', '.join(FILES)} (StableHLO), .onnx, "
            ".pt2, .json (a captured graph or a trace), or file.py:function"
        )
    near = difflib.get_close_matches(target, zoo.names(), n=3)
    hint = f"nearest: {', '.join(near)}" if near else f"bundled: {', '.join(zoo.names())}"
    raise UnknownTargetError(
        f"no target {target!r}; {hint}; or a file as file.py:function, or timm:NAME"
    )


@contextmanager
def _loaded(path: Path) -> Iterator[ModuleType]:
    """The user's file as a module; siblings can be imported while it lasts."""
    spec = importlib.util.spec_from_file_location(_MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise UnknownTargetError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.modules[_MODULE_NAME] = module
    sys.path.insert(0, folder)
    try:
        try:
            spec.loader.exec_module(module)
        except PROGRAM_ERRORS as error:
            raise UnknownTargetError(
                f"{path} fails to import: {_said(error)}; run it with Python to see more"
            ) from error
        yield module
    finally:
        sys.path.remove(folder)
        sys.modules.pop(_MODULE_NAME, None)


def _called(
    loaded: ModuleType, path: Path, name: str, sizes: Mapping[str, int | None]
) -> tuple[nn.Module, Any]:
    """What the user's function returns, checked."""
    function = getattr(loaded, name, None)
    if not callable(function):
        defined = [
            k for k, v in vars(loaded).items()
            if inspect.isfunction(v) and v.__module__ == loaded.__name__
        ]  # fmt: skip
        listed = ", ".join(defined) or "none"
        raise UnknownTargetError(f"{path} has no function {name!r}; it defines: {listed}")
    given = _accepted(function, path, name, sizes)
    try:
        result = function(**given)
    except PROGRAM_ERRORS as error:
        raise CaptureError(f"{path}:{name}() fails: {_said(error)}") from error
    if not (isinstance(result, (tuple, list)) and len(result) == 2):
        raise CaptureError(
            f"{path}:{name}() must return (module, inputs), not {_described(result)}"
        )
    module, inputs = result
    if not isinstance(module, nn.Module) and not is_jax_program(module):
        raise CaptureError(
            f"{path}:{name}() must return an nn.Module or a jitted JAX function first, not "
            f"{_described(module)}"
        )
    return module, inputs


def _accepted(
    function: Callable[..., Any], path: Path, name: str, sizes: Mapping[str, int | None]
) -> dict[str, int]:
    """The sizes asked for, where the function takes them."""
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given: dict[str, int] = {}
    for key, value in sizes.items():
        if value is None:
            continue
        if key not in parameters and not open_ended:
            takes = ", ".join(parameters) or "no arguments"
            raise CaptureError(
                f"{path}:{name}() takes no {key!r} (it takes {takes}): give it a {key} keyword, or "
                f"leave --{key} out"
            )
        given[key] = value
    return given


def _described(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def _said(error: BaseException) -> str:
    line = program_line(error.__traceback__)
    return f"{type(error).__name__}: {first_line(error)}" + (f" ({line})" if line else "")
