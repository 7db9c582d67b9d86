"""Normalisation, softmax, losses and reductions."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.values import Item, Value, numel_of


def batch_norm(call: Call) -> list[Item]:
    """`BatchNormalization`; in training mode the statistics come out as well."""
    x = call.value(0)
    trains = bool(call.attr("training_mode", 0))
    channels = x.shape[1:2]
    results = [(x.shape, x.dtype), (channels, "fp32"), (channels, "fp32")]
    attrs = {"training": trains, "eps": call.attr("epsilon", 1e-5)}
    out, mean, variance = call.tape.call("aten.native_batch_norm", call.values(), results, attrs)
    return [out, mean, variance, mean, variance]


def instance_norm(call: Call) -> list[Item]:
    """`InstanceNormalization`: a batch norm over every sample's channels, as PyTorch runs it."""
    x, weight, bias = call.value(0), call.value(1), call.value(2)
    rows = (1, x.shape[0] * x.shape[1], *x.shape[2:])
    folded = call.tape.reshape(x, rows)
    results = [(rows, x.dtype), (rows[1:2], "fp32"), (rows[1:2], "fp32")]
    attrs = {"training": True, "eps": call.attr("epsilon", 1e-5)}
    out = call.tape.call("aten.native_batch_norm", (folded, weight, bias), results, attrs)[0]
    return [call.tape.reshape(out, x.shape)]


def layer_norm(call: Call) -> list[Item]:
    """`LayerNormalization` over the axes from `axis` on."""
    x = call.value(0)
    axis = call.axis(len(x.shape), -1)
    return list(normalised(call, x, call.values(1), x.shape[axis:], "aten.native_layer_norm"))


def normalised(
    call: Call, x: Value, parameters: list[Value], over: tuple[int, ...], op: str
) -> list[Value]:
    """Record a norm over the trailing axes; result, mean and reciprocal deviation."""
    stat = (*x.shape[: len(x.shape) - len(over)], *(1 for _ in over))
    results = [(x.shape, x.dtype), (stat, "fp32")]
    if op == "aten.native_layer_norm":
        results.append((stat, "fp32"))
    attrs = {"normalized_shape": list(over), "eps": call.attr("epsilon", 1e-5)}
    return call.tape.call(op, (x, *parameters), results, attrs)


def rms_norm(call: Call) -> list[Item]:
    """`RMSNormalization`."""
    x = call.value(0)
    axis = call.axis(len(x.shape), -1)
    return [normalised(call, x, call.values(1), x.shape[axis:], "aten._fused_rms_norm")[0]]


def group_norm(call: Call) -> list[Item]:
    """`GroupNormalization`."""
    x = call.tape.contiguous(call.value(0))
    groups = call.integer("num_groups", call.attr("groups", 1))
    stat = (x.shape[0], groups)
    results = [(x.shape, x.dtype), (stat, "fp32"), (stat, "fp32")]
    attrs = {"group": groups, "eps": call.attr("epsilon", 1e-5)}
    parameters = [v for v in call.values(1) if v.numel > 1 or x.shape[1] == 1]
    return [call.tape.call("aten.native_group_norm", (x, *parameters), results, attrs)[0]]


def lp_norm(call: Call) -> list[Item]:
    """`LpNormalization`: a norm along an axis, and a quotient."""
    x = call.value(0)
    axis = call.axis(len(x.shape), -1)
    shape = tuple(1 if i == axis else s for i, s in enumerate(x.shape))
    attrs = {"dim": [axis], "keepdim": True}
    length = call.tape.one("aten.linalg_vector_norm", (x,), shape, x.dtype, attrs)
    return [call.tape.one("aten.div", (x, length), x.shape, x.dtype)]


def softmax(op: str) -> Rule:
    """Softmax along an axis; before opset 13 over all axes from it on."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        old = call.version < 13 and not call.node.domain
        axis = call.axis(len(x.shape), 1 if old else -1) if x.shape else 0
        if old and numel_of(x.shape[axis + 1 :]) > 1:
            rows = call.tape.reshape(x, (numel_of(x.shape[:axis]), numel_of(x.shape[axis:])))
            out = call.tape.one(f"aten.{op}", (rows,), rows.shape, x.dtype, {"dim": -1})
            return [call.tape.reshape(out, x.shape)]
        return [call.tape.one(f"aten.{op}", (x,), x.shape, x.dtype, {"dim": axis})]

    return run


def reduced_shape(shape: tuple[int, ...], axes: list[int], *, keep: bool) -> tuple[int, ...]:
    """What a reduction over axes leaves."""
    gone = set(axes)
    if keep:
        return tuple(1 if i in gone else s for i, s in enumerate(shape))
    return tuple(s for i, s in enumerate(shape) if i not in gone)


def reduced(op: str, before: str | None = None, after: str | None = None) -> Rule:
    """A reduction over axes, with an elementwise call before or after it."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        rank = len(x.shape)
        given = call.axes()
        if not given and call.attr("noop_with_empty_axes", 0):
            return [x]
        axes = sorted(call.inside(a, rank) for a in given) if given else list(range(rank))
        keep = bool(call.attr("keepdims", 1))
        shape = reduced_shape(x.shape, axes, keep=keep)
        if before:
            x = call.tape.one(f"aten.{before}", (x,), x.shape, x.dtype)
        attrs = {"dim": axes, "keepdim": keep}
        out = call.tape.one(f"aten.{op}", (x,), shape, x.dtype, attrs)
        return [call.tape.one(f"aten.{after}", (out,), shape, x.dtype) if after else out]

    return run


def arg(op: str) -> Rule:
    """Position of the largest or smallest along an axis."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        axis = call.axis(len(x.shape))
        shape = reduced_shape(x.shape, [axis], keep=bool(call.attr("keepdims", 1)))
        return [call.tape.one(f"aten.{op}", (x,), shape, "int64", {"dim": axis})]

    return run


def hardmax(call: Call) -> list[Item]:
    """`Hardmax`: a one where the largest is."""
    x = call.value(0)
    axis = call.axis(len(x.shape), -1)
    shape = reduced_shape(x.shape, [axis], keep=True)
    top = call.tape.one("aten.argmax", (x,), shape, "int64", {"dim": axis})
    return [call.tape.one("aten.scatter", (x, top), x.shape, x.dtype)]


def scanned(op: str) -> Rule:
    """Cumulative sums and products."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        axis = call.known_ints(1)
        dim = call.inside(axis[0], len(x.shape)) if axis else -1
        return [call.tape.one(f"aten.{op}", (x,), x.shape, x.dtype, {"dim": dim})]

    return run


def top_k(call: Call) -> list[Item]:
    """`TopK`: values and positions."""
    x = call.value(0)
    axis = call.axis(len(x.shape), -1)
    count = [call.integer("k")] if "k" in call.node.attrs else call.known_ints(1)
    if not count:
        raise call.unknown("how many it picks")
    shape = tuple(count[0] if i == axis else s for i, s in enumerate(x.shape))
    results = [(shape, x.dtype), (shape, "int64")]
    return list(call.tape.call("aten.topk", (x,), results, {"dim": axis, "k": count[0]}))


def nll_loss(call: Call) -> list[Item]:
    """`NegativeLogLikelihoodLoss`: picks one log-probability a target."""
    return [_picked(call, call.value(0))]


def _picked(call: Call, scores: Value) -> Value:
    target = call.value(1)
    whole = call.attr("reduction", "mean") == "none"
    shape = target.shape if whole else ()
    operands = [scores, *call.values(1)]
    return call.tape.one("aten.nll_loss_forward", operands, shape, scores.dtype)


def cross_entropy(call: Call) -> list[Item]:
    """`SoftmaxCrossEntropyLoss`: log-softmax over classes, then the loss of the targets."""
    x = call.value(0)
    scores = call.tape.one("aten._log_softmax", (x,), x.shape, x.dtype, {"dim": 1})
    return [_picked(call, scores), scores]


NORMS: Mapping[str, Rule] = {
    "BatchNormalization": batch_norm, "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm, "RMSNormalization": rms_norm,
    "SimplifiedLayerNormalization": rms_norm,
    "GroupNormalization": group_norm, "LpNormalization": lp_norm,
    "Softmax": softmax("_softmax"), "LogSoftmax": softmax("_log_softmax"), "Hardmax": hardmax,
    "ReduceSum": reduced("sum"), "ReduceMean": reduced("mean"), "ReduceMax": reduced("amax"),
    "ReduceMin": reduced("amin"), "ReduceProd": reduced("prod"),
    "ReduceLogSumExp": reduced("logsumexp"), "ReduceL1": reduced("linalg_vector_norm"),
    "ReduceL2": reduced("linalg_vector_norm"), "ReduceSumSquare": reduced("sum", before="mul"),
    "ReduceLogSum": reduced("sum", after="log"),
    "ArgMax": arg("argmax"), "ArgMin": arg("argmin"), "CumSum": scanned("cumsum"),
    "CumProd": scanned("cumprod"), "TopK": top_k, "NegativeLogLikelihoodLoss": nll_loss,
    "SoftmaxCrossEntropyLoss": cross_entropy,
}  # fmt: skip
"""Rules of the standard domain."""
