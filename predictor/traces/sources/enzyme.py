"""Importer of Enzyme-JAX's benchmark: the same JAX programs on an A100 and a TPU v6e.

`enzyme_jax_device_times.csv` has a row for each program, pipeline, backend and mode: median, least
and greatest time over runs of the continuous integration, in s. Each becomes a step row; the model
is the program with its mode (`add_one/Forward`), the graph that of our own program of its name in
the bank `enzyme`.

| rule | what happens |
|---|---|
| `other_pipeline` | dropped: not plain JAX (`Jax`), another compiler's passes rewrote it |
| `unknown_mode` | dropped: none of `Primal`, `Forward`, `BothRev` |
| `unknown_device` | dropped: no such device (`cpu` mixes machines) |
| `latency_not_a_number`, `latency_not_positive` | dropped |
| `no_graph` | kept, flagged: a program that needs more than jax (jaxmd, neuralgcm) |

`spread_us` is the standard deviation between runs, from their range. `measure` is `device_span`:
from the start of the first kernel to the end of the last, as the profiler saw them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.traces.cells import Cells, device_id
from predictor.traces.files import FolderReader, LayoutNotFoundError, csv_at
from predictor.traces.graph_bank import load_bank
from predictor.traces.schema import Imported, filled
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "enzyme"
FOLDER = "enzyme_jax_bench"
LICENCE = "Apache-2.0 WITH LLVM-exception"
TABLE = "enzyme_jax_device_times"
PIPELINE = "Jax"
BACKENDS: Mapping[str, str] = {"cuda": "cuda", "tpu": "tpu"}
"""Platform that JAX lowers for, by the published backend that names one device."""
MODES: Mapping[str, str] = {"Primal": "infer", "Forward": "infer", "BothRev": "train"}
"""Mode of a step by the published one."""
NO_GRAPH = "no_graph"
_COLUMNS = ("program", "pipeline", "backend", "mode", "n", "median_s", "min_s", "max_s")


def parts(data: Path) -> Iterator[Imported]:
    """Step rows at `data`, in one part.

    Args:
        data: a folder that holds `enzyme_jax_bench`, that folder, or its table.

    Raises:
        LayoutNotFoundError: the table is not there.
        DataError: it is damaged or lacks a column.
    """
    root, path = _table(data)
    reader, out = FolderReader(root=root), Imported.empty(SOURCE)
    raw = reader.csv(path, _COLUMNS)
    raw["row"] = np.arange(len(raw))
    cells = Cells(rows=raw, file=reader.name(path), out=out)
    cells.keep(cells.rows["pipeline"] == PIPELINE, "pipeline", "other_pipeline")
    cells.keep(cells.rows["mode"].isin(list(MODES)), "mode", "unknown_mode")
    devices = {str(b): device_id(FOLDER, str(b)) for b in cells.rows["backend"].unique()}
    cells.keep(cells.rows["backend"].map(devices).notna(), "backend", "unknown_device")
    cells.keep_positive("median_s")
    if len(cells):
        out.steps = _steps(cells, devices)
    out.files = reader.files
    keep_valid(out)
    yield out


def _table(data: Path) -> tuple[Path, Path]:
    root = data.parent if data.is_file() else data
    for folder in (root / FOLDER, root):
        path = csv_at(folder, TABLE)
        if path is not None and data in (path, root):
            return folder, path
    raise LayoutNotFoundError(
        f"{data}: no Enzyme-JAX table (expected {TABLE}.csv in it or in {FOLDER}/)"
    )


def _graphs() -> Mapping[tuple[str, str, str], str]:
    """Graph of each program by name, mode and backend."""
    index = load_bank(source=SOURCE).index
    keys = zip(index["model"], index["mode"], index["layout"], strict=True)
    return dict(zip(keys, index["graph"], strict=True))


def _steps(cells: Cells, devices: Mapping[str, str | None]) -> pd.DataFrame:
    raw, graphs = cells.rows, _graphs()
    programs = [str(p).strip() for p in raw["program"]]
    keys = list(zip(programs, raw["mode"], raw["backend"], strict=True))
    found = np.array([graphs.get(key, "") for key in keys])
    runs = cells.number("n")
    values: dict[str, Any] = {
        "row_id": [f"{SOURCE}:{'/'.join(key)}" for key in keys], "source": SOURCE,
        "file": cells.file, "row": raw["row"].to_numpy(), "licence": LICENCE,
        "device": raw["backend"].map(devices).to_numpy(), "graph": found,
        "model": [f"{program}/{mode}" for program, mode, _ in keys],
        "mode": raw["mode"].map(MODES).to_numpy(), "batch": 1, "dtype": "fp32",
        "execution": "xla", "framework": "jax", "devices": 1, "micro_batch": 1,
        "measure": "device_span", "repeats": runs, "latency_us": cells.number("median_s") * 1e6,
        "spread_us": _spread(cells.number("max_s") - cells.number("min_s"), runs) * 1e6,
        "flag": np.where(found == "", NO_GRAPH, ""),
    }  # fmt: skip
    return filled("steps", values, len(raw))


def _spread(ranges: NDArray[np.float64], runs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation from greatest less least of so many runs; unknown below two."""
    whole = np.where(np.isfinite(runs) & (runs >= 2), runs, 0).astype(np.int64)
    widths = np.array([_expected_range(int(n)) if n else np.nan for n in whole])
    return np.asarray(np.where(ranges >= 0, ranges, np.nan) / widths, dtype=np.float64)


@cache
def _expected_range(runs: int) -> float:
    """Mean range of so many draws of a normal variable with standard deviation 1."""
    x = np.linspace(-8.0, 8.0, 4001)
    below = np.array([0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x])
    return float(np.trapezoid(1.0 - (1.0 - below) ** runs - below**runs, x))
