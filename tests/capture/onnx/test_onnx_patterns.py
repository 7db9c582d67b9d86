"""What exporters write out is the call again that PyTorch ran."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper

from predictor.capture.onnx.capture import capture_onnx
from predictor.errors import CostRuleError
from predictor.lower.eager import lower_eager
from predictor.lower.inference import lower_inference

NODE = helper.make_node


def _number(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float32)


def _calls(model) -> list[str]:
    return [n.op for n in capture_onnx(model).nodes if not n.attrs.get("view")]


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(made, square: str, affine: bool):
    twice = ["d", "two"] if square == "Pow" else ["d", "d"]
    nodes = [
        NODE("ReduceMean", ["x"], ["m"], axes=[-1]),
        NODE("Sub", ["x", "m"], ["d"]),
        NODE(square, twice, ["s"]),
        NODE("ReduceMean", ["s"], ["v"], axes=[-1]),
        NODE("Add", ["v", "eps"], ["e"]),
        NODE("Sqrt", ["e"], ["r"]),
        NODE("Div", ["d", "r"], ["n"]),
    ]
    if affine:
        nodes += [NODE("Mul", ["n", "w"], ["a"]), NODE("Add", ["a", "b"], ["y"])]
    weights = {"two": _number(2), "eps": _number(1e-5), "w": [16], "b": [16]}
    model = made(nodes, {"x": [4, 16]}, ["y" if affine else "n"], weights, opset=13)
    assert _calls(model) == ["aten.native_layer_norm"]
    assert len(capture_onnx(model).nodes[0].inputs) == (3 if affine else 1)


@pytest.mark.parametrize("order", ["last", "first", "inner"])
def test_gelu(made, order: str):
    nodes = [
        NODE("Div", ["x", "root"], ["q"]),
        NODE("Erf", ["q"], ["e"]),
        NODE("Add", ["e", "one"], ["p"]),
    ]
    if order == "last":
        nodes += [NODE("Mul", ["x", "p"], ["h"]), NODE("Mul", ["h", "half"], ["y"])]
    elif order == "first":
        nodes += [NODE("Mul", ["x", "half"], ["h"]), NODE("Mul", ["h", "p"], ["y"])]
    else:
        nodes += [NODE("Mul", ["half", "p"], ["h"]), NODE("Mul", ["x", "h"], ["y"])]
    weights = {"root": _number(math.sqrt(2)), "one": _number(1), "half": _number(0.5)}
    assert _calls(made(nodes, {"x": [4, 16]}, ["y"], weights)) == ["aten.gelu"]


def test_a_gelu_whose_parts_are_results_stays_written_out(made):
    nodes = [
        NODE("Div", ["x", "root"], ["q"]), NODE("Erf", ["q"], ["e"]),
        NODE("Add", ["e", "one"], ["p"]), NODE("Mul", ["x", "p"], ["h"]),
        NODE("Mul", ["h", "half"], ["y"]),
    ]  # fmt: skip
    weights = {"root": _number(math.sqrt(2)), "one": _number(1), "half": _number(0.5)}
    assert "aten.erf" in _calls(made(nodes, {"x": [4, 16]}, ["y", "p"], weights))


def test_silu_and_mish(made):
    nodes = [
        NODE("Sigmoid", ["x"], ["s"]), NODE("Mul", ["x", "s"], ["a"]),
        NODE("Softplus", ["a"], ["p"]), NODE("Tanh", ["p"], ["t"]), NODE("Mul", ["a", "t"], ["y"]),
    ]  # fmt: skip
    assert _calls(made(nodes, {"x": [4, 16]}, ["y"])) == ["aten.silu", "aten.mish"]


def test_a_linear_layer_over_aliased_weights(made):
    nodes = [
        NODE("Identity", ["b"], ["again"]),
        NODE("MatMul", ["x", "w"], ["m"]),
        NODE("Add", ["again", "m"], ["y"]),
    ]
    model = made(nodes, {"x": [2, 5, 8]}, ["y"], {"w": [8, 4], "b": [4]})
    assert _calls(model) == ["aten.addmm"]


@pytest.mark.parametrize("guard", [True, False])
def test_fused_attention(made, guard: bool):
    nodes = [
        NODE("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        NODE("Mul", ["q", "c"], ["qs"]), NODE("Mul", ["kt", "c"], ["ks"]),
        NODE("MatMul", ["qs", "ks"], ["s"]), NODE("Softmax", ["s"], ["p"], axis=-1),
    ]  # fmt: skip
    if guard:
        nodes += [NODE("IsNaN", ["p"], ["bad"]), NODE("Where", ["bad", "zero", "p"], ["g"])]
    nodes.append(NODE("MatMul", ["g" if guard else "p", "v"], ["y"]))
    shape = [2, 4, 32, 16]
    weights = {"c": _number(0.5), "zero": _number(0)}
    graph = capture_onnx(made(nodes, {"q": shape, "k": shape, "v": shape}, ["y"], weights))
    (kernel,) = lower_eager(graph).kernels
    assert kernel.op == "attention"
    assert kernel.matmul_flops == 4 * 2 * 4 * 32 * 32 * 16


def test_attention_of_a_program_stays_call_by_call(made):
    nodes = [
        NODE("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), NODE("MatMul", ["q", "kt"], ["s"]),
        NODE("Div", ["s", "c"], ["d"]), NODE("Softmax", ["d"], ["p"], axis=-1),
        NODE("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    shape = [2, 4, 32, 16]
    model = made(nodes, {"q": shape, "k": shape, "v": shape}, ["y"], {"c": _number(4)})
    assert _calls(model) == ["aten.bmm", "aten.div", "aten._softmax", "aten.bmm"]


def test_group_norm(made):
    groups = np.array([0, 4, -1], dtype=np.int64)
    back = np.array([2, 32, 8, 8], dtype=np.int64)
    nodes = [
        NODE("Reshape", ["x", "groups"], ["r"]),
        NODE("InstanceNormalization", ["r", "one", "zero"], ["n"]),
        NODE("Reshape", ["n", "back"], ["m"]),
        NODE("Mul", ["m", "w"], ["a"]),
        NODE("Add", ["a", "b"], ["y"]),
    ]
    weights = {"groups": groups, "back": back, "one": [4], "zero": [4], "w": [32, 1, 1],
               "b": [32, 1, 1]}  # fmt: skip
    graph = capture_onnx(made(nodes, {"x": [2, 32, 8, 8]}, ["y"], weights))
    (kernel,) = lower_eager(graph).kernels
    assert (kernel.op, dict(kernel.dims)) == ("group_norm", {"rows": 8, "cols": 8 * 64})


def test_shapes_worked_out_on_the_host_launch_nothing(made):
    nodes = [
        NODE("Shape", ["x"], ["s"]), NODE("Gather", ["s", "zero"], ["n"], axis=0),
        NODE("Unsqueeze", ["n", "axes"], ["u"]), NODE("Concat", ["u", "rest"], ["t"], axis=0),
        NODE("Reshape", ["x", "t"], ["y"]),
    ]  # fmt: skip
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    graph = capture_onnx(made(nodes, {"x": ["b", 3, 4]}, ["y"], weights), batch=5)
    assert [n.op for n in graph.nodes] == ["aten.view"]
    assert graph.nodes[0].outputs[0].shape == (5, 12)


def test_softmax_of_old_sets_covers_all_axes_from_its_own(made):
    model = made([NODE("Softmax", ["x"], ["y"], axis=1)], {"x": [2, 3, 4]}, ["y"], opset=11)
    (kernel,) = lower_eager(capture_onnx(model)).kernels
    assert dict(kernel.dims) == {"rows": 2, "cols": 12}


def test_einsum_is_a_product(made):
    node = NODE("Einsum", ["q", "k"], ["y"], equation="bqhd,bkhd->bhqk")
    graph = capture_onnx(made([node], {"q": [2, 8, 4, 16], "k": [2, 6, 4, 16]}, ["y"]))
    flops = sum(k.matmul_flops for k in lower_eager(graph).kernels)
    assert flops == 2 * (2 * 4) * 8 * 6 * 16
    assert graph.nodes[-1].outputs[0].shape == (2, 4, 8, 6)


def test_quantised_products_read_their_integers(made):
    scale, zero = _number(0.1), np.array(0, dtype=np.int8)
    nodes = [
        NODE("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        NODE("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        NODE("DequantizeLinear", ["w", "scale", "zero"], ["wd"]),
        NODE("MatMul", ["xd", "wd"], ["y"]),
    ]
    model = made(
        nodes, {"x": [64, 256]}, ["y"], {"scale": scale, "zero": zero, "w": [256, 128]},
        elements={"w": TensorProto.INT8},
    )  # fmt: skip
    first, product = lower_eager(capture_onnx(model)).kernels
    assert (product.op, product.dtype) == ("matmul", "int8")
    assert product.read_bytes == 64 * 256 + 256 * 128
    assert first.write_bytes == 64 * 256


def test_weights_of_four_bits_are_read_in_their_own_width(made):
    node = NODE(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=256, N=128, bits=4,
        block_size=32,
    )  # fmt: skip
    model = made(
        [node], {"x": [4, 256]}, ["y"], {"w": [128, 8, 16], "s": [128 * 8]},
        elements={"w": TensorProto.UINT8, "x": TensorProto.FLOAT16, "s": TensorProto.FLOAT16},
        domains={"com.microsoft": 1},
    )  # fmt: skip
    (kernel,) = lower_eager(capture_onnx(model)).kernels
    assert kernel.matmul_flops == 2 * 4 * 128 * 256
    assert kernel.dtype == "fp16"
    assert kernel.read_bytes == 2 * 4 * 256 + 128 * 256 // 2 + 2 * 128 * 8


def test_grouped_query_attention_has_fewer_key_heads(made):
    node = NODE(
        "GroupQueryAttention", ["q", "k", "v", "pk", "pv"], ["y", "kk", "vv"],
        domain="com.microsoft", num_heads=8, kv_num_heads=2,
    )  # fmt: skip
    inputs = {"q": [1, 1, 512], "k": [1, 1, 128], "v": [1, 1, 128], "pk": [1, 2, 63, 64],
              "pv": [1, 2, 63, 64]}  # fmt: skip
    graph = capture_onnx(made([node], inputs, ["y"], domains={"com.microsoft": 1}))
    kernel = next(k for k in lower_eager(graph).kernels if k.op == "attention")
    assert (kernel.dims["heads"], kernel.dims["kv_heads"], kernel.dims["kv_len"]) == (8, 2, 64)


def test_unknown_operators_are_refused_by_name_or_opaque_and_listed(made):
    nodes = [NODE("Magic", ["x"], ["m"], domain="my.ops"), NODE("Relu", ["m"], ["y"])]
    model = made(nodes, {"x": [4, 16]}, ["y"], domains={"my.ops": 1})
    model.graph.value_info.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [4, 16]))
    graph = capture_onnx(model)
    assert "my.ops.Magic (1)" in graph.workload.warnings[0]
    for lower in (lower_eager, lower_inference):
        with pytest.raises(CostRuleError, match=r"'onnx.my.ops.Magic'.*--allow-opaque"):
            lower(graph)
        assert [k.op for k in lower(graph, allow_opaque=True).kernels] == ["opaque", "relu"]


def test_a_newer_operator_of_the_standard_is_no_other_case(made):
    node = NODE("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")
    graph = capture_onnx(made([node], {"x": [4, 16]}, {"y": [4, 16]}, domains={"ai.onnx.ml": 3}))
    with pytest.raises(CostRuleError, match="Normalizer"):
        lower_eager(graph)


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_are_one_call_of_many_launches(made, op: str, gates: int):
    node = NODE(op, ["x", "w", "r", "b"], ["y"], hidden_size=128)
    weights = {"w": [1, gates * 128, 12], "r": [1, gates * 128, 128], "b": [1, 2 * gates * 128]}
    (kernel,) = lower_eager(capture_onnx(made([node], {"x": [250, 1, 12]}, ["y"], weights))).kernels
    assert kernel.matmul_flops == 2 * 250 * gates * 128 * (12 + 128)
    assert kernel.launches == 250


def test_training_graphs_have_their_phases(made):
    nodes = [
        NODE("MatMul", ["x", "w"], ["h"]), NODE("Relu", ["h"], ["a"]),
        NODE("ReluGrad", ["g", "a"], ["gh"], domain="com.microsoft"),
        NODE("MatMul", ["xt", "gh"], ["gw"]),
        NODE("Momentum", ["r", "t", "w", "gw", "m"], ["w2", "m2"], mode="standard",
             domain="ai.onnx.preview.training", alpha=0.9, beta=1.0, norm_coefficient=0.0),
    ]  # fmt: skip
    model = made(
        nodes, {"x": [8, 16], "xt": [16, 8], "g": [8, 4], "m": [16, 4], "r": [], "t": []},
        ["w2", "m2"], {"w": [16, 4]}, elements={"t": TensorProto.INT64},
        domains={"com.microsoft": 1, "ai.onnx.preview.training": 1},
    )  # fmt: skip
    graph = capture_onnx(model)
    phases = [n.phase for n in graph.nodes if not n.attrs.get("view")]
    assert phases == ["forward"] * 2 + ["backward"] * 2 + ["optimizer"] * 4
    assert graph.workload.mode == "train"
    assert not graph.workload.warnings


def test_fused_attention_whose_key_was_folded_and_turned(made):
    fold = np.array([-1, 32, 16], dtype=np.int64)
    unfold = np.array([2, 4, 16, 32], dtype=np.int64)
    nodes = [
        NODE("Transpose", ["k0"], ["k"], perm=[0, 2, 1, 3]),
        NODE("Reshape", ["k", "fold"], ["k3"]), NODE("Transpose", ["k3"], ["t3"], perm=[0, 2, 1]),
        NODE("Reshape", ["t3", "unfold"], ["kt"]),
        NODE("Mul", ["q", "c"], ["qs"]), NODE("Mul", ["kt", "c"], ["ks"]),
        NODE("MatMul", ["qs", "ks"], ["s"]), NODE("Softmax", ["s"], ["p"], axis=-1),
        NODE("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    inputs = {"q": [2, 4, 32, 16], "k0": [2, 32, 4, 16], "v": [2, 4, 32, 16]}
    weights = {"c": _number(0.5), "fold": fold, "unfold": unfold}
    calls = lower_eager(capture_onnx(made(nodes, inputs, ["y"], weights))).kernels
    assert [k.op for k in calls if k.op == "attention"] == ["attention"]
    assert calls[-1].matmul_flops == 4 * 2 * 4 * 32 * 32 * 16


def test_fused_attention_whose_key_heads_are_repeated(made):
    fold = np.array([8, 32, 16], dtype=np.int64)
    nodes = [
        NODE("Expand", ["k0", "five"], ["k"]),
        NODE("Reshape", ["k", "fold"], ["k3"]), NODE("Transpose", ["k3"], ["t3"], perm=[0, 2, 1]),
        NODE("Reshape", ["t3", "unfold"], ["kt"]),
        NODE("Mul", ["q", "c"], ["qs"]), NODE("Mul", ["kt", "c"], ["ks"]),
        NODE("MatMul", ["qs", "ks"], ["s"]), NODE("Softmax", ["s"], ["p"], axis=-1),
        NODE("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    inputs = {"q": [2, 4, 32, 16], "k0": [2, 2, 1, 32, 16], "v": [2, 4, 32, 16]}
    weights = {
        "c": _number(0.5), "fold": fold, "five": np.array([2, 2, 2, 32, 16], dtype=np.int64),
        "unfold": np.array([2, 4, 16, 32], dtype=np.int64),
    }  # fmt: skip
    calls = lower_eager(capture_onnx(made(nodes, inputs, ["y"], weights))).kernels
    assert [k.op for k in calls][-1] == "attention"
    assert len(calls) == 2  # heads that groups share are copied first, as PyTorch does
    assert calls[-1].matmul_flops == 4 * 2 * 4 * 32 * 32 * 16
