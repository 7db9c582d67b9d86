"""Peak memory of a captured program: which storages are alive at each call."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.cost.optimizers import OPTIMIZER_CALLS, step_cost
from predictor.graph.ir import DTYPE_BYTES, OpGraph, OpNode

RESIDENT_ROLES: frozenset[str] = frozenset({"input", "parameter", "buffer", "state"})
"""Storages that outlive the step: counted by the report, not by the sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeaks:
    """Largest sums of bytes that are alive at one call."""

    activation_bytes: float
    """Activations and gradients of activations, saved tensors until their last use."""
    step_bytes: float
    """Activations, gradients of parameters and temporaries of the optimizer together."""


def memory_peaks(graph: OpGraph) -> MemoryPeaks:
    """Sweep over the calls: a storage lives from its first to its last appearance.

    Gradients of parameters (role `gradient`) live to the end of the step. What the caching
    allocator rounds up and libraries' workspaces are not in it.
    """
    count = len(graph.nodes)
    born: dict[int, int] = {}
    dies: dict[int, int] = {}
    size: dict[int, int] = {}
    gradients: set[int] = set()
    for index, node in enumerate(graph.nodes):
        for specs in (node.inputs, node.outputs):
            for spec in specs:
                if spec.role in RESIDENT_ROLES:
                    continue
                key = spec.storage_id
                if key not in born:
                    born[key] = index
                    size[key] = spec.storage_bytes
                    if spec.role == "gradient":
                        gradients.add(key)
                dies[key] = index
    activations = [0.0] * (count + 1)
    others = [0.0] * (count + 1)
    for key, first in born.items():
        if key in gradients:
            others[first] += size[key]
        else:
            activations[first] += size[key]
            activations[dies[key] + 1] -= size[key]
    for index, node in enumerate(graph.nodes):
        if node.op in OPTIMIZER_CALLS:
            extra = _temporaries(node)
            others[index] += extra
            others[index + 1] -= extra
    return _peaks(activations, others)


def _temporaries(node: OpNode) -> float:
    """Bytes that an optimizer's passes allocate for their duration."""
    numel = node.attrs.get("numel", 0)
    dtype = node.inputs[0].dtype if node.inputs else "fp32"
    elements = float(numel) if isinstance(numel, (int, float)) else 0.0
    return step_cost(node.op, node.attrs).temporaries * elements * DTYPE_BYTES[dtype]


def _peaks(activations: list[float], others: list[float]) -> MemoryPeaks:
    live = rest = most = most_together = 0.0
    for change, other in zip(activations, others, strict=True):
        live += change
        rest += other
        most = max(most, live)
        most_together = max(most_together, live + rest)
    return MemoryPeaks(activation_bytes=most, step_bytes=most_together)
