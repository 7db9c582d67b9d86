"""Which embedding a token trains: backward kernels borrow the trunk of their forward kernel."""

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
