"""From a prediction to an `Estimate`: totals, coverage, and what the reader must be told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.features.table import repeats_of
from predictor.graph.ir import KernelGraph, Workload
from predictor.hardware.device import Device, Software
from predictor.nn.prediction import Prediction
from predictor.report.estimate import (
    Coverage,
    Estimate,
    StepCorrection,
    StepTime,
    WorkloadFigures,
)
from predictor.report.units import gib, percent

if TYPE_CHECKING:
    from predictor.cost.memory import MemoryReport

_TRUSTED_SHARE = 0.9
"""Below this share of time in distribution, the reader is told."""


def assemble(
    graph: KernelGraph,
    prediction: Prediction,
    *,
    target: str,
    ops: int,
    device: Device,
    software: Software,
    memory: MemoryReport,
    checkpoint: str,
    provenance: Mapping[str, str | None],
    adapter: str | None = None,
) -> Estimate:
    """Put one program's prediction on one device into an `Estimate`.

    Args:
        graph: the kernels that were predicted.
        prediction: their latencies and the step's.
        target: what the user named.
        ops: framework calls that were captured.
        device: where.
        software: the context of the run.
        memory: peak memory by item.
        checkpoint: name of the trained network.
        provenance: versions and hashes to keep with the number.
        adapter: what it was calibrated with.
    """
    step = prediction.step
    coverage = coverage_of(prediction, repeats_of(graph))
    return Estimate(
        target=target,
        device=device,
        software=software,
        checkpoint=checkpoint,
        adapter=adapter,
        step=StepTime(
            latency_us=step.latency_us,
            lower_us=step.lower_us,
            upper_us=step.upper_us,
            level=prediction.level,
            includes=step_parts(graph.workload),
            correction=step_correction(prediction),
        ),
        phases=dict(prediction.phases),
        workload=workload_figures(graph, ops),
        memory=memory,
        coverage=coverage,
        warnings=_warnings(graph.workload, prediction, device, memory, coverage),
        provenance=dict(provenance),
        graph=graph,
        prediction=prediction,
    )


def step_correction(prediction: Prediction) -> StepCorrection | None:
    """The factor on the step's time with its terms; None where nothing is corrected."""
    terms = prediction.correction
    if terms is None:
        return None
    return StepCorrection(factor=math.exp(sum(terms.values())), terms=dict(terms))


def step_parts(workload: Workload) -> tuple[str, ...]:
    """What the step's latency holds: inputs are on the device and outputs stay there."""
    if workload.mode == "infer":
        return ("forward",)
    update = () if workload.optimizer is None else ("optimizer",)
    return ("zero_grad", "forward", "loss", "backward", *update)


def workload_figures(graph: KernelGraph, ops: int) -> WorkloadFigures:
    """Totals over the kernels of a graph."""
    workload = graph.workload
    return WorkloadFigures(
        parameters=workload.parameters,
        flops=float(sum(k.repeats * k.flops for k in graph.kernels))
        if graph.counted_flops is None
        else graph.counted_flops,
        matmul_flops=float(sum(k.repeats * k.matmul_flops for k in graph.kernels)),
        bytes=float(sum(k.repeats * k.bytes for k in graph.kernels)),
        batch=workload.batch,
        dtype=workload.dtype,
        ops=ops,
        kernels=sum(k.repeats * k.launches for k in graph.kernels),
    )


def coverage_of(prediction: Prediction, repeats: NDArray[np.float64]) -> Coverage:
    """Shares of kernel time by label; a graph without kernels is all roofline, and trusted.

    Args:
        prediction: latencies of one run of each kernel.
        repeats: (N,) runs of each.
    """
    whole_us = prediction.kernel_us * repeats
    total_us = float(whole_us.sum())
    if total_us <= 0:
        return Coverage(
            learned=0.0, measured=0.0, transferred=0.0, roofline=1.0, opaque=0.0,
            in_distribution=1.0,
        )  # fmt: skip
    weight = whole_us / total_us

    def share(label: str) -> float:
        return float(weight[prediction.label == label].sum())

    return Coverage(
        learned=share("learned"),
        measured=share("measured"),
        transferred=share("transferred"),
        roofline=share("roofline"),
        opaque=share("opaque"),
        in_distribution=float(np.sum(weight, where=prediction.in_distribution)),
    )


def _warnings(
    workload: Workload,
    prediction: Prediction,
    device: Device,
    memory: MemoryReport,
    coverage: Coverage,
) -> tuple[str, ...]:
    """Memory first, then what the capture, the network and the coverage have to say."""
    found: list[str] = [
        *_memory_warnings(device, memory),
        *workload.warnings,
        *prediction.warnings,
    ]
    if coverage.opaque > 0:
        estimated = "estimated time" if workload.recorded_us else "time"
        found.append(f"{percent(coverage.opaque)} of the {estimated} is in opaque operations")
    if coverage.in_distribution < _TRUSTED_SHARE:
        found.append(
            f"{percent(1 - coverage.in_distribution)} of the time is in kernels unlike those of "
            "the training data"
        )
    return tuple(dict.fromkeys(found))


def _memory_warnings(device: Device, memory: MemoryReport) -> Sequence[str]:
    if memory.fits is not False:
        return memory.warnings
    return [
        f"does not fit: needs {gib(memory.peak_bytes)}, {device.id} has "
        f"{gib(memory.capacity_bytes)} to use ({itemised(memory)}); the latency is hypothetical"
    ]


def itemised(memory: MemoryReport) -> str:
    """The items that matter (a thousandth of the peak or more): `parameters 2.88 GiB, …`."""
    items = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer": memory.optimizer_bytes,
        "activations": memory.activations_bytes,
        "inputs": memory.inputs_bytes,
    }
    return ", ".join(
        f"{name} {gib(size)}" for name, size in items.items() if 1000 * size >= memory.peak_bytes
    )
