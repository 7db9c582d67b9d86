"""Recipes: the loops that each kind of call becomes (Inductor's decompositions, in short)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from predictor.graph.ir import OpNode, TensorSpec
from predictor.graph.ops import OPS
from predictor.lower.aten_table import packet
from predictor.lower.draft import Draft, as_ints, product, size_bytes
from predictor.lower.inductor_loops import OTHER, Access, Loop, Value
from predictor.lower.inductor_norms import (
    axes_of,
    channel_norm,
    channel_norm_backward,
    group_norm,
    group_norm_backward,
    row_norm,
    row_norm_backward,
    scaled,
    softmax,
    softmax_backward,
)
from predictor.lower.inductor_program import Program, written
from predictor.lower.inductor_rules import MOST_CAT, MOST_WINDOW, Recipe

Write = Callable[[Program, int, OpNode], None]


def write(program: Program, number: int) -> None:
    """Lower one call."""
    recipe = program.recipes[number]
    if recipe is not None:
        _WRITERS[recipe](program, number, program.graph.nodes[number])


def pointwise(program: Program, number: int, node: OpNode) -> None:
    """One value an output; each output sees all operands."""
    if packet(node.op) in _JOINING and len(node.inputs) > 1:
        _cat(program, number, node)
        return
    specs = node.inputs
    if packet(node.op) == "copy" and len(specs) > 1:
        specs = specs[1:2]
    seen = program.operands(specs)
    if packet(node.op) == "threshold_backward":
        seen = [seen[0], *((spec, program.mask_of(value)) for spec, value in seen[1:])]
    outs = [
        (out, program.pointwise(number, seen, out, primary=i == 0))
        for i, out in enumerate(written(node))
    ]
    for out, value in outs:
        program.bind(out, value)


_JOINING = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack"})


def _cat(program: Program, number: int, node: OpNode) -> None:
    """Computed where it is read, in one loop, or by a loop for every operand that needs a copy."""
    out = node.outputs[0]
    operands = program.operands(node.inputs)
    recipes = [program.recipes[n] for n in program.users(number, out)]
    read_by_loops = bool(recipes) and all(r == "pointwise" for r in recipes)
    apart = [not v.stored or _needs_copy(program, s, v) for s, v in operands]
    if program.limits.cat_by_loops and len(operands) <= MOST_CAT:
        open_ = [not v.stored for _, v in operands]
        if (any(open_) and read_by_loops) or all(apart):
            program.bind(out, program.pointwise(number, node.inputs, out, ops=4 * len(operands)))
            return
    made = Value(shape=tuple(out.shape), dtype=out.dtype, phase=node.phase, layout=out.layout)
    for spec, value in operands:
        if value.stored and not _needs_copy(program, spec, value):
            made.parts.append(value)
            continue
        copy = program.pointwise(number, [(spec, value)], spec, primary=False)
        program.store(copy, node.phase)
        made.parts.append(copy)
    program.bind(out, made)


def _needs_copy(program: Program, spec: TensorSpec, value: Value) -> bool:
    """Whether a stored operand of `cat` cannot be written in place: given, or a library's."""
    if spec.numel != value.numel or value.loop < 0 or len(value.used) > 1 or value.kept:
        return True
    return bool(program.loops[value.loop].library)


def reduction(program: Program, number: int, node: OpNode) -> None:
    """Sums, means, extrema, variances."""
    x, outs = node.inputs[0], node.outputs
    if not outs:
        program.library(number, program.drafts[number], written(node))
        return
    numel = max(1, max(s.numel for s in outs))
    if numel >= x.numel:
        pointwise(program, number, node)
        return
    shape = tuple(x.shape)
    dims = as_ints(node.attrs.get("dim"))
    axes = "" if numel == 1 else axes_of(shape, dims)
    if program.channels_last and len(shape) == 4 and _spatial(dims) and shape[1] > 1:
        axes = f"pixels of {shape}"
    values = program.reduce(number, node.inputs, outs, shape=shape, numel=numel, axes=axes)
    for out, value in zip(outs, values, strict=True):
        program.bind(out, value)


def _spatial(dims: tuple[int, ...]) -> bool:
    """Whether an image's pixels are reduced: not the last axes where channels are."""
    return {d % 4 for d in dims} == {2, 3}


def picked_loss(program: Program, number: int, node: OpNode) -> None:
    """One log-probability a target, summed, and how many count."""
    target, outs = node.inputs[1], node.outputs
    picked = program.pointwise(number, node.inputs[:2], target, primary=False, names=True)
    picked.kept = False
    values = program.reduce(
        number, [(target, picked)], outs, shape=tuple(target.shape), numel=outs[0].numel or 1
    )
    for out, value in zip(outs, values, strict=True):
        program.bind(out, value)


def pooling(program: Program, number: int, node: OpNode) -> None:
    """Small windows are loops that read their operand many times, large ones the library's."""
    draft = program.drafts[number][0]
    window = max(1, draft.dims["cols"])
    name, x = packet(node.op), node.inputs[0]
    whole = "adaptive" in name and node.outputs and product(node.outputs[0].shape[-2:]) == 1
    if whole and "backward" not in name and "max" not in name:
        axes = f"pixels of {tuple(x.shape)}" if program.channels_last and x.shape[1] > 1 else ""
        values = program.reduce(
            number, [x], node.outputs[:1], shape=tuple(x.shape), numel=node.outputs[0].numel,
            axes=axes,
        )  # fmt: skip
        program.bind(node.outputs[0], values[0])
        return
    if whole and "backward" in name:
        pointwise(program, number, node)
        return
    if window > MOST_WINDOW and "upsample" not in name:
        program.library(number, program.drafts[number], written(node))
        return
    for spec in node.inputs:
        value = program.value(spec)
        if len(value.reads) > 1:
            program.store(value, node.phase)
    if "max_pool" in name and "backward" in name:
        zeros = program.pointwise(number, [], node.outputs[0], primary=False)
        program.store(zeros, node.phase)
        _scatter(program, number, node, zeros, (node.inputs[0], node.inputs[-1]))
        return
    operands = node.inputs[:1]
    for i, out in enumerate(node.outputs):
        made = program.pointwise(
            number, operands, out, ops=2 * window, primary=i == 0, reach=window
        )
        if window > program.limits.most_reads:
            program.store(made, node.phase)
        program.bind(out, made)


def scattering(program: Program, number: int, node: OpNode) -> None:
    """A copy of the target, or none where it is written in place; then writes by index."""
    target = node.inputs[0]
    value = program.value(target)
    if not node.attrs.get("inplace"):
        value = program.pointwise(number, [target], target, primary=False)
    program.store(value, node.phase)
    _scatter(program, number, node, value, node.inputs[1:])


def embedding_gradient(program: Program, number: int, node: OpNode) -> None:
    """Zeros of the table's size, then rows added to them."""
    zeros = program.pointwise(number, [], node.outputs[0], primary=False)
    program.store(zeros, node.phase)
    _scatter(program, number, node, zeros, node.inputs)


def _scatter(
    program: Program, number: int, node: OpNode, target: Value, specs: tuple[TensorSpec, ...]
) -> None:
    out = written(node)[0]
    source = max(specs, key=lambda s: s.numel, default=out)
    moved = program.pointwise(number, specs, source, primary=False)
    moved.kept = False
    program.store(moved, node.phase)
    loop: Loop = program.loops[moved.loop]
    made = Value(
        shape=tuple(out.shape), dtype=out.dtype, phase=node.phase, layout=out.layout,
        loop=moved.loop, kept=not program.users(number, out),
    )  # fmt: skip
    loop.writes, loop.mutates = [made], True
    loop.reads[Access(target, OTHER)] = min(moved.bytes, target.bytes)
    program.bind(out, made)


def convolution(program: Program, number: int, node: OpNode) -> None:
    """The library's, with the bias (and its gradient) in loops where the backend does so."""
    drafts = [d for d in program.drafts[number] if OPS[d.op].op_class == "conv"]
    others = [d for d in program.drafts[number] if d not in drafts]
    outs = node.outputs
    if program.channels_last and "backward" not in node.op:
        _turned(program, number, node, drafts[0].dims)
    if not others or not program.limits.bias_apart:
        program.library(number, drafts, outs)
    elif "backward" in node.op:
        bias = outs[-1]
        program.library(number, drafts, outs[:-1])
        grad = node.inputs[0]
        shape = tuple(grad.shape)
        axes = axes_of(shape, tuple(i for i in range(len(shape)) if i != 1))
        program.bind(bias, program.reduce(number, [grad], [bias], shape=shape, numel=bias.numel,
                                          axes=axes)[0])  # fmt: skip
    else:
        program.library(number, drafts, outs)
        out = outs[0]
        sizes = program.value(out)
        sizes.used, sizes.kept = (number,), False
        program.bind(out, program.pointwise(number, [out, node.inputs[-1]], out))


def _turned(program: Program, number: int, node: OpNode, dims: Mapping[str, int]) -> None:
    """Copies of a convolution's image and weight in channels-last, where no loop makes them."""
    image, weight = node.inputs[0], node.inputs[1]
    windows = dims["kh"] * dims["kw"] > 1 and dims["c_in"] > dims["groups"]
    for spec, wanted in ((image, image.shape[1] > 1), (weight, windows)):
        value = program.value(spec)
        if wanted and value.loop < 0 and value.stored and not value.parts and len(spec.shape) == 4:
            copy = program.pointwise(number, [(spec, value)], spec, primary=False, ops=1)
            program.store(copy, node.phase)
            copy.kept = True
            program.bind(spec, copy)


def updating(program: Program, number: int, node: OpNode) -> None:
    """All of an optimizer's passes in one multi-tensor kernel."""
    program.library(number, [fused_update(d) for d in program.drafts[number]], node.inputs)


def fused_update(draft: Draft) -> Draft:
    """One pass in place of several: every tensor read once, and written once where it changes."""
    streams = {"adamw": (4.0, 3.0), "sgd": (3.0, 2.0)}.get(draft.op)
    if streams is None or draft.read_bytes is None:
        return draft
    whole = sum(size_bytes(s) for s in draft.reads)
    return Draft(
        op=draft.op, dims=draft.dims, reads=draft.reads, writes=draft.writes, dtype=draft.dtype,
        read_bytes=streams[0] * whole, write_bytes=streams[1] * whole, flops=draft.flops,
        name=draft.name,
    )  # fmt: skip


def library(program: Program, number: int, node: OpNode) -> None:
    """Left whole."""
    program.library(number, program.drafts[number], written(node))


_WRITERS: Mapping[Recipe, Write] = {
    "pointwise": pointwise, "reduction": reduction, "row_norm": row_norm, "scaled": scaled,
    "channel_norm": channel_norm, "row_norm_backward": row_norm_backward,
    "group_norm": group_norm, "group_norm_backward": group_norm_backward,
    "channel_norm_backward": channel_norm_backward, "softmax": softmax,
    "softmax_backward": softmax_backward, "picked_loss": picked_loss, "pooling": pooling,
    "scattering": scattering, "embedding_gradient": embedding_gradient,
    "convolution": convolution, "updating": updating, "library": library,
}  # fmt: skip
