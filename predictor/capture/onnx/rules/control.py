"""Control flow: branches by the larger side, loops unrolled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.values import Array, Item, Sequence_, Value
from predictor.capture.onnx.weigh import work
from predictor.errors import CaptureError
from predictor.graph.ir import OpNode

MOST_TRIPS = 20_000
"""Trips of a loop that are unrolled at most."""


def _graph(call: Call, name: str) -> GraphProto:
    graph = call.attr(name)
    if not isinstance(graph, GraphProto):
        raise call.wrong(f"it has no {name}")
    return graph


def branch(call: Call) -> list[Item]:
    """`If`: the branch that its condition takes where that is known, else the one of more work.

    What the other would be without it is kept, for the interval.
    """
    sides = [_graph(call, "then_branch"), _graph(call, "else_branch")]
    condition = call.known(0)
    hint = next(
        (call.walk.hints[n] for n in (call.node.name, call.node.inputs[0]) if n in call.walk.hints),
        None,
    )
    if hint is not None:
        call.walk.sizes.used.update({call.node.name, call.node.inputs[0]} & set(call.walk.hints))
    if hint is None and condition is not None and condition.size == 1:
        hint = int(bool(condition.reshape(-1)[0]))
    if hint is not None:
        return call.walk.subgraph(sides[0 if hint else 1], ())
    tape = call.tape
    start = len(tape.nodes)
    taken: list[tuple[list[Item], list[OpNode]]] = []
    for side in sides:
        results = call.walk.subgraph(side, ())
        taken.append((results, tape.nodes[start:]))
        del tape.nodes[start:]
    least, most = sorted((0, 1), key=lambda i: work(taken[i][1]))
    results, nodes = taken[least if call.walk.lightest else most]
    tape.nodes += nodes
    name = ("then", "else")[most]
    call.walk.branches.append(
        f"{call.node.title}: takes its {name} branch, the one of more work (the interval reaches "
        f"down to the other); say which with --dim {call.node.inputs[0]}=1 or 0"
    )
    return results


def loop(call: Call) -> list[Item]:
    """`Loop`: its body as often as it runs.

    Raises:
        CaptureError: nobody says how often.
    """
    body = _graph(call, "body")
    limit = call.known(0) if call.has(0) else None
    going = call.known(1) if call.has(1) else np.array(True)
    states: list[Item] = list(call.items[2:])
    count = trips(call, limit)
    if going is not None and going.size and not bool(going.reshape(-1)[0]):
        count = 0
    stacked: list[list[Item]] = [[] for _ in range(len(body.output) - 1 - len(states))]
    done = 0
    condition: Item = call.items[1] if call.has(1) else call.walk.host(np.array(True))
    while count is None or done < count:
        if done >= MOST_TRIPS:
            raise no_count(call)
        counter = call.walk.host(np.array(done, dtype=np.int64))
        results = call.walk.subgraph(body, (counter, condition, *states))
        done += 1
        states = results[1 : 1 + len(states)]
        for held, item in zip(stacked, results[1 + len(states) :], strict=False):
            held.append(item)
        condition = results[0]
        known = condition.known if isinstance(condition, Value) else None
        if known is not None and known.size and not bool(known.reshape(-1)[0]):
            break
        if known is None and count is None:
            raise no_count(call)
    scanned = [_stacked(call, items, body, i + 1 + len(states)) for i, items in enumerate(stacked)]
    return [*states, *scanned]


def trips(call: Call, limit: Array | None) -> int | None:
    """How often a loop runs at most: as the user says, else its limit; None where unknown.

    Raises:
        CaptureError: its limit comes from a run.
    """
    for name in (call.node.name, call.node.inputs[0] if call.node.inputs else ""):
        if name and name in call.walk.hints:
            call.walk.sizes.used.add(name)
            return call.walk.hints[name]
    if limit is not None and limit.size:
        count = int(limit.reshape(-1)[0])
        return count if count <= MOST_TRIPS else None
    if call.has(0):
        raise no_count(call)
    return None


def no_count(call: Call) -> CaptureError:
    """The error for a loop of which nobody says how often it runs."""
    name = call.node.inputs[0] if call.node.inputs and call.node.inputs[0] else call.node.name
    return CaptureError(
        f"{call.node.title} runs as often as values decide, or more than {MOST_TRIPS:,} times: "
        f"give its trip count, --dim {name or call.node.outputs[0]}=N"
    )


def _stacked(call: Call, items: Sequence[Item], body: GraphProto, index: int) -> Item:
    values = [item for item in items if isinstance(item, Value)]
    if not values:
        declared = call.declared(len(call.node.outputs) - 1)
        shape = declared[0] if declared else (0,)
        dtype = declared[1] if declared else "fp32"
        return call.tape.fresh(shape, dtype)
    if len(values) != len(items):
        raise call.wrong("a result that is stacked over its trips is no tensor")
    shape = (len(values), *values[0].shape)
    return call.tape.one("aten.stack", values, shape, values[0].dtype)


def scan(call: Call) -> list[Item]:
    """`Scan`: its body along an axis of the operands."""
    body = _graph(call, "body")
    operands = list(call.items)
    lead = 0
    if call.version < 9:  # version 8: sequence lengths first, and a batch axis
        operands, lead = operands[1:], 1
    inputs = call.integer("num_scan_inputs", 0)
    if not 0 < inputs <= len(operands):
        raise call.wrong(f"{inputs} operands to scan of {len(operands)}")
    states, whole = operands[:-inputs], operands[-inputs:]
    axes = call.ints("scan_input_axes") or [lead] * inputs
    values = [v for v in whole if isinstance(v, Value)]
    if len(values) != inputs:
        raise call.wrong("an operand to scan is no tensor")
    at = [call.inside(a, len(v.shape)) for a, v in zip(axes, values, strict=True)]
    count = values[0].shape[at[0]]
    if any(v.shape[a] != count for v, a in zip(values, at, strict=True)):
        raise call.wrong("its operands have different lengths")
    if count > MOST_TRIPS:
        raise call.wrong(f"it runs more than {MOST_TRIPS:,} times")
    if lead:
        states = [_row(call, s, 0) if isinstance(s, Value) else s for s in states]
        values = [_row(call, v, 0) for v in values]
        at = [max(0, a - 1) for a in at]
    stacked: list[list[Item]] = [[] for _ in range(len(body.output) - len(states))]
    for _ in range(count):
        rows = [_row(call, v, a) for v, a in zip(values, at, strict=True)]
        results = call.walk.subgraph(body, (*states, *rows))
        states = results[: len(states)]
        for held, item in zip(stacked, results[len(states) :], strict=False):
            held.append(item)
    scanned = [_stacked(call, items, body, i + len(states)) for i, items in enumerate(stacked)]
    return [*states, *scanned]


def _row(call: Call, value: Value, axis: int) -> Value:
    kept = [i for i in range(len(value.shape)) if i != axis]
    shape = [value.shape[i] for i in kept]
    return call.tape.view("aten.select", value, shape, tuple(value.strides[i] for i in kept))


def sequence_map(call: Call) -> list[Item]:
    """`SequenceMap`: its body an item."""
    body = _graph(call, "body")
    first = call.sequence(0)
    results: list[Sequence_] = [Sequence_([]) for _ in body.output]
    for index in range(len(first.items)):
        given = [
            item.items[index] if isinstance(item, Sequence_) and index < len(item.items) else item
            for item in call.items
        ]
        for held, item in zip(results, call.walk.subgraph(body, given), strict=True):
            held.items.append(item)
    return list(results)


CONTROL: Mapping[str, Rule] = {
    "If": branch, "Loop": loop, "Scan": scan, "SequenceMap": sequence_map,
}  # fmt: skip
"""Rules of the standard domain."""
