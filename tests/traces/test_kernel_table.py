"""Measured rows and captured graphs count the launches of one call alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from predictor.capture.torch import capture_module
from predictor.cost.rules import launches
from predictor.features.roofline import LAUNCH_US, roofline
from predictor.features.table import table_from_graph
from predictor.graph.ops import DIM_NAMES, OPS
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.lower.eager import lower_eager
from predictor.traces.cells import kernel_rows
from predictor.traces.schema import kernel_table


def row(op: str, dtype: str = "fp32", **dims: int) -> Any:
    return kernel_rows(op, dims, dtype, {"row": np.arange(1), "context": "isolated"})


RNN = {
    "steps": 25, "batch": 16, "input_size": 64, "hidden_size": 32, "layers": 2, "directions": 2,
    "gates": 4,
}  # fmt: skip


def test_a_recurrent_row_launches_once_a_step_layer_and_direction() -> None:
    table = kernel_table(row("rnn", **RNN))
    assert table.launches.tolist() == [25 * 2 * 2]
    roof = roofline(table, resolve_device("nvidia-t4"), Software())
    assert roof.base_us[0] >= 100 * LAUNCH_US


def test_an_optimizer_row_launches_its_passes() -> None:
    many, one = ({"numel": 3200 * n, "tensors": n} for n in (320, 1))
    small = launches("adamw", one)  # a pass is one launch: there is one tensor
    table = kernel_table(row("adamw", **one))
    assert table.launches.tolist() == [small]
    assert small > 1
    assert kernel_table(row("adamw", **many)).launches[0] > small


@pytest.mark.parametrize("op", ["linear", "softmax", "attention_backward", "all_reduce"])
def test_other_rows_launch_once(op: str) -> None:
    dims = dict.fromkeys(OPS[op].dims, 1)
    assert kernel_table(row(op, **dims)).launches.tolist() == [1]


def test_rows_of_many_ops_keep_their_own() -> None:
    import pandas as pd

    other = {**RNN, "steps": 7, "layers": 1, "directions": 1}
    rows = pd.concat(
        [row("rnn", **RNN), row("linear", batch=1, m=8, n=8, k=8), row("rnn", **other),
         row("rnn_backward", **RNN)]
    )  # fmt: skip
    assert kernel_table(rows).launches.tolist() == [100, 1, 7, 100]


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_captured_layer_has_the_launches_of_its_row(mode: str) -> None:
    layer = torch.nn.LSTM(64, 32, num_layers=2, bidirectional=True, device="meta")
    sequence = torch.zeros(25, 16, 64, device="meta")
    graph = lower_eager(capture_module(layer, (sequence,), mode=mode))
    table = table_from_graph(graph)
    recurrent = [i for i, k in enumerate(graph.kernels) if k.op.startswith("rnn")]
    assert [graph.kernels[i].op for i in recurrent] == {
        "infer": ["rnn"], "train": ["rnn", "rnn_backward"],
    }[mode]  # fmt: skip
    for i in recurrent:
        op = graph.kernels[i].op
        dims = dict(zip(DIM_NAMES, table.dims[i].tolist(), strict=True))
        own = kernel_table(row(op, **{d: dims[d] for d in OPS[op].dims}))
        assert own.launches[0] == table.launches[i] == 100
