"""Rows as 64-bit numbers: the same for the same values, whatever part of a table they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.features.mixing import GOLDEN, mixed

if TYPE_CHECKING:
    import pandas as pd

Hashes: TypeAlias = NDArray[np.uint64]


def codes_of(column: pd.Series[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Each row's place in a list of the column's different values; an unknown number is empty."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy(dtype=np.int64)
        values = column.cat.categories.tolist()
    else:
        found, uniques = pd.factorize(column)
        codes, values = found.astype(np.int64), list(uniques)
    if (codes < 0).any():
        codes = np.where(codes < 0, len(values), codes).astype(np.int64)
        values = [*values, ""]
    return np.asarray(codes, dtype=np.int64), values


def hashed_columns(rows: pd.DataFrame, columns: Sequence[str], *, absent: int = -1) -> Hashes:
    """Hash of each row's values in `columns` (integers, or what is the same as text).

    Args:
        rows: N rows.
        columns: their names take part in the hash.
        absent: an integer that counts as nothing, so that a column of it changes no hash.
    """
    total = np.zeros(len(rows), dtype=np.uint64)
    for place, column in enumerate(sorted(columns)):
        salt = np.uint64((GOLDEN * (2 * place + 1)) % 2**64)
        values = rows[column]
        if values.dtype.kind == "i":
            plain = values.to_numpy(dtype=np.int64)
            there = plain != absent
            if there.any():
                total += np.where(there, mixed(plain.astype(np.uint64) ^ salt), np.uint64(0))
        else:
            total += mixed(_text_hashes(values) ^ salt)
    return mixed(total)


def _text_hashes(column: pd.Series[Any]) -> Hashes:
    import pandas as pd

    codes, values = codes_of(column)
    each = pd.util.hash_array(np.array([str(v) for v in values], dtype=object))
    return np.asarray(each[codes] if len(values) else np.zeros(0, dtype=np.uint64))
