"""`Draft`: one kernel of a framework call before it is placed in the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from predictor.graph.ir import DTYPE_BYTES, OpNode, TensorSpec

FLOATING: frozenset[str] = frozenset(
    {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "complex64", "complex128"}
)
"""Dtypes of arithmetic; the others are indices and masks."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """One kernel: its op and dimensions, and the tensors it reads and writes.

    Bytes left at `None` come from the storage of `reads` and `writes`; FLOPs left at `None` from
    the op's rule.
    """

    op: str
    dims: dict[str, int]
    reads: Sequence[TensorSpec]
    writes: Sequence[TensorSpec]
    dtype: str | None = None
    read_bytes: float | None = None
    write_bytes: float | None = None
    flops: float | None = None
    matmul_flops: float | None = None
    launches: int = 1
    name: str = ""


Reader: TypeAlias = Callable[[OpNode, str], list[Draft]]
"""Turns a call that launches something into its kernels; takes the node and the op of its row."""


def width(spec: TensorSpec) -> float:
    """Bytes of one element."""
    return DTYPE_BYTES[spec.dtype]


def size_bytes(spec: TensorSpec) -> float:
    """Bytes of all elements, expanded dimensions included."""
    return spec.numel * DTYPE_BYTES[spec.dtype]


def touched(specs: Sequence[TensorSpec]) -> float:
    """Distinct bytes behind the tensors: each storage counts at most once as a whole."""
    if len(specs) == 1:
        return float(specs[0].touched_bytes)
    by_storage: dict[int, list[int]] = {}
    for spec in specs:
        entry = by_storage.setdefault(spec.storage_id, [0, 0])
        entry[0] += spec.touched_bytes
        entry[1] = max(entry[1], spec.storage_bytes, spec.touched_bytes)
    return float(sum(min(total, whole) for total, whole in by_storage.values()))


def arithmetic_dtype(reads: Sequence[TensorSpec], writes: Sequence[TensorSpec]) -> str:
    """Dtype of the largest floating operand, reads before writes; the first of equals.

    Small operands (fp32 statistics beside a bf16 activation) and indices do not decide; a kernel
    on integers alone takes the dtype of its first operand.
    """
    for specs in (reads, writes):
        best, most = "", -1
        for spec in specs:
            if spec.dtype in FLOATING:
                numel = spec.numel
                if numel > most:
                    best, most = spec.dtype, numel
        if best:
            return best
    first = next(iter(reads), None) or next(iter(writes), None)
    return first.dtype if first is not None else "fp32"


def product(sizes: Sequence[int]) -> int:
    """Product of sizes, 1 when there are none."""
    n = 1
    for size in sizes:
        n *= size
    return n


def as_int(value: object, default: int) -> int:
    """An integer attribute, or its default when absent."""
    return int(value) if isinstance(value, (int, float)) else default


def as_ints(value: object) -> tuple[int, ...]:
    """An attribute that holds one integer or several; empty when absent."""
    if isinstance(value, (list, tuple)):
        return tuple(int(v) for v in value if isinstance(v, (int, float)))
    return (int(value),) if isinstance(value, (int, float)) else ()
