"""Files that nobody should send: each is refused, or captured, and never worse."""

import glob
import os
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from predictor.capture.onnx.capture import capture_onnx
from predictor.capture.onnx.rules.table import RULES
from predictor.cli import main
from predictor.errors import CaptureError, PredictorError
from predictor.lower.inference import lower_inference

NODE, VALUE = helper.make_node, helper.make_tensor_value_info
BACKEND = Path(onnx.__file__).parent / "backend" / "test" / "data"
SEEDS = [
    Path(f).read_bytes()
    for f in sorted(glob.glob(str(BACKEND / "**" / "*.onnx"), recursive=True))
    if os.path.getsize(f) < 20_000
]


def _ints(name: str, values: list[int]) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def _model(nodes, inputs=(("x", [4]),), weights=(), functions=(), domains=()) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "bad", [VALUE(n, TensorProto.FLOAT, s) for n, s in inputs],
        [VALUE(nodes[-1].output[0], TensorProto.FLOAT, None)], list(weights),
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def _recursive() -> onnx.ModelProto:
    own = helper.make_function(
        "own", "f", ["a"], ["b"], [NODE("f", ["a"], ["b"], domain="own")],
        [helper.make_opsetid("own", 1)],
    )  # fmt: skip
    return _model([NODE("f", ["x"], ["y"], domain="own")], functions=[own], domains=["own"])


HOSTILE = {
    "absurd input": lambda: _model([NODE("Relu", ["x"], ["y"])], [("x", [2**62, 2**62])]),
    "absurd tensor": lambda: _model(
        [NODE("Relu", ["w"], ["y"])],
        weights=[TensorProto(name="w", dims=[2**62, 2**62], data_type=TensorProto.FLOAT)],
    ),
    "negative tensor": lambda: _model(
        [NODE("Relu", ["w"], ["y"])],
        weights=[TensorProto(name="w", dims=[-4], data_type=TensorProto.FLOAT)],
    ),
    "many axes": lambda: _model(
        [NODE("Relu", ["w"], ["y"])],
        weights=[TensorProto(name="w", dims=[2**62] * 100_000, data_type=TensorProto.FLOAT)],
    ),
    "lying tensor": lambda: _model(
        [NODE("Add", ["x", "w"], ["y"])],
        weights=[TensorProto(name="w", dims=[999], data_type=TensorProto.FLOAT, raw_data=b"12")],
    ),
    "unknown element type": lambda: _model(
        [NODE("Relu", ["w"], ["y"])], weights=[TensorProto(name="w", dims=[4], data_type=99)]
    ),
    "absurd tile": lambda: _model([NODE("Tile", ["x", "s"], ["y"])], weights=[_ints("s", [2**62])]),
    "absurd constant": lambda: _model(
        [NODE("ConstantOfShape", ["s"], ["y"])], weights=[_ints("s", [2**40, 2**20])]
    ),
    "absurd pad": lambda: _model(
        [NODE("Pad", ["x", "p"], ["y"])], weights=[_ints("p", [2**62, 2**62])]
    ),
    "absurd scale": lambda: _model(
        [NODE("Resize", ["x", "", "s"], ["y"])], [("x", [1, 1, 2, 2])],
        [helper.make_tensor("s", TensorProto.FLOAT, [4], [1, 1, float("inf"), float("nan")])],
    ),
    "absurd sequence": lambda: _model([NODE("SplitToSequence", ["x"], ["y"])], [("x", [2**40])]),
    "cycle": lambda: _model([NODE("Relu", ["b"], ["a"]), NODE("Relu", ["a"], ["b"])]),
    "cycle of aliases": lambda: _model(
        [NODE("Identity", ["b"], ["a"]), NODE("Identity", ["a"], ["b"]), NODE("Relu", ["a"], ["y"])]
    ),
    "its own operand": lambda: _model([NODE("Add", ["y", "x"], ["y"])]),
    "recursive function": _recursive,
    "no operands": lambda: _model([NODE("Conv", [], ["y"])]),
    "attribute of another kind": lambda: _model([NODE("Concat", ["x", "x"], ["y"], axis="one")]),
    "axis out of range": lambda: _model([NODE("Softmax", ["x"], ["y"], axis=2**62)]),
    "division by zero": lambda: _model(
        [NODE("Div", ["a", "b"], ["s"]), NODE("ConstantOfShape", ["s"], ["y"])],
        weights=[_ints("a", [1]), _ints("b", [0])],
    ),
    "no group": lambda: _model(
        [NODE("Conv", ["x", "w"], ["y"], group=0)], [("x", [1, 4, 8, 8])],
        [TensorProto(name="w", dims=[4, 4, 3, 3], data_type=1, data_location=1)],
    ),
    "no stride": lambda: _model(
        [NODE("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[0, 0])], [("x", [1, 4, 8, 8])]
    ),
    "no graph": onnx.ModelProto,
    "sum of one": lambda: _model([NODE("Add", ["x"], ["y"])]),
    "sum of three": lambda: _model([NODE("Add", ["x", "x", "x"], ["y"])]),
    "softmax of nothing": lambda: _model([NODE("Softmax", [], ["y"])]),
    "activation of nothing": lambda: _model(
        [NODE("Sigmoid", [], ["s"]), NODE("Mul", ["x", "s"], ["y"])]
    ),
    "mean of nothing": lambda: _model([NODE("Mean", ["", ""], ["y"])]),
    "operand left out": lambda: _model([NODE("MatMul", ["x", ""], ["y"])]),
    "list for a number": lambda: _model([NODE("Softmax", ["x"], ["y"], axis=[0])]),
    "text for a number": lambda: _model([NODE("Cast", ["x"], ["y"], to="float")]),
    "number for a tensor": lambda: _model([NODE("ConstantOfShape", ["x"], ["y"], value=1)]),
    "sizes of another rank": lambda: _model(
        [NODE("Resize", ["x", "", "", "s"], ["y"])], [("x", [1, 1, 4, 4])], [_ints("s", [8, 8])]
    ),
    "scores of another rank": lambda: _model(
        [NODE("NonMaxSuppression", ["b", "x"], ["y"])], [("b", [1, 8, 4]), ("x", [8])]
    ),
    "norm of a scalar": lambda: _model(
        [NODE("InstanceNormalization", ["x", "w", "w"], ["y"])], [("x", []), ("w", [4])]
    ),
    "attention of a vector": lambda: _model(
        [NODE("Attention", ["x", "w"], ["y"], domain="com.microsoft", num_heads=1)],
        [("x", [4]), ("w", [4, 12])], domains=["com.microsoft"],
    ),
    "transposed vector": lambda: _model(
        [NODE("FusedGemm", ["x", "x"], ["y"], domain="com.microsoft", transA=1)],
        domains=["com.microsoft"],
    ),
    "heads in words": lambda: _model(
        [NODE("Attention", ["x", "w"], ["y"], domain="com.microsoft", num_heads="two")],
        [("x", [1, 4, 4]), ("w", [4, 12])], domains=["com.microsoft"],
    ),
    "convolution of no channels": lambda: _model(
        [NODE("Conv", ["x", "w"], ["y"])], [("x", [1, 0, 8, 8]), ("w", [4, 0, 3, 3])]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_models_are_refused(kind: str):
    with pytest.raises(CaptureError) as told:
        lower_inference(capture_onnx(HOSTILE[kind]()))
    assert len(str(told.value)) < 1000


@pytest.mark.parametrize(
    "error", [ValueError, IndexError, TypeError, KeyError, AttributeError, ZeroDivisionError]
)
def test_a_fault_of_a_rule_is_no_refusal(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    def wrong(call):
        raise error("a fault of this library")

    monkeypatch.setitem(RULES, ("", "Relu"), wrong)
    with pytest.raises(error, match="a fault of this library"):
        capture_onnx(_model([NODE("Relu", ["x"], ["y"])]))


def test_an_unknown_set_version_is_refused():
    model = _model([NODE("Relu", ["x"], ["y"])])
    model.opset_import[0].version = 2**60
    with pytest.raises(CaptureError, match="no such version"):
        capture_onnx(model)


@pytest.mark.parametrize("kept", [0, 1, 20, 0.5, 0.99])
def test_a_truncated_file_is_told_without_a_traceback(
    kept: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = _model([NODE("Relu", ["x"], ["y"])]).SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(SystemExit) as left:
        main(["estimate", str(path), "--device", "nvidia-t4"])
    assert left.value.code not in (0, None)
    assert "Traceback" not in capsys.readouterr().err


def _left_out(model: onnx.ModelProto, node: onnx.NodeProto, at: int) -> None:
    if node.input:
        del node.input[at % len(node.input)]


def _emptied(model: onnx.ModelProto, node: onnx.NodeProto, at: int) -> None:
    if node.input:
        node.input[at % len(node.input)] = ""


def _swapped(model: onnx.ModelProto, node: onnx.NodeProto, at: int) -> None:
    if node.input:
        a, b = at % len(node.input), (at // 7) % len(node.input)
        node.input[a], node.input[b] = node.input[b], node.input[a]


def _of_another_kind(model: onnx.ModelProto, node: onnx.NodeProto, at: int) -> None:
    values: list[object] = [-1, 0, 7, 2**40, [0], [1, 2, 3, 4, 5], 1.5, "x"]
    if node.attribute:
        old = node.attribute[at % len(node.attribute)]
        new = helper.make_attribute(old.name, values[at % len(values)])
        node.attribute.remove(old)
        node.attribute.append(new)


def _of_another_rank(model: onnx.ModelProto, node: onnx.NodeProto, at: int) -> None:
    if model.graph.input:
        info = model.graph.input[at % len(model.graph.input)].type
        if info.HasField("tensor_type") and info.tensor_type.HasField("shape"):
            sizes = info.tensor_type.shape.dim
            if at % 3 == 0 or not sizes:
                sizes.add().dim_value = at % 4
            elif at % 3 == 1:
                del sizes[at % len(sizes)]
            else:
                sizes[at % len(sizes)].dim_value = at % 5


CHANGES = (_left_out, _emptied, _swapped, _of_another_kind, _of_another_rank)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(
        st.tuples(st.sampled_from(CHANGES), st.integers(0, 999), st.integers(0, 999)),
        min_size=1, max_size=3,
    ),
)  # fmt: skip
def test_graphs_that_do_not_fit_together_are_captured_or_refused(seed: bytes, changes):
    model = onnx.ModelProto.FromString(seed)
    for change, which, at in changes:
        if model.graph.node:
            change(model, model.graph.node[which % len(model.graph.node)], at)
    try:
        lower_inference(capture_onnx(model), allow_opaque=True)
    except PredictorError as error:
        assert str(error)


EDIT = st.tuples(
    st.floats(0, 1, exclude_max=True), st.sampled_from(["set", "flip", "cut", "put", "end"]),
    st.binary(min_size=1, max_size=9),
)  # fmt: skip


@settings(
    max_examples=150, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(seed=st.sampled_from(SEEDS), edits=st.lists(EDIT, min_size=1, max_size=6))
def test_damaged_files_are_captured_or_refused(tmp_path: Path, seed: bytes, edits):
    data = bytearray(seed)
    for where, how, held in edits:
        at = int(where * len(data))
        if how == "set":
            data[at : at + len(held)] = held
        elif how == "flip" and data:
            data[at] ^= 1 << (held[0] % 8)
        elif how == "cut":
            del data[at : at + len(held)]
        elif how == "put":
            data[at:at] = held
        else:
            del data[max(1, at) :]
    path = tmp_path / "damaged.onnx"
    path.write_bytes(bytes(data))
    try:
        lower_inference(capture_onnx(path), allow_opaque=True)
    except PredictorError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            _model(
                [NODE("Unsqueeze", ["x", "a"], ["y"])], [("x", [4, 8])],
                weights=[_ints("a", [0, 0])],
            ),
            "name one axis twice",
        ),
        (
            _model(
                [NODE("MaxRoiPool", ["x", "r"], ["y"])], [("x", [1, 4, 8, 8]), ("r", [2, 5])]
            ),
            "no height and width",
        ),
    ],
)  # fmt: skip
def test_attributes_that_make_no_sense_are_refused(model, said):
    with pytest.raises(CaptureError, match=said):
        capture_onnx(model)
