"""Importer of what this project measured itself: a folder a device, as `predictor measure` writes.

| file | holds |
|---|---|
| `ID.device.toml` | the device, where the catalogue does not have it |
| `kernels.parquet` | kernels of a grid, alone |
| `steps.parquet` | whole steps |
| `in_step.parquet` | kernels inside these steps |

A step has the graph of its program in the bank `own` that comes with the library; one without is
flagged `no_graph`. Rules are those of own rows (`rows.py`); flags are the measurement's: `noisy`,
`other_load`, `cold_cache`, `several_kernels` (docs/measure.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.device_file import adopt_device_file
from predictor.traces.files import DEVICE_FILE, ROW_SUFFIXES, LayoutNotFoundError
from predictor.traces.graph_bank import GraphBank, load_bank
from predictor.traces.measure.rows_file import is_measured
from predictor.traces.schema import Imported
from predictor.traces.sources.rows import file_parts
from predictor.traces.sources.rows_files import RowFile, device_files

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "own"
LICENCE = "Apache-2.0"
FILES: tuple[str, ...] = (
    "kernels.parquet", "kernels_tf32.parquet", "in_step.parquet", "steps.parquet",
)  # fmt: skip
NO_GRAPH = "no_graph"


def parts(data: Path) -> Iterator[Imported]:
    """Rows of all devices at `data`, a part a chunk of a file.

    Args:
        data: a folder of devices' folders, or one of these.

    Raises:
        LayoutNotFoundError: nothing of it is there.
        DataError: a file cannot be read, or its columns are not the schema's.
        DeviceFileError: a device file breaks a rule.
    """
    folders = _folders(data)
    if not folders:
        raise LayoutNotFoundError(
            f"{data}: nothing that was measured here (expected {', '.join(FILES)} in it or in a "
            "folder of it)"
        )
    for folder in folders:
        for path in device_files(folder):
            adopt_device_file(path)
        for name in FILES:
            path = folder / name
            if not path.is_file():
                continue
            file = RowFile(path=path, name=f"{folder.name}/{name}")
            for part in file_parts(file, {}, source=SOURCE):
                if len(part.steps):
                    part.steps = with_graphs(part.steps, own_bank())
                yield part


def _folders(data: Path) -> list[Path]:
    """Folders of measured files: `data` itself, or those below it."""
    below = sorted(p for p in data.glob("*") if p.is_dir())
    return [folder for folder in (data, *below) if _is_data_set(folder)]


def _is_data_set(folder: Path) -> bool:
    """Whether the training scripts made a folder, whole or not yet.

    One without kernels inside steps bears its device's name, holds what `predictor measure` wrote,
    and no other rows: a user's own folder is left to the importer of own rows, which reads all of
    it.
    """
    if (folder / "in_step.parquet").is_file():
        return True
    named = (folder / f"{folder.resolve().name}{DEVICE_FILE}").is_file()
    if not named and folder.resolve().name not in load_catalogue():
        return False
    tables = [p for p in folder.glob("*") if p.name.lower().endswith(ROW_SUFFIXES)]
    return bool(tables) and all(p.name in FILES and is_measured(p) for p in tables)


@cache
def own_bank() -> GraphBank:
    """The graphs of all programs that the project measures."""
    return load_bank(source=SOURCE)


def with_graphs(steps: pd.DataFrame, bank: GraphBank) -> pd.DataFrame:
    """Step rows with the ids of their graphs; those without are flagged."""
    sizes = steps["seq"].fillna(steps["size"]).fillna(0).astype(int)
    columns = (steps[c] for c in ("model", "mode", "dtype"))
    graphs = [
        bank.find(model, size, mode, dtype, "", int(batch)) or ""
        for size, batch, model, mode, dtype in zip(sizes, steps["batch"], *columns, strict=True)
    ]
    lacking = (np.array(graphs) == "") & (steps["flag"] == "").to_numpy()
    flags = steps["flag"].mask(lacking, NO_GRAPH)
    return steps.assign(graph=np.array(graphs, dtype=object), flag=flags).astype({"graph": "str"})
