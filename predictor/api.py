"""The public calls: `load`, `capture`, `estimate`, `compare`.

They tie the parts together and hold no arithmetic. Everything heavy is imported inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from predictor.checkpoint import Release, load_release
from predictor.errors import CaptureError, NotYetError, UnknownDeviceError, UnsupportedPrecision
from predictor.graph.ir import KernelGraph, OpGraph
from predictor.hardware.device import Device, Software

if TYPE_CHECKING:
    from torch import Tensor, nn

    from predictor.nn.prediction import Prediction
    from predictor.report.comparison import Comparison
    from predictor.report.estimate import Estimate

Mode = Literal["infer", "train"]
DEFAULT_CHECKPOINT = "base-v1"
DEFAULT_OPTIMIZER = "adamw"
MODES: tuple[str, ...] = ("infer", "train")
DTYPES: tuple[str, ...] = ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16")
OPTIMIZERS: tuple[str, ...] = ("adamw", "sgd")


class Predictor(Protocol):
    """A trained network: kernels and a device in, latencies out."""

    @property
    def name(self) -> str:
        """Name of the checkpoint it came from."""

    def predict(self, graph: KernelGraph, device: Device, software: Software) -> Prediction:
        """Latency of every kernel and of the step."""


Target: TypeAlias = "str | OpGraph | nn.Module | Callable[..., object]"
Loss: TypeAlias = "Callable[[object], Tensor]"
Checkpoint: TypeAlias = "str | Path | Predictor"

_loaded: dict[str, Predictor] = {}


def load(checkpoint: str | Path = DEFAULT_CHECKPOINT) -> Predictor:
    """The trained network of a checkpoint, ready to predict; loaded once, then kept.

    Args:
        checkpoint: a shipped name, or the folder that `predictor train` wrote.

    Raises:
        CheckpointError: the folder fails one of its checks.
    """
    release = load_release(checkpoint)
    if release.key not in _loaded:
        _loaded[release.key] = _build(release)
    return _loaded[release.key]


def capture(
    target: Target,
    inputs: object = None,
    *,
    mode: Mode | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    loss: Loss | None = None,
) -> OpGraph:
    """The ops a program runs, without running it and without the device.

    Args:
        target: a zoo name (`gpt2-large`), `file.py:function`, a module, a step function, or a
            graph captured before, which comes back as it is.
        inputs: for a module: its input, a tuple of positional ones, a dict of keyword ones, or
            `(args, kwargs)`. Tensors give shapes and dtypes; their values are not read.
        mode: `infer` (one forward) or `train` (forward, loss, backward, optimizer); inference
            when not given.
        dtype: `fp32`, `bf16`, `fp16` (parameters and inputs are taken in it), `amp-bf16` or
            `amp-fp16` (autocast); as they are when not given.
        optimizer: `adamw` (when not given) or `sgd`, training only.
        batch: batch size of a named target.
        seq: sequence length of a named target.
        loss: maps the module's output to a scalar, training only; when not given the output's
            own loss, else cross-entropy for logits, else the mean.

    Raises:
        CaptureError: the program cannot be captured; the message says where and what to pass.
        UnknownTargetError: no such name or file.
    """
    if isinstance(target, OpGraph):
        _check_captured(target, mode=mode, dtype=dtype, batch=batch, seq=seq, optimizer=optimizer)
        return target
    _check_request(mode=mode, dtype=dtype, optimizer=optimizer)
    if isinstance(target, str):
        if inputs is not None or loss is not None:
            raise CaptureError(
                f"target {target!r} brings its own inputs and loss; pass a module to give them"
            )
        from predictor.capture.target import capture_target

        mode = mode or "infer"
        return capture_target(
            target,
            mode=mode,
            batch=batch,
            seq=seq,
            dtype=dtype,
            optimizer=_optimizer(mode, optimizer),
        )
    if batch is not None or seq is not None:
        raise CaptureError("batch and seq size a named target; a module's inputs have their own")
    return _capture_program(target, inputs, mode=mode, dtype=dtype, optimizer=optimizer, loss=loss)


def estimate(
    target: Target,
    inputs: object = None,
    *,
    device: str | Path | Device,
    mode: Mode | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    loss: Loss | None = None,
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    software: Software | None = None,
    matmul_tf32: bool | None = None,
) -> Estimate:
    """Latency, memory and coverage of a program on a device nobody needs to own.

    Args:
        target: what to estimate; see `capture`. A captured graph is not captured again.
        inputs: see `capture`.
        device: catalogue name, device file (`my.toml`) or a `Device`.
        mode: see `capture`.
        dtype: see `capture`.
        optimizer: see `capture`.
        batch: see `capture`.
        seq: see `capture`.
        loss: see `capture`.
        checkpoint: shipped name, folder, or what `load` gave.
        software: context of the run; PyTorch's defaults when not given.
        matmul_tf32: whether fp32 matrix products may use TF32 (PyTorch's default: no).

    Returns:
        The estimate. A program that does not fit keeps its latency, marked hypothetical, with
        the bytes itemised in `warnings`.

    Raises:
        PredictorError: a child that names the value, what is allowed and the remedy.

    Examples:
        >>> predictor.estimate("gpt2", device="nvidia-t4").latency_us  # doctest: +SKIP
    """
    from predictor.hardware.catalogue import resolve_device

    found = resolve_device(device)
    network = load(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    graph = capture(
        target, inputs, mode=mode, dtype=dtype, optimizer=optimizer, batch=batch, seq=seq, loss=loss
    )
    kernels = _lower(graph)
    context = _software(graph, software, matmul_tf32)
    return _estimate(target, graph, kernels, found, network, context)


def compare(
    target: Target,
    inputs: object = None,
    *,
    devices: Sequence[str | Path | Device],
    mode: Mode | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    loss: Loss | None = None,
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    software: Software | None = None,
    matmul_tf32: bool | None = None,
) -> Comparison:
    """One program on several devices, captured once. Arguments as for `estimate`.

    A device that cannot run the program's precision is listed as refused, with the reason; any
    other error is raised.

    Raises:
        PredictorError: as `estimate`, and `UnknownDeviceError` for an empty list.
    """
    from predictor.hardware.catalogue import resolve_device
    from predictor.report.comparison import Comparison

    if not devices:
        raise UnknownDeviceError("no devices to compare; give at least one (`predictor devices`)")
    found = [resolve_device(device) for device in devices]
    network = load(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    graph = capture(
        target, inputs, mode=mode, dtype=dtype, optimizer=optimizer, batch=batch, seq=seq, loss=loss
    )
    kernels = _lower(graph)
    context = _software(graph, software, matmul_tf32)
    estimates, refused = [], {}
    for device in found:
        try:
            estimates.append(_estimate(target, graph, kernels, device, network, context))
        except UnsupportedPrecision as error:
            refused[device.id] = str(error)
    return Comparison(target=_name(target, graph), estimates=tuple(estimates), refused=refused)


def _build(release: Release) -> Predictor:
    from predictor.nn.latency import load_predictor

    return load_predictor(release)


def _lower(graph: OpGraph) -> KernelGraph:
    from predictor.lower.eager import lower_eager

    return lower_eager(graph)


def _name(target: Target, graph: OpGraph) -> str:
    return target if isinstance(target, str) else graph.workload.name


def _estimate(
    target: Target,
    graph: OpGraph,
    kernels: KernelGraph,
    device: Device,
    network: Predictor,
    software: Software,
) -> Estimate:
    from predictor.cost.memory import memory_report
    from predictor.report.assemble import assemble
    from predictor.version import code_version

    return assemble(
        kernels,
        network.predict(kernels, device, software),
        target=_name(target, graph),
        ops=len(graph.nodes),
        device=device,
        software=software,
        memory=memory_report(kernels, device, graph.workload.optimizer),
        checkpoint=network.name,
        provenance={
            "checkpoint": network.name,
            "code_version": code_version(),
            "device_confidence": device.confidence,
        },
    )


def _software(graph: OpGraph, software: Software | None, matmul_tf32: bool | None) -> Software:
    """The context of the run: autocast comes from what was captured."""
    dtype = graph.workload.dtype
    context = replace(
        software or Software(), amp=dtype.removeprefix("amp-") if dtype.startswith("amp-") else None
    )
    return context if matmul_tf32 is None else replace(context, matmul_tf32=matmul_tf32)


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
            raise CaptureError(
                f"the graph of {workload.name!r} was captured with {name}={held[name]!r}, not "
                f"{value!r}: capture the program again, or leave {name} out"
            )


def _check_request(*, mode: str | None, dtype: str | None, optimizer: str | None) -> None:
    """Words that are not in the tables raise, naming the tables."""
    if dtype == "fp8":
        raise NotYetError(f"dtype fp8 does not work yet; {', '.join(DTYPES)} do")
    asked = (("mode", mode, MODES), ("dtype", dtype, DTYPES), ("optimizer", optimizer, OPTIMIZERS))
    for name, value, allowed in asked:
        if value is not None and value not in allowed:
            raise CaptureError(f"{name} {value!r} is unknown; one of: {', '.join(allowed)}")
    if optimizer is not None and mode != "train":
        raise CaptureError(f"optimizer {optimizer!r} needs a training step: mode='train' (--train)")


def _capture_program(
    program: nn.Module | Callable[..., object],
    inputs: object,
    *,
    mode: Mode | None,
    dtype: str | None,
    optimizer: str | None,
    loss: Loss | None,
) -> OpGraph:
    """A module, or a step function of the user's own."""
    from torch import nn

    from predictor.capture.torch import capture_module, capture_step

    args, kwargs = split_inputs(inputs)
    amp = dtype.removeprefix("amp-") if dtype is not None and dtype.startswith("amp-") else None
    if isinstance(program, nn.Module):
        mode = mode or "infer"
        return capture_module(
            program,
            args,
            kwargs,
            mode=mode,
            loss=loss,
            optimizer=_optimizer(mode, optimizer),
            amp=amp,
            dtype=dtype if amp is None else None,
        )
    if not callable(program):
        raise CaptureError(
            f"cannot capture a {type(program).__name__}: pass a module, a step function, a zoo "
            "name, file.py:function, or a captured graph"
        )
    fixed = {
        "mode": mode,
        "optimizer": optimizer,
        "loss": loss,
        "dtype": dtype if amp is None else None,
    }
    for name, value in fixed.items():
        if value is not None:
            raise CaptureError(
                f"a step function decides its own {name}: leave {name}={value!r} out"
            )
    return capture_step(program, args, kwargs, amp=amp)


def _optimizer(mode: Mode, optimizer: str | None) -> str | None:
    return (optimizer or DEFAULT_OPTIMIZER) if mode == "train" else None


def split_inputs(inputs: object) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Positional and keyword arguments that `inputs` stands for."""
    if inputs is None:
        return (), {}
    if isinstance(inputs, Mapping):
        return (), inputs
    if isinstance(inputs, tuple):
        if len(inputs) == 2 and isinstance(inputs[0], tuple) and isinstance(inputs[1], Mapping):
            return inputs[0], inputs[1]
        return inputs, {}
    return (inputs,), {}
