"""Recipes of norms and softmax: statistics of rows or channels, and what is done with them."""

from __future__ import annotations

from predictor.graph.ir import OpNode, TensorSpec
from predictor.lower.draft import as_ints, product
from predictor.lower.inductor_program import Operand, Program


def axes_of(shape: tuple[int, ...], dims: tuple[int, ...]) -> str:
    """Empty for the last axes, else which of `shape` are reduced."""
    if not dims:
        return ""
    reduced = {d % len(shape) for d in dims}
    real = [i for i, size in enumerate(shape) if size > 1]
    kept = [i for i in real if i not in reduced]
    if not kept or all(i > kept[-1] for i in reduced if shape[i] > 1):
        return ""
    return f"{[shape[i] for i in real]} over {[real.index(i) for i in sorted(reduced & {*real})]}"


def _rows_of(shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The shape as rows and columns."""
    return (rows, max(1, product(shape) // max(1, rows)))


def _stat(like: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """A small fp32 result, one a row, that broadcasts over `like`."""
    return TensorSpec(
        shape=shape, dtype="fp32", storage_id=-1, storage_bytes=4 * product(shape),
        touched_bytes=4 * product(shape), layout=like.layout,
    )  # fmt: skip


def row_norm(program: Program, number: int, node: OpNode) -> None:
    """Layer and RMS norms: statistics of rows, then every element."""
    _normalised(program, number, node)


def _normalised(program: Program, number: int, node: OpNode) -> None:
    x, out = node.inputs[0], node.outputs[0]
    value = program.value(x)
    stats = _row_stats(program, number, [(x, value)], x, 1)[0]
    operands: list[Operand] = [(x, value), stats]
    operands += program.operands(node.inputs[1:])
    made = program.pointwise(number, operands, out, ops=6)
    program.bind(out, made)
    for spec in node.outputs[1:]:
        program.bind(spec, stats[1])
        stats[1].kept |= any(
            program.graph.nodes[n].phase != node.phase for n in program.users(number, spec)
        )


def _row_stats(
    program: Program, number: int, operands: list[Operand], like: TensorSpec, count: int
) -> list[Operand]:
    """`count` results a row of one reduction over the last axes of `like`."""
    rows = program.drafts[number][0].dims["rows"]
    shape = tuple(like.shape)
    lead, n = [], 1
    for size in shape:
        if n >= rows:
            break
        lead.append(size)
        n *= size
    if n != rows:  # groups of channels: rows end inside an axis
        lead = [rows]
    stat = _stat(like, (*lead, *([1] * (len(shape) - len(lead)))))
    values = program.reduce(
        number, operands, [stat] * count, shape=shape, numel=rows, primary=False
    )
    return [(stat, v) for v in values]


def softmax(program: Program, number: int, node: OpNode) -> None:
    """Largest of a row, sum of its exponentials, then every element."""
    x, out = node.inputs[0], node.outputs[0]
    value, shape = program.value(x), tuple(x.shape)
    dims = as_ints(node.attrs.get("dim")) or (-1,)
    axes = axes_of(shape, dims)
    length = product([shape[d] for d in dims]) if shape else 1
    numel = max(1, x.numel // max(1, length))
    reduced = {d % max(1, len(shape)) for d in dims}
    stat = _stat(x, tuple(1 if i in reduced else s for i, s in enumerate(shape)))
    found: list[Operand] = [(x, value)]
    if length > 1:
        for _ in range(2):
            own = program.reduce(
                number, found, [stat], shape=shape, numel=numel, axes=axes, primary=False
            )
            found.append((stat, own[0]))
    program.bind(out, program.pointwise(number, found, out, ops=6))


def softmax_backward(program: Program, number: int, node: OpNode) -> None:
    """One sum a row, then every element."""
    grad, y, out = node.inputs[0], node.inputs[1], node.outputs[0]
    shape = tuple(grad.shape)
    dims = as_ints(node.attrs.get("dim")) or (-1,)
    length = product([shape[d] for d in dims]) if shape else 1
    reduced = {d % max(1, len(shape)) for d in dims}
    stat = _stat(grad, tuple(1 if i in reduced else s for i, s in enumerate(shape)))
    operands = program.operands([grad, y])
    sums = program.reduce(
        number, operands, [stat], shape=shape, numel=max(1, grad.numel // max(1, length)),
        axes=axes_of(shape, dims), primary=False,
    )  # fmt: skip
    program.bind(out, program.pointwise(number, [*operands, (stat, sums[0])], out, ops=4))


def row_norm_backward(program: Program, number: int, node: OpNode) -> None:
    """Two sums a row and the gradient of x; sums down the columns for weight and bias."""
    rows = program.drafts[number][0].dims["rows"]
    x = node.inputs[1]
    seen = program.operands(node.inputs)
    outs = list(node.outputs)
    if outs and outs[0].numel == x.numel:
        sums = _row_stats(program, number, seen, x, 2)
        made = program.pointwise(number, [*seen, *sums], outs[0], ops=10)
        program.bind(outs.pop(0), made)
    small = [o for o in outs if o.numel < x.numel or rows == 1]
    if small:
        columns = program.reduce(
            number, seen[:4], small, shape=tuple(x.shape), numel=small[0].numel,
            axes=f"columns of {rows} x {x.numel // rows}" if rows > 1 else "", primary=True,
        )  # fmt: skip
        for out, value in zip(small, columns, strict=True):
            program.bind(out, value)


def group_norm(program: Program, number: int, node: OpNode) -> None:
    """Statistics of (sample, group) rows, then every element."""
    _normalised(program, number, node)


def group_norm_backward(program: Program, number: int, node: OpNode) -> None:
    """Sums a channel of each sample, sums of them a group, the gradient of x, sums a channel."""
    grad, x = node.inputs[0], node.inputs[1]
    seen = program.operands(node.inputs)
    shape = tuple(x.shape)
    stat = _stat(x, (*shape[:2], *([1] * (len(shape) - 2))))
    sums = program.reduce(
        number, program.operands([grad, x]), [stat, stat], shape=shape, numel=stat.numel,
        primary=False,
    )  # fmt: skip
    pair: list[Operand] = [(stat, v) for v in sums]
    rows = program.drafts[number][0].dims["rows"]
    group = _stat(x, (rows,))
    terms = program.reduce(
        number, [*pair, *seen[2:]], [group, group], shape=(rows, max(1, stat.numel // rows)),
        numel=rows, primary=False,
    )  # fmt: skip
    outs = list(node.outputs)
    if outs and outs[0].numel == x.numel:
        more: list[Operand] = [(group, v) for v in terms]
        program.bind(outs[0], program.pointwise(number, [*seen, *more], outs[0], ops=8))
        outs.pop(0)
    if outs:
        channels = program.reduce(
            number, [*pair, *seen[2:4]], outs, shape=shape[:2], numel=outs[0].numel,
            axes=axes_of(shape[:2], (0,)),
        )  # fmt: skip
        for out, value in zip(outs, channels, strict=True):
            program.bind(out, value)


def channel_norm(program: Program, number: int, node: OpNode) -> None:
    """Training batch norm: statistics of channels, running ones, then every element."""
    x, out = node.inputs[0], node.outputs[0]
    shape, channels = tuple(x.shape), program.drafts[number][0].dims["rows"]
    value = program.value(x)
    stat = _stat(x, (1, channels, *([1] * (len(shape) - 2))))
    axes = axes_of(shape, tuple(i for i in range(len(shape)) if i != 1))
    stats = program.reduce(
        number, [(x, value)], [stat, stat], shape=shape, numel=channels, axes=axes, primary=False,
        inner=not program.channels_last,
    )  # fmt: skip
    pair: list[Operand] = [(stat, v) for v in stats]
    weights = [s for s in node.inputs[1:] if s.role != "buffer"]
    for running in (s for s in node.inputs[1:] if s.role == "buffer" and s.numel == channels):
        kept = program.pointwise(number, [running, pair[0]], running, primary=False)
        program.store(kept, node.phase)
        program.bind(running, kept)
    operands: list[Operand] = [(x, value), *pair, *program.operands(weights)]
    program.bind(out, program.pointwise(number, operands, out, ops=8))
    for spec, (_, found) in zip(node.outputs[1:], pair, strict=False):
        found.kept = True
        program.bind(spec, found)


def channel_norm_backward(program: Program, number: int, node: OpNode) -> None:
    """Two sums a channel, then the gradient of x."""
    x = node.inputs[0]
    shape, channels = tuple(x.shape), program.drafts[number][0].dims["rows"]
    seen = program.operands(node.inputs)
    whole = [o for o in seen if o[0].numel == x.numel]
    stat = _stat(x, (1, channels, *([1] * (len(shape) - 2))))
    axes = axes_of(shape, tuple(i for i in range(len(shape)) if i != 1))
    sums = program.reduce(
        number, seen, [stat, stat], shape=shape, numel=channels, axes=axes, primary=False,
        inner=True,
    )  # fmt: skip
    pair: list[Operand] = [(stat, v) for v in sums]
    small = [o for o in seen if o[0].numel < x.numel]
    if node.outputs and node.outputs[0].numel == x.numel:
        out = node.outputs[0]
        program.bind(out, program.pointwise(number, [*whole, *pair, *small], out, ops=12))
    for spec, (_, found) in zip(node.outputs[1:], pair, strict=False):
        found.kept = True
        program.bind(spec, found)


def scaled(program: Program, number: int, node: OpNode) -> None:
    """Batch norm with fixed statistics: pointwise."""
    out = node.outputs[0]
    program.bind(out, program.pointwise(number, node.inputs, out, ops=9))
