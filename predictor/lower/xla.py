"""Lowering for XLA: a StableHLO program to the fused kernels that a device launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from predictor.cost.hlo import xla_flops
from predictor.cost.liveness import memory_peaks
from predictor.errors import CostRuleError
from predictor.graph.ir import Kernel, KernelGraph, OpGraph, OpNode, TensorSpec, Workload
from predictor.graph.ops import OPS
from predictor.lower.eager import XLA_DIALECTS
from predictor.lower.xla_backends import GPU, Backend
from predictor.lower.xla_fusion import fuse
from predictor.lower.xla_groups import Group
from predictor.lower.xla_kernels import kernel_of
from predictor.lower.xla_layout import with_layouts
from predictor.lower.xla_ops import kind_of
from predictor.lower.xla_program import program_of
from predictor.lower.xla_strength import without_vector_products
from predictor.lower.xla_torch import hlo_nodes

PYTORCH_XLA = "torch_xla"
"""`Software.framework` of a PyTorch program that XLA compiles."""


def is_xla(graph: OpGraph) -> bool:
    """Whether a captured program is one that XLA compiles."""
    return graph.workload.source == "stablehlo" or any(
        node.op.startswith(XLA_DIALECTS) for node in graph.nodes[:1]
    )


def lower_xla(
    graph: OpGraph, backend: Backend = GPU, *, allow_opaque: bool = False
) -> KernelGraph:  # fmt: skip
    """Fused kernels of a program, in stream order; those of a loop once, with their runs.

    Args:
        graph: a captured StableHLO program, or a PyTorch one as PyTorch/XLA runs it.
        backend: what compiles it.
        allow_opaque: take an operation or custom call that no table knows as an `opaque` kernel
            instead of raising.

    Raises:
        CostRuleError: an unknown operation or custom call.
    """
    nodes: Sequence[OpNode] = graph.nodes
    if not is_xla(graph):
        nodes = hlo_nodes(graph, whole_rows=backend.whole_rows, allow_opaque=allow_opaque)
    for node in nodes:
        if kind_of(node.op) is None and not node.attrs.get("view") and not allow_opaque:
            raise CostRuleError(
                f"no cost rule for {node.op!r}: allow opaque kernels (--allow-opaque, "
                "allow_opaque=True), or add it to a row of predictor/lower/xla_ops.py"
            )
    program = program_of(with_layouts(without_vector_products(nodes, backend)))
    fused = [g for g in fuse(program, backend) if not _is_empty(g)]
    groups = [g for g in fused if not _is_counter(g)] or fused
    kernels = [
        replace(kernel_of(group, backend, allow_opaque=allow_opaque), repeats=group.root.trips)
        for group in groups
    ]
    edges = _edges(groups)
    peaks = memory_peaks(OpGraph(workload=graph.workload, nodes=tuple(_calls(groups))))
    return KernelGraph(
        workload=_told(graph.workload, kernels),
        kernels=tuple(kernels),
        edges=tuple(edges),
        edge_bytes=tuple(edges.values()),
        host_ops={},
        peak_activation_bytes=peaks.activation_bytes,
        peak_step_bytes=peaks.step_bytes,
        optimizer_bytes=_state_bytes(graph),
        issued="device",
        counted_flops=_counted(graph),
    )


def _told(workload: Workload, kernels: Sequence[Kernel]) -> Workload:
    """The workload with what the lowering has to say: opaque kernels by name, an empty step."""
    unknown: Counter[str] = Counter()
    unmeasured: Counter[str] = Counter()
    for kernel in kernels:
        if OPS[kernel.op].op_class == "opaque":
            named = unknown if kernel.op == "opaque" else unmeasured
            named[kernel.name.removeprefix("xla.")] += kernel.repeats
    found = list(workload.warnings)
    if unknown:
        found.append(
            f"opaque calls, known by operands and at most a stated cost: {_listed(unknown)}"
        )
    if unmeasured:
        found.append(
            f"opaque operations, from their roofline with a wide interval: {_listed(unmeasured)}"
        )
    return replace(workload, warnings=tuple(found))


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))


def _counted(graph: OpGraph) -> float | None:
    """FLOPs as XLA counts them; PyTorch programs keep the sum of their kernels."""
    if not is_xla(graph):
        return None
    return sum(xla_flops(node) * _trips(node) for node in graph.nodes)


def _trips(node: OpNode) -> int:
    trips = node.attrs.get("trips", 1)
    return trips if isinstance(trips, int) else 1


def _is_counter(group: Group) -> bool:
    """Whether it only counts iterations or computes an index: a few integers from a few."""
    values = [value for member in group.members for value in member.writes]
    return (
        group.root.kind != "library"
        and all(v.spec.numel <= 1 and v.spec.dtype in ("int64", "int32", "bool") for v in values)
        and not any(
            m.kind in ("reduce", "fold") and m.node.inputs[0].numel > 1 for m in group.members
        )
    )


def _is_empty(group: Group) -> bool:
    """Whether all that it writes has no elements: nothing is launched."""
    values = group.writes()
    return bool(values) and all(v.spec.numel == 0 for v in values)


def _edges(groups: Sequence[Group]) -> dict[tuple[int, int], float]:
    """Bytes that each kernel reads of what an earlier one wrote."""
    home = {id(root): i for i, group in enumerate(groups) for root in group.roots}
    edges: dict[tuple[int, int], float] = {}
    for reader, group in enumerate(groups):
        for value in group.reads():
            maker = home.get(id(value.maker)) if value.maker is not None else None
            if maker is not None and maker < reader:
                size = float(value.spec.storage_bytes)
                edges[maker, reader] = edges.get((maker, reader), 0.0) + size
    return edges


def _calls(groups: Sequence[Group]) -> list[OpNode]:
    """One node a kernel, with the tensors that it reads and writes: what memory holds.

    A last one reads the results that stay.
    """
    found = [
        OpNode(
            op="xla.fusion", phase=group.root.node.phase,
            inputs=tuple(v.spec for v in group.reads()),
            outputs=tuple(v.spec for v in group.writes()),
        )
        for group in groups
    ]  # fmt: skip
    kept = tuple(
        value.spec for group in groups for root in group.roots if root.node.attrs.get("kept")
        for value in root.writes
    )  # fmt: skip
    return [*found, OpNode(op="xla.results", phase="forward", inputs=kept, outputs=())]


def _state_bytes(graph: OpGraph) -> int | None:
    """Bytes of the arguments that are optimizer state; None without."""
    states: dict[int, TensorSpec] = {
        spec.storage_id: spec for node in graph.nodes for spec in node.inputs
        if spec.role == "state"
    }  # fmt: skip
    return sum(spec.storage_bytes for spec in states.values()) if states else None
