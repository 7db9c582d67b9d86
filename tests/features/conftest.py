"""Kernel tables by hand, for the tests of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pytest

from predictor.cost.rules import kernel_cost, launches
from predictor.features.table import CONTEXTS, KernelTable, dims_matrix, op_index
from predictor.graph.ops import OPS

Call: TypeAlias = tuple[str, tuple[int, ...], str]
"""Op, its dimensions in the order of the vocabulary, dtype."""


def table_of(calls: Sequence[Call], *, context: str = "step") -> KernelTable:
    """Forward kernels whose bytes and FLOPs follow from their dimensions."""
    dims = [dict(zip(OPS[op].dims, sizes, strict=True)) for op, sizes, _ in calls]
    costs = [kernel_cost(op, d, dtype) for (op, _, dtype), d in zip(calls, dims, strict=True)]
    return KernelTable(
        op=op_index([op for op, _, _ in calls]),
        phase=np.zeros(len(calls), dtype=np.int8),
        dtype=np.array([dtype for _, _, dtype in calls], dtype=np.str_),
        dims=dims_matrix(dims),
        flops=np.array([float(c.flops) for c in costs]),
        read_bytes=np.array([float(c.read_bytes) for c in costs]),
        write_bytes=np.array([float(c.write_bytes) for c in costs]),
        launches=np.array([launches(op, d) for (op, _, _), d in zip(calls, dims, strict=True)]),
        context=np.full(len(calls), CONTEXTS.index(context), dtype=np.int8),
    )


@pytest.fixture
def table() -> Callable[..., KernelTable]:
    """Make a table of calls `(op, dims, dtype)`."""
    return table_of


@pytest.fixture
def mixed() -> list[Call]:
    """One call of every kind of op, in fp32."""
    sizes = {
        "causal": 1, "groups": 2, "kv_heads": 2, "gates": 4, "directions": 1, "layers": 1,
        "inputs": 2, "outputs": 1, "kh": 3, "kw": 3, "ranks": 8, "steps": 4, "tensors": 3,
    }  # fmt: skip
    return [(op, tuple(sizes.get(d, 64) for d in OPS[op].dims), "fp32") for op in OPS]
