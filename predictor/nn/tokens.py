"""Which embedding a token trains, and which encoder reads it."""

from __future__ import annotations

import torch
from torch import Tensor

from predictor.graph.ops import OPS, TOKENS


def trunk_tokens() -> Tensor:
    """(T,) index of the token whose embedding each token uses.

    A token that only backward ops use borrows the token of their forward op (its own difference
    is one learned bias): in-step measurements find the ratio of backward to forward nearly the
    same on every device.
    """
    trunk = []
    for token in TOKENS:
        rows = [op for op in OPS.values() if op.token == token]
        forward = [op.forward_op for op in rows]
        borrowed = forward[0] if all(forward) and forward else None
        trunk.append(TOKENS.index(OPS[borrowed].token if borrowed else token))
    return torch.tensor(trunk, dtype=torch.long)


ENCODED_APART: tuple[tuple[str, ...], ...] = (
    ("matmul",), ("grouped_matmul",), ("attention",), ("conv", "recurrent"),
)  # fmt: skip
"""Op classes whose kernels are told by columns of their own; all others share an encoder."""


def encoder_groups() -> Tensor:
    """(T,) which encoder reads the kernels of each token: 0 those of no class set apart."""
    group_of = {c: i + 1 for i, classes in enumerate(ENCODED_APART) for c in classes}
    class_of = {op.token: op.op_class for op in OPS.values()}
    return torch.tensor([group_of.get(class_of[t], 0) for t in TOKENS], dtype=torch.long)
