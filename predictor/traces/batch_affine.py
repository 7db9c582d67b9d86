"""Kernels as exact affine functions of the batch: every integer is `const + slope * batch`.

A program is captured once, at a large prime batch. What the batch multiplies is then what the
prime divides, so the captured calls can be rescaled to other batches exactly and lowered again:
a line through two of them, and a third that must lie on it. What is no line, or cannot be told
apart, raises `NotAffineError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from predictor.cost.optimizers import OPTIMIZER_CALLS
from predictor.errors import PredictorError
from predictor.features.table import OP_NAMES
from predictor.graph.ir import DTYPE_BYTES, PHASES, Kernel, KernelGraph, OpGraph, OpNode, TensorSpec
from predictor.graph.ops import OPS
from predictor.lower.eager import lower_eager

CAPTURE_BATCH = 509
"""Prime, and no size of a usual model: what it divides comes from the batch."""
SECOND_BATCH = 1021
CHECKED_BATCH = 2
"""Where the line through both must pass too."""
MOST_DIMS = max(len(op.dims) for op in OPS.values())
DTYPE_CODES: tuple[str, ...] = ("half", *DTYPE_BYTES)
"""`half` stands for fp16 or bf16 as the reader chooses: the two cost the same bytes."""
HALF = "half"
HELD: frozenset[str] = frozenset({"parameter", "buffer", "state"})
"""Roles of storages that do not grow with the batch."""
NUMBERS: tuple[str, ...] = ("flops", "read_bytes", "write_bytes", "launches")
HEAD_COLUMNS = 3
COLUMNS_AT_A_BATCH = HEAD_COLUMNS + MOST_DIMS + len(NUMBERS)
COLUMNS = HEAD_COLUMNS + 2 * (MOST_DIMS + len(NUMBERS))
"""Columns of a kernel: op, phase, dtype; then dims and numbers, all constants before all slopes."""


class NotAffineError(PredictorError):
    """A kernel's sizes are no exact affine function of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineGraph:
    """N kernels in stream order and the data edges between them, for any batch."""

    rows: NDArray[np.int64]
    """(N, COLUMNS): index into `OP_NAMES`, `PHASES` and `DTYPE_CODES`; the op's dimensions in its
    own order, then `NUMBERS`, as constants; the same again as slopes."""
    edges: NDArray[np.int64]
    """(E, 2) producer and consumer, sorted by consumer, then producer."""
    host_calls: tuple[int, ...]
    """Framework calls by phase, in the order of `PHASES`."""

    def values(self, batch: int) -> NDArray[np.int64]:
        """(N, HEAD_COLUMNS + MOST_DIMS + 4) kernels at one batch."""
        half = HEAD_COLUMNS + MOST_DIMS + len(NUMBERS)
        moved = self.rows[:, HEAD_COLUMNS:half] + batch * self.rows[:, half:]
        return np.hstack([self.rows[:, :HEAD_COLUMNS], moved])


def affine_graph(graph: OpGraph, *, half: str | None = None) -> AffineGraph:
    """A captured program as affine kernels.

    Args:
        graph: captured at `CAPTURE_BATCH`.
        half: the dtype that autocast ran in (`fp16`, `bf16`); it is stored as `half`.

    Raises:
        NotAffineError: some size is no line, or its batch cannot be told from its other sizes.
        CostRuleError: a call has no cost rule.
    """
    if graph.workload.batch != CAPTURE_BATCH:
        raise NotAffineError(
            f"captured at batch {graph.workload.batch}: capture at {CAPTURE_BATCH}"
        )
    first = lower_eager(graph)
    second = lower_eager(rescaled(graph, CAPTURE_BATCH, SECOND_BATCH))
    if first.edges != second.edges or first.host_ops != second.host_ops:
        raise NotAffineError("the kernels' edges depend on the batch")
    low, high = kernel_rows(first, half=half), kernel_rows(second, half=half)
    if low.shape != high.shape or (low[:, :HEAD_COLUMNS] != high[:, :HEAD_COLUMNS]).any():
        raise NotAffineError("which kernels run depends on the batch")
    rise = (high - low)[:, HEAD_COLUMNS:]
    slope, rest = np.divmod(rise, SECOND_BATCH - CAPTURE_BATCH)
    if rest.any():
        raise NotAffineError(f"no line: {_named(first.kernels, rest)}")
    constant = low[:, HEAD_COLUMNS:] - slope * CAPTURE_BATCH
    found = AffineGraph(
        rows=np.hstack([low[:, :HEAD_COLUMNS], constant, slope]),
        edges=edge_rows(first),
        host_calls=host_calls(first),
    )
    third = lower_eager(rescaled(graph, CAPTURE_BATCH, CHECKED_BATCH))
    unlike = difference(found, third, half=half)
    if unlike:
        raise NotAffineError(f"no line: {unlike}")
    return found


def difference(graph: AffineGraph, real: KernelGraph, *, half: str | None = None) -> str:
    """What a capture at its own batch has that the affine graph has not; empty when equal.

    Args:
        graph: affine kernels.
        real: kernels of the same program captured at another batch.
        half: the dtype that autocast ran in.
    """
    batch = real.workload.batch or 0
    wanted, found = kernel_rows(real, half=half), graph.values(batch)
    if wanted.shape != found.shape:
        return f"batch {batch}: {len(wanted)} kernels, not {len(found)}"
    if (wanted != found).any():
        return f"batch {batch}: {_named(real.kernels, wanted != found)}"
    if not np.array_equal(edge_rows(real), graph.edges):
        return f"batch {batch}: other edges"
    if host_calls(real) != graph.host_calls:
        return f"batch {batch}: other framework calls"
    return ""


def kernel_rows(graph: KernelGraph, *, half: str | None = None) -> NDArray[np.int64]:
    """(N, HEAD_COLUMNS + MOST_DIMS + 4) integers of a kernel graph; absent dimensions are -1.

    Raises:
        NotAffineError: FLOPs or bytes that are no whole number.
    """
    codes = {name: i for i, name in enumerate(DTYPE_CODES)}
    codes |= {half: codes[HALF]} if half is not None else {}
    ops = {name: i for i, name in enumerate(OP_NAMES)}
    phases = {name: i for i, name in enumerate(PHASES)}
    rows = np.full((len(graph.kernels), HEAD_COLUMNS + MOST_DIMS + len(NUMBERS)), -1.0)
    for row, kernel in zip(rows, graph.kernels, strict=True):
        names = OPS[kernel.op].dims
        row[:HEAD_COLUMNS] = ops[kernel.op], phases[kernel.phase], codes[kernel.dtype]
        row[HEAD_COLUMNS : HEAD_COLUMNS + len(names)] = [kernel.dims.get(n, -1) for n in names]
        row[-len(NUMBERS) :] = [getattr(kernel, name) for name in NUMBERS]
    whole = rows.astype(np.int64)
    if (whole != rows).any():
        raise NotAffineError(f"no whole number: {_named(graph.kernels, whole != rows)}")
    return whole


def edge_rows(graph: KernelGraph) -> NDArray[np.int64]:
    """(E, 2) edges sorted by consumer, then producer."""
    edges = np.array(sorted(graph.edges, key=lambda e: (e[1], e[0])), dtype=np.int64)
    return edges.reshape(-1, 2)


def host_calls(graph: KernelGraph) -> tuple[int, ...]:
    """Framework calls by phase, in the order of `PHASES`."""
    return tuple(graph.host_ops.get(phase, 0) for phase in PHASES)


def _named(kernels: Sequence[Kernel], wrong: NDArray[np.int64] | NDArray[np.bool_]) -> str:
    row, column = (int(i[0]) for i in np.nonzero(wrong))
    kernel = kernels[row]
    if wrong.shape[1] == COLUMNS_AT_A_BATCH:
        column -= HEAD_COLUMNS
        if column < 0:
            return f"kernel {row} ({kernel.name}, {kernel.phase}) is another"
    names = [*OPS[kernel.op].dims, *[""] * (MOST_DIMS - len(OPS[kernel.op].dims)), *NUMBERS]
    return f"kernel {row} ({kernel.name}, {kernel.phase}) in {names[column]}"


# -- rescaling --------------------------------------------------------------------------------


def rescaled(graph: OpGraph, old: int, new: int) -> OpGraph:
    """The calls of a program at batch `new`, from those captured at the prime batch `old`.

    Raises:
        NotAffineError: a tensor whose share of the batch cannot be read from its sizes.
    """
    done: dict[int, TensorSpec] = {}

    def one(spec: TensorSpec) -> TensorSpec:
        found = done.get(id(spec))
        if found is None:
            found = done[id(spec)] = _rescaled_spec(spec, old, new)
        return found

    nodes = tuple(
        replace(
            node,
            inputs=tuple([one(s) for s in node.inputs]),
            outputs=tuple([one(s) for s in node.outputs]),
            attrs=_rescaled_attrs(node, old, new),
        )
        for node in graph.nodes
    )
    return replace(graph, workload=replace(graph.workload, batch=new), nodes=nodes)


def _rescaled_spec(spec: TensorSpec, old: int, new: int) -> TensorSpec:
    """A tensor at another batch; views of weights may be broadcast along it."""
    if not any(size and size % old == 0 for size in spec.shape):
        if spec.role in HELD:
            return spec
        return replace(spec, storage_bytes=_scaled(spec.storage_bytes, old, new),
                       touched_bytes=_scaled(spec.touched_bytes, old, new))  # fmt: skip
    shape = tuple([_scaled(size, old, new) for size in spec.shape])
    whole = int(spec.numel * DTYPE_BYTES[spec.dtype])
    broadcast = 0 < spec.touched_bytes < whole and whole % spec.touched_bytes == 0
    if spec.touched_bytes % old and not broadcast:
        raise NotAffineError(f"overlapping windows of shape {spec.shape}: bytes are no multiple")
    if spec.role in HELD:
        if not broadcast:
            raise NotAffineError(f"a {spec.role} of shape {spec.shape} has a size of the batch")
        return replace(spec, shape=shape)
    return replace(
        spec,
        shape=shape,
        storage_bytes=_scaled(spec.storage_bytes, old, new),
        touched_bytes=_scaled(spec.touched_bytes, old, new),
    )


def _scaled(value: int, old: int, new: int) -> int:
    return value // old * new if value % old == 0 else value


def _rescaled_attrs(node: OpNode, old: int, new: int) -> Mapping[str, object]:
    if node.op in OPTIMIZER_CALLS:
        return node.attrs
    return {name: _rescaled_value(value, old, new) for name, value in node.attrs.items()}


def _rescaled_value(value: object, old: int, new: int) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, list)):
        return value
    if isinstance(value, int):
        return _scaled(value, old, new)
    return [_rescaled_value(item, old, new) for item in value]
