"""FLOP and byte rules: hand-worked numbers, laws, and arrays that agree with integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.cost import rules
from predictor.cost.rules import MATRIX_CLASSES, RULES, kernel_cost
from predictor.errors import CostRuleError
from predictor.graph.ops import OPS

BACKWARD_OF = {
    "conv_dgrad": 1, "conv_wgrad": 1, "attention_backward": 2, "rnn_backward": 2,
}  # fmt: skip
"""Matrix op: its reported FLOPs as a multiple of the forward's."""


def sizes(op: str) -> st.SearchStrategy[dict[str, int]]:
    """Valid dimensions of an op: groups divide channels, key-value heads divide heads."""
    drawn = {name: st.integers(1, 64) for name in OPS[op].dims}
    if "causal" in drawn:
        drawn["causal"] = st.integers(0, 1)
    return st.fixed_dictionaries(drawn).map(lambda d: valid(op, d))


def valid(op: str, d: dict[str, int]) -> dict[str, int]:
    if OPS[op].op_class == "conv":
        d = {**d, "c_in": d["c_in"] * d["groups"], "c_out": d["c_out"] * d["groups"]}
    if OPS[op].op_class == "elementwise":
        d = {**d, "outputs": 1 + d["outputs"] % 2, "inputs": 1 + d["inputs"] % 3}
    if op == "sparse_mm":
        d = {**d, "nnz": min(d["nnz"], d["m"] * d["k"])}
    return d


def test_every_op_has_one_rule():
    assert set(RULES) == set(OPS)


def test_gemm():
    # [8, 1024] x [1024, 4096]: 2*8*1024*4096 FLOPs; 8,192 + 4,194,304 read, 32,768 written
    d = {"batch": 1, "m": 8, "n": 4096, "k": 1024}
    assert rules.flops("matmul", d) == 67_108_864
    assert rules.read_elements("matmul", d) == 4_202_496
    assert rules.write_elements("matmul", d) == 32_768
    assert rules.read_elements("linear", d) == 4_202_496 + 4096
    cost = kernel_cost("matmul", d, "bf16")
    assert (cost.read_bytes, cost.write_bytes) == (8_404_992, 65_536)


def test_causal_attention_states_both_numbers():
    d = {
        "batch": 1, "heads": 32, "kv_heads": 32, "q_len": 4096, "kv_len": 4096, "head_dim": 128,
        "causal": 1,
    }  # fmt: skip
    cost = kernel_cost("attention", d, "bf16")
    assert cost.matmul_flops == 274_877_906_944
    assert cost.flops == 137_472_507_904
    backward = kernel_cost("attention_backward", d, "bf16")
    assert backward.flops == 2.5 * cost.flops
    assert backward.matmul_flops == 2 * cost.matmul_flops


def test_causal_decode_sees_the_whole_cache():
    # one query after 99 cached keys sees 100; two queries see 99 + 100
    d = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 100, "head_dim": 1}
    assert rules.flops("attention", {**d, "causal": 1}) == 4 * 100
    assert rules.flops("attention", {**d, "q_len": 2, "causal": 1}) == 4 * 199
    assert rules.flops("attention", {**d, "q_len": 3, "kv_len": 2, "causal": 1}) == 4 * 3


def test_grouped_query_attention_reads_key_value_heads():
    # A5 at fp16: 2*8*128*64*2 = 262,144 bytes of keys and values, 1,048,576 with 32 heads
    d = {
        "batch": 1, "heads": 32, "kv_heads": 8, "q_len": 128, "kv_len": 128, "head_dim": 64,
        "causal": 0,
    }  # fmt: skip
    query = 32 * 128 * 64 * 2
    assert kernel_cost("attention", d, "fp16").read_bytes - query == 262_144
    many = {**d, "kv_heads": 32}
    assert kernel_cost("attention", many, "fp16").read_bytes - query == 1_048_576
    assert rules.flops("attention", d) == rules.flops("attention", many) == 134_217_728


def test_depthwise_convolution():
    # B1: 2*9*102,760,448 FLOPs, 2*(2*102,760,448 + 2,304) bytes
    d = {
        "batch": 128, "c_in": 256, "h_in": 56, "w_in": 56, "c_out": 256, "h_out": 56, "w_out": 56,
        "kh": 3, "kw": 3, "groups": 256,
    }  # fmt: skip
    cost = kernel_cost("conv", d, "bf16")
    assert cost.flops == 1_849_688_064
    assert cost.read_bytes + cost.write_bytes == 411_046_400


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 2), c_in=st.integers(1, 3), c_out=st.integers(1, 3),
    groups=st.integers(1, 2), size=st.integers(3, 5), kernel=st.integers(1, 3),
)  # fmt: skip
def test_convolution_equals_a_direct_count(batch, c_in, c_out, groups, size, kernel):
    out = size - kernel + 1
    products = sum(
        1
        for _ in range(batch)
        for _ in range(c_out * groups)
        for _ in range(out * out)
        for _ in range(c_in)
        for _ in range(kernel * kernel)
    )
    d = {
        "batch": batch, "c_in": c_in * groups, "h_in": size, "w_in": size, "c_out": c_out * groups,
        "h_out": out, "w_out": out, "kh": kernel, "kw": kernel, "groups": groups,
    }  # fmt: skip
    assert rules.flops("conv", d) == 2 * products
    assert rules.flops("conv_dgrad", d) + rules.flops("conv_wgrad", d) == 2 * rules.flops("conv", d)


@pytest.mark.parametrize(("gates", "right"), [(4, 35_840_000), (3, 26_880_000), (1, 8_960_000)])
def test_recurrent_layers(gates, right):
    d = {
        "steps": 250, "batch": 1, "input_size": 12, "hidden_size": 128, "layers": 1,
        "directions": 1, "gates": gates,
    }  # fmt: skip
    assert rules.flops("rnn", d) == right
    assert rules.launches("rnn", d) == 250


def test_stacked_bidirectional_recurrent_layer():
    # layer 0: 2 directions of g*H*(I+H); layer 1: its input is 2H wide
    d = {
        "steps": 1, "batch": 1, "input_size": 3, "hidden_size": 5, "layers": 2, "directions": 2,
        "gates": 4,
    }  # fmt: skip
    assert rules.flops("rnn", d) == 2 * (2 * 20 * (3 + 5) + 2 * 20 * (10 + 5))
    assert rules.launches("rnn", d) == 4


def test_sparse_product_counts_stored_values():
    assert rules.flops("sparse_mm", {"m": 64, "n": 64, "k": 64, "nnz": 64}) == 8_192


def test_complex_integer_and_mask_operands():
    d = {"batch": 1, "m": 2, "n": 2, "k": 2}
    assert kernel_cost("matmul", d, "complex64").flops == 4 * 16
    assert kernel_cost("matmul", d, "int8").flops == 16
    row = {"numel": 10, "inputs": 2, "outputs": 1}
    assert kernel_cost("add", row, "int64").flops == 0
    assert kernel_cost("add", row, "fp32").flops == 10
    assert kernel_cost("where", {**row, "inputs": 3}, "fp32").read_bytes == 2 * 40 + 10
    assert kernel_cost("dropout", {**row, "inputs": 1, "outputs": 2}, "fp32").write_bytes == 50


@pytest.mark.parametrize("op", sorted(BACKWARD_OF))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_backward_is_a_multiple_of_the_forward(op, data):
    d = data.draw(sizes(op))
    forward = OPS[op].forward_op
    assert rules.matmul_flops(op, d) == BACKWARD_OF[op] * rules.matmul_flops(forward, d)


@pytest.mark.parametrize("op", sorted(OPS))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_costs_are_sane_and_never_fall_when_a_dimension_grows(op, data):
    d = data.draw(sizes(op))
    before = kernel_cost(op, d, "fp32")
    assert min(before.flops, before.read_bytes, before.write_bytes) >= 0
    matrix = OPS[op].op_class in MATRIX_CLASSES
    assert (before.matmul_flops > 0) == matrix
    if matrix and op not in ("attention_backward",):
        assert before.flops <= before.matmul_flops
    for name in d:
        if name in ("causal", "groups", "ranks"):  # shared work, smaller shares
            continue
        grown = kernel_cost(op, {**d, name: d[name] * 2}, "fp32")
        assert grown.flops >= before.flops
        assert grown.read_bytes >= before.read_bytes
        assert grown.write_bytes >= before.write_bytes


@pytest.mark.parametrize("op", sorted(OPS))
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_arrays_agree_with_integers(op, data):
    rows = data.draw(st.lists(sizes(op), min_size=1, max_size=4))
    columns = {name: np.array([row[name] for row in rows]) for name in OPS[op].dims}
    many = kernel_cost(op, columns, "bf16")
    for i, row in enumerate(rows):
        one = kernel_cost(op, row, "bf16")
        for field in ("flops", "matmul_flops", "read_bytes", "write_bytes"):
            value = np.broadcast_to(getattr(many, field), len(rows))[i]
            assert value == pytest.approx(getattr(one, field), rel=1e-12)


def test_arrays_of_narrow_integers_do_not_overflow():
    d = {name: np.array([8192], dtype=np.int32) for name in ("m", "n", "k")}
    assert kernel_cost("matmul", {"batch": 1, **d}, "bf16").flops[0] == 1_099_511_627_776


def test_bad_calls_say_what_is_missing():
    with pytest.raises(CostRuleError, match="no cost rule for op 'nope'"):
        rules.flops("nope", {})
    with pytest.raises(CostRuleError, match="lacks dimension 'k'"):
        kernel_cost("matmul", {"batch": 1, "m": 1, "n": 1}, "fp32")
    with pytest.raises(CostRuleError, match="unknown dtype 'float'"):
        kernel_cost("matmul", {"batch": 1, "m": 1, "n": 1, "k": 1}, "float")
