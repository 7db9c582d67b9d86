"""From the cells of a published table to kernel rows: numbers, rules that refuse rows, costs.

What an importer adds is which column means what; how a row is refused and counted, and how FLOPs
and bytes follow from dimensions, is the same for all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.cost.rules import kernel_cost
from predictor.errors import UnknownDeviceError
from predictor.features.roofline import roofline
from predictor.graph.ops import DIM_NAMES
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.traces.schema import Imported, filled, kernel_table
from predictor.traces.validate import DIM_LIMIT

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

ABOVE_PEAK = 1.1
"""A row this many times faster than its physical floor is flagged: clocks above the boost that a
datasheet states and rounded times reach a tenth."""


@cache
def device_id(source: str, name: str) -> str | None:
    """Catalogue id of a device as `source` names it; None when the catalogue has none such.

    Args:
        source: the first part of its aliases, mostly the folder of the source.
        name: as published.
    """
    if not name.strip() or name.lower().endswith(".toml"):
        return None
    try:
        return resolve_device(name, source=source).id
    except UnknownDeviceError:
        logger.warning("device %r of %s is not in the catalogue", name, source)
        return None


@dataclass(slots=True, kw_only=True)
class Cells:
    """Rows of a published file that no rule has refused so far."""

    rows: pd.DataFrame
    """With a column `row`, counted from 0 below the header."""
    file: str
    out: Imported
    """Where refused rows are counted."""

    def __len__(self) -> int:
        return len(self.rows)

    def number(self, column: str) -> NDArray[np.float64]:
        """A column as numbers, NaN where a cell is none (or there is no such column)."""
        import pandas as pd

        if column not in self.rows.columns:
            return np.full(len(self.rows), np.nan)
        values = self.rows[column]
        if values.dtype.kind == "b":
            values = values.astype(float)
        return pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)

    def whole(self, column: str) -> NDArray[np.int64]:
        """A column of whole numbers; rows with others must have been refused."""
        return self.number(column).astype(np.int64)

    def keep(self, good: Any, column: str, rule: str) -> None:
        """Refuse the rows that are not `good`, by `rule`, and name the first value of `column`."""
        mask = np.asarray(good, dtype=bool)
        if mask.all():
            return
        first = self.rows[~mask].iloc[0]
        self.out.reject(
            file=self.file, row=int(first["row"]), column=column, value=first.get(column, ""),
            rule=rule, rows=int((~mask).sum()),
        )  # fmt: skip
        self.rows = self.rows[mask].reset_index(drop=True)

    def keep_whole(self, *columns: str, least: int = 1) -> None:
        """Refuse rows whose sizes are missing, not whole, or out of range."""
        for column in columns:
            values = self.number(column)
            good = (values >= least) & (values <= DIM_LIMIT) & (values == np.floor(values))
            self.keep(good, column, "dimension_not_a_positive_integer")

    def keep_positive(self, column: str) -> None:
        """Refuse rows whose time is missing, not a number, or not positive."""
        self.keep(np.isfinite(self.number(column)), column, "latency_not_a_number")
        self.keep(self.number(column) > 0, column, "latency_not_positive")


def kernel_rows(
    op: str,
    dims: Mapping[str, Any],
    dtype: str,
    values: Mapping[str, Any],
    *,
    output_bytes: float | None = None,
) -> pd.DataFrame:
    """Kernel rows of one op and dtype, FLOPs and bytes by the op's rule.

    Args:
        op: key of `OPS`.
        dims: an array or a number for each of the op's dimensions.
        dtype: key of `DTYPE_BYTES`.
        values: the other columns; `row` (array) gives the number of rows.
        output_bytes: bytes of an element written, where it is not `dtype`.
    """
    n = len(values["row"])
    columns = {d: np.broadcast_to(np.asarray(v, dtype=np.int64), n) for d, v in dims.items()}
    cost = kernel_cost(op, columns, dtype, output_bytes=output_bytes)
    costs = {
        "flops": cost.flops, "read_bytes": cost.read_bytes, "write_bytes": cost.write_bytes,
    }  # fmt: skip
    known: dict[str, Any] = {
        "op": op, "dtype": dtype, "phase": "forward",
        **{c: np.broadcast_to(np.asarray(v, dtype=float), n) for c, v in costs.items()},
        **{f"dim_{d}": columns.get(d, np.full(n, -1, dtype=np.int64)) for d in DIM_NAMES},
    }  # fmt: skip
    return filled("kernels", {**known, **values}, n)


def floor_share(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Physical floor of each kernel row divided by its time: above 1 it beats the datasheet.

    Rows must have passed `keep_valid`. The floor knows the savings of fast convolution algorithms
    and that operands which fit into the cache need not come from memory.
    """
    share = np.zeros(len(rows))
    device = rows["device"].to_numpy()
    for name in np.unique(device):
        here = device == name
        table = kernel_table(rows[here])
        floor_us = roofline(table, resolve_device(str(name)), Software()).floor_us
        share[here] = floor_us / rows.loc[here, "latency_us"].to_numpy(dtype=np.float64)
    return share


def flag_where(rows: pd.DataFrame, where: NDArray[np.bool_], flag: str) -> None:
    """Set a flag on rows that have none."""
    rows["flag"] = np.where(where & (rows["flag"] == "").to_numpy(), flag, rows["flag"])
