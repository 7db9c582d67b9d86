"""Op graphs of NeuSight as kernels: hand-worked shapes, repetitions, backward kernels and edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.table import OP_NAMES
from predictor.graph.ir import PHASES
from predictor.graph.ops import OPS
from predictor.traces.sources.neusight_graph import build_graph
from predictor.traces.sources.neusight_layout import Layout, open_layout

TRAIN, INFER = "toy-train-4-2", "toy-inf-4-2"
LAYERS = 3


@pytest.fixture
def files(layout) -> Layout:
    layout.models()
    return open_layout(layout.root)


@pytest.fixture
def train(files):
    return build_graph(TRAIN, files, LAYERS)


@pytest.fixture
def infer(files):
    return build_graph(INFER, files, LAYERS)


def kernels(graph, node, phase):
    """(op, dimensions) of the kernels of a node."""
    i = graph.nodes.index(node)
    found = (graph.node == i) & (graph.table.phase == PHASES.index(phase))
    out = []
    for row in np.flatnonzero(found):
        op = OP_NAMES[graph.table.op[row]]
        dims = {d: int(graph.table.dim(d)[row]) for d in OPS[op].dims}
        out.append((op, tuple(dims.values())))
    return out


def test_forward_kernels(train):
    assert kernels(train, "transformer_wte", "forward") == [("embedding", (8, 8))]
    assert kernels(train, "transformer_h_0_ln_1", "forward") == [("layer_norm", (8, 8))]
    assert kernels(train, "addmm", "forward") == [("linear", (1, 8, 24, 8))]
    assert kernels(train, "lm_head", "forward") == [("matmul", (1, 8, 10, 8))]  # no bias
    assert kernels(train, "matmul", "forward") == [("bmm", (4, 4, 4, 4))]
    assert kernels(train, "softmax", "forward") == [("softmax", (16, 4))]
    assert kernels(train, "add_1", "forward") == [("add", (64, 2, 1))]


@pytest.mark.parametrize("node", ["input_ids", "view", "view_1", "permute", "output"])
def test_views_launch_nothing(train, node):
    assert kernels(train, node, "forward") == kernels(train, node, "backward") == []


def test_linear_backward_is_two_products_and_a_sum_over_the_bias(train):
    # [8, 8] x [8, 24]: dX = [8, 24] x [24, 8], dW = [8, 8] x [8, 24], db sums 8 rows of 24
    assert kernels(train, "addmm", "backward") == [
        ("matmul", (1, 8, 8, 24)), ("matmul", (1, 8, 24, 8)), ("reduction", (24, 8)),
    ]  # fmt: skip
    assert len(kernels(train, "lm_head", "backward")) == 2


def test_bmm_backward_is_two_products(train):
    assert kernels(train, "matmul", "backward") == [("bmm", (4, 4, 4, 4))] * 2


@pytest.mark.parametrize(
    ("node", "ops"),
    [
        ("softmax", ["softmax_backward"]),
        ("transformer_h_0_ln_1", ["layer_norm_backward"]),
        ("mul", ["mul_backward"]),  # by a number: one gradient
        ("mul_1", ["mul_backward"] * 2),  # of two tensors: a gradient each
        ("pow_1", ["pow_backward"]),
        ("transformer_drop", ["dropout_backward"]),
        ("add_1", []),  # the gradient passes through
        ("transformer_wte", ["fill", "embedding_backward"]),  # zeros, then a sum over the ids
    ],
)
def test_backward_kernels_of_other_ops(train, node, ops):
    assert [op for op, _ in kernels(train, node, "backward")] == ops


def test_products_agree_in_work_forward_and_backward(train):
    t = train.table
    flops = {p: t.flops[(train.node == train.nodes.index("matmul")) & (t.phase == i)].sum()
             for i, p in enumerate(PHASES)}  # fmt: skip
    assert flops["forward"] == 2 * 4 * 4 * 4 * 4
    assert flops["backward"] == 2 * flops["forward"]


def test_dropout_runs_in_training_only(train, infer):
    assert kernels(train, "transformer_drop", "forward") == [("dropout", (64, 1, 1))]
    assert kernels(infer, "transformer_drop", "forward") == []
    assert (infer.table.phase == PHASES.index("forward")).all()


def test_nodes_of_the_layer_repeat(train):
    weights = dict(zip(train.nodes, train.node_weight, strict=True))
    assert [n for n, w in weights.items() if w == 1] == [
        "input_ids", "transformer_wte", "transformer_drop", "transformer_ln_f", "lm_head", "output",
    ]  # fmt: skip
    assert set(weights.values()) == {1, LAYERS}
    assert np.array_equal(train.weight, train.node_weight[train.node])


def test_stack_and_names_find_the_same_layer(files, train):
    (files.root / f"results/opgraph_raw/{TRAIN}.csv.gz").unlink()
    by_name = build_graph(TRAIN, open_layout(files.root), LAYERS)
    assert np.array_equal(by_name.node_weight, train.node_weight)


def test_whole_graphs_do_not_repeat(layout, nodes):
    layout.graph("switch-train-4-2", nodes)
    graph = build_graph("switch-train-4-2", open_layout(layout.root), 24)
    assert (graph.node_weight == 1).all()


def test_classes_for_reports(train):
    classes = dict(zip(train.nodes, train.node_class, strict=True))
    assert [classes[n] for n in ("addmm", "matmul", "add_1", "softmax", "transformer_ln_f")] == [
        "linear", "batched_matmul", "elementwise", "softmax", "layernorm",
    ]  # fmt: skip
    assert classes["transformer_wte"] == "other_gather"
    assert classes["view"] == ""


def edges_by_name(graph):
    return {
        (graph.nodes[graph.node[a]], graph.nodes[graph.node[b]])
        for a, b in graph.edge_index.T
        if graph.table.phase[a] == PHASES.index("forward")
    }


def test_edges_pass_through_views(infer):
    assert edges_by_name(infer) == {
        ("transformer_wte", "transformer_h_0_ln_1"),  # dropout is free here
        ("transformer_h_0_ln_1", "addmm"), ("addmm", "matmul"), ("matmul", "mul"),
        ("mul", "softmax"), ("softmax", "pow_1"), ("softmax", "mul_1"), ("pow_1", "mul_1"),
        ("addmm", "add_1"), ("mul_1", "add_1"), ("add_1", "transformer_ln_f"),
        ("transformer_ln_f", "lm_head"),
    }  # fmt: skip


def test_every_producer_runs_before_its_consumer(train, infer):
    for graph in (train, infer):
        producer, consumer = graph.edge_index
        assert (producer < consumer).all()
        assert consumer.max() < len(graph.table)


def test_backward_follows_in_stream_order(train):
    backward = np.flatnonzero(train.table.phase == PHASES.index("backward"))
    pairs = set(map(tuple, train.edge_index.T.tolist()))
    assert all((a, a + 1) in pairs for a in backward[:-1].tolist())
    assert train.nodes[train.node[backward[0]]] == "lm_head"
    assert train.nodes[train.node[backward[-1]]] == "transformer_wte"


def test_zeros_of_a_gathered_table_have_its_size(layout, nodes):
    wte = next(n for n in nodes if n.name == "transformer_wte")
    table = replace(wte, bw="[['MEM', ((50257, 8),)]]")
    layout.graph(TRAIN, [table if n is wte else n for n in nodes])
    graph = build_graph(TRAIN, open_layout(layout.root), LAYERS)
    assert kernels(graph, "transformer_wte", "backward") == [
        ("fill", (50257 * 8, 0, 1)), ("embedding_backward", (8, 8)),
    ]  # fmt: skip


def test_copies_and_casts_are_read_from_the_raw_graph(layout, nodes):
    # contiguous of a permuted input moves data; of a contiguous one it does not
    permute = next(n for n in nodes if n.name == "permute")
    copy = replace(permute, name="contiguous", prev=("permute",))
    own = [*nodes[:8], copy, *nodes[8:]]
    layout.graph(TRAIN, own)
    found = {}
    for flag in ("[False]", "[True]"):
        body = [(n.name, "{}", "transformer.h.0", flag, "torch.float32") for n in own]
        columns = ("Name", "_input_nodes", "meta", "input_contiguous", "dtype")
        layout.table(f"results/opgraph_raw/{TRAIN}.csv", columns, body)
        graph = build_graph(TRAIN, open_layout(layout.root), LAYERS)
        found[flag] = kernels(graph, "contiguous", "forward")
    assert found == {"[False]": [("transpose", (64, 1, 1))], "[True]": []}


def test_operands_without_one_batch_stride_are_copied(layout, nodes):
    # torch.matmul reshapes (batch 2, heads 2, 4, 4) to (4, 4, 4): the permuted ones are copied
    found = {}
    for flags in ("[False, False]", "[True, False]", "[True, True]"):
        body = [
            (n.name, "{}", "transformer.h.0", flags if n.name == "matmul" else "[True]",
             "torch.float32")
            for n in nodes
        ]  # fmt: skip
        columns = ("Name", "_input_nodes", "meta", "input_contiguous", "dtype")
        layout.graph(TRAIN, nodes)
        layout.table(f"results/opgraph_raw/{TRAIN}.csv", columns, body)
        graph = build_graph(TRAIN, open_layout(layout.root), LAYERS)
        found[flags] = kernels(graph, "matmul", "forward")
        assert kernels(graph, "matmul", "backward") == [("bmm", (4, 4, 4, 4))] * 2
    copy, product = ("transpose", (64, 1, 1)), ("bmm", (4, 4, 4, 4))
    assert list(found.values()) == [[copy, copy, product], [copy, product], [product]]


def test_one_sequence_is_viewed_as_its_heads(layout, nodes):
    heads = "(1, 4, 4, 4)"
    matmul = next(n for n in nodes if n.name == "matmul")
    alone = replace(matmul, inputs=f"[{heads}, {heads}]", output=heads)
    own = [alone if n is matmul else n for n in nodes]
    layout.graph(TRAIN, own)
    body = [(n.name, "{}", "transformer.h.0", "[False, False]", "torch.float32") for n in own]
    columns = ("Name", "_input_nodes", "meta", "input_contiguous", "dtype")
    layout.table(f"results/opgraph_raw/{TRAIN}.csv", columns, body)
    graph = build_graph(TRAIN, open_layout(layout.root), LAYERS)
    assert kernels(graph, "matmul", "forward") == [("bmm", (4, 4, 4, 4))]
