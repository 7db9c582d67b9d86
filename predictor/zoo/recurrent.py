"""The large LSTM language model of Zaremba et al. 2014 (Penn Treebank, 66M parameters)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class LstmConfig:
    """Sizes of an LSTM language model."""

    layers: int = 2
    hidden: int = 1500
    vocab: int = 10000
    dropout: float = 0.65


class LstmLm(nn.Module):
    """Embedding, stacked LSTM, output layer, with dropout between them."""

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.lstm = nn.LSTM(
            config.hidden, config.hidden, config.layers, batch_first=True, dropout=config.dropout
        )
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = nn.Linear(config.hidden, config.vocab)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Token ids `[B, S]` to logits of the next token, and the loss when there are labels."""
        x, _ = self.lstm(self.dropout(self.embedding(input_ids)))
        logits = self.decoder(self.dropout(x))
        if labels is None:
            return {"logits": logits}
        rows = logits.view(-1, logits.size(-1))
        return {"loss": functional.cross_entropy(rows, labels.view(-1)), "logits": logits}
