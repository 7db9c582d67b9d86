"""What a step keeps on the device, itemised, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.cost.liveness import memory_peaks
from predictor.cost.optimizers import OptimizerCost, captured_state_bytes, optimizer_cost
from predictor.graph.ir import DTYPE_BYTES, KernelGraph, OpGraph, Workload
from predictor.hardware.device import Device

CONTEXT_RESERVE_GIB = 0.75
"""What the driver's context, the libraries' workspaces and the allocator's fragments take of a
device before the program gets any: about 0.3 to 1 GiB, so a program within a quarter GiB of the
limit may go either way."""

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes on the device; the peak is less than the sum where items do not coincide."""

    parameters_bytes: int
    """Distinct parameters and buffers."""
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    """Peak of activations and gradients of activations."""
    inputs_bytes: int
    peak_bytes: int
    capacity_bytes: int | None
    """What a program can use: the device's memory less `CONTEXT_RESERVE_GIB`."""
    fits: bool | None
    """None when the device's memory size is unknown."""
    warnings: tuple[str, ...] = ()


def optimizer_state_bytes(parameter_bytes: int, tensors: int, cost: OptimizerCost) -> int:
    """Persistent state: tensors like the parameters, in their dtype, and a step counter each.

    Linear(1000, 1000) under AdamW: 2 * 4,004,000 + 2 * 4 = 8,008,008 bytes in fp32. Holds for
    optimizers without fp32 master weights only.
    """
    return cost.states * parameter_bytes + cost.step_bytes * tensors


def kv_cache_bytes(
    *, layers: int, kv_heads: int, head_dim: int, tokens: int, batch: int = 1, dtype: str = "bf16"
) -> int:
    """Keys and values that a decoder keeps, by key-value heads (not query heads).

    Llama-3-8B in bf16: 2 * 32 * 8 * 128 * 2 = 131,072 bytes a token.
    """
    elements = 2 * layers * kv_heads * head_dim * tokens * batch
    return int(elements * DTYPE_BYTES[dtype])


def embedding_gradient_elements(
    *, num_embeddings: int, embedding_dim: int, ids: int, sparse: bool
) -> int:
    """Elements of an embedding table's gradient: the whole table, or one row an id if sparse."""
    return (ids if sparse else num_embeddings) * embedding_dim


def memory_report(
    graph: KernelGraph | OpGraph,
    device: Device | None = None,
    optimizer: str | None = None,
    *,
    momentum: float = 0.0,
    fused: bool = False,
) -> MemoryReport:
    """Itemised device memory of a step, and whether the device holds it.

    Args:
        graph: a captured program or its kernels.
        device: None leaves `fits` open.
        optimizer: `adamw`, `sgd`, …, if another than the captured one (its step counters, 4 bytes
            a tensor, are left out then).
        momentum: of that SGD, which keeps a buffer then.
        fused: whether that AdamW is the fused one.
    """
    work = graph.workload
    peaks = _peaks(graph)
    training = work.mode == "train"
    states = _state_bytes(graph, optimizer, momentum=momentum, fused=fused) if training else 0
    gradients = work.trainable_bytes if training else 0
    resident = work.parameters_bytes + work.buffers_bytes + work.inputs_bytes + states
    peak = resident + max(peaks[1], peaks[0], float(gradients))
    capacity = usable_bytes(device)
    fits = None if capacity is None else peak <= capacity
    return MemoryReport(
        parameters_bytes=work.parameters_bytes + work.buffers_bytes,
        gradients_bytes=gradients,
        optimizer_bytes=states,
        activations_bytes=int(peaks[0]),
        inputs_bytes=work.inputs_bytes,
        peak_bytes=int(peak),
        capacity_bytes=capacity,
        fits=fits,
        warnings=_warnings(peak, capacity, device, work),
    )


def _peaks(graph: KernelGraph | OpGraph) -> tuple[float, float]:
    if isinstance(graph, KernelGraph):
        return graph.peak_activation_bytes, graph.peak_step_bytes
    peaks = memory_peaks(graph)
    return peaks.activation_bytes, peaks.step_bytes


def _state_bytes(
    graph: KernelGraph | OpGraph, optimizer: str | None, *, momentum: float, fused: bool
) -> int:
    """State of the captured optimizer, or of another one over the same parameters."""
    work = graph.workload
    if optimizer in (None, work.optimizer) and not momentum:
        known = (
            graph.optimizer_bytes
            if isinstance(graph, KernelGraph)
            else (captured_state_bytes(graph))
        )
        if known is not None:
            return known
    name = optimizer or work.optimizer
    if name is None:
        return 0
    op = name if name in ("adamw", "sgd") else "optimizer_other"
    cost = optimizer_cost(op, momentum=momentum, fused=fused)
    return optimizer_state_bytes(work.trainable_bytes, 0, cost)


def usable_bytes(device: Device | None) -> int | None:
    """Memory of a device that a program can use, None when its size is unknown.

    The size that the vendor's runtime reports is preferred to the datasheet's.
    """
    if device is None:
        return None
    size_gib = device.memory_reported_gib or device.memory_gib
    return None if size_gib is None else int((size_gib - CONTEXT_RESERVE_GIB) * GIB)


def _warnings(
    peak: float, capacity: int | None, device: Device | None, work: Workload
) -> tuple[str, ...]:
    if device is None:
        return ()
    if capacity is None:
        return (f"memory size of {device.id} is unknown: cannot say whether it fits",)
    if peak <= capacity:
        return ()
    return (
        f"{work.name} does not fit {device.id}: needs {peak / GIB:.1f} GiB of "
        f"{capacity / GIB:.1f} GiB usable",
    )
