"""`capture`: whatever a user calls a program, as an `OpGraph`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from predictor.capture.refusals import no_file, no_free_sizes, optimizer_without_training
from predictor.capture.stablehlo.recognise import is_stablehlo
from predictor.errors import CaptureError, MissingExtraError, NotYetError, UnknownTargetError
from predictor.graph.ir import HALVES, OpGraph, autocast_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

Mode = Literal["infer", "train"]
Target: TypeAlias = "str | OpGraph | nn.Module | ExportedProgram | Callable[..., object]"
Loss: TypeAlias = "Callable[[object], Tensor]"

DEFAULT_OPTIMIZER = "adamw"
GRAPH_FILES: tuple[str, ...] = (".json", ".json.gz", ".json.tar.gz")
"""Endings of captured graphs, profiler traces and execution graphs."""
ONNX_FILES = ".onnx"
_HEAD_CHARS = 256
EXPORTED_FILES = ".pt2"
"""Ending of the files that `torch.export.save` writes."""
DTYPES: tuple[str, ...] = ("fp32", *HALVES)
"""What parameters and inputs of a captured program may be taken in; autocast to the halves too."""
LATER_KINDS: Mapping[str, str] = {
    "hf:": "a local Hugging Face configuration",
}
"""Prefixes and suffixes of targets that are part of the contract but do not work yet."""


def capture(
    target: Target,
    inputs: object = None,
    *more: object,
    mode: Mode | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    loss: Loss | None = None,
    recompute: bool = False,
    dims: Mapping[str, int] | None = None,
    platform: str | None = None,
) -> OpGraph:
    """The ops a program runs, without running it and without the device.

    Args:
        target: a zoo name (`gpt2-large`), `timm:NAME` or `timm:NAME@PIXELS`, `file.py:function`,
            the file of a captured graph, of a profiler trace or of an execution graph (one step
            of it), the file of an exported program (`program.pt2`: nothing in it is unpickled),
            StableHLO text or bytecode (`program.mlir`), an ONNX model (`model.onnx`), a module, a
            step function, an `ExportedProgram`, a jitted JAX function (or what it was traced,
            lowered or exported to), or a captured graph, which comes back as it is.
        inputs: of a module or step function: its input, a tuple or list of positional ones, a
            dict of keyword ones, or `(args, kwargs)`. Tensors give shapes and dtypes; their values
            are not read. Of a jitted JAX function: arrays or `jax.ShapeDtypeStruct`; a list is
            one argument where the function can be called with one, a tuple holds all of them.
        mode: `infer` (one forward) or `train` (forward, loss, backward, optimizer); inference
            when not given.
        dtype: `fp32`, `bf16`, `fp16` (parameters and inputs are taken in it), `amp-bf16` or
            `amp-fp16` (autocast); as they are when not given.
        optimizer: `adamw` (when not given) or `sgd`, training only.
        batch: batch size of a named target; the one free dimension 0 of an exported program.
        seq: sequence length of a named target; the one free dimension 1 of an exported program.
        loss: maps the module's output to a scalar, training only; when not given the output's
            own loss, else cross-entropy for logits, else the mean.
        recompute: activation checkpointing of every block of the program's stacks (members of one
            class of an `nn.ModuleList` or `nn.Sequential`), training only: less memory for a
            second forward. A program that checkpoints itself is captured so without it.
        dims: the free sizes of an exported program or ONNX model, by name; of a StableHLO program
            `trips`, the iterations of loops whose number it does not fix.
        more: further arguments of a jitted JAX function.
        platform: `cuda` (when not given), `tpu` or `cpu`: what a jitted JAX function is lowered
            for; needs no such device.

    Raises:
        CaptureError: the program cannot be captured; the message says where and what to pass.
        UnknownTargetError: no such name or file.
        MissingExtraError: a timm model, and timm is not installed; an ONNX model without onnx.
        NotYetError: a kind of target, or fp8, that does not work yet.
    """
    if is_stablehlo(target):
        from predictor.capture.stablehlo.target import capture_stablehlo

        return capture_stablehlo(
            target, inputs, more, mode=mode, dims=dims, platform=platform, dtype=dtype,
            optimizer=optimizer, batch=batch, seq=seq, loss=loss, recompute=recompute,
        )  # fmt: skip
    if more:
        raise CaptureError("pass the inputs of a module in a tuple, not one by one")
    if _is_onnx(target):
        _refuse_for_onnx(inputs=inputs, mode=mode, optimizer=optimizer, loss=loss,
                         recompute=recompute or None)  # fmt: skip
        return _capture_onnx(target, dims=dims, batch=batch, seq=seq, dtype=dtype)
    exported = _is_exported(target)
    if dims and not exported and not is_own_function(target):
        raise no_free_sizes(dims)
    graph = _graph_of(target)
    if graph is not None:
        _check_captured(graph, mode=mode, dtype=dtype, batch=batch, seq=seq, optimizer=optimizer)
        if recompute:
            raise CaptureError(
                "a captured graph cannot be made to recompute: capture the program with recompute"
            )
        return graph
    if dtype == "fp8":
        known = ", ".join((*DTYPES, *(f"amp-{half}" for half in HALVES)))
        raise NotYetError(f"dtype fp8 does not work yet; {known} do")
    if optimizer is not None and mode != "train" and not is_own_function(target):
        raise optimizer_without_training(optimizer)
    if exported:
        if inputs is not None or recompute:
            raise CaptureError(
                "an exported program has its inputs, and no blocks to recompute: bind its free "
                "sizes with dims (--dim), or pass the module that it was exported from"
            )
        return _capture_exported(
            target, mode=mode, dims=dims, batch=batch, seq=seq, loss=loss,
            optimizer=optimizer or DEFAULT_OPTIMIZER, **_precision(dtype),
        )  # fmt: skip
    if isinstance(target, str):
        return _capture_named(
            target, inputs, loss, mode=mode, dtype=dtype, optimizer=optimizer, batch=batch,
            seq=seq, recompute=recompute, dims=dims, platform=platform,
        )  # fmt: skip
    if batch is not None or seq is not None:
        raise CaptureError("batch and seq size a named target; a module's inputs have their own")
    args, kwargs = split_inputs(inputs)
    precision = _precision(dtype)
    from torch import nn

    from predictor.capture.torch import capture_module, capture_step

    if isinstance(target, nn.Module):
        mode = mode or "infer"
        return capture_module(
            target, args, kwargs, mode=mode, loss=loss, optimizer=_optimizer(mode, optimizer),
            recompute=recompute, **precision,
        )  # fmt: skip
    if not callable(target):
        raise CaptureError(
            f"cannot capture a {type(target).__name__}: pass a module, a step function, a zoo "
            "name, file.py:function, an ExportedProgram, or a captured graph"
        )
    own = {"mode": mode, "optimizer": optimizer, "loss": loss, "dtype": precision["dtype"],
           "recompute": recompute or None}  # fmt: skip
    for name, value in own.items():
        if value is not None:
            raise CaptureError(f"a step function decides its own {name}: leave {name} out")
    return capture_step(target, args, kwargs, amp=precision["amp"])


def is_own_function(target: object) -> bool:
    """Whether a target names a function of the user's own file, which may return anything."""
    return isinstance(target, str) and target.rpartition(":")[0].endswith(".py")


def _is_onnx(target: object) -> bool:
    """Whether a target is an ONNX file or model, told without importing `onnx`."""
    if isinstance(target, str):
        return target.endswith(ONNX_FILES)
    kind = type(target)
    return kind.__name__ == "ModelProto" and kind.__module__.startswith("onnx")


def _refuse_for_onnx(**asked: object) -> None:
    """An ONNX model is captured as it is: its inputs, its mode, its own optimizer."""
    for name, value in asked.items():
        if value is not None and (name, value) != ("mode", "infer"):
            raise CaptureError(
                f"an ONNX model is captured as it is, and {name} cannot be asked of it: leave it "
                "out, or export the program with it (sizes are set with dims, --dim NAME=N)"
            )


def _capture_onnx(
    target: object,
    *,
    dims: Mapping[str, int] | None,
    batch: int | None,
    seq: int | None,
    dtype: str | None,
) -> OpGraph:
    try:
        from predictor.capture.onnx.capture import capture_onnx
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("onnx", "google"):
            raise
        raise MissingExtraError(
            "ONNX models need the package onnx: pip install 'latency-predictor[onnx]'"
        ) from error
    model: Any = target
    return capture_onnx(model, dims=dims, batch=batch, seq=seq, dtype=dtype)


def split_inputs(inputs: object) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Positional and keyword arguments that `inputs` stands for."""
    if inputs is None:
        return (), {}
    if isinstance(inputs, Mapping):
        return (), inputs
    if isinstance(inputs, tuple | list):
        if len(inputs) == 2 and isinstance(inputs[0], tuple) and isinstance(inputs[1], Mapping):
            return inputs[0], inputs[1]
        return tuple(inputs), {}
    return (inputs,), {}


def _precision(dtype: str | None) -> dict[str, str | None]:
    """The autocast dtype and the dtype to cast to."""
    amp = None if dtype is None else autocast_of(dtype)
    return {"amp": amp, "dtype": dtype if amp is None else None}


def _is_exported(target: Target) -> bool:
    """Whether the target is an exported program, or names the file of one."""
    if isinstance(target, str):
        return target.endswith(EXPORTED_FILES)
    module = sys.modules.get("torch.export")
    return module is not None and isinstance(target, module.ExportedProgram)


def _capture_exported(target: Target, **options: Any) -> OpGraph:
    from predictor.capture.exported.capture import capture_file, capture_program

    if isinstance(target, str):
        return capture_file(target, **options)
    return capture_program(cast("ExportedProgram", target), **options)


def _graph_of(target: Target) -> OpGraph | None:
    """The graph, where the target is one or names the file of one, or of a profiler trace."""
    if isinstance(target, OpGraph):
        return target
    if not isinstance(target, str) or not target.endswith(GRAPH_FILES):
        return None
    from predictor.graph.serialize import FORMAT, load_graph
    from predictor.traces.kineto.content import head_of

    if not Path(target).is_file():
        raise no_file(Path(target), "`predictor capture` writes graph files, torch.profiler traces")
    if f'"{FORMAT}"' not in head_of(Path(target), _HEAD_CHARS):
        from predictor.traces.kineto.target import graph_of_trace

        return graph_of_trace(Path(target))
    graph = load_graph(target)
    if not isinstance(graph, OpGraph):
        raise UnknownTargetError(f"{target} holds lowered kernels; capture the program again")
    return graph


def _capture_named(
    target: str,
    inputs: object,
    loss: Loss | None,
    *,
    mode: Mode | None,
    dtype: str | None,
    optimizer: str | None,
    batch: int | None,
    seq: int | None,
    recompute: bool,
    dims: Mapping[str, int] | None,
    platform: str | None,
) -> OpGraph:
    for mark, kind in LATER_KINDS.items():
        if target.startswith(mark) or (mark.startswith(".") and target.endswith(mark)):
            raise NotYetError(
                f"target {target!r}: {kind} does not work yet; a zoo name, timm:NAME, "
                "file.py:function and the graph files of `predictor capture` do"
            )
    if inputs is not None or loss is not None:
        raise CaptureError(
            f"target {target!r} brings its own inputs and loss; pass a module to give them"
        )
    from predictor.capture.target import Asked, capture_target

    asked = Asked(mode=mode, optimizer=optimizer, dims=dims, platform=platform)
    mode = mode or "infer"
    return capture_target(
        target, mode=mode, batch=batch, seq=seq, dtype=dtype, recompute=recompute,
        optimizer=_optimizer(mode, optimizer), asked=asked,
    )  # fmt: skip


def _optimizer(mode: Mode, optimizer: str | None) -> str | None:
    return (optimizer or DEFAULT_OPTIMIZER) if mode == "train" else None


def _check_captured(graph: OpGraph, **asked: object) -> None:
    """A captured graph is what it is: asking for something else is an error, not a recapture."""
    workload = graph.workload
    held = {
        "mode": workload.mode,
        "dtype": workload.dtype,
        "batch": workload.batch,
        "seq": None,
        "optimizer": workload.optimizer,
    }
    for name, value in asked.items():
        if value is not None and value != held[name]:
            if workload.recorded_us:
                raise CaptureError(
                    f"{workload.name!r} is a profiler trace: it has the {name} it was recorded "
                    f"with, {name}={value!r} cannot be asked of it; leave {name} out, or name the "
                    "program itself"
                )
            raise CaptureError(
                f"the graph of {workload.name!r} was captured with {name}={held[name]!r}, not "
                f"{value!r}: capture the program again, or leave {name} out"
            )
