"""Gathers, scatters, padding, resizing and other copies."""

from __future__ import annotations

import math
from collections.abc import Mapping

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.rules.shapes import is_float
from predictor.capture.onnx.values import Item, Value, numel_of


def gather(call: Call) -> list[Item]:
    """`Gather`: one known row is a view, rows of a weight are an embedding."""
    table, index = call.value(0), call.value(1)
    rank = len(table.shape)
    axis = call.axis(rank)
    shape = (*table.shape[:axis], *index.shape, *table.shape[axis + 1 :])
    if index.known is not None and not index.shape:
        kept = [i for i in range(rank) if i != axis]
        strides = tuple(table.strides[i] for i in kept)
        return [call.tape.view("aten.select", table, shape, strides)]
    if axis == 0 and rank == 2 and table.constant and is_float(table):
        return [call.tape.one("aten.embedding", (table, index), shape, table.dtype)]
    op = "aten.index_select" if len(index.shape) == 1 else "aten.index"
    return [call.tape.one(op, (table, index), shape, table.dtype)]


def gather_elements(call: Call) -> list[Item]:
    """`GatherElements`."""
    table, index = call.value(0), call.value(1)
    return [call.tape.one("aten.gather", (table, index), index.shape, table.dtype)]


def gather_nd(call: Call) -> list[Item]:
    """`GatherND`: the last axis of the index counts into the tensor."""
    table, index = call.value(0), call.value(1)
    lead = call.integer("batch_dims", 0)
    depth = index.shape[-1] if index.shape else 0
    shape = (*index.shape[:-1], *table.shape[lead + depth :])
    return [call.tape.one("aten.index", (table, index), shape, table.dtype)]


def scatter(op: str) -> Rule:
    """Writes updates into a copy of the first operand."""

    def run(call: Call) -> list[Item]:
        target, index, source = call.value(0), call.value(1), call.value(2)
        added = call.attr("reduction", "none") != "none"
        name = "aten.scatter_reduce" if added and op == "scatter" else f"aten.{op}"
        attrs = {"accumulate": True} if added and op == "index_put" else None
        operands = (target, index, source)
        return [call.tape.one(name, operands, target.shape, target.dtype, attrs)]

    return run


def tensor_scatter(call: Call) -> list[Item]:
    """`TensorScatter`: new rows of a cache, in place where the runtime can."""
    cache, update = call.value(0), call.value(1)
    out = call.tape.one("aten.index_copy", call.values(), cache.shape, cache.dtype)
    del update
    return [out]


def pad(call: Call) -> list[Item]:
    """`Pad` in each of its modes."""
    x = call.value(0)
    rank = len(x.shape)
    pads = call.ints("pads") or call.ints("paddings")
    if not pads:
        found = call.known_ints(1)
        if found is None:
            padded = call.declared_shape("its padding")
            return [call.tape.one("aten.constant_pad_nd", (x,), padded, x.dtype)]
        pads = found
    axes = call.known_ints(3) if call.has(3) else list(range(rank))
    if axes is None or len(pads) != 2 * len(axes):
        raise call.wrong(f"pads {pads[:8]} of a tensor of rank {rank}")
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        shape[call.inside(axis, rank)] += pads[i] + pads[len(axes) + i]
    if tuple(shape) == x.shape and not any(pads):
        return [x]
    mode = call.attr("mode", "constant")
    op = {"reflect": "reflection_pad2d", "edge": "replication_pad2d", "wrap": "roll"}.get(
        mode, "constant_pad_nd"
    )
    return [call.tape.one(f"aten.{op}", (x,), shape, x.dtype)]


def tile(call: Call) -> list[Item]:
    """`Tile`."""
    x = call.value(0)
    times = call.known_ints(1)
    if times is None:
        repeated = call.declared_shape("how often it repeats")
        return [call.tape.one("aten.repeat", (x,), repeated, x.dtype)]
    if call.version < 6:  # a count and an axis
        axis = (call.known_ints(2) or [0])[0]
        times = [times[0] if i == axis else 1 for i in range(len(x.shape))]
    if len(times) != len(x.shape):
        raise call.wrong(f"repeats {times[:8]} of {list(x.shape)}")
    shape = [s * t for s, t in zip(x.shape, times, strict=True)]
    if all(t == 1 for t in times):
        return [x]
    return [call.tape.one("aten.repeat", (x,), shape, x.dtype)]


def resize(call: Call) -> list[Item]:
    """`Resize` and `Upsample`: sizes given, or by scales."""
    x = call.value(0)
    shape = _resized(call, x)
    x.shape.of_rank(len(shape))
    if shape == x.shape:
        return [x]
    mode = call.attr("mode", "nearest")
    moving = [i for i, (a, b) in enumerate(zip(x.shape, shape, strict=True)) if a != b]
    axes = max(1, len(moving))
    if mode == "cubic":
        name = "upsample_bicubic2d"
    elif mode == "linear":
        name = {1: "upsample_linear1d", 2: "upsample_bilinear2d"}.get(axes, "upsample_trilinear3d")
    else:
        name = f"upsample_nearest{min(axes, 3)}d"
    attrs = {"output_size": [shape[i] for i in moving]}
    return [call.tape.one(f"aten.{name}", (x,), shape, x.dtype, attrs)]


def _resized(call: Call, x: Value) -> tuple[int, ...]:
    rank = len(x.shape)
    axes = call.ints("axes") or list(range(rank))
    if call.node.op == "Upsample" or call.version < 11:
        scales = call.attr("scales")
        found = call.known(1)
        if scales is None and found is not None:
            scales = [float(v) for v in found.reshape(-1)]
        if scales is None and "height_scale" in call.node.attrs:
            scales = [1.0, 1.0, call.attr("height_scale"), call.attr("width_scale")]
        sizes = None
    else:
        held = call.known(2)
        scales = [float(v) for v in held.reshape(-1)] if held is not None and held.size else None
        sizes = call.known_ints(3) if call.has(3) else None
    shape = list(x.shape)
    if sizes:
        if len(sizes) != len(axes):
            raise call.wrong(f"sizes {sizes[:8]} for axes {axes}")
        for axis, wanted in zip(axes, sizes, strict=True):
            shape[call.inside(axis, rank)] = wanted
        policy = call.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratios = [w / max(1, x.shape[a]) for a, w in zip(axes, sizes, strict=True)]
            ratio = max(ratios) if policy == "not_smaller" else min(ratios)
            for axis in axes:
                shape[axis] = round(x.shape[axis] * ratio)
    elif scales:
        if len(scales) != len(axes) or not all(math.isfinite(s) and s > 0 for s in scales):
            raise call.wrong(f"scales {scales[:8]} for axes {axes}")
        for axis, scale in zip(axes, scales, strict=True):
            shape[call.inside(axis, rank)] = math.floor(x.shape[axis] * scale)
    else:
        return call.declared_shape("its size")
    return tuple(shape)


def depth_to_space(call: Call) -> list[Item]:
    """`DepthToSpace` and its inverse."""
    x = call.value(0)
    block = call.integer("blocksize", 1)
    if len(x.shape) != 4 or block < 1:
        raise call.wrong(f"blocks of {block} of {list(x.shape)}")
    n, c, h, w = x.shape.of_rank(4)
    if call.node.op == "DepthToSpace":
        shape, op = (n, c // block**2, h * block, w * block), "pixel_shuffle"
    else:
        shape, op = (n, c * block**2, h // block, w // block), "pixel_unshuffle"
    return [call.tape.one(f"aten.{op}", (x,), shape, x.dtype)]


def one_hot(call: Call) -> list[Item]:
    """`OneHot`: zeros, and a one a row."""
    index, choices = call.value(0), call.value(2)
    depth = call.known_ints(1)
    if not depth:
        raise call.unknown("how many classes it has")
    axis = call.inside(call.integer("axis", -1), len(index.shape) + 1)
    shape = (*index.shape[:axis], depth[0], *index.shape[axis:])
    zeros = call.tape.one("aten.full", (), shape, choices.dtype)
    return [call.tape.one("aten.scatter_", (zeros, index), shape, choices.dtype)]


def flipped(call: Call) -> list[Item]:
    """`ReverseSequence`."""
    x = call.value(0)
    return [call.tape.one("aten.flip", (x,), x.shape, x.dtype)]


def as_many_as_can_be(call: Call, count: int, what: str) -> int:
    """A count that values decide: as the file or the user says, else the most there can be."""
    for name in call.node.outputs:
        found = call.walk.hints.get(name)
        if found is not None:
            call.walk.sizes.used.add(name)
            return found
    call.walk.note(
        f"{call.node.title}: {what} depends on values; taken at its largest, {count:,} (set it "
        f"with --dim {call.node.outputs[0]}=N)"
    )
    return count


def nonzero(call: Call) -> list[Item]:
    """`NonZero`: as many columns as there are elements, at most."""
    x = call.value(0)
    declared = call.declared()
    shape = declared[0] if declared else None
    if shape is None:
        shape = (max(1, len(x.shape)), as_many_as_can_be(call, x.numel, "how many it finds"))
    return [call.tape.one("aten.nonzero", (x,), shape, "int64", {"dim": -1})]


def compress(call: Call) -> list[Item]:
    """`Compress`: rows that a mask keeps."""
    x, mask = call.value(0), call.value(1)
    if "axis" in call.node.attrs:
        axis = call.axis(len(x.shape))
        kept = call.known(1)
        rows = int(kept.sum()) if kept is not None else as_many_as_can_be(
            call, x.shape[axis], "how many rows it keeps"
        )  # fmt: skip
        shape = (*x.shape[:axis], rows, *x.shape[axis + 1 :])
    else:
        shape = (as_many_as_can_be(call, min(x.numel, mask.numel), "how many it keeps"),)
    return [call.tape.one("aten.index_select", (x, mask), shape, x.dtype)]


def unique(call: Call) -> list[Item]:
    """`Unique`: values, first positions, inverse positions and counts."""
    x = call.value(0)
    rows = x.shape[call.axis(len(x.shape))] if "axis" in call.node.attrs else x.numel
    count = as_many_as_can_be(call, rows, "how many are distinct")
    shape: tuple[int, ...] = (count,)
    if "axis" in call.node.attrs:
        axis = call.axis(len(x.shape))
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    results = [(shape, x.dtype), ((count,), "int64"), ((rows,), "int64"), ((count,), "int64")]
    return list(call.tape.call("aten._unique2", (x,), results))


def suppression(call: Call) -> list[Item]:
    """`NonMaxSuppression`: sorts the scores and compares boxes pairwise."""
    boxes, scores = call.value(0), call.value(1)
    most = call.known_ints(2)
    batch, classes, count = scores.shape.of_rank(3)
    picked = min(count, most[0]) if most else count
    rows = as_many_as_can_be(call, batch * classes * picked, "how many boxes stay")
    order = call.tape.one("aten.sort", (scores,), scores.shape, "int64", {"dim": -1})
    overlap = call.tape.one("aten._cdist_forward", (boxes,), (batch, count, count), "fp32")
    return [call.tape.one("aten.index", (overlap, order), (rows, 3), "int64")]


def grid_sample(call: Call) -> list[Item]:
    """`GridSample`."""
    x, grid = call.value(0), call.value(1)
    axes = len(x.shape) - 2
    shape = (x.shape[0], x.shape[1], *grid.shape[1:-1])
    op = f"aten.grid_sampler_{2 if axes < 3 else 3}d"
    return [call.tape.one(op, (x, grid), shape, x.dtype)]


def affine_grid(call: Call) -> list[Item]:
    """`AffineGrid`."""
    sizes = call.known_ints(1)
    if sizes is None:
        raise call.unknown("its size")
    shape = (sizes[0], *sizes[2:], len(sizes) - 2)
    theta = call.value(0)
    return [call.tape.one("aten.affine_grid_generator", (theta,), shape, theta.dtype)]


def fourier(call: Call) -> list[Item]:
    """`DFT`: complex numbers as a last axis of two."""
    x = call.value(0)
    rank = len(x.shape)
    axis = call.integer("axis", 1) if call.version < 20 else (call.known_ints(2) or [-2])[0]
    axis = call.inside(axis, rank)
    length = (call.known_ints(1) or [x.shape[axis]])[0] if call.has(1) else x.shape[axis]
    shape = [*x.shape[:-1], 2]
    shape[axis] = length
    if call.attr("onesided", 0):
        if call.attr("inverse", 0):
            shape[-1], shape[axis] = 1, 2 * (length - 1) if not call.has(1) else length
        else:
            shape[axis] = length // 2 + 1
    return [call.tape.one("aten._fft_c2c", (x,), shape, x.dtype, {"dim": [axis]})]


def short_fourier(call: Call) -> list[Item]:
    """`STFT`: frames, each transformed."""
    x = call.value(0)
    step = call.known_ints(1)
    window, length = call.get(2), call.known_ints(3)
    size = length[0] if length else window.shape[0] if window is not None else 0
    if not step or not size or step[0] < 1:
        raise call.unknown("its frames")
    frames = max(0, (x.shape[1] - size) // step[0]) + 1
    bins = size // 2 + 1 if call.attr("onesided", 1) else size
    framed = call.tape.one("aten.im2col", (x,), (x.shape[0], frames, size), x.dtype)
    shape = (x.shape[0], frames, bins, 2)
    return [call.tape.one("aten._fft_r2c", (framed,), shape, x.dtype, {"dim": [2]})]


def copied(call: Call) -> list[Item]:
    """A plain copy of the declared shape."""
    x = call.value(0)
    declared = call.declared()
    shape = declared[0] if declared else x.shape
    if numel_of(shape) == 0 and x.numel:
        shape = x.shape
    return [call.tape.one("aten.clone", (x,), shape, x.dtype)]


MOVEMENT: Mapping[str, Rule] = {
    "Gather": gather, "GatherElements": gather_elements, "GatherND": gather_nd,
    "Scatter": scatter("scatter"), "ScatterElements": scatter("scatter"),
    "ScatterND": scatter("index_put"), "TensorScatter": tensor_scatter, "Pad": pad, "Tile": tile,
    "Resize": resize, "Upsample": resize, "DepthToSpace": depth_to_space,
    "SpaceToDepth": depth_to_space, "OneHot": one_hot, "ReverseSequence": flipped,
    "NonZero": nonzero, "Compress": compress, "Unique": unique, "NonMaxSuppression": suppression,
    "GridSample": grid_sample, "AffineGrid": affine_grid, "DFT": fourier, "STFT": short_fourier,
}  # fmt: skip
"""Rules of the standard domain."""
