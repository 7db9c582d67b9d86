"""The measured-data schema: kernel rows, op rows (in-step) and step rows as DataFrames.

Kernel rows have one launched kernel (or one framework call) each, step rows one model run each.
Times are microseconds. `part` is the publisher's own train/test division, not a split of ours.
An unknown number is NaN, an unknown text is empty; `docs/data.md` says what each column holds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.cost.rules import MANY_LAUNCHES, launches
from predictor.features.table import CONTEXTS, KernelTable, op_index
from predictor.graph.ir import PHASES
from predictor.graph.ops import DIM_NAMES, OPS
from predictor.traces.files import SourceFile, encodable

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 3
VALUE_SHOWN = 80
"""Characters of a refused value that a reject keeps."""

KERNEL_COLUMNS: tuple[str, ...] = (
    "row_id", "source", "file", "row", "licence", "device", "op", "phase", "dtype", "scheme",
    "context", "flops", "read_bytes", "write_bytes", "latency_us", "spread_us", "repeats",
    "framework", "framework_version", "library", "execution", "layout", "amp", "tf32",
    "routing", "interconnect", "ranks_per_node", "power_limit_w", "clock_mhz", "model", "part",
    "flag",
    *(f"dim_{d}" for d in DIM_NAMES),
)  # fmt: skip
STEP_COLUMNS: tuple[str, ...] = (
    "row_id", "source", "file", "row", "licence", "device", "graph", "model", "mode", "batch",
    "seq", "size", "dtype", "execution", "layout", "framework", "framework_version", "library",
    "devices", "plan", "micro_batch", "recompute", "measure", "latency_us", "forward_us",
    "backward_us", "spread_us", "repeats", "power_limit_w", "flag",
)  # fmt: skip
OP_COLUMNS: tuple[str, ...] = (
    "row_id", "device", "graph", "model", "mode", "node", "node_class", "forward_us",
    "backward_us", "weight", "flag",
)  # fmt: skip
PEER_COLUMNS: tuple[str, ...] = (
    "device", "graph", "peer", "latency_us", "forward_us", "backward_us",
)  # fmt: skip
TABLES: Mapping[str, tuple[str, ...]] = {
    "kernels": KERNEL_COLUMNS,
    "steps": STEP_COLUMNS,
    "ops": OP_COLUMNS,
    "peers": PEER_COLUMNS,
}
"""Columns of every table of `Imported`, in order."""

ColumnKind: TypeAlias = Literal["text", "integer", "number"]
_INTEGERS = frozenset({"row", "node"})
_NUMBERS = frozenset({
    "flops", "weight", "batch", "seq", "size", "devices", "micro_batch", "repeats",
    "power_limit_w", "clock_mhz", "ranks_per_node",
})  # fmt: skip


def column_kind(column: str) -> ColumnKind:
    """What a column holds: names with a unit are numbers, dimensions are integers, else text."""
    if column in _INTEGERS or column.startswith("dim_"):
        return "integer"
    return "number" if column in _NUMBERS or column.endswith(("_us", "_bytes")) else "text"


def empty_table(table: str) -> pd.DataFrame:
    """A table of `TABLES` without rows, its columns typed."""
    import pandas as pd

    dtypes = {"text": "str", "integer": "int64", "number": "float64"}
    return pd.DataFrame(
        {c: pd.Series(dtype=dtypes[column_kind(c)]) for c in TABLES[table]},
        columns=list(TABLES[table]),
    )


def filled(table: str, values: Mapping[str, object], rows: int) -> pd.DataFrame:
    """A table of `TABLES` from some of its columns; the others are unknown.

    Args:
        table: a name of `TABLES`.
        values: arrays of length `rows` or one value for all rows, by column.
        rows: number of rows.

    Raises:
        KeyError: a column that the table does not have.
    """
    import pandas as pd

    unknown = sorted(set(values) - set(TABLES[table]))
    if unknown:
        raise KeyError(f"table {table!r} has no column {unknown[0]!r}")
    missing: Mapping[str, object] = {"text": "", "integer": -1, "number": np.nan}
    columns = {
        c: values[c] if c in values else missing[column_kind(c)] for c in TABLES[table]
    }  # fmt: skip
    frame = pd.DataFrame(columns, index=pd.RangeIndex(rows))
    numbers = {c: "float64" for c in TABLES[table] if column_kind(c) == "number"}
    return frame.astype(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGraph:
    """A published op graph lowered to kernels: one repeated layer, and what stands around it."""

    name: str
    table: KernelTable
    """N kernels: forward and backward."""
    weight: NDArray[np.float64]
    """(N,) how often each kernel runs in the step (layers)."""
    node: NDArray[np.int64]
    """(N,) index into `nodes`."""
    nodes: tuple[str, ...]
    """Published node names, in order."""
    node_weight: NDArray[np.float64]
    """(len(nodes),) repetitions of each node."""
    node_class: tuple[str, ...]
    """Class by which the node's error is reported: linear, batched_matmul, elementwise, …."""
    edge_index: NDArray[np.int64]
    """(2, E) producer and consumer kernels, forward and backward."""


@dataclass(slots=True, kw_only=True)
class Imported:
    """What an importer read: rows kept, rows refused by rule."""

    source: str
    kernels: pd.DataFrame
    steps: pd.DataFrame
    ops: pd.DataFrame
    """In-step measurements: one row a node of a measured graph."""
    graphs: dict[str, MeasuredGraph]
    peers: pd.DataFrame
    """Predictions that others published: never labels."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows refused, by rule."""
    rejects: list[dict[str, object]] = field(default_factory=list)
    """File, row, column, value and rule of refused rows (the first of each file and rule)."""
    files: dict[str, SourceFile] = field(default_factory=dict)
    """Files read, by path below the root of the layout."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files of the layout that were not read, and why."""

    @classmethod
    def empty(cls, source: str) -> Imported:
        """Tables without rows, to be filled."""
        return cls(
            source=source, kernels=empty_table("kernels"), steps=empty_table("steps"),
            ops=empty_table("ops"), graphs={}, peers=empty_table("peers"),
        )  # fmt: skip

    def reject(
        self, *, file: str, row: int | None, column: str, value: object, rule: str, rows: int = 1,
        logged: bool = True, meant: str = "",
    ) -> None:  # fmt: skip
        """Count refused rows.

        Args:
            file: path below the root of the layout.
            row: the first of them, counted from 0 below the header; None for a file that is one.
            column: where its bad value stands.
            value: the bad value.
            rule: what it breaks.
            rows: how many rows of the file break the rule.
            logged: whether it is said at once; not where a summary of the file says it.
            meant: what could stand there, for who reads the log.
        """
        self.dropped[rule] += rows
        shown = encodable(str(value)[:VALUE_SHOWN])
        self.rejects.append({
            "file": file, "row": row, "column": column, "value": shown, "rule": rule, "rows": rows,
        })  # fmt: skip
        if not logged:
            return
        logger.warning(
            "%s: %d rows dropped by rule %s (first: row %s, column %s, value %r)%s",
            file, rows, rule, "-" if row is None else row, column, shown, meant and f"; {meant}",
        )  # fmt: skip


def kernel_table(rows: pd.DataFrame) -> KernelTable:
    """Columns of measured kernel rows."""
    phases = {p: i for i, p in enumerate(PHASES)}
    contexts = {c: i for i, c in enumerate(CONTEXTS)}
    return KernelTable(
        op=op_index(rows["op"].tolist()),
        phase=rows["phase"].map(phases).to_numpy().astype(np.int8),
        dtype=rows["dtype"].to_numpy(dtype=np.str_),
        dims=rows[[f"dim_{d}" for d in DIM_NAMES]].to_numpy(dtype=np.int64),
        flops=rows["flops"].to_numpy(dtype=np.float64),
        read_bytes=rows["read_bytes"].to_numpy(dtype=np.float64),
        write_bytes=rows["write_bytes"].to_numpy(dtype=np.float64),
        launches=_launches(rows),
        context=rows["context"].map(contexts).to_numpy().astype(np.int8),
    )


def _launches(rows: pd.DataFrame) -> NDArray[np.int64]:
    """(N,) dependent launches of each row, counted as in a captured graph."""
    out = np.ones(len(rows), dtype=np.int64)
    for op in rows["op"].unique():
        if OPS[op].op_class in MANY_LAUNCHES:
            here = (rows["op"] == op).to_numpy()
            names = OPS[op].dims
            dims = rows.loc[here, [f"dim_{d}" for d in names]].to_numpy(dtype=np.int64)
            unique, where = np.unique(dims, axis=0, return_inverse=True)
            each = [launches(op, dict(zip(names, map(int, d), strict=True))) for d in unique]
            out[here] = np.array(each, dtype=np.int64)[where.reshape(-1)]
    return out
