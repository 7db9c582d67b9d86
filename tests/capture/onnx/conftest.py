"""Small ONNX models for the tests, made by hand: `made(…)` builds one, `outside(…)` a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

Shape = Sequence[int | str | None]


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape] | Sequence[str],
    weights: Mapping[str, Sequence[int] | np.ndarray] | None = None,
    *,
    opset: int = 17,
    elements: Mapping[str, int] | None = None,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model; weights are arrays, or shapes whose numbers are in a file that does not exist."""
    kinds = dict(elements or {})
    stored = []
    for name, held in (weights or {}).items():
        if isinstance(held, np.ndarray):
            stored.append(onnx.numpy_helper.from_array(held, name))
        else:
            stored.append(stored_outside(name, held, kinds.get(name, TensorProto.FLOAT)))
    taken = [
        helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), list(s))
        for n, s in inputs.items()
    ]
    shapes = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs)
    given = [
        helper.make_tensor_value_info(
            n, kinds.get(n, TensorProto.FLOAT), None if s is None else list(s)
        )
        for n, s in shapes.items()
    ]
    graph = helper.make_graph(list(nodes), "made", taken, given, stored)
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def stored_outside(
    name: str, shape: Sequence[int], element: int = TensorProto.FLOAT, location: str = "gone.data"
) -> onnx.TensorProto:
    """A stored tensor whose numbers are in another file."""
    tensor = TensorProto(name=name, dims=list(shape), data_type=element)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.fixture
def made() -> Callable[..., onnx.ModelProto]:
    """Builds a model."""
    return build


@pytest.fixture
def outside() -> Callable[..., onnx.TensorProto]:
    """Builds a tensor whose numbers are elsewhere."""
    return stored_outside
