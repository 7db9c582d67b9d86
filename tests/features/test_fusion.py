"""What fusion saves: traffic between fusable kernels, and nothing else."""

from __future__ import annotations

import numpy as np

from predictor.features.fusion import kept_traffic
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


def test_what_a_library_call_reads_too_is_written():
    reads, writes = shares(["layer_norm", "gelu", "linear"], [-1, 1, -1], [(0, 1), (0, 2)])
    assert writes.tolist() == [1, 1, 1]
    assert reads.tolist() == [1, 0, 1]


def test_no_edges_save_nothing():
    reads, writes = shares(["relu", "relu"], [1, 1], [])
    assert reads.tolist() == writes.tolist() == [1, 1]
