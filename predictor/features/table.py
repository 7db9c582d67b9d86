"""`KernelTable`: kernels as columns, the one input of features, network and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from predictor.graph.ir import DTYPE_BYTES, PHASES, KernelGraph
from predictor.graph.ops import DIM_NAMES, OPS

OP_NAMES: tuple[str, ...] = tuple(OPS)
_OP_INDEX: Mapping[str, int] = {name: i for i, name in enumerate(OP_NAMES)}
DIM_INDEX: Mapping[str, int] = {name: i for i, name in enumerate(DIM_NAMES)}

CONTEXTS: tuple[str, ...] = ("step", "in_step", "isolated", "device")
"""`step`: inside a running step, device time alone; `in_step`: one op timed inside a step by
device events (host launch included); `isolated`: one op in a loop (host launch included);
`device`: one op in a loop, device time alone (graph replay, profiler)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """N kernels as columns."""

    op: NDArray[np.int16]
    """Index into `OP_NAMES`."""
    phase: NDArray[np.int8]
    """Index into `PHASES`."""
    dtype: NDArray[np.str_]
    dims: NDArray[np.int64]
    """(N, len(DIM_NAMES)); -1 where the op has no such dimension."""
    flops: NDArray[np.float64]
    read_bytes: NDArray[np.float64]
    write_bytes: NDArray[np.float64]
    launches: NDArray[np.int64]
    context: NDArray[np.int8]
    """Index into `CONTEXTS`."""

    def __len__(self) -> int:
        return int(self.op.shape[0])

    def dim(self, name: str) -> NDArray[np.float64]:
        """One dimension as float, -1 where absent."""
        return self.dims[:, DIM_INDEX[name]].astype(np.float64)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> KernelTable:
        """The rows at `index`."""
        return KernelTable(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def with_context(table: KernelTable, context: str) -> KernelTable:
    """The same kernels under another measuring context (a name of `CONTEXTS`)."""
    filled = np.full(len(table), CONTEXTS.index(context), dtype=np.int8)
    return replace(table, context=filled)


def concat(tables: Sequence[KernelTable]) -> KernelTable:
    """Rows of all tables, in order."""
    names = [f.name for f in fields(KernelTable)]
    return KernelTable(**{n: np.concatenate([getattr(t, n) for t in tables]) for n in names})


def dims_matrix(dims: Sequence[Mapping[str, int]]) -> NDArray[np.int64]:
    """(N, len(DIM_NAMES)) matrix of a sequence of dimension mappings."""
    out = np.full((len(dims), len(DIM_NAMES)), -1, dtype=np.int64)
    for i, row in enumerate(dims):
        for name, value in row.items():
            j = DIM_INDEX.get(name)
            if j is not None:
                out[i, j] = value
    return out


def item_bytes(table: KernelTable) -> NDArray[np.float64]:
    """(N,) bytes of one element of each kernel's dtype."""
    names, inverse = np.unique(table.dtype, return_inverse=True)
    return np.array([DTYPE_BYTES.get(str(name), 4.0) for name in names])[inverse]


def op_index(names: Sequence[str]) -> NDArray[np.int16]:
    """Vocabulary indices of op names."""
    return np.fromiter((_OP_INDEX[n] for n in names), dtype=np.int16, count=len(names))


def repeats_of(graph: KernelGraph) -> NDArray[np.float64]:
    """(N,) times that the step runs each kernel: what totals over kernels weigh them with."""
    kernels = graph.kernels
    return np.fromiter((k.repeats for k in kernels), dtype=np.float64, count=len(kernels))


def table_from_graph(graph: KernelGraph, context: str = "step") -> KernelTable:
    """Columns of a kernel graph's kernels, in stream order."""
    kernels = graph.kernels
    n = len(kernels)
    phase = {p: i for i, p in enumerate(PHASES)}
    return KernelTable(
        op=op_index([k.op for k in kernels]),
        phase=np.fromiter((phase[k.phase] for k in kernels), dtype=np.int8, count=n),
        dtype=np.array([k.dtype for k in kernels], dtype=np.str_),
        dims=dims_matrix([k.dims for k in kernels]),
        flops=np.fromiter((k.flops for k in kernels), dtype=np.float64, count=n),
        read_bytes=np.fromiter((k.read_bytes for k in kernels), dtype=np.float64, count=n),
        write_bytes=np.fromiter((k.write_bytes for k in kernels), dtype=np.float64, count=n),
        launches=np.fromiter((k.launches for k in kernels), dtype=np.int64, count=n),
        context=np.full(n, CONTEXTS.index(context), dtype=np.int8),
    )
