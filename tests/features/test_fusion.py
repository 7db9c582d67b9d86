"""What fusion saves: traffic between fusable kernels, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.features.fusion import kept_traffic, prefers_channels_last
from predictor.features.table import op_index


def shares(ops: list[str], inputs: list[int], edges: list[tuple[int, int]]):
    index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return kept_traffic(op_index(ops), np.array(inputs), index)


def test_a_chain_reads_once_and_writes_once():
    reads, writes = shares(["conv", "batch_norm", "relu", "conv"], [-1, -1, 1, -1],
                           [(0, 1), (1, 2), (2, 3)])  # fmt: skip
    assert reads.tolist() == [1, 1, 0, 1]  # relu finds its input in registers
    assert writes.tolist() == [1, 0, 1, 1]  # the convolution needs relu's output in memory


def test_a_residual_sum_reads_the_other_branch():
    reads, writes = shares(["conv", "batch_norm", "conv", "add"], [-1, -1, -1, 2],
                           [(0, 1), (1, 3), (2, 3)])  # fmt: skip
    assert reads.tolist() == [1, 1, 1, 0.5]
    assert writes.tolist() == [1, 0, 1, 1]


def test_a_residual_past_a_library_call_is_written_and_read_again():
    # the sum waits for the product, which waits for the activation: two kernels
    reads, writes = shares(["conv", "relu", "linear", "add"], [-1, 1, -1, 2],
                           [(0, 1), (1, 2), (1, 3), (2, 3)])  # fmt: skip
    assert reads.tolist() == [1, 1, 1, 1]
    assert writes.tolist() == [1, 1, 1, 1]
    # without the product between, the sum finds the activation in registers
    reads, _ = shares(["conv", "relu", "conv", "add"], [-1, 1, -1, 2],
                      [(0, 1), (1, 3), (2, 3)])  # fmt: skip
    assert reads.tolist() == [1, 1, 1, 0.5]


def test_what_a_library_call_reads_too_is_written():
    reads, writes = shares(["layer_norm", "gelu", "linear"], [-1, 1, -1], [(0, 1), (0, 2)])
    assert writes.tolist() == [1, 1, 1]
    assert reads.tolist() == [1, 0, 1]


def test_no_edges_save_nothing():
    reads, writes = shares(["relu", "relu"], [1, 1], [])
    assert reads.tolist() == writes.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (1, True),  # 0.823 of the contiguous time
        (256, True),  # depthwise counts as any other
        (32, False),  # 1.358
    ],
)
def test_grouped_convolutions_keep_the_contiguous_format(table, groups, expected):
    conv = ("conv", (8, 256, 28, 28, 256, 28, 28, 3, 3, groups), "fp16")
    assert prefers_channels_last(table([conv])) is expected


def test_the_format_follows_the_flops(table):
    # 1 GFLOP grouped and 32 dense: 1.358 + 32 * 0.823 < 33; few convolutions leave it alone
    dense = ("conv", (8, 256, 28, 28, 256, 28, 28, 3, 3, 1), "fp16")
    grouped = ("conv", (8, 256, 28, 28, 256, 28, 28, 3, 3, 32), "fp16")
    assert prefers_channels_last(table([dense, grouped]))
    relu = ("relu", (1024, 1, 0), "fp16")
    assert not prefers_channels_last(table([dense, *[relu] * 299]))
    assert not prefers_channels_last(table([relu]))
