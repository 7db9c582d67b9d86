"""NeuSight's kernel sweeps as kernel rows.

Latencies there are ms. GEMM letters are (B, M, N) x (B, N, K): N is contracted. A suffix `u` is a
tensor with a number (one tensor read). Convolutions are square.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.cost.rules import kernel_cost
from predictor.errors import DataError
from predictor.graph.ops import DIM_NAMES
from predictor.traces.cells import Cells
from predictor.traces.schema import Imported, filled
from predictor.traces.sources.neusight_layout import LICENCE, SOURCE, Layout
from predictor.traces.validate import DIM_LIMIT

if TYPE_CHECKING:
    import pandas as pd

THROTTLED_US = 1000.0
"""Longer matrix products of the Tesla P4 training sweeps ran throttled."""
DEFAULT_VERSION = "2.1.0"
REPEATS = 25
"""Runs a row; its latency is the mean of the fastest five."""

Dims: TypeAlias = Mapping[str, NDArray[np.int64] | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    """How one NeuSight op name is read."""

    op: str
    columns: tuple[str, ...]
    """Published size columns."""
    dims: Callable[[Mapping[str, NDArray[np.int64]]], Dims]
    """Dimensions of our vocabulary from them."""
    may_be_zero: tuple[str, ...] = ()


def _gemm(op: str) -> _Sweep:
    return _Sweep(
        op=op,
        columns=("B", "M", "N", "K"),
        dims=lambda c: {"batch": c["B"], "m": c["M"], "n": c["K"], "k": c["N"]},
    )


def _vector(op: str, inputs: int) -> _Sweep:
    return _Sweep(
        op=op,
        columns=("B", "H"),
        dims=lambda c: {"numel": c["B"] * c["H"], "inputs": inputs, "outputs": 1},
    )


def _rows(op: str) -> _Sweep:
    return _Sweep(op=op, columns=("B", "H"), dims=lambda c: {"rows": c["B"], "cols": c["H"]})


def _conv_dims(c: Mapping[str, NDArray[np.int64]]) -> Dims:
    size, kernel = c["Input_Size"], c["Kernel_Szie"]
    side = (size + 2 * c["Padding"] - kernel) // c["Stride"] + 1
    return {
        "batch": c["B"], "c_in": c["Input_Channel"], "h_in": size, "w_in": size,
        "c_out": c["Output_Channel"], "h_out": side, "w_out": side, "kh": kernel, "kw": kernel,
        "groups": 1,
    }  # fmt: skip


SWEEPS: Mapping[str, _Sweep] = {
    "bmm": _gemm("bmm"), "linear": _gemm("linear"),
    "add": _vector("add", 2), "addu": _vector("add", 1),
    "mul": _vector("mul", 2), "mulu": _vector("mul", 1),
    "div": _vector("div", 2), "divu": _vector("div", 1),
    "pow": _vector("pow", 2), "powu": _vector("pow", 1),
    "relu": _vector("relu", 1), "gelu": _vector("gelu", 1), "tanh": _vector("tanh", 1),
    "ln": _rows("layer_norm"), "softmax": _rows("softmax"),
    "conv": _Sweep(
        op="conv",
        columns=(
            "B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride",
            "Padding",
        ),
        dims=_conv_dims,
        may_be_zero=("Padding",),
    ),
}  # fmt: skip
"""Sweeps by NeuSight's op name (`Kernel_Szie` is spelled so)."""


def read_sweep(path: Path, layout: Layout, out: Imported) -> pd.DataFrame | None:
    """Kernel rows of one sweep file; None when no row is left.

    Raises:
        DataError: the file cannot be read, or a column is missing.
    """
    import pandas as pd

    raw = layout.reader.csv(path, columns=("OPName", "Latency", "Device"))
    file = layout.reader.name(path)
    raw["row"] = np.arange(len(raw))
    latency = _number(raw["Latency"])
    raw = _keep(raw, np.isfinite(latency), out, file, "Latency", "latency_not_a_number")
    raw = _keep(raw, _number(raw["Latency"]) > 0, out, file, "Latency", "latency_not_positive")
    devices = {name: layout.device(name) for name in raw["Device"].unique()}
    raw["device"] = raw["Device"].map(devices)
    raw = _keep(raw, raw["device"].notna(), out, file, "Device", "unknown_device")
    raw = _keep(raw, raw["OPName"].isin(list(SWEEPS)), out, file, "OPName", "unknown_op")
    parts = [
        _kernel_rows(rows, SWEEPS[str(name)], file, out) for name, rows in raw.groupby("OPName")
    ]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else None


def _number(column: pd.Series[Any]) -> NDArray[np.float64]:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)


def _keep(
    rows: pd.DataFrame, good: Any, out: Imported, file: str, column: str, rule: str
) -> pd.DataFrame:
    cells = Cells(rows=rows, file=file, out=out)
    cells.keep(good, column, rule)
    return cells.rows


def _sizes(
    rows: pd.DataFrame, sweep: _Sweep, file: str, out: Imported
) -> tuple[pd.DataFrame, dict[str, NDArray[np.int64]]]:
    """Rows whose sizes are whole, positive numbers, and those sizes."""
    for column in sweep.columns:
        if column not in rows.columns:
            raise DataError(f"{file}: no column {column!r}, which rows of op {sweep.op!r} need")
        values = _number(rows[column])
        least = 0 if column in sweep.may_be_zero else 1
        good = (values >= least) & (values <= DIM_LIMIT) & (values == np.floor(values))
        rows = _keep(rows, good, out, file, column, "dimension_not_a_positive_integer")
    sizes = {c: _number(rows[c]) for c in sweep.columns}
    good = np.ones(len(rows), dtype=bool)
    if sweep.columns == ("B", "H"):
        good = sizes["B"] * sizes["H"] <= DIM_LIMIT
    elif sweep.op == "conv":
        reach = sizes["Input_Size"] + 2 * sizes["Padding"]
        good = sizes["Kernel_Szie"] <= reach
    kept = _keep(rows, good, out, file, sweep.columns[-1], "dimension_not_plausible")
    return kept, {c: v[good].astype(np.int64) for c, v in sizes.items()}


def _kernel_rows(rows: pd.DataFrame, sweep: _Sweep, file: str, out: Imported) -> pd.DataFrame:
    """Rows of one op in our schema."""
    rows, sizes = _sizes(rows, sweep, file, out)
    n = len(rows)
    dims = {d: np.broadcast_to(np.asarray(v), n) for d, v in sweep.dims(sizes).items()}
    cost = kernel_cost(sweep.op, dims, "fp32")
    latency_us = _number(rows["Latency"]) * 1e3
    throttled = (
        (rows["device"] == "nvidia-tesla-p4").to_numpy()
        & (sweep.op in ("linear", "bmm")) & ("/train/" in file) & (latency_us > THROTTLED_US)
    )  # fmt: skip
    plain = file.removesuffix(".gz")
    values: dict[str, Any] = {
        "row_id": [f"{SOURCE}:{plain}:{r}" for r in rows["row"]], "source": SOURCE, "file": file,
        "row": rows["row"].to_numpy(), "device": rows["device"].to_numpy(), "op": sweep.op,
        "phase": "forward", "dtype": "fp32", "context": "isolated",
        "flops": np.broadcast_to(cost.flops, n).astype(float),
        "read_bytes": np.broadcast_to(cost.read_bytes, n).astype(float),
        "write_bytes": np.broadcast_to(cost.write_bytes, n).astype(float),
        "latency_us": latency_us, "framework": "pytorch",
        "framework_version": _versions(rows, file), "licence": LICENCE, "execution": "eager",
        "tf32": "off", "repeats": REPEATS,
        "part": "test" if "/test/" in file else "train",
        "flag": np.where(throttled, "throttled", ""),
        **{f"dim_{d}": dims.get(d, np.full(n, -1, dtype=np.int64)) for d in DIM_NAMES},
    }  # fmt: skip
    return filled("kernels", values, n)


def _versions(rows: pd.DataFrame, file: str) -> Sequence[str] | str:
    """PyTorch version: its column, else the folder (`p2.4.1`), else the publisher's usual one."""
    folder = re.search(r"/p(\d+\.\d[\w.]*)/", file)
    usual = folder.group(1) if folder else DEFAULT_VERSION
    if "Torch Version" not in rows.columns:
        return usual
    column = rows["Torch Version"]
    return column.where(column.notna(), usual).astype(str).str.removeprefix("p").tolist()
