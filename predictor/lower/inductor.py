"""Lowering as TorchInductor does it: framework calls to loops, loops to fused kernels.

Forward and backward are compiled apart: what backward reads of forward is stored by it, or
computed again from what is stored (the compiler's minimal cut, taken one tensor at a time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.graph.ir import PHASES, OpGraph, Phase
from predictor.lower.inductor_fusion import Group, fused
from predictor.lower.inductor_program import Program
from predictor.lower.inductor_recipes import write
from predictor.lower.inductor_rules import LIMITS, PERSISTENT, Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The kernels of one phase."""

    phase: Phase
    groups: tuple[Group, ...]
    calls: int
    """Functions that the compiled program calls: fused kernels and library calls."""


def compiled(
    graph: OpGraph, *, backend: Backend = "cuda", allow_opaque: bool = False
) -> list[Compiled]:
    """Fused kernels of every phase of a program, in an order in which they can run."""
    program = Program(graph, backend, allow_opaque=allow_opaque)
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
        kind = "poi" if not group.reduces else "per" if group.rnumel <= PERSISTENT else "red"
        names.append(f"{kind}_fused_{'_'.join(calls)}_{group.numel}x{group.rnumel}")
    return names
