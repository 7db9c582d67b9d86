"""Programs under `torch.compile`, as a checkpoint knows them.

A checkpoint was trained on compiled steps either with the kernels of the eager program, of whose
traffic fusion leaves a share (`eager`), or with the fused kernels themselves on GPUs and those of
the eager program on processors (`inductor-1`): there arithmetic takes the time, and what kind it is
goes in fusing. Its `model.compiled_graphs` says which; without the entry it is `eager`. The one is
no estimate for a network of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from predictor.features.fusion import kept_traffic, prefers_channels_last
from predictor.features.table import table_from_graph
from predictor.graph.ir import KernelGraph, OpGraph
from predictor.hardware.device import Device
from predictor.lower.eager import lower_eager
from predictor.lower.inductor import PROCESSORS, lower_inductor

CompiledGraphs = Literal["eager", "inductor-1"]
COMPILED_GRAPHS: tuple[CompiledGraphs, ...] = ("eager", "inductor-1")
CompileMode = Literal["default", "reduce-overhead"]
"""Modes of `torch.compile` that are told apart: with and without CUDA graphs."""
COMPILE_MODES: tuple[CompileMode, ...] = ("default", "reduce-overhead")
NEVER_TRAINED = (
    "; compiled training was never measured: what compiling changes in inference is carried over "
    "to the step"
)
LEFT_OUT = "torch.compile is left out"
"""How capture begins what it says of a compiled program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """The kernels of a compiled program, and the format that its convolutions run in."""

    kernels: KernelGraph
    channels_last: bool


def compiled_program(
    graph: OpGraph, device: Device, *, graphs: CompiledGraphs = "eager",
    mode: CompileMode = "default", allow_opaque: bool = False,
) -> CompiledProgram:  # fmt: skip
    """Kernels of a captured program under `torch.compile`.

    Args:
        graph: a captured program.
        device: decides where reductions are cut, and whether kernels are fused at all.
        graphs: what the checkpoint was trained on.
        mode: `reduce-overhead` replays each phase as a CUDA graph: the host launches it once.
        allow_opaque: take a call without a cost rule as an opaque kernel.

    Raises:
        CostRuleError: a call computes something and no rule says what.
    """
    eager = lower_eager(graph, allow_opaque=allow_opaque)
    table = table_from_graph(eager)
    turned = graph.workload.mode == "infer" and prefers_channels_last(table)
    replayed = mode == "reduce-overhead"
    if device.kind == "cpu":
        graphs = "eager"
    if graphs == "eager":
        edges = np.array(eager.edges, dtype=np.int64).reshape(-1, 2).T
        reads, writes = kept_traffic(table.op, table.dim("inputs").astype(np.int64), edges)
        kernels = tuple(
            replace(k, read_bytes=k.read_bytes * float(r), write_bytes=k.write_bytes * float(w))
            for k, r, w in zip(eager.kernels, reads, writes, strict=True)
        )
        found = replace(eager, kernels=kernels, replayed=replayed)
    else:
        found = lower_inductor(
            graph, channels_last=turned, processors=int(device.units or PROCESSORS),
            cuda_graphs=replayed, allow_opaque=allow_opaque,
        )  # fmt: skip
    return CompiledProgram(kernels=_told(found, graphs), channels_last=turned)


def _told(kernels: KernelGraph, graphs: CompiledGraphs) -> KernelGraph:
    """The graph with a sentence on what its kernels are, in place of capture's."""
    said = (
        "torch.compile: the kernels of eager PyTorch less the traffic that fusion saves, as the "
        "checkpoint learned compiled steps"
        if graphs == "eager"
        else "torch.compile: kernels fused as TorchInductor fuses them"
    )
    workload = kernels.workload
    if workload.mode == "train":
        said += NEVER_TRAINED
    others = tuple(w for w in workload.warnings if not w.startswith(LEFT_OUT))
    return replace(kernels, workload=replace(workload, warnings=(*others, said)))
