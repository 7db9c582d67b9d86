"""Lowering for XLA: a StableHLO program to the fused kernels that a device launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from predictor.cost.hlo import xla_flops
from predictor.cost.liveness import memory_peaks
from predictor.errors import CostRuleError
from predictor.graph.ir import Kernel, KernelGraph, OpGraph, OpNode, TensorSpec, Workload
from predictor.lower.eager import XLA_DIALECTS
from predictor.lower.xla_backends import GPU, Backend
from predictor.lower.xla_fusion import fuse
from predictor.lower.xla_groups import Group
from predictor.lower.xla_kernels import kernel_of
from predictor.lower.xla_layout import with_layouts
from predictor.lower.xla_ops import kind_of
from predictor.lower.xla_program import program_of
from predictor.lower.xla_torch import hlo_nodes

PYTORCH_XLA = "torch_xla"
"""`Software.framework` of a PyTorch program that XLA compiles."""
MOST_KERNELS = 50_000
"""Kernels of a step; a loop that makes more keeps one iteration, its work multiplied."""


def is_xla(graph: OpGraph) -> bool:
    """Whether a captured program is one that XLA compiles."""
    return any(node.op.startswith(XLA_DIALECTS) for node in graph.nodes[:1])


def lower_xla(
    graph: OpGraph, backend: Backend = GPU, *, allow_opaque: bool = False
) -> KernelGraph:  # fmt: skip
    """Fused kernels of a program, in stream order, loops unrolled.

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
    groups = [
        g for g in fuse(program_of(with_layouts(nodes)), backend)
        if not _is_counter(g) and not _is_empty(g)
    ]  # fmt: skip
    kernels = [kernel_of(group, backend, allow_opaque=allow_opaque) for group in groups]
    order, folded = _unrolled([(g.root.loop, g.root.trips) for g in groups])
    placed = [_folded(kernels[i], times) for i, times in order]
    edges = _edges(groups, [i for i, _ in order])
    peaks = memory_peaks(OpGraph(workload=graph.workload, nodes=tuple(_calls(groups))))
    return KernelGraph(
        workload=_told(graph.workload, kernels, folded=folded),
        kernels=tuple(placed),
        edges=tuple(edges),
        edge_bytes=tuple(edges.values()),
        host_ops={},
        peak_activation_bytes=peaks.activation_bytes,
        peak_step_bytes=peaks.step_bytes,
        optimizer_bytes=_state_bytes(graph),
        issued="device",
        counted_flops=_counted(graph),
    )


def _told(workload: Workload, kernels: Sequence[Kernel], *, folded: bool) -> Workload:
    """The workload with what the lowering has to say: opaque calls by name, folded loops."""
    opaque = Counter(
        kernel.name.removeprefix("xla.") for kernel in kernels if kernel.op == "opaque"
    )
    found = list(workload.warnings)
    if opaque:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(opaque.items()))
        found.append(f"opaque calls, whose work the program does not tell: {named}")
    if folded:
        found.append(
            f"loops of more than {MOST_KERNELS:,} kernels are estimated from one iteration"
        )
    return replace(workload, warnings=tuple(found))


def _counted(graph: OpGraph) -> float | None:
    """FLOPs as XLA counts them; PyTorch programs keep the sum of their kernels."""
    if not is_xla(graph):
        return None
    return sum(xla_flops(node) * _trips(node) for node in graph.nodes)


def _trips(node: OpNode) -> int:
    trips = node.attrs.get("trips", 1)
    return trips if isinstance(trips, int) else 1


def _is_counter(group: Group) -> bool:
    """Whether it only counts iterations or computes an index: a few integers."""
    values = group.writes()
    return group.root.kind != "library" and all(
        v.spec.numel <= 1 and v.spec.dtype in ("int64", "int32", "bool") for v in values
    )


def _is_empty(group: Group) -> bool:
    """Whether all that it writes has no elements: nothing is launched."""
    values = group.writes()
    return bool(values) and all(v.spec.numel == 0 for v in values)


def _unrolled(places: Sequence[tuple[str, int]]) -> tuple[list[tuple[int, int]], bool]:
    """(kernel, times its work counts) in order of execution, and whether a loop was folded."""
    total = sum(trips for _, trips in places)
    if total > MOST_KERNELS:
        return [(i, trips) for i, (_, trips) in enumerate(places)], True
    trips_of = {"": 1, **dict(places)}

    def block(start: int, stop: int, loop: str) -> list[tuple[int, int]]:
        out: list[tuple[int, int]] = []
        at = start
        while at < stop:
            own = places[at][0]
            if own == loop:
                out.append((at, 1))
                at += 1
                continue
            inner = _child(loop, own)
            end = at
            while end < stop and (
                places[end][0] == inner or places[end][0].startswith(inner + "/")
            ):
                end += 1
            outer = trips_of.get(loop, 1)
            times = max(1, trips_of.get(inner, places[at][1]) // max(1, outer))
            out += block(at, end, inner) * times
            at = end
        return out

    return block(0, len(places), ""), False


def _child(loop: str, own: str) -> str:
    """The loop directly inside `loop` on the way to `own`."""
    return loop + "/" + own[len(loop) + 1 :].split("/")[0]


def _folded(kernel: Kernel, times: int) -> Kernel:
    if times == 1:
        return kernel
    return replace(
        kernel, flops=kernel.flops * times, matmul_flops=kernel.matmul_flops * times,
        read_bytes=kernel.read_bytes * times, write_bytes=kernel.write_bytes * times,
        launches=kernel.launches * times,
    )  # fmt: skip


def _edges(groups: Sequence[Group], order: Sequence[int]) -> dict[tuple[int, int], float]:
    """Data edges between placed kernels: every run reads the latest run of its producer."""
    home = {id(root): i for i, g in enumerate(groups) for root in g.roots}
    sources: list[list[tuple[int, float]]] = []
    for i, group in enumerate(groups):
        found = [
            (home[id(v.maker)], float(v.spec.storage_bytes))
            for v in group.reads() if v.maker is not None and id(v.maker) in home
        ]  # fmt: skip
        sources.append([(maker, size) for maker, size in found if maker != i])
    latest: dict[int, int] = {}
    edges: dict[tuple[int, int], float] = {}
    for number, i in enumerate(order):
        for maker, size in sources[i]:
            if maker in latest:
                key = (latest[maker], number)
                edges[key] = edges.get(key, 0.0) + size
        latest[i] = number
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
