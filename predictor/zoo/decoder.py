"""What the decoder-only models share: the shifted next-token loss and the tied output head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# B batch, S sequence, V vocabulary

IGNORED = -100


def next_token_loss(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in fp32, labels shifted by one."""
    logits = logits_BSV.float()
    shifted = functional.pad(labels_BS, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return functional.cross_entropy(
        logits.view(-1, logits.size(-1)), shifted.view(-1), ignore_index=IGNORED
    )


def outputs(logits_BSV: Tensor, labels_BS: Tensor | None) -> dict[str, Tensor]:
    """The model's output: logits, and the loss when there are labels."""
    if labels_BS is None:
        return {"logits": logits_BSV}
    return {"loss": next_token_loss(logits_BSV, labels_BS), "logits": logits_BSV}


def merge_heads(x_BHSD: Tensor) -> Tensor:
    """Attention output back to `[batch, sequence, hidden]`."""
    batch, _, seq, _ = x_BHSD.shape
    return x_BHSD.transpose(1, 2).contiguous().reshape(batch, seq, -1)


def split_heads(x_BSE: Tensor, head_dim: int) -> Tensor:
    """`[batch, sequence, hidden]` to `[batch, heads, sequence, head size]`, a view."""
    return x_BSE.view(*x_BSE.shape[:-1], -1, head_dim).transpose(1, 2)


def tied_head(embedding: nn.Embedding) -> nn.Linear:
    """An output layer that shares the embedding's weight."""
    head = nn.Linear(embedding.embedding_dim, embedding.num_embeddings, bias=False)
    head.weight = embedding.weight
    return head


def positions(seq: int, like: Tensor) -> Tensor:
    """Position ids `[1, seq]` on the device of a tensor."""
    return torch.arange(seq, device=like.device).unsqueeze(0)
