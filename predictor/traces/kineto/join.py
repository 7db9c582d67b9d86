"""An execution graph and the trace of the same run: sizes from the one, times from the other.

Both are of one run when the process is the same and ops with the same id have the same name. Ids
are those of the record function: traces call them so, or (older ones) `External id`. Graphs of
another run are not joined, however alike: their sizes may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from predictor.capture.kineto import RecordedCall
from predictor.traces.kineto.execution_graph import ExecutionGraph, GraphNode
from predictor.traces.kineto.trace import Trace

_SAME = 0.9
"""Share of a graph's aten ops that must be found in the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGraph:
    """Nodes of an execution graph by the op of the trace."""

    name: str
    nodes_by_row: Mapping[int, GraphNode]
    """By place of the op in the trace file."""

    @property
    def calls_by_row(self) -> dict[int, RecordedCall]:
        """Calls with their sizes and values."""
        return {row: node.call for row, node in self.nodes_by_row.items()}


def joined_graph(trace: Trace, graphs: Iterable[ExecutionGraph]) -> JoinedGraph | None:
    """The graph of the trace's run, None where none of them is."""
    processes = {lane.group for lane in trace.ops.lanes if not lane.on_device}
    for graph in graphs:
        if graph.process in processes:
            found = _by_id(trace, graph)
            if found is not None:
                return found
    return None


def _by_id(trace: Trace, graph: ExecutionGraph) -> JoinedGraph | None:
    ops = trace.ops
    wanted = {node.record: node for node in graph.nodes if node.name.startswith("aten::")}
    for column in ("link", "external"):
        found = {}
        for i, number in enumerate(ops[column].tolist()):
            node = wanted.get(number)
            if node is not None and node.name == ops.name_of(i):
                found[int(ops["row"][i])] = node
        if wanted and len(found) >= _SAME * len(wanted):
            return JoinedGraph(name=graph.name, nodes_by_row=found)
    return None
