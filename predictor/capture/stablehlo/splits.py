"""How each kind of operation passes the split of its operands on, one rule a kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from predictor.capture.stablehlo.sharding import Mesh, Split
from predictor.cost.hlo import numbers, short
from predictor.graph.ir import OpNode


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an operation needs of its operands, and what it gives."""

    inputs: tuple[Split, ...]
    outputs: tuple[Split, ...]
    summed: tuple[str, ...] = ()
    """Axes over which the results are still to be summed."""


def wanted_of(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """Splits of the operands as the operation takes them, and of its results."""
    if not any(axes for split in given for axes in split):
        return Wanted(tuple(given), tuple(((),) * len(s.shape) for s in node.outputs))
    rule = _RULES.get(short(node.op), _same_shape)
    return rule(node, given, mesh)


def _whole(rank: int) -> Split:
    return ((),) * rank


class _Labels:
    """Splits by label: dimensions of one label are one dimension of the operation.

    An axis serves one label. Labels take theirs in the order in which operands offer them, the
    largest operand first.
    """

    def __init__(self) -> None:
        self.axes: dict[str, tuple[str, ...]] = {}
        self.taken: set[str] = set()

    def offer(self, labels: Sequence[str], split: Split) -> None:
        for label, axes in zip(labels, split, strict=True):
            if axes and not self.axes.get(label) and self.taken.isdisjoint(axes):
                self.axes[label] = axes
                self.taken.update(axes)

    def split(self, labels: Sequence[str]) -> Split:
        return tuple(self.axes.get(label, ()) for label in labels)


def _labelled(
    node: OpNode, given: Sequence[Split], operands: Sequence[Sequence[str]],
    results: Sequence[Sequence[str]], mesh: Mesh,
) -> Wanted:  # fmt: skip
    """The rule of an operation whose dimensions are labelled.

    A label `!…` cannot be split. A label that no result has is summed. Each operand in turn offers
    its splits first; the order that moves and makes the fewest elements is taken.
    """
    kept = {label for labels in results for label in labels}
    used = {label for labels in operands for label in labels}
    offers = [
        tuple(
            () if label.startswith("!") else axes for label, axes in zip(labels, split, strict=True)
        )
        for labels, split in zip(operands, given, strict=True)
    ]
    best: tuple[float, Wanted] | None = None
    order = sorted(range(len(operands)), key=lambda i: -node.inputs[i].numel)
    for lead in [i for i in order if any(offers[i])] or order[:1]:
        found = _Labels()
        for i in (lead, *(j for j in order if j != lead)):
            found.offer(operands[i], offers[i])
        summed = tuple(a for label in sorted(used - kept) for a in found.axes.get(label, ()))
        wanted = Wanted(
            tuple(found.split(labels) for labels in operands),
            tuple(found.split(labels) for labels in results),
            summed,
        )
        cost = _moved(node, given, wanted, mesh)
        if best is None or cost < best[0]:
            best = cost, wanted
    assert best is not None
    return best[1]


def _moved(node: OpNode, given: Sequence[Split], wanted: Wanted, mesh: Mesh) -> float:
    """Elements that one device gathers, makes and reduces."""
    total = 0.0
    for spec, old, new in zip(node.inputs, given, wanted.inputs, strict=True):
        if any(set(a) - set(b) for a, b in zip(old, new, strict=True)):
            total += spec.numel / mesh.count([a for axes in new for a in axes])
    for spec, split in zip(node.outputs, wanted.outputs, strict=True):
        made = spec.numel / mesh.count([a for axes in split for a in axes])
        total += made * (3 if wanted.summed else 1)
    return total


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def _same_shape(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """Elementwise: dimensions of operands of the result's shape are the result's."""
    shape = node.outputs[0].shape if node.outputs else ()
    labels = _names("d", len(shape))
    operands = [
        labels if spec.shape == shape else [f"!{i}.{j}" for j in range(len(spec.shape))]
        for i, spec in enumerate(node.inputs)
    ]
    results = [
        labels if spec.shape == shape else [f"!o{i}.{j}" for j in range(len(spec.shape))]
        for i, spec in enumerate(node.outputs)
    ]
    return _labelled(node, given, operands, results, mesh)


def _broadcast(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    places = numbers(node, "broadcast_dimensions")
    source, target = node.inputs[0].shape, node.outputs[0].shape
    labels = _names("d", len(target))
    operand = [
        labels[place] if source[i] == target[place] else f"!{i}" for i, place in enumerate(places)
    ]
    return _labelled(node, given, [operand], [labels], mesh)


def _transpose(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    order = numbers(node, "permutation")
    labels = _names("d", len(order))
    return _labelled(node, given, [labels], [[labels[i] for i in order]], mesh)


def _reshape(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """A dimension keeps its split where it is the first of the ones that it becomes or joins."""
    source, target = node.inputs[0].shape, node.outputs[0].shape
    left, right = [f"!a{i}" for i in range(len(source))], [f"!b{i}" for i in range(len(target))]
    ours = [i for i, size in enumerate(source) if size != 1]
    theirs = [j for j, size in enumerate(target) if size != 1]
    while ours and theirs:
        first, second = ours.pop(0), theirs.pop(0)
        a, b = source[first], target[second]
        ways = max(1, mesh.count(given[0][first]))
        if a % ways == 0 and b % ways == 0:
            left[first] = right[second] = f"g{first}"
        while a != b:
            if a < b and ours:
                a *= source[ours.pop(0)]
            elif b < a and theirs:
                b *= target[theirs.pop(0)]
            else:
                break
    return _labelled(node, given, [left], [right], mesh)


def _reduce(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    axes = numbers(node, "dimensions")
    labels = _names("d", len(node.inputs[0].shape))
    kept = [label for i, label in enumerate(labels) if i not in axes]
    operands = [labels if s.shape == node.inputs[0].shape else [] for s in node.inputs]
    return _labelled(node, given, operands, [kept for _ in node.outputs], mesh)


def _dot(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    lhs, rhs = len(node.inputs[0].shape), len(node.inputs[1].shape)
    left, right = [f"m{i}" for i in range(lhs)], [f"n{i}" for i in range(rhs)]
    pairs = (
        ("b", numbers(node, "lhs_batch"), numbers(node, "rhs_batch")),
        ("k", numbers(node, "lhs_contract", (lhs - 1,)), numbers(node, "rhs_contract", (0,))),
    )
    for name, ours, theirs in pairs:
        for count, (i, j) in enumerate(zip(ours, theirs, strict=True)):
            left[i] = right[j] = f"{name}{count}"
    batch = [left[i] for i in numbers(node, "lhs_batch")]
    result = (
        batch + [x for x in left if x.startswith("m")] + [x for x in right if x.startswith("n")]
    )
    return _labelled(node, given, [left, right], [result], mesh)


def _convolution(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """Batch and features split like a product's sides, places like those of the result.

    A device then needs the places at the borders of its part from its neighbours. In the gradient
    of the weights the window runs over all places, which are summed.
    """
    shapes = [s.shape for s in (*node.inputs[:2], node.outputs[0])]
    x, kernel, out = ([f"!{i}.{j}" for j in range(len(n))] for i, n in enumerate(shapes))
    grouped = any(numbers(node, f"{n}_group_count", (1,))[0] > 1 for n in ("feature", "batch"))
    x[numbers(node, "input_batch_dimension")[0]] = "b"
    out[numbers(node, "output_batch_dimension")[0]] = "b"
    if not grouped:
        x[numbers(node, "input_feature_dimension")[0]] = "k"
        kernel[numbers(node, "kernel_input_feature_dimension")[0]] = "k"
        kernel[numbers(node, "kernel_output_feature_dimension")[0]] = "n"
        out[numbers(node, "output_feature_dimension")[0]] = "n"
    for axis, (i, j, k) in enumerate(_places(node)):
        size, window, made = shapes[0][i], shapes[1][j], shapes[2][k]
        stride, spread = _along(node, axis, "window_strides", "lhs_dilation")
        if made == -(-size * spread // stride):
            x[i] = out[k] = f"s{axis}"
        elif window > made:
            x[i] = kernel[j] = f"z{axis}"
    return _labelled(node, given, [x, kernel], [out], mesh)


def _places(node: OpNode) -> list[tuple[int, int, int]]:
    """Spatial dimensions of a convolution's input, window and output, together."""
    names = ("input_spatial_dimensions", "kernel_spatial_dimensions", "output_spatial_dimensions")
    return list(zip(*(numbers(node, name) for name in names), strict=True))


def _along(node: OpNode, axis: int, *names: str) -> list[int]:
    """Numbers of a convolution along one of its spatial axes; 1 where it states none."""
    return [(numbers(node, name) or [1] * (axis + 1))[axis] for name in names]


def borders(node: OpNode, split: Split) -> list[tuple[int, int]]:
    """What a convolution's device needs of its neighbours: a dimension and its places, a side each.

    A window of k places that moves by s reaches k - s places over a part.
    """
    found: list[tuple[int, int]] = []
    if short(node.op) != "convolution":
        return found
    for axis, (i, j, _) in enumerate(_places(node)):
        names = ("window_strides", "lhs_dilation", "rhs_dilation")
        stride, spread, holes = _along(node, axis, *names)
        window = node.inputs[1].shape[j]
        if not split[i] or window > node.inputs[0].shape[i] // 2:
            continue
        over = max(0, (window - 1) * holes + 1 - stride)
        sides = (over // 2, over - over // 2)
        found += [(i, -(-side // spread)) for side in sides if side > 0]
    return found


def _sized(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """Slices, pads, concatenations, windows: dimensions that keep their size keep their split."""
    shape = node.outputs[0].shape
    labels = [f"d{i}" for i in range(len(shape))]
    operands = [
        [
            label if len(spec.shape) == len(shape) and spec.shape[i] == shape[i] else f"!{i}"
            for i, label in enumerate(labels[: len(spec.shape)])
        ]
        for spec in node.inputs
    ]
    return _labelled(node, given, operands, [labels for _ in node.outputs], mesh)


def _gather(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """Rows follow the indices; what is taken of each row follows the table."""
    table, index, out = node.inputs[0].shape, node.inputs[1].shape, node.outputs[0].shape
    batch = numbers(node, "operand_batching_dims")
    taken = numbers(node, "slice_sizes")
    ours, theirs, result = _windows(
        node, table, index, out, windows=numbers(node, "offset_dims"),
        inserted={*numbers(node, "collapsed_slice_dims"), *batch},
        batch=(batch, numbers(node, "start_indices_batching_dims")),
        whole=[size == side for size, side in zip(taken, table, strict=True)],
    )  # fmt: skip
    return _labelled(node, given, [ours, theirs], [result], mesh)


def _scatter(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """Rows that are added are a sum over the devices that hold them."""
    if len(node.inputs) != 3:
        return _nothing(node, given, mesh)
    target, index, updates = (s.shape for s in node.inputs)
    batch, windows = numbers(node, "input_batching_dims"), numbers(node, "update_window_dims")
    inserted = {*numbers(node, "inserted_window_dims"), *batch}
    sizes = {
        i: updates[place] for place, i in zip(windows, _others(target, inserted), strict=False)
    }
    ours, theirs, rows = _windows(
        node, target, index, updates, windows=windows, inserted=inserted,
        batch=(batch, numbers(node, "scatter_indices_batching_dims")),
        whole=[sizes.get(i) == side for i, side in enumerate(target)],
    )  # fmt: skip
    return _labelled(node, given, [ours, theirs, rows], [ours], mesh)


def _windows(
    node: OpNode, table: Sequence[int], index: Sequence[int], rows: Sequence[int], *,
    windows: Sequence[int], inserted: set[int], batch: tuple[Sequence[int], Sequence[int]],
    whole: Sequence[bool],
) -> tuple[list[str], list[str], list[str]]:  # fmt: skip
    """Labels of a table's dimensions, of the indices into it, and of the rows read or written.

    Args:
        node: the gather or scatter.
        table: its shape.
        index: that of the indices.
        rows: that of what is read or written.
        windows: dimensions of the rows that run through the table.
        inserted: dimensions of the table that the rows do not have.
        batch: dimensions of the table and of the indices that run together.
        whole: dimensions of the table that a row takes from end to end.
    """
    vector = numbers(node, "index_vector_dim")[0]
    ours = [f"!t{i}" for i in range(len(table))]
    theirs = [f"!i{i}" for i in range(len(index))]
    labels = [f"!o{i}" for i in range(len(rows))]
    for place, i in zip(windows, _others(table, inserted), strict=False):
        if whole[i]:
            ours[i] = labels[place] = f"w{i}"
    for place, i in zip(_others(rows, windows), _others(index, {vector}), strict=False):
        theirs[i] = labels[place] = f"r{i}"
    for i, j in zip(*batch, strict=False):
        ours[i] = theirs[j]
    return ours, theirs, labels


def _others(shape: Sequence[int], without: Collection[int]) -> list[int]:
    """Dimensions of a shape without some."""
    return [i for i in range(len(shape)) if i not in without]


def _nothing(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """Operations that work on whole tensors, or that exchange data themselves."""
    return Wanted(
        tuple(_whole(len(s.shape)) for s in node.inputs),
        tuple(_whole(len(s.shape)) for s in node.outputs),
    )


def _as_given(node: OpNode, given: Sequence[Split], mesh: Mesh) -> Wanted:
    """The first dimension, where it is the batch of operands and results alike."""
    lead = next((s.shape[0] for s in node.inputs if s.shape), 0)
    axes = next((split[0] for split in given if split and split[0]), ())
    if not axes or not all(s.shape and s.shape[0] == lead for s in node.outputs):
        return _nothing(node, given, mesh)

    def led(shape: Sequence[int], split: Split | None) -> Split:
        own = axes if shape and shape[0] == lead and (split is None or split[0] == axes) else ()
        return (own, *_whole(max(0, len(shape) - 1)))[: len(shape)]

    return Wanted(
        tuple(led(s.shape, split) for s, split in zip(node.inputs, given, strict=True)),
        tuple(led(s.shape, None) for s in node.outputs),
    )


_RULES: Mapping[str, Callable[[OpNode, Sequence[Split], Mesh], Wanted]] = {
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "reduce": _reduce,
    "dot_general": _dot,
    "dot": _dot,
    "convolution": _convolution,
    "gather": _gather,
    "scatter": _scatter,
    **dict.fromkeys(
        ("slice", "dynamic_slice", "pad", "concatenate", "reverse", "dynamic_update_slice",
         "reduce_window", "sort", "iota"), _sized,
    ),
    **dict.fromkeys(
        ("select_and_scatter", "custom_call", "rng_bit_generator", "fft", "top_k", "cholesky",
         "triangular_solve"), _as_given,
    ),
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"),
        _nothing,
    ),
}  # fmt: skip
"""Operations that are not elementwise."""
