"""Kernels as columns: what goes in comes out."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.features.table import (
    CONTEXTS,
    OP_NAMES,
    concat,
    dims_matrix,
    op_index,
    table_from_graph,
    with_context,
)
from predictor.graph.ops import DIM_NAMES, OPS


def test_every_op_has_an_index():
    assert tuple(OPS) == OP_NAMES
    assert op_index(list(OPS)).tolist() == list(range(len(OPS)))


def test_absent_dimensions_are_minus_one():
    matrix = dims_matrix([{"m": 3, "k": 5}, {}])
    assert matrix.shape == (2, len(DIM_NAMES))
    assert matrix[0, DIM_NAMES.index("m")] == 3
    assert (matrix >= 0).sum() == 2


def test_a_graph_as_columns(make_graph):
    graph = make_graph()
    table = table_from_graph(graph)
    assert len(table) == len(graph.kernels)
    for i, kernel in enumerate(graph.kernels):
        assert OP_NAMES[table.op[i]] == kernel.op
        assert {d: table.dim(d)[i] for d in kernel.dims} == dict(kernel.dims)
        assert (table.flops[i], table.read_bytes[i]) == (kernel.flops, kernel.read_bytes)
    assert (table.context == CONTEXTS.index("step")).all()


def test_take_concat_and_context_keep_rows(table):
    whole = table([("add", (64, 2, 1), "fp32"), ("softmax", (8, 4), "fp16")])
    parts = [whole.take(np.array([i])) for i in range(2)]
    joined = concat(parts)
    for name in ("op", "dtype", "dims", "flops", "read_bytes", "write_bytes"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name))
    moved = with_context(whole, "isolated")
    assert (moved.context == CONTEXTS.index("isolated")).all()
    assert moved.flops is whole.flops
    with pytest.raises(ValueError, match="not in tuple"):
        with_context(whole, "elsewhere")
