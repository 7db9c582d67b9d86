"""Importer of HW-GPT-Bench: 30,000 GPT decoders, sum of kernel times on each device.

Columns `<device>_ms` (median of 10 repeats) and `<device>_std`, in ms, one pair a device; every
cell is a step row of one forward of 1,024 tokens a sample.

| rule | what happens |
|---|---|
| `unknown_device` | dropped: no such device (`cpu_*`, `helix_cpu`: anonymous hosts of clusters) |
| `latency_not_positive` | dropped: no number, or not above zero |
| `architecture_not_understood` | dropped: a fact that is no number, heads or MLP ratios that are \
no list of the layers |
| `parameters_disagree` | dropped: the architecture has other parameters than the row says |
| `not_sampled` | kept, flagged: this architecture is not in the graph bank |
| `device_uncertain` | kept, flagged: `rtx2080` may be an RTX 2080 Ti |

Autocast ran in bf16 where the device has it (Ampere and later), else in fp16; parameters are fp32.
The batch (8, 4, 1 by size) is not published: it follows from the slope of the time over the work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.peaks import has_hardware_path
from predictor.traces.cells import Cells, device_id
from predictor.traces.files import FolderReader, LayoutNotFoundError, csv_at
from predictor.traces.graph_bank import load_bank
from predictor.traces.schema import Imported, filled
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "gptbench"
FOLDER = "hw_gpt_bench"
LICENCE = "Apache-2.0"
BATCH: Mapping[str, int] = {"s": 8, "m": 4, "l": 1}
"""Samples of a step, by size of the search space."""
SEQ = 1024
REPEATS = 10
FRAMEWORK_VERSION = "2.1.2"
"""Of the benchmark's requirements, at the commit of the tables."""
UNCERTAIN = frozenset({"rtx2080"})
"""Published device names that may mean another device."""
Graphs: TypeAlias = Mapping[tuple[str, int], str]
"""Id of the graph of an architecture, by its name and number of parameters."""
_COLUMN = re.compile(r"(?P<device>.+)_ms")
_NUMBERS = ("arch_index", "embed_dim", "n_layer", "bias", "params")
_FACTS = (*_NUMBERS, "n_head", "mlp_ratio")


def parts(data: Path) -> Iterator[Imported]:
    """Step rows at `data`, a part a size.

    Args:
        data: a folder that holds `hw_gpt_bench`, that folder, or one of its files.

    Raises:
        LayoutNotFoundError: none of its files is there.
        DataError: a file is damaged or lacks a column.
    """
    root, files = files_of(data)
    graphs = _graphs()
    for size, path in files.items():
        reader, out = FolderReader(root=root), Imported.empty(SOURCE)
        raw = reader.csv(path, _FACTS)
        raw["row"] = np.arange(len(raw))
        _read(raw, size, reader.name(path), graphs, out)
        out.files = reader.files
        keep_valid(out)
        yield out


def files_of(data: Path) -> tuple[Path, dict[str, Path]]:
    """The folder of the published tables and the table of each size in it.

    Raises:
        LayoutNotFoundError: none is there.
    """
    root = data.parent if data.is_file() else data
    for folder in (root / FOLDER, root):
        paths = {size: csv_at(folder, f"gpt_{size}_latency") for size in BATCH}
        found = {s: p for s, p in paths.items() if p is not None and data in (p, root)}
        if found:
            return folder, found
    raise LayoutNotFoundError(
        f"{data}: no HW-GPT-Bench table (expected gpt_s_latency.csv, gpt_m_latency.csv or "
        f"gpt_l_latency.csv in it or in {FOLDER}/)"
    )


def model_name(size: str, index: int) -> str:
    """Name of an architecture."""
    return f"gpt-{size}-{index}"


def _graphs() -> Graphs:
    """Graph of each sampled architecture."""
    index = load_bank(source=SOURCE).index
    keys = zip(index["model"], index["parameters"], strict=True)
    return dict(zip(keys, index["graph"], strict=True))


def _read(raw: pd.DataFrame, size: str, file: str, graphs: Graphs, out: Imported) -> None:
    """Add the rows of a table, column by column."""
    import pandas as pd

    columns = [str(c) for c in raw.columns if _COLUMN.fullmatch(str(c))]
    for fact in _NUMBERS:  # one cell that is none must not make text of the others
        raw[fact] = pd.to_numeric(raw[fact], errors="coerce").astype(float)
    raw["wrong"], raw["disagree"] = _architectures(raw)
    frames = []
    for column in columns:
        published = column.removesuffix("_ms")
        device = device_id(FOLDER, published)
        cells = Cells(rows=raw.assign(device=published), file=file, out=out)
        cells.keep(np.full(len(cells), device is not None), "device", "unknown_device")
        latency = cells.number(column)
        cells.keep(np.isfinite(latency) & (latency > 0), column, "latency_not_positive")
        cells.keep(~cells.rows["wrong"], "n_head", "architecture_not_understood")
        cells.keep(~cells.rows["disagree"], "params", "parameters_disagree")
        if len(cells) and device is not None:
            frames.append(_column(cells, column, device, size, graphs))
    if frames:
        out.steps = pd.concat(frames, ignore_index=True)


def _column(cells: Cells, column: str, device: str, size: str, graphs: Graphs) -> pd.DataFrame:
    """Step rows of one device."""
    raw, file = cells.rows, cells.file
    published = column.removesuffix("_ms")
    models = [model_name(size, int(i)) for i in raw["arch_index"]]
    keys = zip(models, raw["params"], strict=True)
    graph = np.array([graphs.get((model, int(n)), "") for model, n in keys])
    half = "bf16" if has_hardware_path(load_catalogue()[device], "bf16") else "fp16"
    flags = np.where(graph == "", "not_sampled", "")
    if published in UNCERTAIN:
        flags = np.where(graph == "", "not_sampled+device_uncertain", "device_uncertain")
    values: dict[str, Any] = {
        "row_id": [f"{SOURCE}:{file.removesuffix('.gz')}:{r}:{published}" for r in raw["row"]],
        "source": SOURCE, "file": file, "row": raw["row"].to_numpy(), "licence": LICENCE,
        "device": device, "graph": graph, "model": models, "mode": "infer", "batch": BATCH[size],
        "seq": SEQ, "dtype": f"amp-{half}", "execution": "eager", "framework": "pytorch",
        "framework_version": FRAMEWORK_VERSION,
        "devices": 1, "micro_batch": BATCH[size], "measure": "kernel_sum", "repeats": REPEATS,
        "latency_us": cells.number(column) * 1e3,
        "spread_us": cells.number(f"{published}_std") * 1e3, "flag": flags,
    }  # fmt: skip
    return filled("steps", values, len(raw))


def _architectures(raw: pd.DataFrame) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows whose architecture cannot be read, and rows with other parameters than they say."""
    from predictor.zoo.hw_gpt import HwGptConfig  # imports torch

    wrong = np.zeros(len(raw), dtype=bool)
    disagree = np.zeros(len(raw), dtype=bool)
    facts = raw[list(_FACTS)].to_dict("records")
    for i, row in enumerate(facts):
        if not all(np.isfinite(row[name]) for name in _NUMBERS):
            wrong[i] = True
            continue
        try:
            config = HwGptConfig.of(
                row["embed_dim"], str(row["n_head"]), str(row["mlp_ratio"]), row["bias"]
            )
            wrong[i] = len(config.heads) != int(row["n_layer"])
        except ValueError:
            wrong[i] = True
        else:
            disagree[i] = config.parameters != row["params"]
    return wrong, disagree
