"""Training graphs: optimizers of `ai.onnx.preview.training`, and what runtimes write for backward.

Their definitions: docs of the domain in `onnx`, and orttraining/core/graph/training_op_defs.cc of
onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.values import Item, Value
from predictor.graph.ir import Phase

PREVIEW = "ai.onnx.preview.training"
MICROSOFT = "com.microsoft"
PASSES: Mapping[str, int] = {"Adagrad": 5, "Adam": 8, "Momentum": 3}
"""Elementwise calls of an update by its formula, in one kernel each as PyTorch runs it unfused."""
STATES: Mapping[str, int] = {"Adagrad": 1, "Adam": 2, "Momentum": 1}
"""Tensors that an optimizer keeps for each it updates."""


def update(call: Call) -> list[Item]:
    """An optimizer: rate, count, then tensors, gradients and each of the states."""
    held = STATES[call.node.op]
    rest = call.values(2)
    count = len(rest) // (2 + held)
    if count < 1 or len(rest) != count * (2 + held):
        raise call.wrong(f"{len(rest)} tensors, gradients and states")
    groups = [rest[i * count : (i + 1) * count] for i in range(2 + held)]
    new: list[list[Item]] = [[] for _ in range(1 + held)]
    for parts in zip(*groups, strict=True):
        out = parts[0]
        for number in range(PASSES[call.node.op]):
            operands = parts if number == 0 else (out, *parts[2:])
            out = call.tape.one("aten.addcmul", operands, out.shape, out.dtype)
        new[0].append(out)
        for i, state in enumerate(parts[2:], 1):
            new[i].append(call.tape.one("aten.lerp", (state, parts[1]), state.shape, state.dtype))
    return [item for items in new for item in items]


def like(op: str, *, of: int = 0) -> Rule:
    """A backward call whose result is like one operand."""

    def run(call: Call) -> list[Item]:
        x = call.value(of)
        return [call.tape.one(f"aten.{op}", call.values(), x.shape, x.dtype)]

    return run


def norm_backward(call: Call) -> list[Item]:
    """`LayerNormalizationGrad`: gradients of x, weight and bias."""
    grad, x, weight = call.value(0), call.value(1), call.value(2)
    results = [(x.shape, x.dtype), (weight.shape, weight.dtype), (weight.shape, weight.dtype)]
    stat = [v for v in call.values(3) if v.numel < x.numel] or [weight]
    operands = (grad, x, *stat, weight)
    return list(call.tape.call("aten.native_layer_norm_backward", operands, results))


def conv_backward(call: Call) -> list[Item]:
    """`ConvGrad`: gradients of x, weight and bias, as far as they are asked for."""
    grad, x, weight = call.value(0), call.value(1), call.value(2)
    asked = [bool(n) for n in call.node.outputs] + [False] * 3
    shapes = [(x.shape, x.dtype), (weight.shape, weight.dtype), (weight.shape[:1], weight.dtype)]
    wanted = [s for s, on in zip(shapes, asked, strict=False) if on]
    attrs = {"output_mask": asked[:3], "transposed": False}
    made = call.tape.call("aten.convolution_backward", (grad, x, weight), wanted, attrs)
    results: list[Item] = []
    for on in asked[: len(call.node.outputs)]:
        results.append(made.pop(0) if on else None)
    return results


def gather_backward(call: Call) -> list[Item]:
    """`GatherGrad`: shape, indices, gradient."""
    shape = call.known_ints(0)
    if shape is None:
        raise call.unknown("its shape")
    index, grad = call.value(1), call.value(2)
    out = call.tape.one("aten.embedding_dense_backward", (grad, index), shape, grad.dtype)
    return [out]


def dropout_backward(call: Call) -> list[Item]:
    """`DropoutGrad`: gradient and mask."""
    grad, mask = call.value(0), call.value(1)
    op = "aten.native_dropout_backward"
    return [call.tape.one(op, (grad, mask), grad.shape, grad.dtype)]


def loss_backward(call: Call) -> list[Item]:
    """`SoftmaxCrossEntropyLossGrad`: gradient, log-probabilities, labels."""
    scores: Value = call.value(1)
    operands = call.values()
    op = "aten._log_softmax_backward_data"
    return [call.tape.one(op, operands, scores.shape, scores.dtype, {"dim": 1})]


TRAINING: Mapping[tuple[str, str], Rule] = {
    **{(PREVIEW, op): update for op in PASSES},
    **{
        (MICROSOFT, op): rule
        for op, rule in {
            "ReluGrad": like("threshold_backward"), "GeluGrad": like("gelu_backward"),
            "FastGeluGrad": like("gelu_backward"), "BiasGeluGrad_dX": like("gelu_backward"),
            "TanhGrad": like("tanh_backward"), "SigmoidGrad": like("sigmoid_backward"),
            "SoftmaxGrad": like("_softmax_backward_data"),
            "SoftmaxGrad_13": like("_softmax_backward_data"),
            "LogSoftmaxGrad_13": like("_log_softmax_backward_data"),
            "LayerNormalizationGrad": norm_backward, "ConvGrad": conv_backward,
            "GatherGrad": gather_backward, "DropoutGrad": dropout_backward,
            "SoftmaxCrossEntropyLossGrad": loss_backward,
            "InPlaceAccumulator": like("add"), "InPlaceAccumulatorV2": like("add"),
        }.items()
    },
}  # fmt: skip
"""Rule by domain and operator."""
PHASE_OF: Mapping[tuple[str, str], Phase] = {
    key: "optimizer" if key[0] == PREVIEW else "backward" for key in TRAINING
}
"""The phase that an operator begins: what follows the first gradient belongs to backward."""
