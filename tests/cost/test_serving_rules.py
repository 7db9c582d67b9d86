"""Rules of serving kernels: windows, latent attention, states, experts, collectives, formats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.cost import rules
from predictor.cost.attention import attention_pairs, visible_keys
from predictor.cost.rules import kernel_cost
from predictor.graph.ops import OPS, TOKENS

ATTENTION = {
    "batch": 1, "heads": 2, "kv_heads": 1, "q_len": 4, "kv_len": 6, "head_dim": 8, "causal": 1,
}  # fmt: skip


def test_no_new_op_adds_a_token():
    # shipped checkpoints hold one embedding a token
    assert len(TOKENS) == 37
    assert OPS["moe"].token == "grouped_mm"
    assert OPS["latent_attention"].token == OPS["ssd"].token == "attention"


def test_window_by_hand():
    # queries 3..6 of six keys see 3, 4, 5, 6 keys; through a window of 4: 3, 4, 4, 4
    assert attention_pairs(ATTENTION) == 18
    assert attention_pairs({**ATTENTION, "window": 4}) == 15
    assert rules.flops("attention", {**ATTENTION, "window": 4}) == 4 * 2 * 8 * 15
    # the first query, at key 3, reaches back to key 1 (of 1..6): all six are read
    assert visible_keys({**ATTENTION, "window": 4}) == 6
    # one query reads its window alone: 2 * 3 keys * 8 of K and V, and 2 * 8 of its own
    decode = {**ATTENTION, "q_len": 1, "window": 3}
    assert rules.read_elements("attention", decode) == 2 * 8 + 2 * 3 * 8
    assert rules.flops("attention", decode) == 4 * 2 * 8 * 3


@given(q=st.integers(1, 12), kv=st.integers(1, 12), window=st.integers(1, 14))
def test_window_pairs_equal_a_count(q, kv, window):
    d = {"q_len": q, "kv_len": kv, "causal": 1, "window": window}
    pairs = [
        (i, j) for i in range(q) for j in range(kv) if 0 <= (i + kv - q) - j < window
    ]  # fmt: skip
    assert attention_pairs(d) == len(pairs)
    if q <= kv:
        assert visible_keys(d) == len({j for _, j in pairs})
    assert attention_pairs({**d, "window": kv}) == attention_pairs({**d, "window": -1})


def test_window_arrays_may_hold_rows_without_one():
    d = {k: np.full(3, v) for k, v in ATTENTION.items()}
    d["window"] = np.array([-1, 4, 100])
    assert attention_pairs(d).tolist() == [18, 15, 18]
    assert kernel_cost("attention", d, "bf16").flops.tolist() == [4 * 16 * p for p in (18, 15, 18)]


def test_prefill_with_other_value_width():
    # DeepSeek's prefill, one head: keys of 192, values of 128, 4 x 4 causal pairs 10
    d = {**ATTENTION, "heads": 1, "kv_len": 4, "head_dim": 192, "v_head_dim": 128}
    cost = kernel_cost("attention", d, "bf16")
    assert cost.flops == 2 * (192 + 128) * 10
    assert cost.matmul_flops == 2 * (192 + 128) * 16
    assert cost.read_bytes == 2 * (4 * 192 + 4 * (192 + 128))
    assert cost.write_bytes == 2 * 4 * 128


def test_latent_attention_reads_the_cache_once():
    # decode, 16 heads, 100 cached vectors of 576 of which 512 are the values
    d = {
        "batch": 1, "heads": 16, "q_len": 1, "kv_len": 100, "head_dim": 576, "v_head_dim": 512,
        "causal": 1,
    }  # fmt: skip
    cost = kernel_cost("latent_attention", d, "bf16")
    assert cost.flops == 2 * 16 * (576 + 512) * 100
    assert cost.read_bytes == 2 * (16 * 576 + 100 * 576)
    assert cost.write_bytes == 2 * 16 * 512
    narrow = kernel_cost("latent_attention", d, "bf16", stored_bytes=1)
    assert cost.read_bytes - narrow.read_bytes == 100 * 576


def test_states():
    # 2 value heads of 4, 1 key head of 8, 10 tokens: the state is 2 * 8 * 4 = 64
    d = {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 10, "head_dim": 8, "v_head_dim": 4}
    assert rules.flops("delta_rule", d) == 6 * 10 * 64
    assert rules.flops("ssd", d) == 4 * 10 * 64
    cost = kernel_cost("delta_rule", d, "bf16")
    assert cost.read_bytes == 2 * (2 * 10 * 8 + 10 * 2 * 4 + 64) + 2 * 4 * 2 * 10
    assert cost.write_bytes == 2 * (10 * 2 * 4 + 64)


def test_experts():
    # 3 tokens, 2 of 4 experts each: 6 rows of 8 through gated experts of 16
    d = {"tokens": 3, "groups": 4, "m": 6, "n": 16, "k": 8, "gates": 2}
    cost = kernel_cost("moe", d, "bf16")
    assert cost.flops == 2 * 6 * (3 * 8 * 16)
    assert cost.read_bytes == 2 * (3 * 8 + 4 * 3 * 8 * 16)
    assert cost.write_bytes == 2 * 3 * 8
    plain = kernel_cost("moe", {**d, "gates": 1}, "bf16")
    assert plain.flops == 2 * 6 * (2 * 8 * 16)


def test_experts_that_no_row_meets_are_not_read():
    d = {"tokens": 1, "groups": 64, "m": 2, "n": 16, "k": 8, "gates": 2}
    assert kernel_cost("moe", d, "fp8").read_bytes == 8 + 2 * 3 * 8 * 16
    assert kernel_cost("moe", {**d, "active": 1}, "fp8").read_bytes == 8 + 1 * 3 * 8 * 16
    assert kernel_cost("moe", {**d, "active": -1}, "fp8").read_bytes == 8 + 2 * 3 * 8 * 16


@pytest.mark.parametrize(
    ("op", "flops", "read", "written"),
    [("all_reduce", 750, 2000, 2000), ("reduce_scatter", 750, 2000, 500),
     ("all_gather", 0, 500, 2000), ("all_to_all", 0, 2000, 2000), ("send_recv", 0, 2000, 2000)],
)  # fmt: skip
def test_collectives_of_one_rank(op, flops, read, written):
    cost = kernel_cost(op, {"numel": 1000, "ranks": 4}, "bf16")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (flops, read, written)
    assert cost.matmul_flops == 0


def test_formats_of_weights_and_results():
    # 2 x 8 by 8 x 4: bf16 inputs, weights of half a byte, results of 2 bytes
    d = {"batch": 1, "m": 2, "n": 4, "k": 8}
    cost = kernel_cost("matmul", d, "fp8", input_bytes=2, stored_bytes=0.5, output_bytes=2)
    assert cost.read_bytes == 2 * 2 * 8 + 0.5 * 4 * 8
    assert cost.write_bytes == 2 * 2 * 4
    plain = kernel_cost("matmul", d, "fp8")
    assert (plain.read_bytes, plain.write_bytes) == (16 + 32, 8)


def test_quantize_reads_wide_and_writes_narrow():
    cost = kernel_cost("quantize", {"rows": 3, "cols": 5}, "bf16", output_bytes=1)
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (30, 30, 15)
