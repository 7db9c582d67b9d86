"""Operators that look at a tensor in another way: views where PyTorch has views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.known import shape_values
from predictor.capture.onnx.node import tensor_of
from predictor.capture.onnx.values import (
    FLOATING,
    Item,
    Value,
    broadcast,
    contiguous_strides,
    numel_of,
)


def reshape(call: Call) -> list[Item]:
    """`Reshape`: 0 keeps a size, -1 takes what is left."""
    x = call.value(0)
    wanted = call.ints("shape") if "shape" in call.node.attrs else call.known_ints(1)
    if wanted is None:
        declared = call.declared()
        if declared is None or numel_of(declared[0]) != x.numel:
            raise call.unknown("its shape")
        return [call.tape.reshape(x, declared[0])]
    return [call.tape.reshape(x, resolved(call, x, wanted))]


def resolved(call: Call, x: Value, wanted: Sequence[int]) -> tuple[int, ...]:
    """The sizes that a reshape asks for, worked out.

    Raises:
        CaptureError: they do not hold the tensor's elements.
    """
    shape = list(wanted)
    if not call.attr("allowzero", 0):
        if any(s == 0 and i >= len(x.shape) for i, s in enumerate(shape)):
            raise call.wrong(f"shape {list(wanted)[:8]} keeps an axis that {list(x.shape)} lacks")
        shape = [x.shape[i] if s == 0 else s for i, s in enumerate(shape)]
    rest = numel_of([s for s in shape if s != -1])
    if shape.count(-1) == 1 and rest > 0 and x.numel % rest == 0:
        shape[shape.index(-1)] = x.numel // rest
    if any(s < 0 for s in shape) or numel_of(shape) != x.numel:
        raise call.wrong(f"{list(x.shape)} cannot take shape {list(wanted)[:8]}")
    return tuple(shape)


def flatten(call: Call) -> list[Item]:
    """`Flatten`: a matrix."""
    x = call.value(0)
    axis = call.integer("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return [call.tape.reshape(x, (numel_of(x.shape[:axis]), numel_of(x.shape[axis:])))]


def transpose(call: Call) -> list[Item]:
    """`Transpose`: a view."""
    x = call.value(0)
    order = call.ints("perm") or list(reversed(range(len(x.shape))))
    if sorted(order) != list(range(len(x.shape))):
        raise call.wrong(f"order {order} of a tensor of rank {len(x.shape)}")
    return [call.tape.permute(x, order)]


def squeeze(call: Call) -> list[Item]:
    """`Squeeze`: axes of size one go."""
    x = call.value(0)
    given = call.axes()
    if given is None:
        axes = {i for i, s in enumerate(x.shape) if s == 1}
    else:
        axes = {call.inside(a, len(x.shape)) for a in given}
        if any(x.shape[a] != 1 for a in axes):
            raise call.wrong(f"axes {given} of {list(x.shape)} are not of size 1")
    kept = [i for i in range(len(x.shape)) if i not in axes]
    shape = [x.shape[i] for i in kept]
    strides = tuple(x.strides[i] for i in kept)
    return [call.tape.view("aten.squeeze", x, shape, strides)]


def unsqueeze(call: Call) -> list[Item]:
    """`Unsqueeze`: axes of size one come."""
    x = call.value(0)
    axes = call.axes() or []
    rank = len(x.shape) + len(axes)
    at = {call.inside(a, rank) for a in axes}
    if len(at) != len(axes):
        raise call.wrong(f"axes {list(axes)} name one axis twice")
    shape: list[int] = []
    strides: list[int] = []
    old = iter(zip(x.shape, x.strides, strict=True))
    for i in range(rank):
        size, stride = (1, 1) if i in at else next(old)
        shape.append(size)
        strides.append(stride)
    return [call.tape.view("aten.unsqueeze", x, shape, tuple(strides))]


def expand(call: Call) -> list[Item]:
    """`Expand`: broadcast without a copy."""
    x = call.value(0)
    wanted = call.known_ints(1)
    if wanted is None:
        wanted = list(call.declared_shape("its shape"))
    if any(w < 0 for w in wanted):
        raise call.wrong(f"a shape of {wanted[:8]}")
    return [call.tape.expand(x, broadcast((x.shape, tuple(wanted)), call.node.title))]


def shape(call: Call) -> list[Item]:
    """`Shape`: known to the host."""
    x = call.value(0)
    return [call.walk.host(shape_values(x.shape, call.attr("start"), call.attr("end")))]


def size(call: Call) -> list[Item]:
    """`Size`: known to the host."""
    return [call.walk.host(np.array(call.value(0).numel, dtype=np.int64))]


def slices(call: Call) -> list[Item]:
    """`Slice`: a view."""
    x = call.value(0)
    if "starts" in call.node.attrs:
        starts, ends = call.ints("starts"), call.ints("ends")
        axes, steps = call.ints("axes"), []
    else:
        found = [call.known_ints(i) if call.has(i) else [] for i in range(1, 5)]
        if any(f is None for f in found):
            return _unknown_slice(call, x)
        starts, ends, axes, steps = (f or [] for f in found)
    axes = [call.inside(a, len(x.shape)) for a in axes] or list(range(len(starts)))
    if not len(starts) == len(ends) == len(axes) or len(axes) > len(x.shape):
        raise call.wrong(f"starts {starts}, ends {ends}, axes {axes}")
    shape, strides = list(x.shape), list(x.strides)
    for i, axis in enumerate(axes):
        step = steps[i] if i < len(steps) else 1
        if step == 0:
            raise call.wrong("a step of 0")
        shape[axis] = len(range(*slice(starts[i], _end(ends[i], step, x, axis), step).indices(
            x.shape[axis])))  # fmt: skip
        strides[axis] *= abs(step)
    if any(s < 0 for s in steps):
        return [call.tape.one("aten.flip", (x,), shape, x.dtype)]
    if tuple(shape) == x.shape:
        return [x]
    return [call.tape.view("aten.slice", x, shape, tuple(strides))]


def _end(end: int, step: int, x: Value, axis: int) -> int | None:
    return None if step < 0 and end < -x.shape[axis] else end


def _unknown_slice(call: Call, x: Value) -> list[Item]:
    shape = call.declared_shape("where it cuts")
    return [call.tape.view("aten.slice", x, shape, contiguous_strides(shape))]


def split(call: Call) -> list[Item]:
    """`Split`: views."""
    x = call.value(0)
    axis = call.axis(len(x.shape))
    count = len(call.node.outputs)
    parts = call.ints("split") or (call.known_ints(1) if call.has(1) else [])
    if parts is None:
        raise call.unknown("where it cuts")
    whole = x.shape[axis]
    if not parts:
        each = -(-whole // count)
        parts = [max(0, min(each, whole - i * each)) for i in range(count)]
    if sum(parts) != whole or min(parts) < 0:
        raise call.wrong(f"parts {parts[:8]} of an axis of {whole}")
    out: list[Item] = []
    for part in parts:
        cut = [*x.shape[:axis], part, *x.shape[axis + 1 :]]
        out.append(call.tape.view("aten.split", x, cut, x.strides))
    return out


def concat(call: Call) -> list[Item]:
    """`Concat`."""
    parts = call.values()
    rank = len(parts[0].shape)
    axis = call.axis(rank, 1)
    total = 0
    for part in parts:
        others = [s for i, s in enumerate(part.shape) if i != axis]
        if len(part.shape) != rank or others != [
            s for i, s in enumerate(parts[0].shape) if i != axis
        ]:
            raise call.wrong(f"shapes {[list(p.shape) for p in parts][:4]} along axis {axis}")
        total += part.shape[axis]
    whole = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
    if len(parts) == 1:
        return [parts[0]]
    return [call.tape.one("aten.cat", parts, whole, parts[0].dtype, {"dim": axis})]


def constant(call: Call) -> list[Item]:
    """`Constant`: a tensor of the model, or numbers."""
    attrs = call.node.attrs
    if "value" in attrs:
        tensor = tensor_of(attrs["value"], call.node.title)
        return [call.walk.stored(tensor, "buffer")]
    if "sparse_value" in attrs:
        held = attrs["sparse_value"]
        dtype = call.walk.stored(held.values, "buffer").dtype
        value = call.tape.fresh(tuple(held.dims), dtype, role="buffer")
        value.constant = True
        return [value]
    for name, kind in (("value_int", np.int64), ("value_ints", np.int64),
                       ("value_float", np.float32), ("value_floats", np.float32)):  # fmt: skip
        if name in attrs:
            return [call.walk.host(np.array(attrs[name], dtype=kind))]
    for name in ("value_string", "value_strings"):
        if name in attrs:
            count = () if name == "value_string" else (len(attrs[name]),)
            value = call.tape.fresh(count, "int64", role="buffer")
            value.constant = True
            return [value]
    raise call.wrong("it has no value")


def filled(op: str) -> Rule:
    """Tensors made of their shape: constants, ranges, random numbers."""

    def run(call: Call) -> list[Item]:
        wanted, dtype = _made(call)
        if any(s < 0 for s in wanted):
            raise call.wrong(f"a shape of {wanted[:8]}")
        return [call.tape.one(f"aten.{op}", (), wanted, dtype)]

    return run


def _made(call: Call) -> tuple[list[int], str]:
    from predictor.capture.onnx.values import dtype_of

    op = call.node.op
    given = call.attr("dtype")
    dtype = dtype_of(int(given), call.node.title)[0] if given else "fp32"
    if op == "ConstantOfShape":
        tensor = call.attr("value")
        dtype = "fp32" if tensor is None else dtype_of(tensor.data_type, call.node.title)[0]
        wanted = call.known_ints(0)
    elif op in ("RandomNormal", "RandomUniform"):
        return call.ints("shape"), dtype
    elif op == "Range":
        found = [call.known(i) for i in range(3)]
        dtype = call.value(0).dtype
        if any(f is None for f in found):
            wanted = None
        else:
            start, limit, step = (float(f.reshape(-1)[0]) for f in found if f is not None)
            if step == 0:
                raise call.wrong("a step of 0")
            wanted = [max(0, int(np.ceil((limit - start) / step)))]
    elif op == "EyeLike":
        return list(call.value(0).shape), dtype if given else call.value(0).dtype
    elif op == "Multinomial":
        count = call.integer("sample_size", 1)
        return [call.value(0).shape[0], count], dtype if given else "int32"
    elif op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        wanted = call.known_ints(0)
    else:
        return list(call.value(0).shape), dtype if given else call.value(0).dtype
    if wanted is None:
        declared = call.declared()
        if declared is None:
            raise call.unknown("its shape")
        return list(declared[0]), declared[1]
    return wanted, dtype


def is_float(value: Value) -> bool:
    """Whether a tensor holds floating-point numbers."""
    return value.dtype in FLOATING


SHAPES: Mapping[str, Rule] = {
    "Reshape": reshape, "Flatten": flatten, "Transpose": transpose, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Expand": expand, "Shape": shape, "Size": size, "Slice": slices,
    "Split": split, "Concat": concat, "Constant": constant, "ConstantOfShape": filled("full"),
    "Range": filled("arange"), "EyeLike": filled("eye"), "RandomNormal": filled("randn"),
    "RandomUniform": filled("rand"), "RandomNormalLike": filled("randn_like"),
    "RandomUniformLike": filled("rand_like"), "Bernoulli": filled("bernoulli"),
    "Multinomial": filled("multinomial"), "HannWindow": filled("arange"),
    "HammingWindow": filled("arange"), "BlackmanWindow": filled("arange"),
}  # fmt: skip
"""Rules of the standard domain."""
