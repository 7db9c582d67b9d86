"""BERT with its pretraining heads (masked language model, next sentence), Devlin et al. 2018."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import merge_heads, split_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT."""

    layers: int
    hidden: int
    heads: int
    positions: int = 512
    vocab: int = 30522
    segments: int = 2
    dropout: float = 0.1
    eps: float = 1e-12


class BertEmbeddings(nn.Module):
    """Word, segment and position embeddings, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab, config.hidden, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.positions, config.hidden)
        self.token_type_embeddings = nn.Embedding(config.segments, config.hidden)
        self.layer_norm = nn.LayerNorm(config.hidden, eps=config.eps)
        self.dropout = nn.Dropout(config.dropout)
        self.position_ids: Tensor
        self.register_buffer(
            "position_ids", torch.arange(config.positions).expand((1, -1)), persistent=False
        )

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Ids `[B, S]` to `[B, S, E]`."""
        position_ids = self.position_ids[:, : input_ids.shape[1]]
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        x = x + self.position_embeddings(position_ids)
        return self.dropout(self.layer_norm(x))  # type: ignore[no-any-return]


class BertLayer(nn.Module):
    """Post-norm encoder layer."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.p = config.dropout
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.attention_output = nn.Linear(config.hidden, config.hidden)
        self.attention_norm = nn.LayerNorm(config.hidden, eps=config.eps)
        self.intermediate = nn.Linear(config.hidden, 4 * config.hidden)
        self.output = nn.Linear(4 * config.hidden, config.hidden)
        self.output_norm = nn.LayerNorm(config.hidden, eps=config.eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        q, k, v = (split_heads(f(x), self.head_dim) for f in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.p if self.training else 0.0
        )
        out = self.dropout(self.attention_output(merge_heads(attended)))
        x = self.attention_norm(out + x)
        out = self.dropout(self.output(functional.gelu(self.intermediate(x))))
        return self.output_norm(out + x)  # type: ignore[no-any-return]


class BertForPreTraining(nn.Module):
    """The encoder with both pretraining heads; the decoder's weight is the word embedding's."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList([BertLayer(config) for _ in range(config.layers)])
        self.pooler = nn.Linear(config.hidden, config.hidden)
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.transform_norm = nn.LayerNorm(config.hidden, eps=config.eps)
        self.decoder = nn.Linear(config.hidden, config.vocab)
        self.decoder.weight = self.embeddings.word_embeddings.weight
        self.seq_relationship = nn.Linear(config.hidden, 2)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Ids `[B, S]` to both heads' logits, and the summed loss when there are labels."""
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            x = layer(x)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        scores = self.decoder(self.transform_norm(functional.gelu(self.transform(x))))
        relation = self.seq_relationship(pooled)
        result = {"logits": scores, "relation": relation}
        if labels is not None and next_sentence_label is not None:
            masked = functional.cross_entropy(scores.view(-1, scores.size(-1)), labels.view(-1))
            following = functional.cross_entropy(relation.view(-1, 2), next_sentence_label.view(-1))
            result["loss"] = masked + following
        return result
