"""Groups that a row belongs to beside its device: model family, product, attention, experts.

A shape's group is a hash of its sizes alone, so it is the same on every device, in every dtype and
in every source, today and in another process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

SHAPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nk": (("linear", "matmul", "bmm"), ("n", "k")),
    "attention_shape": (
        ("attention", "attention_backward"), ("heads", "kv_heads", "head_dim", "window"),
    ),
    "moe_shape": (("moe",), ("k", "inter_size", "topk", "experts")),
}  # fmt: skip
"""Ops and dimensions of each kind of shape."""
NO_GROUP, LEFT_OUT = -1, -2
"""A row that a kind of group does not speak of; a row that belongs in no part."""


def shape_hash(sizes: Mapping[str, int], modulus: int) -> int:
    """Group 0 to `modulus` - 1 of a shape: SHA-256 of its sizes by name, an absent one as 0."""
    text = ",".join(f"{name}={max(int(sizes[name]), 0)}" for name in sorted(sizes))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % modulus


def shape_groups(rows: pd.DataFrame, kind: str, modulus: int) -> NDArray[np.int64]:
    """Group of every kernel row; `NO_GROUP` where its op has no such shape."""
    ops, names = SHAPES[kind]
    out = np.full(len(rows), NO_GROUP, dtype=np.int64)
    at = np.flatnonzero(rows["op"].isin(ops).to_numpy())
    if not len(at):
        return out
    sizes = rows[[f"dim_{n}" for n in names]].to_numpy(dtype=np.int64)[at]
    distinct, inverse = np.unique(sizes, axis=0, return_inverse=True)
    group = [shape_hash(dict(zip(names, s, strict=True)), modulus) for s in distinct.tolist()]
    out[at] = np.array(group, dtype=np.int64)[inverse.reshape(-1)]
    return out


def family_groups(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Fold of every step row's timm model.

    `NO_GROUP` for rows of other sources; `LEFT_OUT` for models that the folds do not name, and for
    those whose graph stands in another fold too.
    """
    out = np.full(len(rows), NO_GROUP, dtype=np.int64)
    known = timm_folds()
    at = np.flatnonzero((rows["source"] == "timm").to_numpy())
    keys = rows[["model", "size", "mode"]].iloc[at]
    for i, (model, size, mode) in zip(at, keys.itertuples(index=False), strict=True):
        out[i] = known.get((str(model), int(size), str(mode)), LEFT_OUT)
    return out


@cache
def timm_folds() -> Mapping[tuple[str, int, str], int]:
    """Fold by (model, image size, mode); `LEFT_OUT` for a graph that several folds have."""
    import pandas as pd

    with (resources.files("predictor.fit") / "timm_folds.csv").open("rb") as file:
        table = pd.read_csv(file)
    fold = np.where(table["cross_fold_twin"].to_numpy(dtype=bool), LEFT_OUT, table["fold"])
    keys = zip(table["model"], table["size"], table["mode"], strict=True)
    return {(str(m), int(s), str(o)): int(f) for (m, s, o), f in zip(keys, fold, strict=True)}
