"""Importer of DeepBench: vendor libraries on products, convolutions, recurrent layers, all-reduce.

Reads the table `deepbench_long.csv` (device, mode, sheet, title, row as JSON) where it is there,
else the published workbooks `results/**/DeepBench_DEVICE.xlsx`: the same rows. Library versions
come from a workbook's `Specs` sheet. Times are ms unless the header says otherwise, all-reduce
sizes are floats.
A row gives up to three kernels (`deepbench_tables`). Times are a loop of calls without a pause
between them, divided by their number: context `isolated`.

Rules:

* a time that is empty, 0 or no number (`N/A*`: the first layer needs no gradient of its input;
  `#DIV/0!`; `Not Supported`): dropped, kernel by kernel (`not_measured`);
* a size missing, not whole, or not positive, a window larger than its padded input: dropped;
* device unknown to the catalogue (phones, Raspberry Pi 3): dropped and named (`unknown_device`);
* times are whole microseconds, cut off: below 10 us that may be a tenth: kept, flagged `rounded`;
* recurrent layers with one backward time, that of the data: kept, flagged `data_gradient_only`;
* all-reduce over more than 8 GPUs, or between nodes: kept, flagged `multi_node`;
* a tenth faster than the physical floor: kept, flagged `above_peak`;
* what every source must satisfy: `predictor.traces.validate`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from predictor.errors import DataError
from predictor.graph.ir import DTYPE_BYTES
from predictor.traces.cells import ABOVE_PEAK, device_id, flag_where, floor_share, kernel_rows
from predictor.traces.files import FolderReader, SourceFile, content_of, parse_json
from predictor.traces.layouts import Layout, find_layout, nothing_found
from predictor.traces.schema import Imported
from predictor.traces.sources.deepbench_tables import Kernel, kernels, precision
from predictor.traces.sources.deepbench_workbook import Record, read_workbook, records, versions
from predictor.traces.validate import keep_valid

SOURCE = "deepbench"
LICENCE = "Apache-2.0"
FLAT = "deepbench_long.csv"
WORKBOOKS = "results/**/DeepBench_*.xlsx"
CUT_OFF_US, CUT_OFF_SHARE = 1.0, 0.1
SUM_BYTES = 4
"""Of a result of int8 products; convolutions may narrow theirs."""


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data`: one part of the flattened table, or a part a workbook.

    Args:
        data: a folder that holds `deepbench`, the folder itself, a clone, or a folder or file
            inside.

    Raises:
        LayoutNotFoundError: neither table nor workbook is there.
        DataError: a file is damaged or lacks a column.
    """
    markers = (FLAT, f"{FLAT}.gz", "results/train", "results/inference")
    layout = find_layout(data, folders=("deepbench", "DeepBench"), markers=markers)
    flat, copies = layout.tables(FLAT)
    books = layout.files(WORKBOOKS)
    if flat:
        yield _flat(flat[0], books, layout, copies)
    for book in () if flat else books:
        yield _book(book, layout)
    if not flat and not books:
        raise nothing_found(data, (FLAT, WORKBOOKS))


def _flat(path: Path, books: Sequence[Path], layout: Layout, copies: dict[str, str]) -> Imported:
    reader = FolderReader(root=layout.root)
    columns = ("device", "mode", "sheet", "op_table", "row_json")
    table = reader.csv(path, columns=columns)
    name = layout.name(path)
    found = [
        Record(device=str(r["device"]), mode=str(r["mode"]), sheet=str(r["sheet"]),
               section=str(r["op_table"]), row=i,
               cells=parse_json(str(r["row_json"]).encode(), f"{name}, row {i}, row_json"))
        for i, r in enumerate(table.to_dict("records"))
    ]  # fmt: skip
    specs = {
        _key(layout.name(p)): versions(read_workbook(content_of(p, p.name), p.name)) for p in books
    }
    out = Imported.empty(SOURCE)
    ids = [f"{SOURCE}:{name.removesuffix('.gz')}:{r.row}" for r in found]
    _fill(out, found, ids, name, specs)
    why = f"repeats rows of {FLAT}; only its Specs sheet is read"
    out.files, out.left_out = reader.files, copies | {layout.name(p): why for p in books}
    return out


def _book(path: Path, layout: Layout) -> Imported:
    name = layout.name(path)
    content = content_of(path, name)
    sheets = read_workbook(content, name)
    device, mode = _key(name)
    found = records(sheets, device, mode)
    if not found:
        raise DataError(f"{name}: no table of DeepBench in it")
    out = Imported.empty(SOURCE)
    ids = [f"{SOURCE}:{name}:{r.row}:{r.sheet}" for r in found]
    _fill(out, found, ids, name, {(device, mode): versions(sheets)})
    digest = hashlib.sha256(content).hexdigest()
    out.files = {name: SourceFile(path=name, sha256=digest, rows=len(found))}
    return out


def _key(name: str) -> tuple[str, str]:
    """Device and mode of a workbook's path."""
    device = Path(name).stem.removeprefix("DeepBench_")
    return device, "inference" if "/inference/" in f"/{name}" else "train"


def _fill(
    out: Imported,
    found: Sequence[Record],
    ids: Sequence[str],
    file: str,
    specs: Mapping[tuple[str, str], str],
) -> None:
    """Kernel rows of the records, grouped by op and dtype; the others are counted."""
    import pandas as pd

    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    refused: dict[str, list[tuple[Record, Kernel]]] = {}
    for record, row_id in zip(found, ids, strict=True):
        device = device_id(SOURCE, record.device)
        kind, rows = kernels(record)
        dtype, scheme = precision(record, kind)
        for kernel in rows:
            rule = "unknown_device" if device is None else kernel.rule
            if rule:
                refused.setdefault(rule, []).append((record, kernel))
                continue
            groups.setdefault((kernel.op, dtype), []).append({
                **{f"dim {d}": v for d, v in kernel.dims.items()},
                "row_id": row_id + kernel.suffix, "row": record.row, "device": device,
                "phase": kernel.phase, "scheme": scheme, "latency_us": kernel.latency_us,
                "spread_us": kernel.spread_us, "library": kernel.library, "flag": kernel.flag,
                "framework_version": specs.get((record.device, record.mode), ""),
            })  # fmt: skip
    for rule, bad in refused.items():
        record, kernel = bad[0]
        column = "device" if rule == "unknown_device" else kernel.column
        value = record.device if rule == "unknown_device" else kernel.value
        out.reject(file=file, row=record.row, column=column, value=value, rule=rule, rows=len(bad))
    frames = [_rows(op, dtype, rows, file) for (op, dtype), rows in groups.items()]
    if frames:
        out.kernels = pd.concat(frames, ignore_index=True)
    keep_valid(out)
    _flag(out.kernels)


def _rows(op: str, dtype: str, rows: Sequence[Mapping[str, Any]], file: str) -> Any:
    """Kernel rows of one op and dtype."""
    import pandas as pd

    table = pd.DataFrame(rows)
    names = [str(c) for c in table]
    dims = {c.removeprefix("dim "): table[c].to_numpy() for c in names if c.startswith("dim ")}
    values = {c: table[c].to_numpy() for c in names if not c.startswith("dim ")}
    fixed = {
        "file": file, "source": SOURCE, "licence": LICENCE, "context": "isolated",
        "framework": "deepbench", "execution": "library",
        "layout": "nchw" if op.startswith("conv") else "",
    }  # fmt: skip
    wide = SUM_BYTES if dtype == "int8" and op == "matmul" else None
    frame = kernel_rows(op, dims, dtype, {**values, **fixed}, output_bytes=wide)
    if op.startswith("rnn"):  # the input is added to the gates, not multiplied
        cells = dims["steps"] * dims["batch"] * dims["hidden_size"]
        frame["read_bytes"] += cells * float(DTYPE_BYTES[dtype])
        half = (frame["flag"] == "data_gradient_only").to_numpy()
        frame["flops"] = np.where(half, frame["flops"] / 2, frame["flops"])
    return frame


def _flag(rows: Any) -> None:
    """Flags of rows that are kept and not for every use."""
    flag_where(rows, floor_share(rows) > ABOVE_PEAK, "above_peak")
    us = rows["latency_us"].to_numpy()
    whole = np.abs(us - np.rint(us)) < 1e-6
    flag_where(rows, whole & (CUT_OFF_SHARE * us < CUT_OFF_US), "rounded")
