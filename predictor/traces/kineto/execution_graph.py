"""PyTorch execution graphs: every op of a run with its tensors, without times.

Two layouts are in use: flat nodes (schema 1.0.1) and nodes with `inputs`, `outputs` and `attrs`
(1.0.3 and newer). Tensors have an id and the id of their storage, so that dependencies are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.capture.kineto import RecordedCall
from predictor.errors import DataError
from predictor.traces.files import SourceFile
from predictor.traces.kineto.content import TraceContent, head_of
from predictor.traces.kineto.scan import JsonStream

NODES = "nodes"
_KNOWN = ("1.0", "1.1")
"""Schema versions that are read, by their start."""
_MARK = re.compile(r'"schema"\s*:\s*"(\d[^"]*)"')
_TENSOR = re.compile(r"^Tensor\((.+)\)$")
_LIST = re.compile(r"^GenericList\[(.*)\]$")
_SCALARS = frozenset({"Int", "Double", "Bool", "Float", "SymInt", "ComplexDouble"})


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as a node names it."""

    tensor: int
    storage: int
    offset: int
    elements: int
    """Of the storage's element type, from the offset on."""
    item_bytes: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One op of a run."""

    id: int
    record: int
    """Record function id: the order in which ops began, and what joins them to a trace."""
    name: str
    parent: int
    thread: int
    call: RecordedCall
    inputs: tuple[TensorRef, ...]
    input_dims: tuple[tuple[int, ...], ...]
    """Sizes of the tensors among `inputs`."""
    outputs: tuple[TensorRef, ...]
    output_dims: tuple[tuple[int, ...], ...]
    """Sizes of the tensors among `outputs`."""


@dataclass(slots=True, kw_only=True)
class ExecutionGraph:
    """An execution graph as read."""

    name: str
    schema: str
    process: str
    """Number of the process that ran."""
    nodes: list[GraphNode]
    """In the order in which they began."""
    file: SourceFile


def is_execution_graph(path: Path) -> bool:
    """Whether a file begins like an execution graph; False where it cannot be read at all."""
    try:
        head = head_of(path)
    except DataError:
        return False
    return _MARK.search(head) is not None and '"traceEvents"' not in head


def read_graph(path: Path, name: str | None = None) -> ExecutionGraph:
    """Read an execution graph: plain, gzipped or in an archive of one file.

    Raises:
        DataError: it cannot be read, is of another schema, or a node lacks what it must have.
    """
    content = TraceContent(path=path, name=name or path.name)
    stream = JsonStream(content.pieces(), content.name)
    head: dict[str, Any] = {}
    nodes: list[GraphNode] = []
    for key, value in stream.members(NODES):
        if key != NODES:
            head[key] = value
            continue
        for raw in value:
            try:
                nodes.append(_node(raw))
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise DataError(
                    f"{content.name}: a node of the execution graph cannot be read "
                    f"({type(error).__name__}: {error}): {str(raw)[:120]}"
                ) from error
    stream.finish()
    schema = str(head.get("schema", ""))
    if not schema.startswith(_KNOWN):
        raise DataError(
            f"{content.name}: execution graphs of schema {schema!r} are not read; known: "
            f"{', '.join(f'{v}.x' for v in _KNOWN)}"
        )
    nodes.sort(key=lambda node: (node.record, node.id))
    return ExecutionGraph(
        name=content.name, schema=schema, process=str(head.get("pid", "")), nodes=nodes,
        file=SourceFile(path=content.name, sha256=content.sha256, rows=len(nodes)),
    )  # fmt: skip


def _node(raw: Mapping[str, Any]) -> GraphNode:
    facts: Mapping[str, Any]
    if "attrs" in raw:
        facts = {a["name"]: a["value"] for a in raw["attrs"]}
        inputs, outputs = raw["inputs"], raw["outputs"]
        parent = raw["ctrl_deps"]
    else:
        facts, parent = raw, raw["parent"]
        inputs, outputs = (
            {"values": raw[kind], "shapes": raw[f"{kind[:-1]}_shapes"],
             "types": raw[f"{kind[:-1]}_types"]}
            for kind in ("inputs", "outputs")
        )  # fmt: skip
    out_refs, out_dims = _tensors(outputs)
    in_refs, in_dims = _tensors(inputs)
    return GraphNode(
        id=int(raw["id"]), record=int(facts["rf_id"]), name=str(raw["name"]), parent=int(parent),
        thread=int(facts["tid"]), call=_call(str(raw["name"]), inputs), outputs=out_refs,
        inputs=in_refs, input_dims=in_dims, output_dims=out_dims,
    )  # fmt: skip


def _call(name: str, inputs: Mapping[str, Any]) -> RecordedCall:
    """The call as the profiler would have recorded it."""
    types = tuple(_type(t) for t in inputs["types"])
    strides = inputs.get("strides")
    return RecordedCall(
        name=name, types=types,
        dims=tuple(
            _sizes(shape) if _holds_tensors(kind) else ()
            for shape, kind in zip(inputs["shapes"], types, strict=True)
        ),
        strides=None if strides is None else tuple(
            _sizes(stride) if _holds_tensors(kind) else ()
            for stride, kind in zip(strides, types, strict=True)
        ),
        concrete=tuple(
            None if _holds_tensors(kind) else _value(value)
            for value, kind in zip(inputs["values"], types, strict=True)
        ),
    )  # fmt: skip


def _holds_tensors(kind: str) -> bool:
    return kind not in ("", "Scalar", "ScalarList")


def _type(told: str) -> str:
    """A type as profiler traces name it."""
    tensor = _TENSOR.match(told)
    if tensor is not None:
        return "" if tensor[1].startswith("nullptr") else tensor[1]
    several = _LIST.match(told)
    if several is not None:
        first = re.match(r"Tensor\(([^()]*)\)", several[1])
        return f"TensorList[{first[1]}]" if first is not None else "ScalarList"
    return "Scalar" if told in _SCALARS else ""


def _sizes(shape: Any) -> tuple[Any, ...]:
    return tuple(_sizes(s) if isinstance(s, list) else s for s in shape)


def _value(value: Any) -> Any:
    if value == "<None>":
        return None
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    return value


def _tensors(side: Mapping[str, Any]) -> tuple[tuple[TensorRef, ...], tuple[tuple[int, ...], ...]]:
    """Tensors of one side of a node, those in lists too, with their sizes."""
    refs: list[TensorRef] = []
    dims: list[tuple[int, ...]] = []
    for value, shape, told in zip(side["values"], side["shapes"], side["types"], strict=True):
        kind = _type(told)
        if not _holds_tensors(kind):
            continue
        in_list = kind.startswith("TensorList")
        each: Sequence[tuple[Any, Any]] = (
            list(zip(value, shape, strict=False)) if in_list else [(value, shape)]
        )
        for one, size in each:
            if isinstance(one, list) and len(one) >= 6:
                numbers = [int(v) for v in one[:5]]
                refs.append(
                    TensorRef(
                        tensor=numbers[0], storage=numbers[1], offset=numbers[2],
                        elements=numbers[3], item_bytes=numbers[4], device=str(one[5]),
                    )
                )  # fmt: skip
                dims.append(_sizes(size))
    return tuple(refs), tuple(dims)
