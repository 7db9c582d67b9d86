"""Importer of aiter's tuned-kernel tables: the best kernel that tuning found for each shape.

Reads every `aiter/configs/**/*.csv` with a measured `us` (us) as published, or, where none of them
is there, the products of them flattened into one file, `aiter_gemm_long.csv`. The two hold the same
rows: never both. Device time alone, but the delta rule's, which holds the host's launch (events
around the call: nothing is shorter than 145 us).

The minimum over many kernels is biased low: `execution` is `tuned` in every row. Rules:

* placeholder: `us` at most 1 or infinite, or `tflops` 0 (in the flattened table `valid` False,
  which means this or the next rule): dropped;
* TFLOP/s recomputed from shape and time differ from the published by more than 15%: dropped. In the
  tables of experts one time is copied over up to nine token counts, and only that at which it was
  measured agrees;
* a size missing, not whole or not positive, a dtype or quantisation unknown: dropped;
* device: `gfx` and `cu_num`, without `gfx` by `cu_num` alone. gfx942 with 304 units is MI300X or
  MI325X (the same compute units, other memory): read as MI300X, flagged `mi300x_or_mi325x`;
* more than a twentieth of a table's rows of one device a quarter faster than its datasheet allows:
  that device is mislabelled, all its rows there dropped (`mislabelled_device`);
* faster than the catalogue's peak otherwise: kept, flagged `above_peak` (MI308X has no public
  datasheet, its best rows reach 1.04 of the catalogue's fp8 rate);
* more than a twentieth of the results outside of the tuner's tolerance: kept, flagged `inaccurate`;
* the delta rule's pass over the state, of which the other passes are not measured: kept, flagged
  `state_pass`;
* tables without a time (shapes to be tuned) or without a device: left out;
* what every source must satisfy: `predictor.traces.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.traces.cells import Cells, device_id, floor_share
from predictor.traces.files import FolderReader
from predictor.traces.layouts import Layout, find_layout, nothing_found
from predictor.traces.schema import Imported
from predictor.traces.sources.aiter_tables import STATE, TABLES, Table
from predictor.traces.validate import keep_valid

SOURCE = "aiter"
FOLDER = "rocm_aiter"
LICENCE = "MIT"
CONFIGS = "aiter/configs"
FLAT = "aiter_gemm_long.csv"
PLACEHOLDER_US = 1.0
RATE_TOLERANCE = 0.15
"""Of the published TFLOP/s."""
ERROR_SHARE = 0.05
"""Of the results: above it a kernel is not accurate."""
MISLABELLED = 1.25
"""Times the datasheet's rate."""
MISLABELLED_SHARE = 0.05
ARCHITECTURES: Mapping[int, str] = {80: "gfx942", 304: "gfx942", 256: "gfx950"}
"""By number of compute units, where no column names the architecture."""
AMBIGUOUS = "gfx942-cu304"
_COLUMNS: Mapping[str, str] = {
    "row": "row", "row_id": "row_id", "file": "file", "device": "device", "source": "source",
    "licence": "licence", "latency_us": "us", "context": "context", "execution": "execution",
    "framework": "framework", "library": "library", "flag": "flag",
}  # fmt: skip


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data`, a part a file.

    Args:
        data: a folder that holds `rocm_aiter`, the folder itself, a clone, or a folder or file
            inside.

    Raises:
        LayoutNotFoundError: no tuned table is there.
        DataError: a file is damaged.
    """
    markers = (CONFIGS, FLAT, f"{FLAT}.gz")
    layout = find_layout(data, folders=(FOLDER, "aiter"), markers=markers)
    tables, copies = layout.tables(f"{CONFIGS}/**/*.csv")
    flat, more = layout.tables(FLAT)
    if not tables and not flat:
        raise nothing_found(data, (f"{CONFIGS}/**/*.csv", FLAT))
    left_out = {**copies, **more}
    if tables:
        left_out |= {layout.name(p): "repeats rows of the tables in aiter/configs" for p in flat}
    for path in tables or flat:
        yield _part(path, layout, left_out)
        left_out = {}


def _part(path: Path, layout: Layout, left_out: dict[str, str]) -> Imported:
    """The rows of one file, or why it is left out."""
    reader = FolderReader(root=layout.root)
    out = Imported.empty(SOURCE)
    file = layout.name(path)
    raw = reader.csv(path)
    raw["row"] = np.arange(len(raw))
    out.left_out = dict(left_out)
    table = next((t for t in TABLES if set(t.sizes) <= set(raw.columns)), None)
    missing = [c for c in ("us", "cu_num") if c not in raw.columns]
    if missing or table is None:
        why = f"no column {missing[0]}" if missing else "no shape that is known"
        out.left_out[file] = why
        return out
    out.files = reader.files
    cells = Cells(rows=raw, file=file, out=out)
    if file.removesuffix(".gz") == FLAT:
        cells.rows = raw.rename(columns={"batch": "B"}).assign(kind=raw["kind"].astype(str))
        batched = cells.rows["file"].astype(str).str.contains("batched")
        cells.rows["B"] = cells.rows["B"].where(batched)
        cells.keep(cells.rows["valid"].astype(str) == "True", "valid", "not_valid")
    else:
        cells.rows["kind"] = path.name
    if len(_clean(cells, table)):
        out.kernels = table.rows(cells, _COLUMNS)
    keep_valid(out)
    _sanity(out)
    return out


def _clean(cells: Cells, table: Table) -> Cells:
    """Refuse what is no measurement, and add the columns that every kind has."""
    us = cells.number("us")
    good = (us > PLACEHOLDER_US) & np.isfinite(us)
    if table.flops is not None:
        good &= cells.number("tflops") > 0
    cells.keep(good, "us", "placeholder")
    cells.keep_whole(*table.sizes)
    if table.flops is not None:
        sizes = {c: cells.number(c) for c in (*table.sizes, "B", "use_g1u1")}
        rate = table.flops(sizes) / cells.number("us") * 1e-6
        published = cells.number("tflops")
        cells.keep(
            np.abs(rate - published) <= RATE_TOLERANCE * published, "tflops", "tflops_disagree"
        )
    names = _device_names(cells)
    ids = {name: device_id(FOLDER, name) or "" for name in set(names)}
    cells.rows = cells.rows.assign(published_device=names, device=[ids[n] for n in names])
    cells.keep(cells.rows["device"] != "", "published_device", "unknown_device")
    plain = cells.file.removesuffix(".gz")
    library = cells.rows["libtype"] if "libtype" in cells.rows.columns else "aiter"
    flag = np.where(cells.rows["published_device"] == AMBIGUOUS, "mi300x_or_mi325x", "")
    flag = np.where(_errors(cells) > ERROR_SHARE, "inaccurate", flag)
    cells.rows = cells.rows.assign(
        row_id=[f"{SOURCE}:{plain}:{r}" for r in cells.rows["row"]], file=cells.file,
        source=SOURCE, licence=LICENCE, context=table.context, execution="tuned",
        framework="aiter", library=library, flag="state_pass" if table is STATE else flag,
    )  # fmt: skip
    cells.rows["library"] = cells.rows["library"].fillna("aiter")
    return cells


def _device_names(cells: Cells) -> list[str]:
    """`gfx942-cu304`: architecture and compute units."""
    units = [int(u) if np.isfinite(u) else 0 for u in cells.number("cu_num")]
    if "gfx" in cells.rows.columns:
        return [f"{g}-cu{u}" for g, u in zip(cells.rows["gfx"], units, strict=True)]
    return [f"{ARCHITECTURES.get(u, 'unknown')}-cu{u}" for u in units]


def _errors(cells: Cells) -> NDArray[np.float64]:
    """Largest published share of results outside of the tolerance, 0 where none is published."""
    import pandas as pd

    worst = np.zeros(len(cells))
    for column in ("errRatio", "err_ratio", "err1", "err2"):
        if column in cells.rows.columns:
            text = cells.rows[column].astype(str)
            percent = text.str.endswith("%")
            value = pd.to_numeric(text.str.rstrip("%"), errors="coerce").fillna(0.0)
            worst = np.maximum(worst, value.to_numpy(dtype=np.float64) / np.where(percent, 100, 1))
    return worst


def _sanity(out: Imported) -> None:
    """Refuse the rows of a device that beats its datasheet by far; flag the few that exceed it."""
    rows = out.kernels
    share = floor_share(rows)
    far = np.asarray(share > MISLABELLED)
    wrong = np.zeros(len(rows), dtype=bool)
    for device in rows["device"].unique():
        here = (rows["device"] == device).to_numpy()
        if far[here].mean() > MISLABELLED_SHARE:
            wrong |= here
    if wrong.any():
        first = rows[wrong & far].iloc[0]
        out.reject(
            file=str(first["file"]), row=int(first["row"]), column="device",
            value=first["device"], rule="mislabelled_device", rows=int(wrong.sum()),
        )  # fmt: skip
    out.kernels = rows[~wrong].reset_index(drop=True)
    above = share[~wrong] > 1.0
    out.kernels["flag"] = np.where(
        above & (out.kernels["flag"] != "inaccurate").to_numpy(), "above_peak", out.kernels["flag"]
    )
