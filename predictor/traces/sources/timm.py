"""Importer of timm's benchmark tables: whole vision models, inference and training steps.

Reads `results/benchmark-MODE-PRECISION-LAYOUT-ptVERSION[-cuVERSION|-cpu]-DEVICE[-dynamo].csv` as
published; everything but the numbers stands in the name. A row is one model: batch, image size,
throughput and step time (ms a batch, wall clock). Rules:

* a file whose name is not understood: left out;
* device unknown to the catalogue: all its rows dropped and named;
* batch, size or a time missing, not a number, not positive, batch and size not whole: dropped;
* batch / throughput must agree with the step time to 2% and the rounding of both: else dropped
  (one of the two is wrong, and nothing says which);
* a model and size that an earlier sound row of the file has: dropped;
* no graph of the model at this size, mode and precision: kept, flagged `no_graph`
  (`timm_graphs` says which graph a row has);
* published parameters that no program of the name has: kept, flagged `other_model` (names change
  their architecture between releases of timm; models folded for deployment have their own graph);
* what every source must satisfy: `predictor.traces.validate`.

The batch shrinks after an out-of-memory error: it is the row's own, not the file's. Under PyTorch
before 2.0 timm writes attention out: those rows have the graph without the fused call. From 1.13 on
norms run in the autocast dtype: times say so, file names do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.traces.cells import Cells, device_id
from predictor.traces.files import FolderReader, LayoutNotFoundError, one_of_each
from predictor.traces.graph_bank import load_bank
from predictor.traces.schema import Imported, filled
from predictor.traces.sources.timm_graphs import OTHER_MODEL, GraphFinder
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

SOURCE, FOLDER, LICENCE = "timm", "timm_bench", "Apache-2.0"
AGREEMENT = 0.02
"""Largest relative difference of step time and batch / throughput, beside their rounding."""
WHOLE = ("batch_size", "img_size")
DTYPES: Mapping[str, tuple[str, str]] = {
    "amp": ("amp-fp16", "amp"), "amp_fp16": ("amp-fp16", "amp"), "amp_bf16": ("amp-bf16", "amp"),
    "bf16": ("bf16", "bf16"), "fp32": ("fp32", "fp32"),
}  # fmt: skip
"""dtype of the schema, and variant of the graph bank, by the precision of a file name."""
_NAME = re.compile(
    r"benchmark-(?P<mode>infer|train)-(?P<precision>\w+)-(?P<layout>nchw|nhwc)-pt(?P<torch>\d{3,4})"
    r"(?:-(?:cu(?P<cuda>\d{3})|cpu))?-(?P<device>[\w.]+?)(?P<dynamo>-dynamo)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What the name of a file says of all its rows."""

    mode: str
    precision: str
    layout: str
    torch: str
    """Version, `2.4.0`."""
    cuda: str | None
    device: str
    compiled: bool

    @property
    def variant(self) -> str:
        """Variant of the graph bank: what timm and its benchmark did under that PyTorch."""
        variant = DTYPES[self.precision][1]
        if variant != "amp" or not self.torch.startswith("1."):
            return variant
        return "amp-unfused-fastnorm" if self.torch.startswith("1.13.") else "amp-unfused"


def campaign_of(name: str) -> Campaign | None:
    """The facts of a file name (without folder), None where it is not understood."""
    found = _NAME.fullmatch(name.removesuffix(".gz").removesuffix(".csv"))
    if found is None or found["precision"] not in DTYPES:
        return None
    digits, cuda = found["torch"], found["cuda"]
    version = (
        f"1.{digits[1:]}.0" if digits[0] == "1" else f"{digits[0]}.{digits[1:-1]}.{digits[-1]}"
    )
    return Campaign(
        mode=found["mode"], precision=found["precision"], layout=found["layout"], torch=version,
        cuda=f"{cuda[:-1]}.{cuda[-1]}" if cuda else None, device=found["device"],
        compiled=found["dynamo"] is not None,
    )  # fmt: skip


def parts(data: Path) -> Iterator[Imported]:
    """Step rows at `data`, a part a file.

    Args:
        data: a folder that holds `timm_bench`, the folder itself, a clone, or one of its files.

    Raises:
        LayoutNotFoundError: no benchmark table is there.
        DataError: a file is damaged or lacks a column.
    """
    root, paths, left_out = _files(data)
    finder = GraphFinder(load_bank())
    for path in paths:
        reader = FolderReader(root=root)
        out = Imported.empty(SOURCE)
        campaign = campaign_of(path.name)
        if campaign is None:
            left_out[reader.name(path)] = "its name is not that of a benchmark table"
        else:
            out.steps = _steps(path, reader, campaign, finder, out)
            out.files = reader.files
        out.left_out, left_out = left_out, {}
        keep_valid(out)
        yield out


def _files(data: Path) -> tuple[Path, list[Path], dict[str, str]]:
    if data.is_file() and data.name.startswith("benchmark-"):
        return data.parent.parent, [data], {}
    for root in (data, data / FOLDER):
        found, copies = one_of_each(list((root / "results").glob("benchmark-*")))
        if found:
            names = {p.relative_to(root).as_posix(): "a second copy, gzipped" for p in copies}
            return root, found, names
    raise LayoutNotFoundError(
        f"{data}: no timm benchmark tables (expected results/benchmark-*.csv below it or below "
        f"{FOLDER}/)"
    )


def _steps(
    path: Path, reader: FolderReader, campaign: Campaign, finder: GraphFinder, out: Imported
) -> pd.DataFrame:
    """Sound rows of one file."""
    mode, file = campaign.mode, reader.name(path)
    columns = {
        name: f"{mode}_{name}"
        for name in ("step_time", "samples_per_sec", "batch_size", "img_size")
    }
    raw = reader.csv(path, columns=("model", *columns.values()))
    raw["row"] = np.arange(len(raw))
    raw["device"] = campaign.device
    cells = Cells(rows=raw, file=file, out=out)
    device = device_id(FOLDER, campaign.device)
    cells.keep(np.full(len(cells), device is not None), "device", "unknown_device")
    for name, column in columns.items():
        value = cells.number(column)
        good = np.isfinite(value) & (value > 0)
        if name in WHOLE:
            good &= value == np.floor(value)
        cells.keep(good, column, "not_a_positive_number")
    step_ms, rate, batch = (cells.number(columns[n]) for n in columns if n != "img_size")
    slack = AGREEMENT + 0.0005 / step_ms + 0.005 / rate
    agree = np.abs(batch / rate * 1e3 / step_ms - 1) <= slack
    cells.keep(agree, columns["step_time"], "throughput_disagrees")
    repeated = cells.rows.duplicated(["model", columns["img_size"]])
    cells.keep(~repeated, "model", "row_repeated")
    return _rows(cells, columns, campaign, device or "", finder)


def _rows(
    cells: Cells,
    columns: Mapping[str, str],
    campaign: Campaign,
    device: str,
    finder: GraphFinder,
) -> pd.DataFrame:
    """Sound rows in the schema."""
    mode, file, batch = campaign.mode, cells.file, cells.number(columns["batch_size"])
    sizes = cells.whole(columns["img_size"])
    models = cells.rows["model"].astype(str).to_numpy()
    millions = cells.number("param_count")
    found = [
        finder.find_counted(model, int(size), mode, campaign.variant, campaign.layout, count * 1e6)
        for model, size, count in zip(models, sizes, millions, strict=True)
    ]
    other = np.array([graph == OTHER_MODEL for graph in found], dtype=bool)
    graphs = np.where(other, "", np.array(found, dtype=object))
    row = cells.rows["row"].to_numpy()
    plain = file.removesuffix(".gz")
    facts: dict[str, Any] = {
        "row_id": [f"{SOURCE}:{plain}:{r}" for r in row], "source": SOURCE, "file": file,
        "row": row, "licence": LICENCE, "device": device, "graph": graphs, "model": models,
        "mode": mode, "batch": batch, "size": sizes.astype(float),
        "dtype": DTYPES[campaign.precision][0],
        "execution": "compiled" if campaign.compiled else "eager", "layout": campaign.layout,
        "framework": "pytorch", "framework_version": campaign.torch,
        "library": f"cuda {campaign.cuda}" if campaign.cuda else "", "devices": 1.0,
        "micro_batch": batch, "measure": "wall",
        "latency_us": cells.number(columns["step_time"]) * 1e3,
        "flag": np.where(other, "other_model", np.where(graphs == "", "no_graph", "")),
    }  # fmt: skip
    return filled("steps", facts, len(cells))
