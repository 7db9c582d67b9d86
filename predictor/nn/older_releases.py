"""Weights of a release in the order of this version's feature columns, tokens and ops.

Columns, tokens and ops are matched by name. What the release did not know takes no part: a new
column has weight 0, a new token is in no training range, a new op takes the average host time. So a
release keeps predicting what it predicted, for as long as the meaning of its columns stays
(`FEATURES_VERSION`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from predictor.features.columns import COLUMNS
from predictor.features.table import OP_NAMES
from predictor.graph.ops import TOKENS
from predictor.nn.tokens import trunk_tokens

_ONE_ENCODER = re.compile(r"^(member\d+\.)((?:encoder|binned|x_mean_F|x_scale_F)\b)")
"""Tensors of networks from before there could be several encoders."""
FAR = 1e30
"""Bound of a range that nothing exceeds."""
_Change = Callable[[Tensor, Sequence[str], Sequence[str], Sequence[str]], Tensor]


def weights_of_today(
    tensors: Mapping[str, Tensor],
    *,
    columns: Sequence[str],
    tokens: Sequence[str],
    ops: Sequence[str],
) -> dict[str, Tensor]:
    """All tensors of a release with today's sizes.

    Args:
        tensors: of the release, by name.
        columns: its feature columns, in order.
        tokens: its tokens, in order.
        ops: its ops, in order.

    Raises:
        ValueError: a name that this version does not know, or a tensor of another size than the
            names say.
    """
    for kind, names, known in (("column", columns, COLUMNS), ("token", tokens, TOKENS)):
        missing = [n for n in names if n not in known]
        if missing:
            raise ValueError(f"{kind} {missing[0]!r} is not known to this version")
    out = {}
    for old, tensor in tensors.items():
        name = _ONE_ENCODER.sub(r"\1encoders.0.\2", old)
        change = next((c for suffix, c in _CHANGES.items() if name.endswith(suffix)), None)
        try:
            out[name] = tensor if change is None else change(tensor, columns, tokens, ops)
        except (IndexError, RuntimeError) as error:
            shape = " x ".join(map(str, tensor.shape)) or "a number"
            raise ValueError(
                f"tensor {name} is {shape}; the release names {len(columns)} columns, "
                f"{len(tokens)} tokens, {len(ops)} ops"
            ) from error
    return out


def _placed(
    tensor: Tensor, dim: int, names: Sequence[str], today: Sequence[str], fill: float
) -> Tensor:
    """Slices along `dim` in today's order; `fill` where a name is new."""
    if tensor.shape[dim] != len(names):
        raise IndexError(dim)
    if list(names) == list(today):
        return tensor
    shape = list(tensor.shape)
    shape[dim] = len(today)
    out = torch.full(shape, fill, dtype=tensor.dtype)
    kept = [i for i, name in enumerate(names) if name in today]
    at = torch.tensor([today.index(names[i]) for i in kept], dtype=torch.long)
    out.index_copy_(dim, at, tensor.index_select(dim, torch.tensor(kept, dtype=torch.long)))
    return out


def _encoder(
    t: Tensor, columns: Sequence[str], tokens: Sequence[str], ops: Sequence[str]
) -> Tensor:
    own, embedded = t[:, : len(columns)], t[:, len(columns) :]
    return torch.cat([_placed(own, 1, columns, COLUMNS, 0.0), embedded], dim=1)


def _range(fill: float) -> _Change:
    """A new column bounds nothing (`-fill`), a new token allows nothing (`fill`)."""
    return lambda t, columns, tokens, ops: _placed(
        _placed(t, 1, columns, COLUMNS, -fill), 0, tokens, TOKENS, fill
    )


def _trunk(t: Tensor, columns: Sequence[str], tokens: Sequence[str], ops: Sequence[str]) -> Tensor:
    if t.shape != (len(tokens),):
        raise IndexError
    return trunk_tokens()


def _bin_columns(
    t: Tensor, columns: Sequence[str], tokens: Sequence[str], ops: Sequence[str]
) -> Tensor:
    """Bins know their column by its place among the release's."""
    places = torch.tensor([COLUMNS.index(name) for name in columns], dtype=torch.long)
    return places[t.long()]


_CHANGES: Mapping[str, _Change] = {
    "binned.column_K": _bin_columns,
    "encoder.0.weight": _encoder,
    "x_mean_F": lambda t, columns, tokens, ops: _placed(t, 0, columns, COLUMNS, 0.0),
    "x_scale_F": lambda t, columns, tokens, ops: _placed(t, 0, columns, COLUMNS, 1.0),
    "token_embedding.weight": lambda t, columns, tokens, ops: _placed(t, 0, tokens, TOKENS, 0.0),
    "token_bias_T": lambda t, columns, tokens, ops: _placed(t, 0, tokens, TOKENS, 0.0),
    "device_effect": lambda t, columns, tokens, ops: _placed(t, 1, tokens, TOKENS, 0.0),
    "trunk_token_T": _trunk,
    "host_op": lambda t, columns, tokens, ops: _placed(t, 1, ops, OP_NAMES, 0.0),
    "range.low": _range(FAR),
    "range.high": _range(-FAR),
}
"""How a tensor changes, by the end of its name."""
