"""Lowering for fused inference: what TensorRT builds, and ONNX Runtime where it has the kernels.

Calls are taken into others before they are lowered, so that what passes between them reaches no
memory:

- a convolution takes the norm behind it (its numbers fold into the weights), bias, one residual
  sum and an activation; a matrix product takes bias and activation;
- pointwise calls over the same elements that only feed one another are one kernel;
- a residual sum before a layer or RMS norm is part of the norm's kernel; an RMS norm that is
  written out is one kernel;
- attention that is written out (product, scale, mask, softmax, product) is one kernel.

Everything else launches what PyTorch launches. The rules are those that both runtimes document;
which of them a build really applies depends on its version, device and precision.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.graph.ir import KernelGraph, OpGraph, OpNode
from predictor.lower.eager import lower_eager
from predictor.lower.inference_attention import attention
from predictor.lower.inference_chains import chains
from predictor.lower.inference_groups import Groups

ASSUMPTION = (
    "assumes fused inference as TensorRT and ONNX Runtime do it (products and convolutions with "
    "their bias, norm and activation, pointwise chains, norms with the sum before them, attention):"
    " {taken} of {calls} calls are part of another kernel; --runtime pytorch takes each by itself"
)


def lower_inference(graph: OpGraph, *, allow_opaque: bool = False) -> KernelGraph:
    """Kernels that a fused inference runtime launches for a captured program.

    Raises:
        CostRuleError: a call computes something and the table has no row for it.
    """
    fused = fused_graph(graph)
    kernels = lower_eager(fused, allow_opaque=allow_opaque)
    before, after = _computing(graph.nodes), _computing(fused.nodes)
    note = ASSUMPTION.format(taken=f"{before - after:,}", calls=f"{before:,}")
    workload = replace(graph.workload, warnings=(*graph.workload.warnings, note))
    calls: dict[str, int] = {}
    for kernel in kernels.kernels:  # views are settled when an engine is built
        calls[kernel.phase] = calls.get(kernel.phase, 0) + 1
    return replace(kernels, workload=workload, host_ops=calls)


def fused_graph(graph: OpGraph) -> OpGraph:
    """The program with calls taken into others."""
    groups = Groups(graph.nodes)
    attention(groups)
    chains(groups)
    return replace(graph, nodes=groups.nodes())


def _computing(nodes: tuple[OpNode, ...]) -> int:
    return sum(not n.attrs.get("view") for n in nodes)
