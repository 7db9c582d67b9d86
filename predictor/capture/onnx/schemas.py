"""What the `onnx` package knows of operators without a rule here: bodies, and shapes of results."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import FunctionProto, TensorProto, TypeProto, shape_inference

from predictor.capture.onnx.call import Call
from predictor.capture.onnx.checks import schema_of
from predictor.capture.onnx.node import value_of
from predictor.capture.onnx.values import Sequence_, Value, dtype_of

_ELEMENTS = {
    "fp32": TensorProto.FLOAT, "fp64": TensorProto.DOUBLE, "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
    "int16": TensorProto.INT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL, "complex64": TensorProto.COMPLEX64,
    "complex128": TensorProto.COMPLEX128, "fp8": TensorProto.FLOAT8E4M3FN,
}  # fmt: skip


def _type_of(value: Value) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(
        _ELEMENTS.get(value.dtype, TensorProto.FLOAT), list(value.shape)
    )


def body_of(call: Call) -> FunctionProto | None:
    """The function body that the standard gives an operator, for its version and operands."""
    node = call.node
    schema = schema_of(node.op, call.version, node.domain)
    if schema is None or node.proto is None:
        return None
    known: Any = schema  # its stub leaves the bodies out
    for name, attribute in known.attributes.items():
        if name not in node.attrs and attribute.default_value.name:
            node.attrs[name] = value_of(attribute.default_value)
    if known.has_function:
        body = known.function_body
        assert isinstance(body, FunctionProto)
        return body
    if known.has_context_dependent_function:
        types = [
            _type_of(item).SerializeToString() for item in call.items if isinstance(item, Value)
        ]
        if len(types) != len(call.items):
            return None
        try:
            text = known.get_context_dependent_function(node.proto.SerializeToString(), types)
        except (RuntimeError, ValueError):  # of which a name that is no text is one
            return None
        made = FunctionProto()
        made.ParseFromString(text)
        return made if made.node else None
    return None


def results_of(call: Call) -> list[tuple[tuple[int, ...], str]] | None:
    """Shape and dtype of each result: by the standard's inference, else as the file declares."""
    node = call.node
    inferred = _inferred(call)
    out: list[tuple[tuple[int, ...], str]] = []
    for index, name in enumerate(node.outputs):
        found = inferred.get(name) or call.declared(index)
        if found is None and not name:
            found = ((), "fp32")
        if found is None:
            return None
        out.append(found)
    return out


def _inferred(call: Call) -> dict[str, tuple[tuple[int, ...], str]]:
    node = call.node
    schema = schema_of(node.op, call.version, node.domain)
    if schema is None or node.proto is None or any(isinstance(i, Sequence_) for i in call.items):
        return {}
    types, data = {}, {}
    for name, item in zip(node.inputs, call.items, strict=False):
        if name and isinstance(item, Value):
            types[name] = _type_of(item)
            if item.known is not None:
                data[name] = onnx.numpy_helper.from_array(item.known, name)
    imports = [onnx.helper.make_opsetid(node.domain, call.version)]
    try:
        found = shape_inference.infer_node_outputs(
            schema, node.proto, types, data, opset_imports=imports
        )
    except (
        onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError,
        UnicodeDecodeError,  # what it says of a name that is no text
    ):  # fmt: skip
        return {}
    out: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, proto in found.items():
        tensor = proto.tensor_type
        if not proto.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        if all(d.HasField("dim_value") for d in tensor.shape.dim):
            dtype, _ = dtype_of(tensor.elem_type, f"tensor {name!r}")
            out[name] = (tuple(d.dim_value for d in tensor.shape.dim), dtype)
    return out
