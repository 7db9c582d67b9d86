"""Lowering as TorchInductor does it: framework calls to loops, loops to fused kernels.

Forward and backward are compiled apart: what backward reads of forward is stored by it, or
computed again from what is stored (the compiler's minimal cut, taken one tensor at a time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.cost.liveness import memory_peaks
from predictor.cost.optimizers import captured_state_bytes
from predictor.graph.ir import PHASES, Kernel, KernelGraph, OpGraph, Phase
from predictor.lower.inductor_fusion import Group, fused
from predictor.lower.inductor_kernels import kernels_of
from predictor.lower.inductor_program import Program
from predictor.lower.inductor_recipes import write
from predictor.lower.inductor_rules import LIMITS, PERSISTENT, PERSISTENT_OUTER, Backend

PROCESSORS = 108
"""Of a data-centre GPU, where the device is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The kernels of one phase."""

    phase: Phase
    groups: tuple[Group, ...]
    calls: int
    """Functions that the compiled program calls: fused kernels and library calls."""


def compiled(
    graph: OpGraph, *, backend: Backend = "cuda", processors: int = PROCESSORS,
    channels_last: bool = False, allow_opaque: bool = False,
) -> list[Compiled]:  # fmt: skip
    """Fused kernels of every phase of a program, in an order in which they can run."""
    program = Program(
        graph, backend, processors=processors, channels_last=channels_last,
        allow_opaque=allow_opaque,
    )  # fmt: skip
    for number in range(len(graph.nodes)):
        write(program, number)
    program.finish()
    out = []
    for phase in PHASES:
        own = [loop for loop in program.loops if loop.phase == phase]
        if own:
            groups = fused(own)
            out.append(Compiled(phase=phase, groups=tuple(groups), calls=_calls(groups, backend)))
    return out


def lower_inductor(
    graph: OpGraph, *, backend: Backend = "cuda", processors: int = PROCESSORS,
    channels_last: bool = False, cuda_graphs: bool = False, allow_opaque: bool = False,
) -> KernelGraph:  # fmt: skip
    """Kernels that the program launches under `torch.compile`, in an order in which they can run.

    Fused kernels read what they do not make once, and write what something else reads. Memory is
    taken as eager's, which a compiled program does not exceed. Graphs that the compiler breaks are
    not told: the program is taken as whole.

    Args:
        graph: a captured program.
        backend: for which device kind code is generated.
        processors: of the device, which decide which reductions run in two passes.
        channels_last: whether the compiler turns convolutions into that format.
        cuda_graphs: `mode="reduce-overhead"`: each phase is replayed with one launch.
        allow_opaque: take a call without a cost rule as an opaque kernel.

    Raises:
        CostRuleError: a call computes something and the table has no row for it.
    """
    phases = compiled(
        graph, backend=backend, processors=processors, channels_last=channels_last,
        allow_opaque=allow_opaque,
    )  # fmt: skip
    groups = [group for phase in phases for group in phase.groups]
    outside = _outside(groups)
    kernels: list[Kernel] = []
    edges: dict[tuple[int, int], float] = {}
    writer: dict[int, int] = {}
    for group in groups:
        first = len(kernels)
        kernels += kernels_of(group, outside)
        for access, traffic in group.reads.items():
            source = writer.get(id(access.value))
            if source is None or source >= first:
                continue
            for number in range(first, len(kernels)):
                edges[source, number] = max(edges.get((source, number), 0.0), traffic)
        for key in group.writes:
            writer[key] = len(kernels) - 1
    peaks = memory_peaks(graph)
    return KernelGraph(
        workload=graph.workload, kernels=tuple(kernels), edges=tuple(edges),
        edge_bytes=tuple(edges.values()), host_ops={p.phase: p.calls for p in phases},
        peak_activation_bytes=peaks.activation_bytes, peak_step_bytes=peaks.step_bytes,
        optimizer_bytes=captured_state_bytes(graph), replayed=cuda_graphs,
    )  # fmt: skip


def _outside(groups: Sequence[Group]) -> frozenset[int]:
    """Stored values that leave the kernel which makes them."""
    read: set[int] = set()
    for group in groups:
        read |= {id(a.value) for a in group.reads if id(a.value) not in group.writes}
    made = {id(v): v for group in groups for loop in group.loops for v in loop.writes}
    inner = {id(a.value) for group in groups for a in group.reads if id(a.value) in group.writes}
    return frozenset(k for k, v in made.items() if k in read or v.kept or k not in inner)


def _calls(groups: Sequence[Group], backend: Backend) -> int:
    """Functions called; C++ puts all loops between two library calls in one."""
    if not LIMITS[backend].one_call_between:
        return len(groups)
    n, inside = 0, False
    for group in groups:
        apart = bool(group.loops[0].library)
        n += apart or not inside
        inside = not apart
    return n


def kernel_names(phase: Compiled) -> list[str]:
    """Names of the fused kernels, as Inductor would make them: kind and calls in it."""
    names = []
    for group in phase.groups:
        if group.loops[0].library:
            continue
        calls = sorted({name for loop in group.loops for name in loop.names})
        held = PERSISTENT_OUTER if group.axes else PERSISTENT
        kind = "poi" if not group.reduces else "per" if group.rnumel <= held else "red"
        names.append(f"{kind}_fused_{'_'.join(calls)}_{group.numel}x{group.rnumel}")
    return names
