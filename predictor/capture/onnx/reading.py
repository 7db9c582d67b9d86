"""Reading ONNX files: the structure alone; tensors kept in other files are never opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from predictor.capture.onnx.tape import MOST_AXES
from predictor.capture.onnx.values import KNOWN_LIMIT, NUMPY, Array, dtype_of, numel_of
from predictor.capture.refusals import no_file
from predictor.errors import CaptureError

SUFFIX = ".onnx"
MOST_VERSIONS = 2**20
"""No operator set has as many."""
MOST_FILE_BYTES = 2**31
"""A protobuf message cannot be longer; larger models keep their tensors in files beside."""


def read_model(path: str | Path) -> onnx.ModelProto:
    """The model of a file, without the tensors that it keeps elsewhere.

    Raises:
        UnknownTargetError: no such file.
        CaptureError: it is damaged, or no ONNX model.
    """
    path = Path(path)
    if not path.is_file():
        raise no_file(path)
    size = path.stat().st_size
    if size >= MOST_FILE_BYTES:
        raise CaptureError(
            f"{path} has {size:,} bytes, and a protobuf message ends at 2 GiB: save the model with "
            "its tensors in files beside it (onnx.save(…, save_as_external_data=True))"
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise CaptureError(
            f"{path} is damaged or no ONNX model (protobuf: {first_line(error)}); export it again"
        ) from None
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {error}") from None
    check_model(model, str(path))
    return model


def check_model(model: onnx.ModelProto, name: str) -> None:
    """Refuse what parses but is no model.

    Raises:
        CaptureError: no graph, or no operator set.
    """
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise CaptureError(f"{name} holds no graph: it is damaged or no ONNX model")


def first_line(error: BaseException) -> str:
    """First line of what a library says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def opsets(model: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Version of each operator set that the model or function imports.

    Raises:
        CaptureError: a version that no operator set has.
    """
    found = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    for domain, version in found.items():
        if not 0 <= version < MOST_VERSIONS or not isinstance(domain, str):
            raise CaptureError(f"operator set {domain!r} has version {version}: no such version")
    found.setdefault("", 1)
    return found


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's data is in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def shape_of(tensor: TensorProto, where: str) -> tuple[int, ...]:
    """Sizes that a stored tensor declares.

    Raises:
        CaptureError: a size below zero.
    """
    shape = tuple(tensor.dims)
    if len(shape) > MOST_AXES:
        raise CaptureError(f"{where} declares {len(shape)} axes")
    if any(size < 0 for size in shape):
        raise CaptureError(f"{where} declares shape {list(shape)}: sizes cannot be negative")
    return shape


def values_of(tensor: TensorProto, where: str) -> Array | None:
    """The numbers of a stored tensor, where they are few and in the file itself.

    Raises:
        CaptureError: its data does not fit its shape.
    """
    shape = shape_of(tensor, where)
    count = numel_of(shape)
    if count > KNOWN_LIMIT or is_external(tensor):
        return None
    dtype, _ = dtype_of(tensor.data_type, where)
    if dtype not in NUMPY or tensor.data_type == TensorProto.STRING:
        return None
    try:
        array: Any = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OSError, onnx.checker.ValidationError) as error:
        raise CaptureError(f"{where} is damaged: {first_line(error)}") from None
    if array.size != count:
        raise CaptureError(f"{where} is damaged: {array.size} values for shape {list(shape)}")
    return np.asarray(array).astype(NUMPY[dtype]).reshape(shape)
