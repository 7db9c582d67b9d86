"""The description of an exported program in a file, by the schema of `torch.export.save`.

The schema is JSON: unions are objects with one key (`{"as_int": 3}`), enumerations are numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from predictor.capture.exported.archive import Description
from predictor.capture.exported.records import (
    Body,
    Call,
    Dialect,
    ExportedGraph,
    Input,
    InputKind,
    Nest,
    Pattern,
    Ref,
    Size,
    TensorMeta,
)
from predictor.capture.exported.symbols import as_written
from predictor.errors import CaptureError

MAJOR = 8
"""The schema version that is read: that of PyTorch 2.6 to 2.13."""

_DTYPES: Mapping[int, str] = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    8: "float64", 9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16",
    28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
_FORMATS: Mapping[int, torch.memory_format] = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d,
    4: torch.preserve_format,
}  # fmt: skip
_STRIDED = 7
_SPECIAL = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError)
_KINDS: Mapping[str, tuple[InputKind, str]] = {
    "parameter": ("parameter", "parameter_name"),
    "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
}


def decode(description: Description, name: str) -> ExportedGraph:
    """The program that a file describes.

    Raises:
        CaptureError: the description is of another schema version, is damaged, or holds what an
            estimate cannot be made of.
    """
    program = description.program
    try:
        _check_version(program)
        return _decoded(program, description.payloads, name)
    except _DAMAGED as error:
        raise CaptureError(
            f"{name} does not follow the schema of torch.export.save "
            f"({type(error).__name__}: {str(error)[:120]}): save the program again"
        ) from error


def _check_version(program: Mapping[str, Any]) -> None:
    version = program["schema_version"]
    if not isinstance(version, Mapping):  # PyTorch 2.1 and 2.2
        raise CaptureError(f"schema version {version!r} is older than this reads ({MAJOR}.x)")
    if version["major"] != MAJOR:
        raise CaptureError(
            f"the file has schema version {version['major']}.{version.get('minor', 0)}, and "
            f"{MAJOR}.x is read (PyTorch 2.6 to 2.13): save it with one of these, or load it with "
            "torch.export.load, if you trust it, and pass the ExportedProgram"
        )


def _decoded(program: Mapping[str, Any], payloads: Mapping[str, Any], name: str) -> ExportedGraph:
    module = program["graph_module"]
    graph, signature = module["graph"], module["signature"]
    reader = _Reader(graph)
    results, loss, gradients = _outputs(signature["output_specs"])
    return ExportedGraph(
        name=name,
        inputs=tuple(_input(spec, reader, payloads) for spec in signature["input_specs"]),
        body=reader.body(),
        dialect=_dialect(program.get("verifiers", ())),
        ranges={
            str(symbol): (max(int(held["min_val"] or 0), 0), held["max_val"])
            for symbol, held in program["range_constraints"].items()
        },
        hints=reader.hints,
        user_outputs=results,
        loss_output=loss,
        gradients=gradients,
        structure=_structure(module["module_call_graph"]),
    )


def _dialect(verifiers: Sequence[str]) -> Dialect:
    return "training" if "TRAINING" in verifiers else "inference"


def _outputs(
    specs: Sequence[Mapping[str, Any]],
) -> tuple[tuple[int, ...], int | None, dict[int, str]]:
    """Positions of the user's results, that of the loss, and the parameters of gradients."""
    results: list[int] = []
    loss = None
    gradients: dict[int, str] = {}
    for at, spec in enumerate(specs):
        kind, held = _one(spec)
        if kind == "user_output":
            results.append(at)
        elif kind == "loss_output":
            loss = at
            results.append(at)
        elif kind == "gradient_to_parameter":
            gradients[at] = held["parameter_name"]
    return tuple(results), loss, gradients


def _input(spec: Mapping[str, Any], reader: _Reader, payloads: Mapping[str, Any]) -> Input:
    kind, held = _one(spec)
    if kind in _KINDS:
        ours, key = _KINDS[kind]
        path, name = held[key], held["arg"]["name"]
        payload = payloads.get(path, {})
        stored = payload.get("path_name")
        meta = reader.metas[name]
        return Input(
            name=name, kind=ours, meta=meta, path=path,
            storage=None if stored is None else str(stored),
        )  # fmt: skip
    if kind == "constant_input":
        return Input(
            name=held["name"], kind="constant", meta=None, value=next(iter(held["value"].values()))
        )
    if kind in ("token", "custom_obj"):
        return Input(name=held["arg"]["name"], kind="constant", meta=None)
    if kind != "user_input":
        raise CaptureError(f"an input of kind {kind!r} is none that capture knows")
    kind, value = _one(held["arg"])
    if kind == "as_tensor":
        return Input(name=value["name"], kind="input", meta=reader.metas[value["name"]])
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        name = value["as_name"]
        return Input(name=name, kind="input", meta=None, value=reader.expressions[name])
    return Input(name="", kind="input", meta=None, value=reader.argument(held["arg"]))


def _one(union: Mapping[str, Any]) -> tuple[str, Any]:
    """The one alternative of a union that is present."""
    found = [(k, v) for k, v in union.items() if v is not None or k == "as_none"]
    if len(found) != 1:
        raise ValueError(f"a union with {len(found)} alternatives")
    return found[0]


def _structure(entries: Sequence[Mapping[str, Any]]) -> Nest | None:
    """How the outputs nest, from the call signature of the whole module."""
    signature = next((e["signature"] for e in entries if e["fqn"] == ""), None)
    if signature is None or not signature.get("out_spec"):
        return None
    _, spec = json.loads(signature["out_spec"])
    return _nest(spec)


def _nest(spec: Mapping[str, Any]) -> Nest | None:
    if spec["type"] is None:
        return None
    children = tuple(_nest(child) for child in spec["children_spec"])
    context = spec["context"]
    keys = json.loads(context) if isinstance(context, str) and context.startswith("[") else None
    if isinstance(keys, list) and len(keys) == 2 and isinstance(keys[1], list):
        keys = keys[1]  # a default dictionary: what it makes, then its keys
    named = isinstance(keys, list) and len(keys) == len(children)
    named = named and all(isinstance(key, str) for key in keys or ())
    return Nest(tuple(keys) if named and keys else None, children)


class _Reader:
    """Reads one graph: its tensors, its symbols, its calls."""

    def __init__(self, graph: Mapping[str, Any]) -> None:
        self._graph = graph
        self.hints: dict[str, int] = {}
        self.metas = {name: self._meta(meta) for name, meta in graph["tensor_values"].items()}
        self.expressions: dict[str, Size] = {}
        for values in ("sym_int_values", "sym_bool_values", "sym_float_values"):
            for name, value in graph.get(values, {}).items():
                self.expressions[name] = self._size(value)

    def body(self) -> Body:
        """The calls of the graph."""
        outputs = [self.argument(one) for one in self._graph["outputs"]]
        return Body(
            inputs=tuple(self._names(self._graph["inputs"])),
            calls=tuple(self._call(node) for node in self._graph["nodes"]),
            outputs=tuple(outputs),
        )

    def _names(self, arguments: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        for one in arguments:
            value = self.argument(one)
            yield value.name if isinstance(value, Ref) else ""

    def _call(self, node: Mapping[str, Any]) -> Call:
        target = _target(node["target"])
        by_place: list[Any] = []
        by_name: dict[str, Any] = {}
        for one in node["inputs"]:
            value = self.argument(one["arg"])
            if one.get("name") and not target.startswith(("higher_order.", "sym.")):
                by_name[one["name"]] = value
            else:
                by_place.append(value)
        results = [self._pattern(one) for one in node["outputs"]]
        whole = len(results) == 1 and not target.startswith("higher_order.")
        metas = tuple(self.metas.get(r) if isinstance(r, str) else None for r in results)
        return Call(
            target=target,
            args=tuple(by_place),
            kwargs=by_name,
            results=results[0] if whole else tuple(results),
            metas=metas,
            module=_module(node.get("metadata", {}).get("nn_module_stack", "")),
        )

    def _pattern(self, output: Mapping[str, Any]) -> Pattern:
        kind, value = _one(output)
        if kind == "as_none":
            return None
        if kind == "as_tensors":
            return tuple(str(one["name"]) for one in value)
        found = self.argument(output)
        if isinstance(found, Ref):
            return found.name
        if isinstance(found, list | tuple):
            return tuple(f.name if isinstance(f, Ref) else None for f in found)
        return None

    def argument(self, union: Mapping[str, Any]) -> Any:
        """A call's argument, or a graph's input or output."""
        kind, value = _one(union)
        match kind:
            case "as_none":
                return None
            case "as_tensor" | "as_custom_obj":
                return Ref(value["name"])
            case "as_tensors":
                return [Ref(one["name"]) for one in value]
            case "as_nested_tensors":
                return [[Ref(one["name"]) for one in inner] for inner in value]
            case "as_optional_tensor":
                return self.argument(value)
            case "as_optional_tensors":
                return [self.argument(one) for one in value]
            case "as_sym_int" | "as_sym_float" | "as_sym_bool":
                inner, held = _one(value)
                return Ref(held) if inner == "as_name" else _number(held)
            case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
                return [self.argument({"as_sym_int": one}) for one in value]
            case "as_int" | "as_bool" | "as_string":
                return value
            case "as_ints" | "as_bools" | "as_strings" | "as_int_lists":
                return list(value)
            case "as_float":
                return _number(value)
            case "as_floats":
                return [_number(one) for one in value]
            case "as_float_lists":
                return [[_number(one) for one in inner] for inner in value]
            case "as_complex":
                return complex(_number(value["real"]), _number(value["imag"]))
            case "as_scalar_type":
                return _dtype(value)
            case "as_memory_format":
                return _FORMATS[value]
            case "as_layout":
                return _strided(value)
            case "as_device":
                return torch.device("meta")
            case "as_graph":
                return _Reader(value["graph"]).body()
            case "as_string_to_argument":
                return {str(k): self.argument(v) for k, v in value.items()}
        raise CaptureError(f"an argument of kind {kind!r} is none that capture knows")

    def _meta(self, meta: Mapping[str, Any]) -> TensorMeta:
        _strided(meta["layout"])
        return TensorMeta(
            sizes=tuple(self._size(s) for s in meta["sizes"]),
            strides=tuple(self._size(s) for s in meta["strides"]),
            offset=self._size(meta["storage_offset"]),
            dtype=_dtype(meta["dtype"]),
            requires_grad=bool(meta["requires_grad"]),
        )

    def _size(self, union: Mapping[str, Any]) -> Size:
        kind, value = _one(union)
        if kind != "as_expr":
            return int(value)
        text = as_written(str(value["expr_str"]))
        hint = value.get("hint")
        if hint and text.isidentifier():
            self.hints[text] = int(next(iter(hint.values())))
        return text


def _target(text: str) -> str:
    """`torch.ops.aten.mm.default` as `aten.mm.default`, arithmetic on sizes as `sym.NAME`."""
    for prefix, ours in (("torch.ops.", ""), ("_operator.", "sym."), ("math.", "sym."),
                         ("torch.", "sym.")):  # fmt: skip
        if text.startswith(prefix):
            return ours + text.removeprefix(prefix)
    return text


def _module(stack: str) -> str:
    """The path of the innermost module of `key,path,class;key,path,class`."""
    fields = stack.rpartition(";")[2].split(",")
    return fields[1] if len(fields) > 2 and not fields[0].startswith("_empty") else ""


def _number(value: Any) -> float | int:
    if isinstance(value, str):
        return _SPECIAL[value]
    if not isinstance(value, int | float):
        raise TypeError(f"a {type(value).__name__} in place of a number")
    return value


def _dtype(number: int) -> torch.dtype:
    found = getattr(torch, _DTYPES[number], None)
    if not isinstance(found, torch.dtype):
        raise CaptureError(f"dtype {_DTYPES[number]} is not in this version of PyTorch")
    return found


def _strided(layout: int) -> torch.layout:
    if layout != _STRIDED:
        raise CaptureError(
            "the program holds sparse tensors, which exported programs are not captured with: "
            "capture the module itself"
        )
    return torch.strided
