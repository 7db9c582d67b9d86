"""Right values worked out by hand, on programs written by hand (cases A and C)."""

from __future__ import annotations

import pytest


def total(graph, phase=None):
    return sum(k.matmul_flops for k in graph.kernels if phase in (None, k.phase))


def test_linear_forward_and_backward_without_an_input_gradient(program):
    # A1: 2*8*1024*4096 = 67,108,864 a product
    x = program.tensor(8, 1024, role="input")
    w = program.tensor(4096, 1024, role="parameter")
    wt = program.tensor(1024, 4096, of=w, layout="strided")
    b = program.tensor(4096, role="parameter")
    y = program.tensor(8, 4096)
    program.call("aten.t", [w], wt, view=True)
    program.call("aten.addmm", [b, x, wt], y)
    dy = program.tensor(8, 4096)
    program.call("aten.ones_like", [y], dy, phase="backward")
    dw = program.tensor(4096, 1024, role="gradient")
    program.call("aten.mm", [program.tensor(4096, 8, of=dy), x], dw, phase="backward")
    graph = program.lower()
    assert [k.op for k in graph.kernels] == ["linear", "fill", "matmul"]
    assert total(graph) == 134_217_728
    assert total(graph, "forward") == 67_108_864
    program.call("aten.mm", [dy, w], program.tensor(8, 1024), phase="backward")
    assert total(program.lower()) == 201_326_592


def test_attention_counts_do_not_depend_on_the_kernel_aten_shows(program):
    # A4: 4*12*64*64*64
    q = program.tensor(1, 12, 64, 64)
    names = (
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_efficient_attention",
    )
    for name in names:
        program.call(name, [q, q, q], program.tensor(1, 12, 64, 64), is_causal=False)
    sdpa = {
        "batch": 1, "heads": 12, "kv_heads": 12, "q_len": 64, "kv_len": 64, "head_dim": 64,
        "causal": False,
    }  # fmt: skip
    program.call("predictor.sdpa", [q, q, q], program.tensor(1, 12, 64, 64), **sdpa)
    assert [k.flops for k in program.lower().kernels] == [12_582_912] * 3


def test_grouped_query_attention_reads_few_keys_and_values(program):
    # A5: FLOPs as with 32 key-value heads; K and V 2*8*128*64*2 = 262,144 bytes
    q = program.tensor(1, 32, 128, 64, dtype="fp16")
    k = program.tensor(1, 8, 128, 64, dtype="fp16")
    v = program.tensor(1, 8, 128, 64, dtype="fp16")
    program.call(
        "predictor.sdpa", [q, k, v], program.tensor(1, 32, 128, 64, dtype="fp16"), batch=1,
        heads=32, kv_heads=8, q_len=128, kv_len=128, head_dim=64, v_head_dim=64, causal=False,
    )  # fmt: skip
    (kernel,) = program.lower().kernels
    assert kernel.flops == kernel.matmul_flops == 134_217_728
    assert kernel.read_bytes - q.touched_bytes == 262_144
    assert kernel.dtype == "fp16"


def test_causal_attention_states_the_convention_and_the_work(program):
    # A6
    q, k, v, out = (program.tensor(1, 32, 4096, 128, dtype="bf16") for _ in range(4))
    dims = {
        "batch": 1, "heads": 32, "kv_heads": 32, "q_len": 4096, "kv_len": 4096, "head_dim": 128,
        "causal": True,
    }  # fmt: skip
    program.call("predictor.sdpa", [q, k, v], out, **dims)
    program.call("predictor.sdpa_backward", [out, q, k, v], q, k, v, phase="backward", **dims)
    forward, backward = program.lower().kernels
    assert forward.matmul_flops == 274_877_906_944
    assert forward.flops == 137_472_507_904
    assert backward.flops == 2.5 * forward.flops
    assert backward.matmul_flops == 2 * forward.matmul_flops


def test_values_narrower_than_keys(program):
    q = program.tensor(1, 2, 16, 192)
    v = program.tensor(1, 2, 16, 128)
    program.call(
        "predictor.sdpa", [q, q, v], program.tensor(1, 2, 16, 128), batch=1, heads=2, kv_heads=2,
        q_len=16, kv_len=16, head_dim=192, v_head_dim=128, causal=False,
    )  # fmt: skip
    assert program.lower().kernels[0].flops == 2 * 2 * 16 * 16 * (192 + 128)


def test_grouped_convolution_trains_at_three_times_its_forward(program):
    # A7: 2*(2*56*56)*128*(64/4)*9 = 231,211,008
    x = program.tensor(2, 64, 56, 56)
    w = program.tensor(128, 16, 3, 3, role="parameter")
    y = program.tensor(2, 128, 56, 56)
    program.call("aten.convolution", [x, w], y, groups=4, transposed=False)
    dx, dw = program.tensor(2, 64, 56, 56), program.tensor(128, 16, 3, 3, role="gradient")
    program.call(
        "aten.convolution_backward", [y, x, w], dx, dw, phase="backward", groups=4,
        transposed=False, output_mask=[True, True, False],
    )  # fmt: skip
    graph = program.lower()
    assert [k.op for k in graph.kernels] == ["conv", "conv_dgrad", "conv_wgrad"]
    assert [k.flops for k in graph.kernels] == [231_211_008] * 3
    assert total(graph) == 693_633_024
    assert all(k.dims["groups"] == 4 for k in graph.kernels)


@pytest.mark.parametrize(
    ("gates", "right"),
    [(4, 35_840_000), (3, 26_880_000), (1, 8_960_000)],
    ids=["lstm", "gru", "rnn"],
)
def test_recurrent_layer_is_one_kernel_of_dependent_steps(program, gates, right):
    # A10: 2*T*B*g*H*(I+H), 250 launches
    x, w_ih = program.tensor(1, 250, 12), program.tensor(gates * 128, 12, role="parameter")
    w_hh = program.tensor(gates * 128, 128, role="parameter")
    dims = {
        "mode": "any", "gates": gates, "steps": 250, "batch": 1, "input_size": 12,
        "hidden_size": 128, "layers": 1, "directions": 1, "proj_size": 0,
    }  # fmt: skip
    y = program.tensor(1, 250, 128)
    program.call("predictor.rnn", [x, w_ih, w_hh], y, **dims)
    program.call("predictor.rnn_backward", [y, x, w_ih, w_hh], x, w_ih, w_hh, **dims)
    forward, backward = program.lower().kernels
    assert forward.flops == forward.matmul_flops == right
    assert forward.launches == backward.launches == 250
    assert backward.flops == 2 * right
    assert forward.read_bytes == 4 * (250 * 12 + gates * 128 * 140)


def test_packed_sequences_count_their_own_rows(program):
    # lengths 5 and 3 in 5 steps: 8 rows of 4*8*(3+8) products
    x = program.tensor(8, 3)
    program.call(
        "predictor.rnn", [x], program.tensor(8, 8), mode="lstm", gates=4, steps=5, batch=2, rows=8,
        input_size=3, hidden_size=8, layers=1, directions=1, proj_size=0,
    )  # fmt: skip
    (kernel,) = program.lower().kernels
    assert (kernel.flops, kernel.launches) == (2 * 8 * 4 * 8 * 11, 5)


def test_projected_lstm(program):
    # 2*T*(4*8*(3+2) + 2*8) with hidden 8, projection 2
    x = program.tensor(1, 5, 3)
    program.call(
        "predictor.rnn", [x], program.tensor(1, 5, 2), mode="LSTM", gates=4, steps=5, batch=1,
        input_size=3, hidden_size=8, layers=1, directions=1, proj_size=2,
    )  # fmt: skip
    assert program.lower().kernels[0].flops == 2 * 5 * (4 * 8 * 5 + 2 * 8)


def test_embedding_bag_moves_rows_not_the_table(program):
    # A12: 320 rows of 64 fp32 read, 32 written, at most 20,480 adds, no matrix product
    table = program.tensor(1000, 64, role="parameter")
    ids, offsets = program.tensor(320, dtype="int64"), program.tensor(32, dtype="int64")
    program.call("aten._embedding_bag", [table, ids, offsets], program.tensor(32, 64))
    (kernel,) = program.lower().kernels
    assert kernel.matmul_flops == 0
    assert 0 < kernel.flops <= 20_480
    assert kernel.read_bytes == 320 * 64 * 4 + 8 * (320 + 32)
    assert kernel.write_bytes == 32 * 64 * 4
    assert kernel.bytes < 256_000


def test_layer_called_twice_counts_twice(program):
    # A14: 2*2*8*64*64
    x, w = program.tensor(8, 64), program.tensor(64, 64, role="parameter")
    b = program.tensor(64, role="parameter")
    y = program.tensor(8, 64)
    program.call("aten.addmm", [b, x, w], y)
    program.call("aten.addmm", [b, y, w], program.tensor(8, 64))
    graph = program.lower()
    assert total(graph) == 131_072
    assert graph.edges == ((0, 1),)
    assert graph.edge_bytes == (8 * 64 * 4,)


def test_integer_scaled_and_sparse_products(program):
    # A20
    a, b = program.tensor(32, 64, dtype="int8"), program.tensor(64, 32, dtype="int8")
    program.call("aten._int_mm", [a, b], program.tensor(32, 32, dtype="int32"))
    a8, b8 = program.tensor(32, 64, dtype="fp8"), program.tensor(64, 16, dtype="fp8")
    scale = program.tensor(1)
    program.call("aten._scaled_mm", [a8, b8, scale, scale], program.tensor(32, 16, dtype="bf16"))
    dense = program.tensor(64, 64)
    program.call(
        "predictor.sparse_mm", [program.tensor(64, 64), dense], program.tensor(64, 64),
        m=64, n=64, k=64, nnz=64,
    )  # fmt: skip
    graph = program.lower()
    assert [k.flops for k in graph.kernels] == [131_072, 65_536, 8_192]
    assert [k.dtype for k in graph.kernels] == ["int8", "fp8", "fp32"]


def test_expanded_operand_counts_its_storage(program):
    # A21: ones(1, 1024).expand(4096, 1024) + 1
    ones = program.tensor(1, 1024)
    program.call("aten.ones", [], ones)
    wide = program.tensor(4096, 1024, of=ones, touched=4096, layout="strided")
    program.call("aten.expand", [ones], wide, view=True)
    program.call("aten.add", [wide], program.tensor(4096, 1024))
    graph = program.lower()
    assert [k.op for k in graph.kernels] == ["fill", "add"]
    assert graph.kernels[1].read_bytes == 4_096
    assert graph.kernels[1].write_bytes == 4096 * 1024 * 4
    assert graph.edges == ((0, 1),)
    assert graph.edge_bytes == (4_096,)
    assert graph.host_ops == {"forward": 3}


def test_product_of_nothing_launches_nothing(program):
    # A22
    program.call("aten.mm", [program.tensor(0, 8), program.tensor(8, 4)], program.tensor(0, 4))
    graph = program.lower()
    assert graph.kernels == ()
    assert graph.host_ops == {"forward": 1}


def test_sum_over_nothing_writes_zeros(program):
    program.call("aten.mm", [program.tensor(8, 0), program.tensor(0, 4)], program.tensor(8, 4))
    (kernel,) = program.lower().kernels
    assert (kernel.op, kernel.flops, kernel.write_bytes) == ("fill", 0, 128)


def test_complex_products_are_four_real_ones(program):
    a = program.tensor(4, 4, dtype="complex64")
    program.call("aten.mm", [a, a], program.tensor(4, 4, dtype="complex64"))
    assert program.lower().kernels[0].flops == 4 * 2 * 4**3


def test_balanced_experts_run_as_grouped_products(program):
    # tokens*topk = 64 rows over 8 experts: 2*64*k*n, whatever the number of experts
    x, w = program.tensor(64, 32, dtype="bf16"), program.tensor(8, 32, 48, dtype="bf16")
    ends = program.tensor(8, dtype="int32")
    program.call("aten._grouped_mm", [x, w, ends], program.tensor(64, 48, dtype="bf16"))
    dy = program.tensor(64, 48, dtype="bf16")
    xt = program.tensor(32, 64, dtype="bf16")
    program.call("aten._grouped_mm", [xt, dy, ends], program.tensor(8, 32, 48, dtype="bf16"))
    forward, wgrad = program.lower().kernels
    assert forward.flops == wgrad.flops == 2 * 64 * 32 * 48
    assert forward.dims["groups"] == wgrad.dims["groups"] == 8
