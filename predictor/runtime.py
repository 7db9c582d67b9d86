"""What runs a captured program: eager PyTorch, torch.compile, a fused inference runtime, or XLA.

Each has kernels of its own, and a software context that says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from predictor.errors import CaptureError
from predictor.graph.ir import KernelGraph, OpGraph, autocast_of
from predictor.hardware.device import FUSED, Device, Software
from predictor.program import Target, capture

if TYPE_CHECKING:
    from predictor.features.compiled import CompileMode

Runtime: TypeAlias = Literal["pytorch", "fused"]
RUNTIMES: tuple[Runtime, ...] = ("pytorch", "fused")
TF32_BY_DEFAULT = "nvidia"
"""Vendor whose fused runtimes take TF32 for fp32 products and convolutions unless told otherwise:
TensorRT (`trtexec --noTF32`, `BuilderFlag::kTF32`) and ONNX Runtime's CUDA provider (`use_tf32`)
have one switch for both, and it is on."""


def runtime_of(graph: OpGraph, asked: str | None) -> Runtime:
    """What runs a captured program: as asked, else as its source says.

    Raises:
        CaptureError: no such runtime, or a fused one for a training step or a program of XLA.
    """
    from predictor.lower.xla import is_xla

    if asked not in (None, *RUNTIMES):
        raise CaptureError(f"runtime {asked!r} is unknown; one of: {', '.join(RUNTIMES)}")
    trains = graph.workload.mode == "train"
    if asked == "fused" and trains:
        raise CaptureError("runtime 'fused' is for inference; a training step runs in 'pytorch'")
    if asked is not None and is_xla(graph):
        raise CaptureError(f"runtime {asked!r} does not run StableHLO: XLA does; leave it out")
    if asked is not None:
        return "fused" if asked == "fused" else "pytorch"
    return "fused" if graph.workload.source == "onnx" and not trains else "pytorch"


def graphs_for(
    devices: Sequence[Device], target: Target, inputs: object = None, *more: object, **options: Any
) -> Mapping[str, OpGraph]:
    """The captured program for each device, by device id.

    A program is captured once; one that JAX lowers, once for each platform among the devices.

    Args:
        devices: what it is captured for, one or more.
        target: see `capture`.
        inputs: see `capture`.
        more: see `capture`.
        options: see `capture`.
    """
    from predictor.capture.stablehlo.recognise import PLATFORMS, is_jax_program
    from predictor.program import is_own_function

    platforms = {device.id: PLATFORMS.get(device.kind) for device in devices}
    first, *others = dict.fromkeys(platforms.values())
    graphs = {first: capture(target, inputs, *more, platform=first, **options)}
    by_jax = is_jax_program(target) or is_own_function(target)
    again = by_jax and graphs[first].workload.source == "stablehlo"
    for other in others:
        graphs[other] = graphs[first]
        if again:
            graphs[other] = capture(target, inputs, *more, platform=other, **options)
    return {device: graphs[platform] for device, platform in platforms.items()}


def _by_xla(graph: OpGraph, software: Software) -> bool:
    """Whether XLA compiles a program: a JAX one always, a PyTorch one under PyTorch/XLA."""
    from predictor.lower.xla import PYTORCH_XLA, is_xla

    return is_xla(graph) or software.framework == PYTORCH_XLA


def kernels_key(graph: OpGraph, device: Device, software: Software) -> Hashable:
    """What a program's kernels depend on besides the program."""
    from predictor.lower.xla_backends import backend_of

    return backend_of(device, software) if _by_xla(graph, software) else None


def lowered(
    graph: OpGraph, device: Device, software: Software, runtime: Runtime, *, allow_opaque: bool
) -> KernelGraph:
    """Kernels of a program: eager PyTorch's, a fused runtime's, or XLA's for the kind of device."""
    from predictor.lower.eager import lower_eager
    from predictor.lower.xla import lower_xla
    from predictor.lower.xla_backends import backend_of

    if _by_xla(graph, software):
        return lower_xla(graph, backend_of(device, software), allow_opaque=allow_opaque)
    if runtime == "fused":
        from predictor.lower.inference import lower_inference

        return lower_inference(graph, allow_opaque=allow_opaque)
    return lower_eager(graph, allow_opaque=allow_opaque)


def compile_mode(graph: OpGraph, asked: bool | str, runtime: Runtime) -> CompileMode:
    """The mode of `torch.compile` that was asked for.

    Raises:
        CaptureError: no such mode, or a runtime that is not PyTorch.
    """
    from predictor.features.compiled import COMPILE_MODES
    from predictor.lower.xla import is_xla

    if is_xla(graph):
        raise CaptureError(
            "torch.compile compiles PyTorch programs, and XLA compiles this one already: leave "
            "compile out"
        )

    if runtime != "pytorch":
        raise CaptureError(
            "torch.compile compiles PyTorch programs, and this one runs in a fused inference "
            "runtime: leave compile out, or say runtime='pytorch'"
        )
    wanted = "default" if asked is True else asked
    for mode in COMPILE_MODES:
        if mode == wanted:
            return mode
    raise CaptureError(f"compile={asked!r}: one of True, {', '.join(map(repr, COMPILE_MODES))}")


def lighter_of(
    graph: OpGraph, device: Device, software: Software, runtime: Runtime, *, allow_opaque: bool
) -> KernelGraph | None:
    """Kernels of the program with every branch on its cheaper side."""
    if graph.lighter is None:
        return None
    return lowered(graph.lighter, device, software, runtime, allow_opaque=allow_opaque)


def context_of(
    graph: OpGraph,
    device: Device,
    software: Software | None,
    matmul_tf32: bool | None,
    runtime: Runtime,
) -> Software:
    """The context of the run: autocast comes from what was captured, defaults from what runs it.

    Raises:
        CaptureError: TF32 asked of a program that says the precision of each product itself.
    """
    from predictor.lower.xla import PYTORCH_XLA, is_xla
    from predictor.lower.xla_backends import JAX

    if is_xla(graph):
        if matmul_tf32 is not None:
            raise CaptureError(
                "a JAX or StableHLO program says the precision of each product itself: leave tf32 "
                "out, and lower it under jax.default_matmul_precision ('highest' is fp32; the "
                "default takes TF32 where the GPU has it)"
            )
        own = JAX if software is None else replace(software, framework="jax", mode="compiled")
        return replace(own, amp=None)
    usual = Software()
    if runtime == "fused":
        usual = Software(framework=FUSED, matmul_tf32=device.vendor == TF32_BY_DEFAULT)
    elif device.kind == "tpu":  # nothing else runs PyTorch there
        usual = Software(framework=PYTORCH_XLA, mode="compiled")
    context = replace(software or usual, amp=autocast_of(graph.workload.dtype))
    if matmul_tf32 is None:
        return context
    if runtime == "fused":  # one switch for products and convolutions
        return replace(context, matmul_tf32=matmul_tf32, conv_tf32=matmul_tf32)
    return replace(context, matmul_tf32=matmul_tf32)
