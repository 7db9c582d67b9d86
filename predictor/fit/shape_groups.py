"""Groups that a row belongs to beside its device: model family, product, attention, experts.

A shape's group is a hash of its sizes alone, so it is the same on every device, in every dtype and
in every source, today and in another process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.graph.ops import OPS
from predictor.traces.sources.own import own_bank

if TYPE_CHECKING:
    import pandas as pd

# N rows

SHAPE_DIMS: Mapping[str, tuple[str, ...]] = {
    "nk": ("n", "k"),
    "attention_shape": ("heads", "kv_heads", "head_dim", "window"),
    "moe_shape": ("k", "inter_size", "topk", "experts"),
}
"""Dimensions that make the shape, by kind; an expert's `k` is the hidden size."""
SHAPE_OPS: Mapping[str, frozenset[str]] = {
    "nk": frozenset(
        name for name, op in OPS.items()
        if op.op_class in ("matmul", "grouped_matmul") and name != "moe"
    ),
    "attention_shape": frozenset(n for n, op in OPS.items() if op.op_class == "attention"),
    "moe_shape": frozenset({"moe"}),
}  # fmt: skip
"""Ops that have a shape of the kind."""
NO_GROUP, LEFT_OUT = -1, -2
"""A row that a kind of group does not speak of; a row that belongs in no part."""
TIMM, OWN = "timm", "own"
INSIDE = ("step", "in_step")
"""Contexts of kernels that were timed inside a step: they go with their model."""


def shape_hash(sizes: Mapping[str, int], modulus: int) -> int:
    """Group 0 to `modulus` - 1 of a shape: SHA-256 of its sizes by name, an absent one as 0."""
    text = ",".join(f"{name}={max(int(sizes[name]), 0)}" for name in sorted(sizes))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % modulus


def shape_groups(rows: pd.DataFrame, kind: str, modulus: int) -> NDArray[np.int64]:
    """(N,) group of every kernel row; `NO_GROUP` where its op has no such shape.

    Args:
        rows: kernel rows.
        kind: a key of `SHAPE_DIMS`.
        modulus: number of groups.
    """
    names = SHAPE_DIMS[kind]
    out = np.full(len(rows), NO_GROUP, dtype=np.int64)
    at = np.flatnonzero(rows["op"].isin(SHAPE_OPS[kind]).to_numpy())
    sizes = [rows[f"dim_{name}"].to_numpy(dtype=np.int64)[at] for name in names]
    code, first = _distinct(sizes)
    shapes = zip(*(column[first].tolist() for column in sizes), strict=True)
    group = [shape_hash(dict(zip(names, shape, strict=True)), modulus) for shape in shapes]
    out[at] = np.array(group, dtype=np.int64)[code]
    return out


def _distinct(columns: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N,) number of each row's tuple of values, and where each tuple stands first."""
    import pandas as pd

    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        own, values = pd.factorize(column)
        code, _ = pd.factorize(code * max(len(values), 1) + own)
    first = np.zeros(code.max(initial=-1) + 1, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # the last write is the first row
    return code.astype(np.int64), first


def family_groups(rows: pd.DataFrame) -> NDArray[np.int64]:
    """(N,) fold of the timm model of every step row, whatever source measured it.

    `LEFT_OUT` for models whose graph stands in another fold too, and for timm rows of models that
    the table does not name; `NO_GROUP` for other models of other sources.
    """
    by_size, by_model = timm_folds()
    of_timm = (rows["source"] == TIMM).to_numpy()
    out = np.where(of_timm, LEFT_OUT, NO_GROUP).astype(np.int64)
    at = np.flatnonzero(of_timm | rows["model"].isin(by_model).to_numpy())
    found = rows.iloc[at]
    keys = zip(found["model"], found["size"], found["mode"], strict=True)
    for i, (model, size, mode) in zip(at, keys, strict=True):
        out[i] = by_size.get((model, size, mode), by_model.get(model, LEFT_OUT))
    return out


def own_family_groups(rows: pd.DataFrame) -> NDArray[np.int64]:
    """(N,) fold of the family of every row of a program that the project measured.

    `LEFT_OUT` for a program that its graph bank does not name; `NO_GROUP` for kernels alone and for
    rows of other sources.

    Args:
        rows: kernel or step rows.
    """
    out = np.full(len(rows), NO_GROUP, dtype=np.int64)
    own = (rows["source"] == OWN).to_numpy()
    if "context" in rows.columns:
        own = own & rows["context"].isin(INSIDE).to_numpy()
    if own.any():
        folds = own_folds()
        out[own] = [folds.get(model, LEFT_OUT) for model in rows.loc[own, "model"]]
    return out


@cache
def own_folds() -> Mapping[str, int]:
    """Fold by model of the programs that the project measures."""
    index = own_bank().index
    return {str(m): int(f) for m, f in zip(index["model"], index["fold"], strict=True)}


@cache
def timm_folds() -> tuple[Mapping[tuple[str, float, str], int], Mapping[str, int]]:
    """Fold by (model, image size, mode), and by model for sizes and modes that are not there.

    `LEFT_OUT` for a graph that several folds have, and for a model that has such a graph.
    """
    import pandas as pd

    with (resources.files("predictor.fit") / "timm_folds.csv").open("rb") as file:
        table = pd.read_csv(file)
    table["fold"] = np.where(table["cross_fold_twin"].astype(bool), LEFT_OUT, table["fold"])
    keys = zip(table["model"], table["size"].astype(float), table["mode"], strict=True)
    by_model = table.groupby("model")["fold"].min()
    by_size = dict(zip(keys, table["fold"].tolist(), strict=True))
    return by_size, {str(model): int(fold) for model, fold in by_model.items()}
