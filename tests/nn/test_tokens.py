"""Which embedding a token trains."""

from __future__ import annotations

import torch

from predictor.graph.ops import OPS, TOKENS
from predictor.nn.tokens import trunk_tokens


def test_backward_tokens_borrow_and_all_others_are_their_own() -> None:
    trunk = trunk_tokens()
    assert trunk.shape == (len(TOKENS),)
    for index, token in enumerate(TOKENS):
        ops = [op for op in OPS.values() if op.token == token]
        borrowed = TOKENS[int(trunk[index])]
        if all(op.forward_op for op in ops):
            assert borrowed in {OPS[op.forward_op].token for op in ops if op.forward_op}
            assert borrowed != token
        else:
            assert borrowed == token


def test_named_tokens() -> None:
    trunk = trunk_tokens()

    def of(token: str) -> str:
        return TOKENS[int(trunk[TOKENS.index(token)])]

    assert of("layer_norm_backward") == "layer_norm"
    assert of("softmax_backward") == "softmax"
    assert of("attention_backward") == "attention"
    assert of("gemm") == "gemm"
    assert of("pointwise") == "pointwise"  # add_backward shares it with forward ops


def test_a_borrowed_token_borrows_from_nobody() -> None:
    trunk = trunk_tokens()
    assert torch.equal(trunk[trunk], trunk)
