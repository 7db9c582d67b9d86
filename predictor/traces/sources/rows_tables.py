"""Cells of users' own rows as typed columns: text, numbers, devices; rules that refuse rows."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import UnknownDeviceError
from predictor.hardware.catalogue import adopted_devices, resolve_device
from predictor.traces.schema import TABLES, Imported, column_kind, filled
from predictor.traces.sources.rows_columns import REQUIRED

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

UNSTATED = "unstated"
"""Licence of rows that state none."""


def checked_rows(chunk: pd.DataFrame, table: str, file: str, out: Imported) -> pd.DataFrame:
    """Rows with typed cells and known devices; the others are counted in `out`.

    Args:
        chunk: named as in the schema, indexed by row number; dimensions may be NaN afterwards.
        table: `kernels` or `steps`.
        file: how a reject calls the file.
        out: where refused rows are counted.
    """
    texts = {c: _text(chunk[c]) for c in chunk.columns}
    rows = chunk.assign(**texts)
    for column in REQUIRED[table]:
        rows = keep(rows, (rows[column] != "").to_numpy(), file, out, column, "missing_value")
    numbers = [c for c in rows.columns if column_kind(c) != "text"]
    for column in numbers:
        values = _number(rows[column])
        good = np.isfinite(values) | (rows[column] == "").to_numpy()
        rows = keep(rows, good, file, out, column, "not_a_number")
    rows = rows.assign(**{c: _number(rows[c]) for c in numbers})
    own = adopted_devices()
    ids = {name: name if name in own else _device_id(name) for name in rows["device"].unique()}
    known = rows["device"].map(ids).fillna("").to_numpy(dtype=object)
    rows = keep(rows, known != "", file, out, "device", "unknown_device")
    return rows.assign(device=known[known != ""])


def schema_rows(rows: pd.DataFrame, table: str, source: str, file: str) -> pd.DataFrame:
    """A table of the schema from checked rows; what they do not state is unknown."""
    plain = file.removesuffix(".gz")
    values: dict[str, Any] = {
        c: rows[c].to_numpy() if column_kind(c) != "text" else rows[c].array for c in rows.columns
    }
    values |= {
        "row_id": [f"{source}:{plain}:{row}" for row in rows.index],
        "source": source, "file": file, "row": rows.index.to_numpy(dtype=np.int64),
    }  # fmt: skip
    if "licence" in rows.columns:
        values["licence"] = rows["licence"].where(rows["licence"] != "", UNSTATED).array
    else:
        values["licence"] = UNSTATED
    whole = {c: v for c, v in values.items() if c.startswith("dim_")}
    values |= {c: np.asarray(v).astype(np.int64) for c, v in whole.items()}
    made = filled(table, values, len(rows))
    return made.astype({c: "str" for c in TABLES[table] if column_kind(c) == "text"})


def keep(
    rows: pd.DataFrame, good: NDArray[np.bool_], file: str, out: Imported, column: str, rule: str
) -> pd.DataFrame:
    """The `good` rows; the others are counted in `out` by `rule`."""
    if good.all():
        return rows
    bad = rows[~good]
    value = bad[column].iloc[0] if column in bad.columns else ""
    out.reject(
        file=file, row=int(bad.index[0]), column=column, value=value, rule=rule, rows=len(bad)
    )
    return rows[good]


def _text(column: pd.Series[Any]) -> pd.Series[Any]:
    """Cells as text; numbers stay numbers where the file has typed columns."""
    if column.dtype.kind in "iuf":
        return column.astype("str").where(column.notna(), "")
    if column.dtype.kind == "b":
        return column.astype("int64").astype("str")
    return column.astype("str").where(column.notna(), "").str.strip()


def _number(column: pd.Series[Any]) -> NDArray[np.float64]:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)


@cache
def _device_id(name: str) -> str:
    """Catalogue id of a device; empty when none or several answer to the name."""
    if name.lower().endswith(".toml"):
        logger.warning("device %r: rows name devices of the catalogue, not device files", name)
        return ""
    try:
        return resolve_device(name).id
    except UnknownDeviceError as error:
        logger.warning("%s", error)
        return ""
