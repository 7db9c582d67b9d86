"""One step of an execution graph as an op graph: sizes, dependencies, and no times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from predictor.capture.kineto_graph import GraphWriter, NamedTensor
from predictor.errors import CaptureError
from predictor.graph.ir import OpGraph, OpNode, Phase, Workload
from predictor.lower.aten_table import launches_nothing
from predictor.traces.kineto.execution_graph import ExecutionGraph, GraphNode
from predictor.traces.kineto.units import UnitReader

_MARKS = ("ProfilerStep", "Optimizer.step#", "Optimizer.zero_grad#")
"""Names of annotations that come once a step, the best first."""
_BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::")


def graph_of_execution_graph(graph: ExecutionGraph, reader: UnitReader) -> OpGraph:
    """The framework calls of one step, the first between two marks of one.

    Raises:
        CaptureError: no call of it is known.
    """
    nodes, note = _one_step(graph.nodes)
    writer, opaque = GraphWriter(), Counter[str]()
    known = 0
    everything = {node.id: node for node in graph.nodes}
    inside: dict[int, list[GraphNode]] = {}
    ids = {node.id for node in nodes}
    for node in nodes:
        outer = node.parent not in ids or node.parent == node.id
        inside.setdefault(-1 if outer else node.parent, []).append(node)
    has_device = not all(_on_host(node) for node in nodes)
    waiting = list(reversed(inside.get(-1, [])))
    phases: set[Phase] = set()
    while waiting:
        node = waiting.pop()
        phase = _phase(node, everything)
        children = inside.get(node.id, [])
        if not node.name.startswith("aten::"):
            waiting.extend(reversed(children))
            continue
        if has_device and _on_host(node):
            continue
        op = node.name.replace("::", ".", 1)
        if launches_nothing(op):
            writer.add([_view(op, phase)], phase, inputs=())
            continue
        reading = reader.reading(node.call)
        if reading.kernels and (not reading.composite or not children):
            writer.add(reading.nodes, phase, inputs=_named(node, "in"), outputs=_named(node, "out"))
            known += 1
            phases.add(phase)
        elif children:
            waiting.extend(reversed(children))
        elif reading.reason:
            writer.add_opaque(node.name, node.call, phase, reading.reason, None)
            opaque[f"{node.name} ({reading.reason})"] += 1
    if not known:
        raise CaptureError(f"{graph.name}: no op of the execution graph is known")
    notes = [note, "an execution graph holds no times, and parameters are not told apart"]
    if opaque:
        names = ", ".join(f"{n} × {name}" for name, n in opaque.most_common(5))
        notes.append(
            f"opaque: {sum(opaque.values())} of {known + sum(opaque.values())} calls: {names}"
        )
    workload = Workload(
        name=graph.name, mode="train" if phases - {"forward"} else "infer", parameters=0,
        trainable_parameters=0, parameters_bytes=0, buffers_bytes=0, inputs_bytes=0, batch=None,
        tokens=None, dtype=_dtype(writer.nodes), warnings=tuple(notes),
        optimizer=optimizer_of(n.name for n in nodes) if phases - {"forward"} else None,
    )  # fmt: skip
    return OpGraph(workload=workload, nodes=tuple(writer.nodes))


def optimizer_of(annotations: Iterable[str]) -> str | None:
    """The optimizer that annotations name (`Optimizer.step#SGD.step`), in lower case."""
    for name in annotations:
        found = re.match(r"Optimizer\.(?:step|zero_grad)#(\w+)\.", name)
        if found is not None:
            return found[1].lower()
    return None


def _one_step(nodes: Sequence[GraphNode]) -> tuple[list[GraphNode], str]:
    """Nodes between the first two marks of a step, and what they are."""
    for mark in _MARKS:
        places = [i for i, node in enumerate(nodes) if node.name.startswith(mark)]
        if len(places) >= 2:
            some = list(nodes[places[0] : places[1]])
            return some, f"one step of the run: from {nodes[places[0]].name} to the next"
    return list(nodes), "no marks of steps: the whole execution graph as one"


def _phase(node: GraphNode, everything: dict[int, GraphNode]) -> Phase:
    current: GraphNode | None = node
    while current is not None:
        if current.name.startswith(_BACKWARD):
            return "backward"
        if current.name.startswith("Optimizer."):
            return "optimizer"
        above = everything.get(current.parent)
        current = None if above is current else above
    return "forward"


def _on_host(node: GraphNode) -> bool:
    """Whether a node's tensors are all on the host; also where it has none."""
    return all(tensor.device.startswith("cpu") for tensor in (*node.inputs, *node.outputs))


def _named(node: GraphNode, side: str) -> list[NamedTensor]:
    refs, dims = (
        (node.inputs, node.input_dims) if side == "in" else (node.outputs, node.output_dims)
    )
    return [NamedTensor(storage=t.storage, shape=s) for t, s in zip(refs, dims, strict=True)]


def _view(op: str, phase: Phase) -> OpNode:
    return OpNode(op=op, phase=phase, inputs=(), outputs=(), attrs={"view": True})


def _dtype(nodes: Sequence[OpNode]) -> str:
    """The floating dtype of most elements that calls read."""
    counts: Counter[str] = Counter()
    for node in nodes:
        for spec in node.inputs:
            if spec.dtype in ("fp32", "fp16", "bf16"):
                counts[spec.dtype] += spec.numel
    return counts.most_common(1)[0][0] if counts else "fp32"
