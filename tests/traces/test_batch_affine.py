"""One capture at a prime batch gives the kernels of every batch, or says that it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module, capture_step
from predictor.features.table import OP_NAMES
from predictor.graph.ir import PHASES
from predictor.lower.eager import lower_eager
from predictor.traces.batch_affine import (
    CAPTURE_BATCH,
    DTYPE_CODES,
    HEAD_COLUMNS,
    MOST_DIMS,
    NotAffineError,
    affine_graph,
    difference,
    rescaled,
)


class Net(nn.Module):
    """Convolution, norm, attention with a class token (a weight broadcast along the batch)."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 4, stride=4)
        self.norm = nn.BatchNorm2d(16)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.qkv = nn.Linear(16, 48)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        q, k, v = self.qkv(x).reshape(x.shape[0], -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head(self.drop(x + y.transpose(1, 2).flatten(2))[:, 0])


def images(batch):
    return torch.empty(batch, 3, 16, 16, device="meta")


def captured(module, batch, mode="infer", amp=None):
    return capture_module(module, images(batch), mode=mode, amp=amp, optimizer="sgd")


@pytest.mark.parametrize("amp", [None, "bf16"])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_captures_at_other_batches_are_what_the_affine_graph_says(mode, amp):
    with torch.device("meta"):
        module = Net()
    graph = affine_graph(captured(module, CAPTURE_BATCH, mode, amp), half=amp)
    for batch in (2, 7, 256):
        real = lower_eager(captured(module, batch, mode, amp))
        assert difference(graph, real, half=amp) == ""


def test_constants_and_slopes_of_a_linear_layer():
    x = torch.empty(CAPTURE_BATCH, 8, device="meta")
    graph = affine_graph(capture_module(nn.Linear(8, 4), x))
    (row,) = graph.rows.tolist()
    op, phase, dtype = row[:HEAD_COLUMNS]
    assert (OP_NAMES[op], PHASES[phase], DTYPE_CODES[dtype]) == ("linear", "forward", "fp32")
    wide = MOST_DIMS + 4
    const, slope = row[HEAD_COLUMNS : HEAD_COLUMNS + wide], row[HEAD_COLUMNS + wide :]
    assert const[:4] == [1, 0, 4, 8]  # batch, m, n, k
    assert slope[:4] == [0, 1, 0, 0]
    # 2 * 8 * 4 FLOPs a row; reads 8 * 4 + 4 weights once and 8 inputs a row, writes 4 a row
    assert const[-4:] == [0, 4 * 36, 0, 1]
    assert slope[-4:] == [64, 32, 16, 0]
    assert const[4:MOST_DIMS] == [-1] * (MOST_DIMS - 4)
    assert slope[4:MOST_DIMS] == [0] * (MOST_DIMS - 4)


def test_half_is_stored_without_saying_which():
    x = torch.empty(CAPTURE_BATCH, 8, device="meta")
    graphs = [affine_graph(capture_module(nn.Linear(8, 4), x, amp=a), half=a)
              for a in ("fp16", "bf16")]  # fmt: skip
    assert (graphs[0].rows == graphs[1].rows).all()
    assert "half" in {DTYPE_CODES[code] for code in graphs[0].rows[:, 2]}


def test_a_program_that_depends_on_the_batch_otherwise_is_refused():
    x = torch.empty(CAPTURE_BATCH, 8, device="meta")

    def gram(x):
        return x @ x.transpose(0, 1)

    graph = capture_step(gram, (x,))
    with pytest.raises(NotAffineError, match=r"no line: batch 2: kernel 0 .* in flops"):
        affine_graph(graph)


def test_a_weight_of_the_batchs_size_is_refused():
    x = torch.empty(CAPTURE_BATCH, CAPTURE_BATCH, device="meta")
    with pytest.raises(NotAffineError, match="parameter of shape"):
        affine_graph(capture_module(nn.Linear(CAPTURE_BATCH, 4), x))


def test_overlapping_windows_are_refused():
    def windows(x):
        return x.as_strided((x.shape[0], 4, 4), (6, 2, 1)) + 1

    graph = capture_step(windows, (torch.empty(CAPTURE_BATCH, 12, device="meta"),))
    with pytest.raises(NotAffineError, match="overlapping windows"):
        rescaled(graph, CAPTURE_BATCH, 1021)


def test_a_capture_at_another_batch_is_refused():
    with pytest.raises(NotAffineError, match="captured at batch 8"):
        affine_graph(capture_module(nn.Linear(8, 4), torch.empty(8, 8)))


def test_a_difference_is_named():
    with torch.device("meta"):
        small, large = nn.Linear(8, 4), nn.Linear(8, 5)
    graph = affine_graph(capture_module(small, torch.empty(CAPTURE_BATCH, 8)))
    other = lower_eager(capture_module(large, torch.empty(3, 8)))
    assert difference(graph, other) == "batch 3: kernel 0 (aten.addmm, forward) in n"
