"""Classes of kernels: message passing on them gives what it gives on the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.nn import SAGEConv

from predictor.features.quotient import quotient


def chain_of_blocks(blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of four kernels (0, 1, 2, 3) with a residual edge from the block's first input."""
    kind, edges = [], []
    for b in range(blocks):
        first = 4 * b
        kind += [0, 1, 2, 3]
        edges += [(first, first + 1), (first + 1, first + 2), (first + 2, first + 3)]
        if b:
            edges += [(first - 1, first), (first - 1, first + 3)]
    return np.array(kind), np.array(edges).T


def test_depth_nought_counts_kinds():
    kind, edges = chain_of_blocks(5)
    found = quotient(kind, edges, 0)
    assert sorted(found.count.tolist()) == [5, 5, 5, 5]
    assert found.producers.shape == (2, 0)
    assert np.array_equal(kind[found.member][found.class_of], kind)


def test_only_the_ends_of_a_chain_differ():
    kind, edges = chain_of_blocks(12)
    found = quotient(kind, edges, 1)
    # the first kernel of the first block has no input, its fourth one fewer, the last one no
    # consumer; all other kernels are alike by kind
    assert sorted(found.count.tolist()) == [1, 1, 1, 10, 11, 12, 12]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_message_passing_on_classes_is_message_passing(depth):
    kind, edges = chain_of_blocks(7)
    found = quotient(kind, edges, depth)
    assert len(found.member) < len(kind)
    torch.manual_seed(0)
    layers = [(SAGEConv(5, 5), SAGEConv(5, 5)) for _ in range(depth)]
    features = torch.randn(4, 5)
    whole = features[kind]
    part = whole[torch.from_numpy(found.member)]
    edge_index = torch.from_numpy(edges)
    into, out_of = torch.from_numpy(found.producers), torch.from_numpy(found.consumers)
    for down, up in layers:
        whole = whole + torch.tanh(down(whole, edge_index) + up(whole, edge_index.flip(0)))
        part = part + torch.tanh(down(part, into) + up(part, out_of))
    assert torch.allclose(part[torch.from_numpy(found.class_of)], whole, atol=1e-5)


def test_order_of_kernels_does_not_matter():
    kind, edges = chain_of_blocks(6)
    order = np.random.default_rng(0).permutation(len(kind))
    place = np.argsort(order)
    moved = quotient(kind[order], place[edges], 2)
    assert sorted(moved.count.tolist()) == sorted(quotient(kind, edges, 2).count.tolist())


def test_no_edges_at_all():
    found = quotient(np.array([7, 7, 9]), np.zeros((2, 0), dtype=np.int64), 2)
    assert sorted(found.count.tolist()) == [1, 2]
