"""`capture_onnx`: an ONNX model as an `OpGraph`, without running it or opening other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import FunctionProto, TypeProto, ValueInfoProto

from predictor.capture.onnx.dims import (
    Sizes,
    check_sizes,
    check_used,
    input_shape,
    open_names,
    with_usual_names,
)
from predictor.capture.onnx.reading import check_model, opsets, read_model
from predictor.capture.onnx.values import FLOATING, Item, Sequence_, Value, dtype_of
from predictor.capture.onnx.walk import Walk
from predictor.errors import CaptureError
from predictor.graph.ir import HALVES, OpGraph, OpNode, Workload


def capture_onnx(
    target: str | Path | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    name: str | None = None,
) -> OpGraph:
    """The framework calls of one run of an ONNX model.

    Args:
        target: a file, or a model in memory. Tensors that it keeps in other files are not read:
            their declared shapes are enough.
        dims: sizes that the model leaves open, by their name (`batch`), or by input and axis
            where they have none (`input_ids.1`); also the value of a scalar that a run would
            decide: a loop's trip count, a branch's condition, how many boxes stay.
        batch: the open size with a usual name of batches.
        seq: the open size with a usual name of sequences.
        dtype: `fp16` or `bf16` takes the model's fp32 tensors in it, as converters and builders
            of engines do; `fp32` or None as they are.
        name: what to call the program; the file's or the graph's name by default.

    Raises:
        UnknownTargetError: no such file.
        CaptureError: the model is damaged or leaves sizes open; the message says which.
    """
    if isinstance(target, onnx.ModelProto):
        model, name = target, name or target.graph.name or "model"
        check_model(model, name)
    else:
        model, name = read_model(target), name or str(target)
    if dtype not in (None, "fp32", *HALVES):
        raise CaptureError(
            f"dtype {dtype!r} of an ONNX model: its own (leave it out), {', '.join(HALVES)}"
        )
    inputs = _inputs(model.graph)
    given = with_usual_names(dict(dims or {}), inputs, batch=batch, seq=seq, name=name)
    for key, value in given.items():
        if value < 0:
            raise CaptureError(f"size {key}={value}: sizes cannot be negative")
    return _captured(model, name, given, dtype)


def _inputs(graph: onnx.GraphProto) -> list[ValueInfoProto]:
    """Inputs of a graph that are not stored tensors (files of IR version 3 list those too)."""
    stored = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    return [info for info in graph.input if info.name not in stored]


def _captured(
    model: onnx.ModelProto,
    name: str,
    given: dict[str, int],
    dtype: str | None,
    *,
    lightest: bool = False,
) -> OpGraph:
    graph = model.graph
    inputs = _inputs(graph)
    sizes = Sizes(given=given)
    walk = Walk(sizes, _functions(model), given, lightest=lightest)
    walk.scope.versions = opsets(model)
    walk.tape.narrowed = dtype if dtype in HALVES else None
    taken: list[Value] = []
    for info in inputs:
        item = _input(walk, info, info.type)
        walk.scope.names[info.name] = item
        taken += _tensors(item)
    check_sizes(sizes, name, inputs)
    for result in walk.run(graph):
        for value in _tensors(result):
            walk.tape.realised(value)
    check_used(sizes, given, name, list(open_names(inputs)))
    lighter = None
    if walk.branches and not lightest:
        lighter = _captured(model, name, given, dtype, lightest=True)
    workload = _workload(walk, name, taken)
    return OpGraph(workload=workload, nodes=tuple(walk.tape.nodes), lighter=lighter)


def _functions(model: onnx.ModelProto) -> dict[tuple[str, str, str], FunctionProto]:
    return {
        ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
    }


def _input(walk: Walk, info: ValueInfoProto, kind: TypeProto) -> Item:
    """An input as its type declares it; an optional one is there."""
    walk.tape.where = f"input {info.name!r}"
    if kind.HasField("tensor_type"):
        if not kind.tensor_type.HasField("shape"):
            own = {k: v for k, v in walk.sizes.given.items() if k.startswith(f"{info.name}.")}
            walk.sizes.used.update(own)
            shape = [own[f"{info.name}.{i}"] for i in range(len(own)) if f"{info.name}.{i}" in own]
            if len(shape) != len(own) or not own:
                walk.sizes.missing.setdefault(f"{info.name}.0", []).append(
                    f"{info.name}, whose rank is open: every axis, from 0"
                )
        else:
            shape = input_shape(info, kind.tensor_type, walk.sizes)
        dtype, width = dtype_of(kind.tensor_type.elem_type, f"input {info.name!r}")
        value = walk.tape.fresh(shape, dtype, role="input", element_bytes=width)
        walk.hinted(info.name, value)
        return value
    if kind.HasField("sequence_type"):
        return Sequence_([_input(walk, info, kind.sequence_type.elem_type)])
    if kind.HasField("optional_type"):
        return Sequence_([_input(walk, info, kind.optional_type.elem_type)])
    raise CaptureError(
        f"input {info.name!r} is a {kind.WhichOneof('value') or 'value of no type'}: tensors, "
        "sequences and optionals of them are known"
    )


def _tensors(item: Item) -> list[Value]:
    if isinstance(item, Value):
        return [item]
    return [v for held in item.items for v in _tensors(held)] if isinstance(item, Sequence_) else []


def _workload(walk: Walk, name: str, inputs: Sequence[Value]) -> Workload:
    parameters, buffers = _held(walk.tape.nodes)
    tokens = next(
        (v.shape for v in inputs if len(v.shape) == 2 and v.dtype in ("int64", "int32")), None
    )
    counts: dict[str, int] = {}
    for count, _, dtype in parameters.values():
        counts[dtype] = counts.get(dtype, 0) + count
    if not counts:
        for v in inputs:
            if v.dtype in FLOATING:
                counts[v.dtype] = counts.get(v.dtype, 0) + v.numel
    total = sum(count for count, _, _ in parameters.values())
    held = sum(size for _, size, _ in parameters.values())
    trains = any(node.phase != "forward" for node in walk.tape.nodes)
    notes = [*walk.branches, *walk.notes]
    if walk.unruled:
        listed = ", ".join(f"{k} ({n})" for k, n in sorted(walk.unruled.items()))
        notes.append(f"operators without a rule, opaque where that is allowed: {listed}")
    return Workload(
        name=name,
        mode="train" if trains else "infer",
        parameters=total,
        trainable_parameters=total,
        parameters_bytes=held,
        buffers_bytes=sum(size for _, size, _ in buffers.values()),
        inputs_bytes=sum(v.spec.storage_bytes for v in inputs),
        batch=next((v.shape[0] for v in inputs if v.shape), None),
        tokens=None if tokens is None else tokens[0] * tokens[1],
        dtype=max(counts, key=lambda d: counts[d]) if counts else "fp32",
        optimizer=None,
        source="onnx",
        trainable_bytes=0,
        warnings=tuple(notes),
    )


_Held = dict[int, tuple[int, int, str]]


def _held(nodes: Sequence[OpNode]) -> tuple[_Held, _Held]:
    """Parameters and buffers that some call reads, by storage: elements, bytes, dtype."""
    parameters: _Held = {}
    buffers: _Held = {}
    for node in nodes:
        for spec in node.inputs:
            if spec.role == "parameter":
                before = parameters.get(spec.storage_id, (0, 0, ""))
                parameters[spec.storage_id] = max(
                    before, (spec.numel, spec.storage_bytes, spec.dtype)
                )
            elif spec.role == "buffer":
                buffers[spec.storage_id] = (spec.numel, spec.storage_bytes, spec.dtype)
    return parameters, buffers
