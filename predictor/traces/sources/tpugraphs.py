"""Importer of the test data in TpuGraphs' repository: compiled kernels and one program on a TPU.

Reads, in the folder `tpu_graphs_testdata`:

* `tile_runs.csv` (**ns**) with the HLO text of each kernel (`hlo/op_NN.hlo.txt`): kernel rows. A
  kernel was run under many tile sizes; the row is the run under the compiler's own choice, which is
  what a user's program gets (the fastest, what autotuning would give, takes at most 12% less);
* `layout_runs.csv` (**ns**) of one UNet3D training step under many layouts: one step row, likewise
  of the compiler's own choice. Its graph comes with the library (`datasets/tpugraphs/graphs`).

The device is not named in the files; the data set's paper says TPU v3, and kernels that stream read
and write at 0.86 of the bandwidth of a v3 TensorCore, 0.43 of a chip's: rows are of the core.
Device time alone. Rules:

* `tile_not_default`, `layout_not_default`: runs under other choices: dropped;
* `failed`: a run marked as an error, or without a time: dropped;
* `no_hlo`: no HLO text of the kernel is there: dropped;
* what every source must satisfy: `predictor.traces.validate`.

Work and traffic of a kernel follow its HLO: parameters and results with their tiles filled up, the
sides of products filled up to the systolic array.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.hardware.catalogue import resolve_device
from predictor.lower.xla_backends import Backend, backend_of
from predictor.traces.cells import Cells
from predictor.traces.files import FolderReader
from predictor.traces.hlo_kernels import kernel_of_module, rows_of_kernels
from predictor.traces.hlo_text import parse_hlo
from predictor.traces.layouts import Layout, find_layout, nothing_found
from predictor.traces.schema import Imported, filled
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "tpugraphs"
FOLDER = "tpu_graphs_testdata"
LICENCE = "Apache-2.0"
TILES, LAYOUTS = "tile_runs.csv", "layout_runs.csv"
DEVICE = "google-tpu-v3-core"
"""Assumed (see above)."""
PROGRAM = "unet3d"
BUFFERS = "what the tables hold, as protocol buffers"
_RUN = ("run", "is_default", "error", "compute_time_ns")


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data`.

    Args:
        data: a folder that holds `tpu_graphs_testdata`, the folder itself, or a table of it.

    Raises:
        LayoutNotFoundError: neither table is there.
        DataError: a file is damaged.
    """
    layout = find_layout(data, folders=(FOLDER,), markers=(TILES, LAYOUTS))
    tables, copies = layout.tables(TILES, LAYOUTS)
    if not tables:
        raise nothing_found(data, (TILES, LAYOUTS))
    reader, out = FolderReader(root=layout.root), Imported.empty(SOURCE)
    buffers = {layout.name(path): BUFFERS for path in layout.files("*.pb")}
    out.left_out = {**copies, **buffers}
    for path in tables:
        name = layout.name(path).removesuffix(".gz")
        columns = ("module", "fingerprint", *_RUN) if name == TILES else _RUN
        raw = reader.csv(path, columns)
        raw["row"] = np.arange(len(raw))
        cells = Cells(rows=raw, file=name, out=out)
        kind = "tile" if name == TILES else "layout"
        good = (cells.number("error") == 0) & (cells.number("compute_time_ns") > 0)
        cells.keep(good, "compute_time_ns", "failed")
        cells.keep(cells.number("is_default") == 1, "is_default", f"{kind}_not_default")
        if kind == "tile":
            out.kernels = _kernels(cells, layout, reader)
        else:
            out.steps = _step(cells)
    out.files = reader.files
    keep_valid(out)
    yield out


def _kernels(cells: Cells, layout: Layout, reader: FolderReader) -> pd.DataFrame:
    """A row a kernel, described by its HLO text."""
    cells.keep_whole("module", least=0)
    texts = [layout.root / "hlo" / f"op_{m:02d}.hlo.txt" for m in cells.whole("module")]
    cells.keep([path.is_file() for path in texts], "module", "no_hlo")
    backend = _backend()
    kernels = []
    for path in (p for p in texts if p.is_file()):
        name = layout.name(path)
        kernels.append(kernel_of_module(parse_hlo(reader.text(path), name), backend, name))
    return rows_of_kernels(kernels, _values(cells) | {"context": "isolated"})


def _step(cells: Cells) -> pd.DataFrame:
    """The program under the compiler's own layouts."""
    values = _values(cells) | {
        "graph": graph_of_program(), "model": PROGRAM, "mode": "train", "batch": 2.0,
        "dtype": "bf16", "devices": 1.0, "measure": "kernel_sum",
    }  # fmt: skip
    return filled("steps", values, len(cells))


def _values(cells: Cells) -> dict[str, Any]:
    return {
        "row_id": [f"{SOURCE}:{cells.file}:{r}" for r in cells.whole("row")], "source": SOURCE,
        "file": cells.file, "row": cells.whole("row"), "licence": LICENCE, "device": DEVICE,
        "latency_us": cells.number("compute_time_ns") * 1e-3, "repeats": np.nan,
        "framework": "tensorflow", "execution": "xla", "layout": "nhwc",
    }  # fmt: skip


def _backend() -> Backend:
    return backend_of(resolve_device(DEVICE))


def graph_of_program() -> str:
    """Name of the program's graph in the bank that comes with the library, empty without one."""
    from predictor.traces.graph_bank import load_bank

    index = load_bank(source=SOURCE).index
    found = index.loc[index["model"] == PROGRAM, "graph"]
    return str(found.iloc[0]) if len(found) else ""
