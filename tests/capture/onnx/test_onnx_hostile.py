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
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_models_are_refused(kind: str):
    with pytest.raises(CaptureError) as told:
        lower_inference(capture_onnx(HOSTILE[kind]()))
    assert len(str(told.value)) < 1000


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
