"""Graphs as JSON, plain or gzipped: a round trip is the identity, and a file says its version.

Tensors are stored once and referred to by number. Equal graphs give equal bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from predictor.atomic import replacing_file
from predictor.errors import DataError
from predictor.graph.ir import Kernel, KernelGraph, OpGraph, OpNode, TensorSpec, Workload

FORMAT = "predictor-graph"
VERSION = 1
_GZIP_MAGIC = b"\x1f\x8b"
Graph = OpGraph | KernelGraph
_Record = TypeVar("_Record", TensorSpec, OpNode, Workload, Kernel)


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """The JSON form of a graph."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": "ops" if isinstance(graph, OpGraph) else "kernels",
        "workload": _plain(graph.workload),
    }
    if isinstance(graph, OpGraph):
        return head | _ops_to_dict(graph)
    return head | {
        "kernels": [_plain(k) for k in graph.kernels],
        **{
            f.name: _value(getattr(graph, f.name))
            for f in fields(graph)
            if f.name not in ("workload", "kernels")
        },
    }


def graph_from_dict(data: Mapping[str, Any], *, source: str = "graph") -> Graph:
    """The graph of a JSON form.

    Args:
        data: what `graph_to_dict` gave.
        source: where it comes from, for messages.

    Raises:
        DataError: another format or version, or a field that is missing or unknown.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise DataError(f"{source} is no captured graph: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise DataError(
            f"{source} has graph version {data.get('version')!r}, this library reads {VERSION}: "
            "capture the program again"
        )
    kind = data.get("kind")
    try:
        if kind == "ops":
            return _ops_from_dict(data, source)
        if kind == "kernels":
            return _kernels_from_dict(data, source)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"{source} is not a whole graph: {type(error).__name__}: {error}") from None
    raise DataError(f"{source} holds a graph of kind {kind!r}; known: ops, kernels")


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write a graph; a name that ends in `.gz` is compressed."""
    text = json.dumps(graph_to_dict(graph), separators=(",", ":"), allow_nan=False)
    data = text.encode()
    path = Path(path)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    with replacing_file(path) as temporary:
        temporary.write_bytes(data)


def load_graph(path: str | Path) -> Graph:
    """Read a graph, compressed or not whatever its name says.

    Raises:
        DataError: the file is missing, unreadable or no graph of this version.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        parsed = json.loads(data)
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read as a graph: {error}") from None
    return graph_from_dict(parsed, source=str(path))


def _ops_to_dict(graph: OpGraph) -> dict[str, Any]:
    numbers: dict[TensorSpec, int] = {}

    def number(spec: TensorSpec) -> int:
        return numbers.setdefault(spec, len(numbers))

    nodes = [
        {
            "op": node.op,
            "phase": node.phase,
            "inputs": [number(s) for s in node.inputs],
            "outputs": [number(s) for s in node.outputs],
            "attrs": _value(node.attrs),
            "deps": list(node.deps),
            "module": node.module,
        }
        for node in graph.nodes
    ]
    held: dict[str, Any] = {"tensors": [_plain(spec) for spec in numbers], "nodes": nodes}
    if graph.lighter is not None:
        held["lighter"] = graph_to_dict(graph.lighter)
    return held


def _ops_from_dict(data: Mapping[str, Any], source: str) -> OpGraph:
    specs = [_record(TensorSpec, row, source) for row in data["tensors"]]
    nodes = []
    for row in data["nodes"]:
        held = {
            **row,
            "inputs": tuple(specs[i] for i in row["inputs"]),
            "outputs": tuple(specs[i] for i in row["outputs"]),
        }
        nodes.append(_record(OpNode, held, source))
    lighter = graph_from_dict(data["lighter"], source=source) if "lighter" in data else None
    if isinstance(lighter, KernelGraph):
        raise DataError(f"{source}: its lighter side holds kernels, not calls")
    workload = _record(Workload, data["workload"], source)
    return OpGraph(workload=workload, nodes=tuple(nodes), lighter=lighter)


def _kernels_from_dict(data: Mapping[str, Any], source: str) -> KernelGraph:
    rest: dict[str, Any] = {
        f.name: tuple(held) if isinstance(held := data[f.name], list) else held
        for f in fields(KernelGraph)
        if f.name not in ("workload", "kernels") and f.name in data
    }
    rest["edges"] = tuple((int(a), int(b)) for a, b in data["edges"])
    rest["edge_bytes"] = tuple(data["edge_bytes"])
    return KernelGraph(
        workload=_record(Workload, data["workload"], source),
        kernels=tuple(_record(Kernel, row, source) for row in data["kernels"]),
        **rest,
    )


def _plain(record: object) -> dict[str, Any]:
    return {f.name: _value(getattr(record, f.name)) for f in fields(record)}  # type: ignore[arg-type]


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _value(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value(v) for v in value]
    return value


def _record(kind: type[_Record], row: Mapping[str, Any], source: str) -> _Record:
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(row) - known)
    if unknown:
        raise DataError(f"{source}: unknown field {unknown[0]!r} of a {kind.__name__}")
    values = {k: tuple(v) if isinstance(v, list) and k != "attrs" else v for k, v in row.items()}
    make: Any = kind
    return make(**values)  # type: ignore[no-any-return]
