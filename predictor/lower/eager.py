"""Lowering for eager PyTorch on CUDA and ROCm GPUs: framework calls to launched kernels."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.cost.liveness import memory_peaks
from predictor.cost.optimizers import OPTIMIZER_CALLS, captured_state_bytes, step_cost
from predictor.cost.rules import MATRIX_CLASSES, RULES, flop_factor
from predictor.errors import CostRuleError
from predictor.graph.ir import Kernel, KernelGraph, OpGraph, OpNode
from predictor.graph.ops import OPS
from predictor.lower.aten_table import MAYBE_COPY, find, launches_nothing, packet
from predictor.lower.draft import Draft, arithmetic_dtype, touched
from predictor.lower.streaming_readers import pointwise

XLA_DIALECTS: tuple[str, ...] = ("stablehlo.", "chlo.", "mhlo.", "sdy.")
"""Dialects of programs that XLA compiles (`predictor.lower.xla`)."""


def lower_eager(graph: OpGraph, *, allow_opaque: bool = False) -> KernelGraph:
    """Kernels that eager PyTorch launches for a captured program, in stream order.

    Views and empty results launch nothing; a convolution's bias, the gradients of a convolution
    and out-of-place scatters are kernels of their own; the optimizer runs as CUDA's foreach
    implementation. FLOPs come from the op's rule, bytes from the storage of the tensors.

    Args:
        graph: a captured program.
        allow_opaque: lower a call without a rule to an `opaque` kernel instead of raising.

    Raises:
        CostRuleError: a call computes something and the table has no row for it, or the program
            is one that XLA compiles.
    """
    if graph.nodes and graph.nodes[0].op.startswith(XLA_DIALECTS):
        raise CostRuleError(
            f"{graph.workload.name} is a StableHLO program, which no framework runs call by call: "
            "estimate and compare take it; to measure, pass the PyTorch program"
        )
    stream = _Stream()
    host_ops: dict[str, int] = {}
    for node in graph.nodes:
        host_ops[node.phase] = host_ops.get(node.phase, 0) + _host_calls(node)
        stream.add(node, drafts_of(node, allow_opaque=allow_opaque))
    peaks = memory_peaks(graph)
    return KernelGraph(
        workload=graph.workload,
        kernels=tuple(stream.kernels),
        edges=tuple(stream.edges),
        edge_bytes=tuple(stream.edges.values()),
        host_ops=host_ops,
        peak_activation_bytes=peaks.activation_bytes,
        peak_step_bytes=peaks.step_bytes,
        optimizer_bytes=captured_state_bytes(graph),
    )


def drafts_of(node: OpNode, *, allow_opaque: bool) -> Sequence[Draft]:
    """Kernels of one call, none when it launches nothing."""
    op = node.op
    if launches_nothing(op) or node.attrs.get("view"):
        return ()
    if node.outputs and all(0 in spec.shape for spec in node.outputs):
        return ()
    if not node.outputs and not any(spec.numel for spec in node.inputs):
        return ()
    if _is_alias(node):
        return ()
    if "transfer" in node.attrs:
        dims = {"numel": sum(spec.numel for spec in node.outputs)}
        return [Draft(op="transfer", dims=dims, reads=node.inputs, writes=node.outputs)]
    row = find(op)
    if row is None:
        if not allow_opaque and not node.attrs.get("opaque"):
            where = f" in module {node.module!r}" if node.module else ""
            raise CostRuleError(
                f"no cost rule for {op!r}{where} ({node.phase}): allow opaque kernels "
                f"(--allow-opaque, allow_opaque=True), or add {_place(op)}"
            )
        return _opaque(node)
    return row[1](node, row[0])


def _place(op: str) -> str:
    """Where a rule for a call would stand."""
    if op.startswith("onnx."):
        return "a rule to predictor/capture/onnx/rules"
    return "it to a row of predictor/lower/aten_table.py"


def _is_alias(node: OpNode) -> bool:
    """Whether a call that may copy returned its operand."""
    if packet(node.op) not in MAYBE_COPY or node.op.split(".")[-1].endswith("_"):
        return False
    own = {spec.storage_id for spec in node.inputs}
    return all(spec.storage_id in own for spec in node.outputs)


def _opaque(node: OpNode) -> list[Draft]:
    drafts = pointwise(node, "opaque")
    drafts[0].dims = {"numel": drafts[0].dims["numel"]}
    return drafts


def _host_calls(node: OpNode) -> int:
    """Framework calls that the host issues for a node.

    A composite optimizer step is one call a pass, and some for each tensor's step counter.
    """
    if node.op not in OPTIMIZER_CALLS:
        return 1
    cost = step_cost(node.op, node.attrs)
    tensors = node.attrs.get("tensors", 0)
    count = int(tensors) if isinstance(tensors, (int, float)) else 0
    return len(cost.passes) + cost.host_calls_per_tensor * count


def kernel_of(draft: Draft, node: OpNode, name: str) -> Kernel:
    """The finished record: FLOPs from the op's rule, bytes from storage, unless given."""
    op, dims = draft.op, draft.dims
    rule = RULES[op]
    dtype = draft.dtype or arithmetic_dtype(draft.reads, draft.writes)
    factor = flop_factor(op, dtype)
    flops = factor * (rule.flops(dims) if draft.flops is None else draft.flops)
    reported = 0.0
    if OPS[op].op_class in MATRIX_CLASSES:
        convention = rule.matmul_flops(dims) if draft.matmul_flops is None else draft.matmul_flops
        reported = float(factor * convention)
    return Kernel(
        op=op,
        phase=node.phase,
        dims=dims,
        dtype=dtype,
        flops=float(flops),
        matmul_flops=reported,
        read_bytes=touched(draft.reads) if draft.read_bytes is None else draft.read_bytes,
        write_bytes=touched(draft.writes) if draft.write_bytes is None else draft.write_bytes,
        name=name,
        module=node.module,
        launches=draft.launches,
    )


class _Stream:
    """Kernels placed so far, who wrote each storage last, and what stands behind each call."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.edges: dict[tuple[int, int], float] = {}
        self._writer: dict[int, int] = {}
        self._exits: list[tuple[int, ...]] = []
        """Per node: the kernels behind its results, seen through calls that launch nothing."""

    def add(self, node: OpNode, drafts: Sequence[Draft]) -> None:
        """Place a node's kernels and connect them to their producers.

        A storage's last writer is its producer; a dependency that shares no storage with the
        operands (gradients of an optimizer step) still gets an edge, to the first kernel.
        """
        if not drafts:
            self._exits.append(tuple({k for dep in node.deps for k in self._exits[dep]}))
            return
        first = len(self.kernels)
        name = ".".join(node.op.split(".")[:2])
        linked: set[int] = set()
        written: set[int] = set()
        for draft in drafts:
            number = len(self.kernels)
            self.kernels.append(kernel_of(draft, node, draft.name or name))
            for spec in draft.reads:
                producer = self._writer.get(spec.storage_id)
                if producer is not None:
                    linked.add(producer)
                    edge = (producer, number)
                    self.edges[edge] = self.edges.get(edge, 0.0) + spec.touched_bytes
            for spec in draft.writes:
                self._writer[spec.storage_id] = number
                written.add(spec.storage_id)
        for dep in node.deps:
            if linked.isdisjoint(self._exits[dep]):
                for producer in self._exits[dep]:
                    self.edges[producer, first] = self.kernels[producer].write_bytes
        exits = {self._writer[storage] for storage in written} or {len(self.kernels) - 1}
        self._exits.append(tuple(exits))
