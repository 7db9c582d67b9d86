"""What launches, what does not, in which order, and who feeds whom."""

from __future__ import annotations

import pytest

from predictor.errors import CostRuleError
from predictor.graph.ops import OPS
from predictor.lower.aten_table import NOTHING, ROWS, TABLE, launches_nothing, packet


def ops(graph):
    return [k.op for k in graph.kernels]


def test_names_lose_namespace_overload_and_underscore():
    assert packet("aten.add_.Tensor") == "add"
    assert packet("aten::add_") == "add"
    assert packet("aten._to_copy") == "_to_copy"
    assert packet("aten.__and__.Tensor") == "__and__"


def test_table_is_sound():
    assert {row.op for row in ROWS} <= set(OPS)
    names = [name for row in ROWS for name in row.names.split()]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    assert not [n for n in NOTHING & set(TABLE) if launches_nothing(f"aten.{n}")]


def test_views_and_bookkeeping_launch_nothing(program):
    x = program.tensor(4, 6)
    for name in ("view", "t", "slice", "permute", "unsqueeze", "detach"):
        assert launches_nothing(f"aten.{name}")
        program.call(f"aten.{name}", [x], program.tensor(4, 6, of=x))
    program.call("aten.empty_like", [x], program.tensor(4, 6))
    program.call("aten.some_unknown_view", [x], program.tensor(6, 4, of=x), view=True)
    program.call("aten.reshape", [x], program.tensor(24, of=x))
    graph = program.lower()
    assert graph.kernels == ()
    assert graph.host_ops == {"forward": 9}


def test_reshape_that_copies_is_a_kernel(program):
    x = program.tensor(4, 6, layout="strided")
    program.call("aten.reshape", [x], program.tensor(24))
    assert ops(program.lower()) == ["transpose"]


def test_unknown_call_is_an_error_that_names_it_or_an_opaque_kernel(program):
    x = program.tensor(4, 6)
    program.call("aten.frobnicate", [x], program.tensor(4, 6), module="encoder.layer.0")
    with pytest.raises(CostRuleError, match=r"aten\.frobnicate.*encoder\.layer\.0"):
        program.lower()
    (kernel,) = program.lower(allow_opaque=True).kernels
    assert (kernel.op, dict(kernel.dims), kernel.bytes) == ("opaque", {"numel": 24}, 192)


def test_convolution_bias_is_a_kernel_of_its_own(program):
    x, w = program.tensor(1, 3, 8, 8), program.tensor(4, 3, 3, 3, role="parameter")
    b, y = program.tensor(4, role="parameter"), program.tensor(1, 4, 8, 8)
    program.call("aten.convolution", [x, w, b], y, transposed=False)
    program.call("aten.relu", [y], program.tensor(1, 4, 8, 8))
    graph = program.lower()
    assert ops(graph) == ["conv", "add", "relu"]
    assert graph.edges == ((0, 1), (1, 2))


def test_first_convolution_has_no_input_gradient(program):
    x, w = program.tensor(1, 3, 8, 8, role="input"), program.tensor(4, 3, 3, 3, role="parameter")
    dy = program.tensor(1, 4, 8, 8)
    dw, db = program.tensor(4, 3, 3, 3, role="gradient"), program.tensor(4, role="gradient")
    program.call("aten.convolution_backward", [dy, x, w], dw, db, output_mask=[False, True, True])
    assert ops(program.lower()) == ["conv_wgrad", "reduction"]
    program.nodes.clear()
    program.call("aten.convolution_backward", [dy, x, w], dw, db)
    assert ops(program.lower()) == ["conv_wgrad", "reduction"]


def test_transposed_convolution_is_the_input_gradient_it_transposes(program):
    # every one of the 2*4*8*8 inputs meets a 3x2x2 stamp: 2*2*(4*8*8)*(3*2*2)
    x, w = program.tensor(2, 4, 8, 8), program.tensor(4, 3, 2, 2, role="parameter")
    y = program.tensor(2, 3, 16, 16)
    program.call("aten.convolution", [x, w], y, transposed=True)
    program.call(
        "aten.convolution_backward", [y, x, w], x, w, transposed=True,
        output_mask=[True, True, False],
    )  # fmt: skip
    graph = program.lower()
    assert ops(graph) == ["conv_dgrad", "conv", "conv_wgrad"]
    assert {k.flops for k in graph.kernels} == {2 * 2 * 4 * 8 * 8 * 3 * 2 * 2}


def test_one_and_three_dimensional_convolutions_fold_into_h(program):
    x, w = program.tensor(2, 4, 10), program.tensor(6, 4, 3, role="parameter")
    program.call("aten.convolution", [x, w], program.tensor(2, 6, 10))
    v, u = program.tensor(1, 2, 4, 6, 8), program.tensor(5, 2, 3, 3, 3, role="parameter")
    program.call("aten.convolution", [v, u], program.tensor(1, 5, 4, 6, 8))
    one, three = program.lower().kernels
    assert one.flops == 2 * 2 * 10 * 6 * 4 * 3
    assert three.flops == 2 * 4 * 6 * 8 * 5 * 2 * 27
    assert (three.dims["h_in"], three.dims["w_in"], three.dims["kh"]) == (24, 8, 9)


def test_in_place_calls_are_the_new_producers(program):
    x = program.tensor(4, 4)
    program.call("aten.mm", [program.tensor(4, 4), program.tensor(4, 4)], x)
    program.call("aten.relu_", [x], x)
    program.call("aten.neg", [x], program.tensor(4, 4))
    graph = program.lower()
    assert graph.edges == ((0, 1), (1, 2))
    assert graph.kernels[1].bytes == 128


def test_edges_run_through_views(program):
    x, y = program.tensor(4, 4), program.tensor(4, 4)
    program.call("aten.mm", [program.tensor(4, 4), program.tensor(4, 4)], x)
    half = program.tensor(4, 2, of=x, touched=32)
    program.call("aten.slice", [x], half)
    turned = program.tensor(2, 4, of=x, touched=32)
    program.call("aten.t", [half], turned)
    program.call("aten.neg", [turned], y)
    graph = program.lower()
    assert graph.edges == ((0, 1),)
    assert graph.edge_bytes == (32,)


def test_dependency_without_a_shared_operand_keeps_its_edge(program):
    grad = program.tensor(8, role="gradient")
    weight = program.tensor(8, role="parameter")
    program.call("aten.sum", [program.tensor(4, 8)], grad, phase="backward")
    program.call("aten.neg", [weight], weight, phase="optimizer")
    program.nodes[1] = type(program.nodes[1])(
        op="predictor.sgd", phase="optimizer", inputs=(weight,), outputs=(),
        attrs={"numel": 8, "tensors": 1, "momentum": 0.0}, deps=(0,),
    )  # fmt: skip
    graph = program.lower()
    assert graph.edges == ((0, 1),)
    assert graph.edge_bytes == (32,)


def test_distinct_operands_count_once(program):
    x = program.tensor(4, 4)
    program.call("aten.mul", [x, x], program.tensor(4, 4))
    qkv = program.tensor(4, 12)
    q, k = (program.tensor(4, 4, of=qkv, touched=64) for _ in range(2))
    program.call("aten.mul", [q, k], program.tensor(4, 4))
    square, pair = program.lower().kernels
    assert square.read_bytes == 64
    assert pair.read_bytes == 128


def test_dense_embedding_gradient_fills_the_table_first(program):
    # C5: 50,000 x 64 zeros, then 4 rows
    ids = program.tensor(4, dtype="int64")
    grad = program.tensor(4, 64)
    table = program.tensor(50_000, 64, role="gradient")
    program.call("aten.embedding_dense_backward", [grad, ids], table)
    fill, rows = program.lower().kernels
    assert (fill.op, fill.write_bytes) == ("fill", 3_200_000 * 4)
    assert (rows.op, rows.dims) == ("embedding_backward", {"rows": 4, "cols": 64})
    assert rows.write_bytes == 256 * 4


def test_many_ids_are_sorted_before_the_gradient(program):
    ids, grad = program.tensor(8, 1024, dtype="int64"), program.tensor(8, 1024, 16)
    program.call("aten.embedding_dense_backward", [grad, ids], program.tensor(100, 16))
    assert ops(program.lower()) == ["fill", "sort", "embedding_backward"]


def test_embedding_reads_rows_and_indices(program):
    table = program.tensor(30_000, 64, role="parameter")
    ids = program.tensor(2, 8, dtype="int64")
    program.call("aten.embedding", [table, ids], program.tensor(2, 8, 64))
    (kernel,) = program.lower().kernels
    assert kernel.read_bytes == 16 * 64 * 4 + 16 * 8
    assert (kernel.dtype, kernel.dims) == ("fp32", {"rows": 16, "cols": 64})


def test_out_of_place_masked_fill_clones_first(program):
    x, mask = program.tensor(4, 4), program.tensor(4, 4, dtype="bool")
    program.call("aten.masked_fill", [x, mask], program.tensor(4, 4))
    program.call("aten.masked_fill_", [x, mask], x)
    graph = program.lower()
    assert ops(graph) == ["copy", "where", "where"]
    assert graph.kernels[1].read_bytes == graph.kernels[2].read_bytes == 64 + 16


def test_cast_transpose_and_copy_are_told_apart(program):
    x = program.tensor(4, 4)
    turned = program.tensor(4, 4, of=x, layout="strided")
    program.call("aten._to_copy", [x], program.tensor(4, 4, dtype="bf16"))
    program.call("aten.clone", [turned], program.tensor(4, 4))
    program.call("aten.clone", [x], program.tensor(4, 4))
    program.call("aten.copy_", [program.tensor(4, 4), x], program.tensor(4, 4))
    graph = program.lower()
    assert ops(graph) == ["cast", "transpose", "copy", "copy"]
    assert graph.kernels[0].bytes == 64 + 32
    assert graph.kernels[3].bytes == 128


def test_sizes_of_rows_are_read_from_shapes(program):
    x = program.tensor(2, 8, 16)
    mean, rstd = program.tensor(2, 8, 1), program.tensor(2, 8, 1)
    w, b = program.tensor(16, role="parameter"), program.tensor(16, role="parameter")
    program.call("aten.native_layer_norm", [x, w, b], x, mean, rstd, normalized_shape=[16])
    program.call(
        "aten.native_layer_norm_backward", [x, x, mean, rstd, w, b], x, w, b, normalized_shape=[16]
    )
    program.call("aten._softmax", [x], program.tensor(2, 8, 16), dim=1)
    program.call("aten.sum", [x], program.tensor(2, 16), dim=[1])
    image = program.tensor(2, 6, 4, 4)
    program.call("aten.native_batch_norm", [image, program.tensor(6)], image, program.tensor(6))
    moments = program.tensor(2, 3)
    program.call("aten.native_group_norm", [image], image, moments, moments, group=3)
    program.call(
        "aten.max_pool2d_with_indices", [image], program.tensor(2, 6, 2, 2), kernel_size=[3, 3]
    )
    program.call("aten.topk", [x], program.tensor(2, 8, 2), dim=-1)
    assert [(k.op, *k.dims.values()) for k in program.lower().kernels] == [
        ("layer_norm", 16, 16),
        ("layer_norm_backward", 16, 16),
        ("softmax", 32, 8),
        ("reduction", 32, 8),
        ("batch_norm", 6, 32),
        ("group_norm", 6, 32),
        ("pool", 48, 9),
        ("sort", 16, 16),
    ]


def test_loss_over_targets_does_not_read_all_logits(program):
    logits, target = program.tensor(32, 1000), program.tensor(32, dtype="int64")
    program.call("aten.nll_loss_forward", [logits, target], program.tensor(), program.tensor())
    grad = program.tensor(32, 1000)
    program.call("aten.nll_loss_backward", [program.tensor(), logits, target], grad)
    graph = program.lower()
    assert ops(graph) == ["reduction", "fill", "scatter"]
    assert graph.kernels[0].read_bytes == 32 * (4 + 8)
    assert graph.kernels[1].write_bytes == 128_000


def test_integer_arithmetic_is_no_floating_point_work(program):
    ids = program.tensor(64, dtype="int64")
    program.call("aten.add", [ids], program.tensor(64, dtype="int64"))
    program.call("aten.gt", [program.tensor(64)], program.tensor(64, dtype="bool"))
    index, compare = program.lower().kernels
    assert (index.flops, index.dtype, index.bytes) == (0, "int64", 1024)
    assert (compare.dtype, compare.write_bytes) == ("fp32", 64)


def test_statistics_do_not_decide_the_dtype(program):
    x, w = program.tensor(4, 8, dtype="bf16"), program.tensor(8, role="parameter")
    program.call("aten.native_layer_norm", [x, w], x, program.tensor(4), normalized_shape=[8])
    assert program.lower().kernels[0].dtype == "bf16"


def test_foreach_call_is_launched_in_chunks(program):
    grads = [program.tensor(10) for _ in range(200)]
    program.call("aten._foreach_mul_", grads, phase="optimizer")
    (kernel,) = program.lower().kernels
    assert (kernel.op, kernel.dims["numel"], kernel.launches) == ("mul", 2000, 2)
    assert kernel.bytes == 2 * 2000 * 4
    program.call("aten._foreach_add_", grads, phase="optimizer", overload="List")
    assert program.lower().kernels[1].dims["numel"] == 1000


def test_adamw_streams_as_its_foreach_passes_do(program):
    weights = [program.tensor(1000, 1000, role="parameter"), program.tensor(1000, role="parameter")]
    attrs = {"numel": 1_001_000, "tensors": 2}
    program.call("predictor.adamw", weights, phase="optimizer", **attrs)
    program.call("predictor.sgd", weights, phase="optimizer", momentum=0.9, **attrs)
    program.call("predictor.sgd", weights, phase="optimizer", momentum=0, **attrs)
    adamw, momentum, plain = program.lower().kernels
    assert (adamw.read_bytes, adamw.write_bytes) == (12 * 4_004_000, 8 * 4_004_000)
    assert (momentum.read_bytes, momentum.write_bytes) == (5 * 4_004_000, 3 * 4_004_000)
    assert (plain.read_bytes, plain.write_bytes) == (2 * 4_004_000, 4_004_000)
    assert [k.launches for k in (adamw, momentum, plain)] == [8, 3, 1]
    host = program.lower().host_ops["optimizer"]
    assert host == (8 + 3 * 2) + 3 + 1


def test_copy_from_the_host_is_a_transfer(program):
    table = program.tensor(16, 4, role="input")
    program.call("aten._to_copy", [table], program.tensor(16, 4), transfer="host_to_device")
    (kernel,) = program.lower().kernels
    assert (kernel.op, kernel.dims, kernel.flops) == ("transfer", {"numel": 64}, 0)


def test_collective_knows_its_ranks(program):
    x = program.tensor(1024)
    program.call("_c10d_functional.all_reduce", [x], program.tensor(1024), group_size=8)
    program.call("_c10d_functional.wait_tensor", [x], x)
    (kernel,) = program.lower().kernels
    assert (kernel.op, kernel.dims) == ("collective", {"numel": 1024, "ranks": 8})


def test_large_graphs_lower_to_as_many_kernels(program):
    x = program.tensor(8, 8)
    for _ in range(10_000):
        y = program.tensor(8, 8)
        program.call("aten.add", [x, x], y)
        x = y
    graph = program.lower()
    assert len(graph.kernels) == 10_000
    assert len(graph.edges) == 9_999
