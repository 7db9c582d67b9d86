"""Ops that carry a node's name and are not that node, and dropout that drops nothing."""

from __future__ import annotations

import pandas as pd

from predictor.traces.sources.neusight_graph import drops
from predictor.traces.sources.neusight_ops import FxNode, backward_kernels, forward_kernels
from predictor.traces.sources.neusight_steps import other_shape


def test_an_output_of_another_shape_is_another_op() -> None:
    rows = pd.DataFrame(
        {"Name": ["add_3", "size", "new"], "output_shape": ["(16, 512)", "(1,)", "(2,)"]}
    )
    found = other_shape(rows, {"add_3": "(16, 512, 1024)", "size": "(1,)"})
    assert found.tolist() == [True, False, False]


def test_without_published_shapes_every_row_is_its_node() -> None:
    rows = pd.DataFrame({"Name": ["add_3"]})
    assert other_shape(rows, {"add_3": "(1,)"}).tolist() == [False]


def test_probability_of_a_dropout_call() -> None:
    assert not drops("{'p': 0.0, 'training': True, 'inplace': False}")
    assert not drops("{'p': 0}")
    assert drops("{'p': 0.1, 'training': True}")
    assert drops("{}")


def dropout(*, active: bool) -> FxNode:
    return FxNode(
        name="dropout",
        op_name="dropout",
        forward_ops=[("MEM", ((8, 8), (8, 8)))],
        backward_ops=[("MEM", ((8, 8),))],
        inputs=((8, 8),),
        output=(8, 8),
        drops=active,
    )


def test_dropout_of_probability_0_launches_nothing() -> None:
    assert [k.op for k in forward_kernels(dropout(active=True))] == ["dropout"]
    assert [k.op for k in backward_kernels(dropout(active=True))] == ["dropout_backward"]
    assert forward_kernels(dropout(active=False)) == []
    assert backward_kernels(dropout(active=False)) == []
