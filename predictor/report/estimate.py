"""`Estimate`: what is known about one program on one device, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from predictor.graph.ir import PHASES, KernelGraph
from predictor.graph.ops import OPS
from predictor.hardware.device import Device, Software
from predictor.nn.prediction import Interval, Prediction
from predictor.report.groups import KernelGroup, group_kernels

if TYPE_CHECKING:
    import pandas as pd

    from predictor.cost.memory import MemoryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCorrection:
    """What the checkpoint learned that the times of kernels and host miss."""

    factor: float
    """On the step and its phases, in their latencies and intervals already."""
    terms: Mapping[str, float]
    """What each summary of the step adds to log(factor), the largest first; they add up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Latency of the whole step with its interval, microseconds."""

    latency_us: float
    lower_us: float
    upper_us: float
    level: float
    """Coverage that the interval states."""
    includes: tuple[str, ...]
    """What the number holds; nothing else is in it."""
    correction: StepCorrection | None = None
    """None from a checkpoint that takes the kernels and the host as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFigures:
    """What was captured, in numbers."""

    parameters: int
    """Distinct parameters, tied weights once."""
    flops: float
    """All FLOPs that the kernels must do (a causal attention does half), 2 a multiply-add."""
    matmul_flops: float
    """Matrix products, convolutions and attention alone, by the published dense convention:
    causal attention counted in full."""
    bytes: float
    """Compulsory traffic of all kernels."""
    batch: int | None
    dtype: str
    ops: int
    """Framework calls captured."""
    kernels: int
    """Kernel launches (each step of a recurrent kernel is one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of kernel time by where the number came from; the first five add up to 1."""

    learned: float
    measured: float
    transferred: float
    roofline: float
    opaque: float
    in_distribution: float
    """Share of time in kernels like those of the training data."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimate:
    """Latency, memory and coverage of one program on one device."""

    target: str
    device: Device
    software: Software
    checkpoint: str
    adapter: str | None = None
    step: StepTime
    phases: Mapping[str, Interval]
    """By phase that the program has."""
    workload: WorkloadFigures
    memory: MemoryReport
    coverage: Coverage
    warnings: tuple[str, ...]
    provenance: Mapping[str, str | None]
    """Versions and hashes that made the number."""
    graph: KernelGraph
    prediction: Prediction

    @property
    def latency_us(self) -> float:
        """Latency of the step, microseconds."""
        return self.step.latency_us

    @property
    def interval_us(self) -> tuple[float, float]:
        """Lower and upper end of the step's interval, microseconds."""
        return self.step.lower_us, self.step.upper_us

    @property
    def hypothetical(self) -> bool:
        """The program does not fit: its latency is what a larger memory would allow."""
        return self.memory.fits is False

    @cached_property
    def groups(self) -> tuple[KernelGroup, ...]:
        """Equal kernels counted together, the costliest first."""
        return group_kernels(self.graph, self.prediction)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """One row a kernel, in stream order; one in a loop has a row, and the runs in `repeats`."""
        import pandas as pd

        kernels, p = self.graph.kernels, self.prediction
        return pd.DataFrame(
            {
                "name": [k.name or k.op for k in kernels],
                "op": [k.op for k in kernels],
                "op_class": [OPS[k.op].op_class for k in kernels],
                "phase": [k.phase for k in kernels],
                "module": [k.module for k in kernels],
                "dims": [dict(k.dims) for k in kernels],
                "dtype": [k.dtype for k in kernels],
                "launches": [k.launches for k in kernels],
                "repeats": [k.repeats for k in kernels],
                "flops": [k.flops for k in kernels],
                "bytes": [k.bytes for k in kernels],
                "latency_us": p.kernel_us,
                "lower_us": p.kernel_lower_us,
                "upper_us": p.kernel_upper_us,
                "floor_us": p.floor_us,
                "bound": p.bound,
                "label": p.label,
                "in_distribution": p.in_distribution,
            }
        )

    def __repr__(self) -> str:
        """One line: a notebook shows `_repr_html_`, print shows the table."""
        low, high = self.step.lower_us, self.step.upper_us
        return (
            f"Estimate({self.target!r} on {self.device.id}: {self.step.latency_us:.6g} us, "
            f"{self.step.level:.0%} interval [{low:.6g}, {high:.6g}])"
        )

    def to_json(self) -> dict[str, object]:
        """The estimate as the command line writes it: JSON-able, absent facts None."""
        memory = self.memory
        return {
            "target": self.target,
            "device": self.device.id,
            "mode": self.graph.workload.mode,
            "software": asdict(self.software),
            "checkpoint": self.checkpoint,
            "adapter": self.adapter,
            "step": {**asdict(self.step), "includes": list(self.step.includes)},
            "phases": {
                phase: asdict(self.phases[phase]) if phase in self.phases else None
                for phase in PHASES
            },
            "workload": asdict(self.workload),
            "memory": {
                "peak_bytes": memory.peak_bytes,
                "parameters_bytes": memory.parameters_bytes,
                "gradients_bytes": memory.gradients_bytes,
                "optimizer_bytes": memory.optimizer_bytes,
                "activations_bytes": memory.activations_bytes,
                "fits": memory.fits,
            },
            "coverage": asdict(self.coverage),
            "kernels": [_group_json(group) for group in self.groups],
            "warnings": list(self.warnings),
        }

    def table(self) -> str:
        """The estimate as plain text."""
        from predictor.report.text import estimate_text

        return estimate_text(self)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from predictor.report.text import estimate_html

        return estimate_html(self)


def _group_json(group: KernelGroup) -> dict[str, object]:
    row = asdict(group)
    del row["op"], row["share"]
    return row
