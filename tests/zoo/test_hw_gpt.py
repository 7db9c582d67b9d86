"""HW-GPT-Bench decoders: parameters, multiply-adds and kernels, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from predictor.lower.eager import lower_eager
from predictor.program import capture
from predictor.zoo.hw_gpt import HwGpt, HwGptConfig, rope_tables, rotated


def config(bias: int) -> HwGptConfig:
    return HwGptConfig(hidden=128, heads=(1, 2), mlp_ratio=(2, 3), bias=bool(bias), vocab=1000)


def parameters_by_hand(bias: int) -> int:
    attention = 4 * 128 * 64 * (1 + 2)  # three projections in, one out
    mlp = 3 * 128 * 128 * (2 + 3)
    norms = (2 * 2 + 1) * 2 * 128
    biases = 3 * 64 * 3 + 2 * 128 + (2 * 2 + 1 + 2 * 3 + 1) * 128
    return attention + mlp + norms + 2 * 1000 * 128 + bias * biases


@pytest.mark.parametrize("bias", [0, 1])
def test_parameters(bias: int) -> None:
    with torch.device("meta"):
        module = HwGpt(config(bias))
    assert sum(p.numel() for p in module.parameters()) == parameters_by_hand(bias)
    assert config(bias).parameters == parameters_by_hand(bias)


def test_kernels_multiply_what_the_tables_count() -> None:
    with torch.device("meta"):
        module, tokens = HwGpt(config(1)).eval(), torch.zeros(2, 64, dtype=torch.long)
    graph = lower_eager(capture(module, tokens, mode="infer", dtype="amp-fp16"))
    products = [k for k in graph.kernels if k.op in ("linear", "matmul")]
    macs = sum(k.dims["m"] * k.dims["n"] * k.dims["k"] for k in products)
    by_hand = 2 * 64 * 128 * (4 * 64 * 3 + 3 * 128 * 5 + 1000)
    assert macs == by_hand == config(1).macs(2 * 64)
    assert {k.dtype for k in products} == {"fp16"}  # autocast
    attention = [k.dims for k in graph.kernels if k.op == "attention"]
    assert [d["heads"] for d in attention] == [1, 2]
    assert all(d["head_dim"] == 64 and d["causal"] == 1 for d in attention)


def test_each_block_makes_its_rotary_tables() -> None:
    with torch.device("meta"):
        module, tokens = HwGpt(config(0)).eval(), torch.zeros(1, 32, dtype=torch.long)
    graph = lower_eager(capture(module, tokens, mode="infer", dtype="amp-fp16"))
    tables = [k for k in graph.kernels if k.op == "exp" and k.dims["numel"] == 32 * 16]
    assert len(tables) == 2 * 2  # cosine and sine, two blocks


def test_the_module_runs_and_later_tokens_do_not_change_earlier_logits() -> None:
    torch.manual_seed(0)
    module = HwGpt(config(1)).eval()
    tokens = torch.randint(0, 1000, (1, 8))
    changed = tokens.clone()
    changed[0, -1] += 1
    with torch.no_grad():
        first, second = module(tokens), module(changed % 1000)
    assert first.shape == (1, 8, 1000)
    torch.testing.assert_close(first[:, :-1], second[:, :-1])
    assert not torch.allclose(first[:, -1], second[:, -1])


def test_rotation_keeps_lengths_and_leaves_three_quarters() -> None:
    heads = torch.randn(1, 2, 5, 64)
    cos, sin = rope_tables(torch.zeros(1, 5, 8))
    turned = rotated(heads, cos, sin)
    torch.testing.assert_close(turned[..., 16:], heads[..., 16:])
    torch.testing.assert_close(turned[:, :, 0], heads[:, :, 0])  # position 0 turns by nothing
    torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1))


def test_published_columns() -> None:
    found = HwGptConfig.of(192, "4 8", "2 4", 1)
    assert (found.hidden, found.heads, found.mlp_ratio, found.bias) == (192, (4, 8), (2, 4), True)
    for heads, ratio in (("4 8", "2"), ("4 x", "2 4")):
        with pytest.raises(ValueError, match=r"layers|literal"):
            HwGptConfig.of(192, heads, ratio, 0)
