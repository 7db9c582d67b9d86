"""Importer of the micro-benchmarks in Google's TPU recipes: single kernels on one v6e chip.

Reads `microbench.csv` of the folder `tpu_recipes` (its training steps are of the source `steps`):
a bf16 product (`m`, `n`, `k`; `time_us`, or `time_us_derived` from its TFLOP/s) and a copy in
memory (`m` = bytes of the tensor, **us**). Rules:

* `host_timing`: timed by the host, where a device trace of the same kernel is there: dropped;
* `unknown_op`: another operation: dropped;
* `latency_not_positive`, sizes missing or not whole: dropped;
* `unknown_device`: dropped;
* what every source must satisfy: `predictor.traces.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.cost.rules import kernel_cost
from predictor.graph.ir import DTYPE_BYTES, Kernel
from predictor.hardware.catalogue import resolve_device
from predictor.lower.xla_backends import backend_of
from predictor.lower.xla_matrix import padded_flops
from predictor.traces.cells import Cells, device_id
from predictor.traces.hlo_kernels import rows_of_kernels
from predictor.traces.layouts import sole_table
from predictor.traces.schema import Imported
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "tpurecipes"
FOLDER = "tpu_recipes"
LICENCE = "Apache-2.0"
FILE = "microbench.csv"
HOST = "host timing"
_COLUMNS = ("chip", "op", "dtype", "m", "n", "k", "time_us", "time_us_derived", "note")


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data`.

    Args:
        data: a folder that holds `tpu_recipes`, the folder itself, or its table.

    Raises:
        LayoutNotFoundError: the table is not there.
        DataError: it is damaged.
    """
    out, raw, name = sole_table(data, source=SOURCE, folder=FOLDER, file=FILE, columns=_COLUMNS)
    raw["row"] = np.arange(len(raw))
    raw["us"] = raw["time_us"].fillna(raw["time_us_derived"])
    cells = Cells(rows=raw, file=name.removesuffix(".gz"), out=out)
    cells.keep(cells.rows["op"].isin(["matmul", "hbm_copy"]), "op", "unknown_op")
    cells.keep_positive("us")
    traced = ~cells.rows["note"].astype(str).str.contains(HOST)
    same = ["chip", "op", "dtype", "m", "n", "k"]
    twice = cells.rows.assign(traced=traced).groupby(same, dropna=False)["traced"].transform("any")
    cells.keep(traced | ~twice, "note", "host_timing")
    cells.keep_whole("m")
    products = cells.rows["op"] == "matmul"
    for side in ("n", "k"):
        cells.keep(~products | (cells.number(side) >= 1), side, "dimension_not_a_positive_integer")
        products = cells.rows["op"] == "matmul"
    ids = [device_id(FOLDER, str(chip)) or "" for chip in cells.rows["chip"]]
    cells.rows = cells.rows.assign(device=ids)
    cells.keep(cells.rows["device"] != "", "chip", "unknown_device")
    out.kernels = _rows(cells)
    keep_valid(out)
    yield out


def _rows(cells: Cells) -> pd.DataFrame:
    kernels = []
    sides = {side: cells.number(side) for side in ("m", "n", "k")}
    for i, (op, dtype, device) in enumerate(
        zip(cells.rows["op"], cells.rows["dtype"], cells.rows["device"], strict=True)
    ):
        if op == "matmul":
            m, n, k = (int(sides[side][i]) for side in ("m", "n", "k"))
            kernels.append(_product(str(dtype), str(device), m, n, k))
        else:
            kernels.append(_copy(str(dtype), int(sides["m"][i])))
    return rows_of_kernels(kernels, {
        "row_id": [f"{SOURCE}:{cells.file}:{r}" for r in cells.whole("row")], "source": SOURCE,
        "file": cells.file, "row": cells.whole("row"), "licence": LICENCE,
        "device": cells.rows["device"].to_numpy(), "latency_us": cells.number("us"),
        "context": "isolated", "framework": "jax", "execution": "xla",
        "layout": "nhwc",
    })  # fmt: skip


def _product(dtype: str, device: str, m: int, n: int, k: int) -> Kernel:
    dims = {"batch": 1, "m": m, "n": n, "k": k}
    cost = kernel_cost("matmul", {name: np.array([v]) for name, v in dims.items()}, dtype)
    return Kernel(
        op="matmul", phase="forward", dims=dims, dtype=dtype,
        flops=padded_flops(dims, 2.0 * m * n * k, backend_of(resolve_device(device))),
        read_bytes=float(np.asarray(cost.read_bytes).reshape(-1)[0]),
        write_bytes=float(np.asarray(cost.write_bytes).reshape(-1)[0]),
    )  # fmt: skip


def _copy(dtype: str, tensor_bytes: int) -> Kernel:
    numel = int(tensor_bytes / DTYPE_BYTES[dtype])
    return Kernel(
        op="copy", phase="forward", dims={"numel": numel, "inputs": 1, "outputs": 1}, dtype=dtype,
        flops=0.0, read_bytes=float(tensor_bytes), write_bytes=float(tensor_bytes),
    )  # fmt: skip
