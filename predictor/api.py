"""The public calls: `load`, `capture`, `estimate`, `compare`.

They tie the parts together and hold no arithmetic. Everything heavy is imported inside.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from predictor.checkpoint import DEFAULT_CHECKPOINT, Release, default_checkpoint, load_release
from predictor.errors import AdapterError, UnknownDeviceError, UnsupportedPrecision
from predictor.graph.ir import KernelGraph, OpGraph
from predictor.hardware.device import Device, Software
from predictor.program import Loss, Mode, Target, capture
from predictor.runtime import (
    Runtime,
    compile_mode,
    context_of,
    graphs_for,
    kernels_key,
    lighter_of,
    lowered,
    runtime_of,
)

if TYPE_CHECKING:
    from predictor.calibrate.adapter import Adapter
    from predictor.features.compiled import CompiledGraphs, CompileMode
    from predictor.nn.prediction import Prediction
    from predictor.report.comparison import Comparison
    from predictor.report.estimate import Estimate

__all__ = ["DEFAULT_CHECKPOINT", "Predictor", "capture", "compare", "estimate", "load"]


class Predictor(Protocol):
    """A trained network: kernels and a device in, latencies out."""

    @property
    def name(self) -> str:
        """Name of the checkpoint it came from."""

    def predict(self, graph: KernelGraph, device: Device, software: Software) -> Prediction:
        """Latency of every kernel and of the step."""


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


def estimate(
    target: Target,
    inputs: object = None,
    *more: object,
    device: str | Path | Device,
    mode: Mode | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    loss: Loss | None = None,
    recompute: bool = False,
    dims: Mapping[str, int] | None = None,
    checkpoint: Checkpoint | None = None,
    software: Software | None = None,
    matmul_tf32: bool | None = None,
    runtime: Runtime | None = None,
    compile: bool | CompileMode = False,
    allow_opaque: bool = False,
    adapter: str | Path | Adapter | None = None,
) -> Estimate:
    """Latency, memory and coverage of a program on a device nobody needs to own.

    Args:
        target: what to estimate; see `capture`. A captured graph is not captured again.
        inputs: see `capture`.
        more: see `capture`.
        device: catalogue name, device file (`my.toml`) or a `Device`.
        mode: see `capture`.
        dtype: see `capture`.
        optimizer: see `capture`.
        batch: see `capture`.
        seq: see `capture`.
        loss: see `capture`.
        recompute: see `capture`.
        dims: see `capture`.
        checkpoint: shipped name, folder, or what `load` gave; when not given, `tpu-v1` for TPUs
            and `base-v2` for all other devices.
        software: context of the run; the runtime's defaults when not given.
        matmul_tf32: whether fp32 matrix products may use TF32, and in a fused runtime convolutions
            with them. When not given, as the runtime does: PyTorch not, fused inference on NVIDIA
            GPUs yes.
        runtime: what runs the program: `pytorch`, which launches a kernel or more a call, or
            `fused`, an inference runtime as TensorRT or ONNX Runtime. When not given, `fused` for
            ONNX models and `pytorch` for all others.
        compile: the program runs under `torch.compile`; `reduce-overhead` for that mode, which
            replays CUDA graphs. The checkpoint says which kernels that gives (docs/compiled.md).
        allow_opaque: take a call without a cost rule as an opaque kernel (its memory traffic, with
            a wide interval) instead of raising `CostRuleError`.
        adapter: folder that `predictor calibrate` wrote, the loaded `Adapter`, or `auto`: the
            device's own in the user's folder, where there is one. It changes its own device's
            prediction and no other.

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
    network = network_for(checkpoint, found)
    graphs = graphs_for(
        [found], target, inputs, *more, mode=mode, dtype=dtype, optimizer=optimizer, batch=batch,
        seq=seq, loss=loss, recompute=recompute, dims=dims,
    )  # fmt: skip
    graph = graphs[found.id]
    runtime = runtime_of(graph, runtime)
    context = context_of(graph, found, software, matmul_tf32, runtime)
    own = adapters_of(adapter, [found], [network])
    if compile:
        how = compile_mode(graph, compile, runtime)
        return _compiled(
            graph, found, network, context, own.get(found.id), how, allow_opaque=allow_opaque
        )
    kernels = lowered(graph, found, context, runtime, allow_opaque=allow_opaque)
    lighter = lighter_of(graph, found, context, runtime, allow_opaque=allow_opaque)
    return _estimate(graph, kernels, found, network, context, own.get(found.id), lighter)


def compare(
    target: Target,
    inputs: object = None,
    *more: object,
    devices: Sequence[str | Path | Device],
    mode: Mode | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    loss: Loss | None = None,
    recompute: bool = False,
    dims: Mapping[str, int] | None = None,
    checkpoint: Checkpoint | None = None,
    software: Software | None = None,
    matmul_tf32: bool | None = None,
    runtime: Runtime | None = None,
    compile: bool | CompileMode = False,
    allow_opaque: bool = False,
    adapter: str | Path | Adapter | None = None,
) -> Comparison:
    """One program on several devices, captured once, or lowered by JAX once for each platform.

    Arguments are those of `estimate`.

    A device that cannot run the program's precision is listed as refused, with the reason; any
    other error is raised. `auto` takes the adapter of every device that has one.

    Raises:
        PredictorError: as `estimate`, and `UnknownDeviceError` for an empty list.
    """
    from predictor.hardware.catalogue import resolve_device
    from predictor.report.comparison import Comparison

    if not devices:
        raise UnknownDeviceError("no devices to compare; give at least one (`predictor devices`)")
    found = [resolve_device(device) for device in devices]
    networks = {device.id: network_for(checkpoint, device) for device in found}
    graphs = graphs_for(
        found, target, inputs, *more, mode=mode, dtype=dtype, optimizer=optimizer, batch=batch,
        seq=seq, loss=loss, recompute=recompute, dims=dims,
    )  # fmt: skip
    graph = graphs[found[0].id]
    runtime = runtime_of(graph, runtime)
    own = adapters_of(adapter, found, [networks[device.id] for device in found])

    def context(device: Device) -> Software:
        return context_of(graph, device, software, matmul_tf32, runtime)

    if compile:
        how = compile_mode(graph, compile, runtime)

        def one(device: Device) -> Estimate:
            return _compiled(
                graph, device, networks[device.id], context(device), own.get(device.id), how,
                allow_opaque=allow_opaque,
            )  # fmt: skip
    else:
        known: dict[Hashable, tuple[KernelGraph, KernelGraph | None]] = {}

        def one(device: Device) -> Estimate:
            held, software = graphs[device.id], context(device)
            key = (id(held), kernels_key(held, device, software))
            if key not in known:
                known[key] = (
                    lowered(held, device, software, runtime, allow_opaque=allow_opaque),
                    lighter_of(held, device, software, runtime, allow_opaque=allow_opaque),
                )
            kernels, lighter = known[key]
            own_of = own.get(device.id)
            network = networks[device.id]
            return _estimate(held, kernels, device, network, software, own_of, lighter)

    estimates, refused = [], {}
    for device in found:
        try:
            estimates.append(one(device))
        except UnsupportedPrecision as error:
            refused[device.id] = str(error)
    return Comparison(target=graph.workload.name, estimates=tuple(estimates), refused=refused)


def network_for(checkpoint: Checkpoint | None, device: Device) -> Predictor:
    """The network that predicts for a device: the one asked for, or the default of its kind.

    Raises:
        CheckpointError: as `load`.
    """
    if checkpoint is None:
        return load(default_checkpoint([device.kind]))
    return load(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint


def adapters_of(
    adapter: str | Path | Adapter | None,
    devices: Sequence[Device],
    networks: Sequence[Predictor],
) -> Mapping[str, Adapter]:
    """The adapters that speak for some of `devices`, by device id.

    Args:
        adapter: as of `estimate`.
        devices: what is estimated for.
        networks: what predicts for each of them.

    Raises:
        AdapterError: it is damaged, or belongs to none of them or to another checkpoint.
    """
    if adapter is None:
        return {}
    from predictor.calibrate.adapter import adapters_given

    pairs = zip(devices, networks, strict=True)
    found = adapters_given(adapter, ((device.id, network.name) for device, network in pairs))
    if found and not {one.device for one in found} & {device.id for device in devices}:
        raise AdapterError(
            f"the adapter is of {found[0].device}, and none of the devices is: "
            f"{', '.join(device.id for device in devices)}; leave --adapter out"
        )
    for one in found:
        for device, network in zip(devices, networks, strict=True):
            if one.check_device(device):
                one.check_checkpoint(network.name, _key_of(network) or "a predictor of your own")
    return {one.device: one for one in found}


def _key_of(network: Predictor) -> str | None:
    """Identity of a loaded checkpoint."""
    return next((key for key, value in _loaded.items() if value is network), None)


def _build(release: Release) -> Predictor:
    from predictor.nn.latency import load_predictor

    return load_predictor(release)


def _compiled(
    graph: OpGraph,
    device: Device,
    network: Predictor,
    software: Software,
    adapter: Adapter | None,
    mode: CompileMode,
    *,
    allow_opaque: bool,
) -> Estimate:
    """The estimate of a program under `torch.compile`, with the kernels that the network knows."""
    from predictor.features.compiled import compiled_program

    graphs: CompiledGraphs = getattr(network, "compiled_graphs", "eager")
    programs = [graph] if graph.lighter is None else [graph, graph.lighter]
    found = [
        compiled_program(one, device, graphs=graphs, mode=mode, allow_opaque=allow_opaque)
        for one in programs
    ]
    context = replace(software, mode="compiled")
    if found[0].channels_last:
        context = replace(context, memory_format="channels_last")
    lighter = found[1].kernels if len(found) > 1 else None
    return _estimate(graph, found[0].kernels, device, network, context, adapter, lighter)


def _estimate(
    graph: OpGraph,
    kernels: KernelGraph,
    device: Device,
    network: Predictor,
    software: Software,
    adapter: Adapter | None,
    lighter: KernelGraph | None,
) -> Estimate:
    from predictor.calibrate.adapted import adapted
    from predictor.cost.memory import memory_report
    from predictor.report.assemble import assemble
    from predictor.version import code_version

    key = _key_of(network)
    speaks = network if adapter is None else adapted(network, adapter, key or "")
    estimate = assemble(
        kernels,
        speaks.predict(kernels, device, software),
        target=graph.workload.name,
        ops=len(graph.nodes),
        device=device,
        software=software,
        memory=memory_report(kernels, device, graph.workload.optimizer),
        checkpoint=network.name,
        adapter=None if adapter is None else adapter.line,
        provenance={
            "checkpoint": network.name,
            "checkpoint_key": key,
            "code_version": code_version(),
            "device_confidence": device.confidence,
        },
    )

    if lighter is None:
        return estimate
    least = speaks.predict(lighter, device, software).step
    step = replace(estimate.step, lower_us=min(estimate.step.lower_us, least.lower_us))
    return replace(estimate, step=step)
