"""Six programs that every front end can take, at sizes where arithmetic tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor import zoo
from predictor.zoo.bert import BertConfig, BertLayer
from predictor.zoo.recurrent import LstmConfig, LstmLm

HIDDEN, HEADS, TOKENS, BATCH, VOCAB = 256, 4, 64, 8, 1000


class GptWithLoss(nn.Module):
    """Embedding, one pre-norm block of causal attention and GELU, head, and cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.norms = nn.ModuleList([nn.LayerNorm(HIDDEN) for _ in range(3)])
        self.mix, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The loss of tokens `[B, S]` against labels `[B, S]`."""
        x = self.embed(tokens)
        shape = (*tokens.shape, HEADS, HIDDEN // HEADS)
        parts = self.mix(self.norms[0](x)).split(HIDDEN, dim=-1)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        x = x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        logits = self.head(self.norms[2](x))
        return functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))


class MoeLayer(nn.Module):
    """Two of four experts a token; every expert runs on every token, weighted by the router."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, experts)
        self.up = nn.Parameter(torch.randn(experts, HIDDEN, 4 * HIDDEN))
        self.down = nn.Parameter(torch.randn(experts, 4 * HIDDEN, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens `[T, E]` to the same."""
        scores = self.router(x).softmax(-1)
        weights, chosen = scores.topk(2, dim=-1)
        shares = torch.zeros_like(scores).scatter(-1, chosen, weights)
        hidden = functional.silu(torch.matmul(x.unsqueeze(0), self.up))
        return (torch.matmul(hidden, self.down) * shares.t().unsqueeze(-1)).sum(0)


def _bert() -> tuple[nn.Module, tuple[Tensor, ...]]:
    config = BertConfig(layers=1, hidden=HIDDEN, heads=HEADS)
    return BertLayer(config), (torch.randn(BATCH, TOKENS, HIDDEN),)


def _tokens() -> Tensor:
    return torch.randint(VOCAB, (BATCH, TOKENS))


def _lstm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return LstmLm(LstmConfig(hidden=HIDDEN, vocab=VOCAB)), (_tokens(),)


PROGRAMS: Mapping[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)),
        (torch.randn(64, 512),),
    ),
    "resnet-18": lambda: (
        zoo.build("resnet-18", mode="infer", batch=1).module.to_empty(device="cpu"),
        (torch.randn(2, 3, 128, 128),),
    ),
    "bert-layer": _bert,
    "gpt2-block": lambda: (GptWithLoss(), (_tokens(), _tokens())),
    "lstm": _lstm,
    "moe-layer": lambda: (MoeLayer(), (torch.randn(BATCH * TOKENS, HIDDEN),)),
}
