"""Importer of vidur's profiles: operators of a transformer layer, and NCCL collectives.

Reads `data/profiling/compute/GPU/ORGANISATION/MODEL/mlp.csv` and
`data/profiling/network/NODE/{all_reduce,send_recv}.csv` as published. Times are ms of the device
alone (profiler); a row of mlp.csv holds up to ten operators (`vidur_operators`), each a kernel row.

The time is the **median**: the profiler counts whole microseconds and a few of the 20 runs (3 of a
collective) are stragglers, so that the mean of a short operator is off by up to 45%.

Rules:

* a median that is missing, not a number or not positive: dropped, operator by operator. An operator
  without a column is none of that model's (phi-2 has one norm a layer) and no row;
* a size missing, not whole, not positive, or heads and widths that the tensor-parallel degree does
  not divide: dropped;
* device unknown to the catalogue, collective unknown, or a size that is not whole fp16 elements:
  dropped;
* a network file with the bytes of another node type's: left out (only the first of them can be what
  was measured);
* half a microsecond, the most that rounding adds, above a tenth of the time: kept, flagged
  `rounded`;
* collectives across nodes (fewer devices a node than workers): kept, flagged `multi_node`: their
  network is not published;
* collectives of more GPUs than a pair where links join pairs: they cross the host: kept, flagged
  `topology`;
* ten per cent below the physical floor: kept, flagged `above_peak`;
* what every source must satisfy: `predictor.traces.validate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.errors import DataError
from predictor.traces.cells import (
    ABOVE_PEAK,
    Cells,
    device_id,
    flag_where,
    floor_share,
    kernel_rows,
)
from predictor.traces.files import FolderReader, content_of
from predictor.traces.layouts import Layout, find_layout, nothing_found
from predictor.traces.schema import Imported
from predictor.traces.sources.vidur_operators import OPERATORS, SECOND_NORM, SIZES, divides
from predictor.traces.validate import keep_valid

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "vidur"
LICENCE = "MIT"
MARKERS = ("data/profiling/compute", "data/profiling/network")
COMPUTE = "data/profiling/compute/*/*/*/mlp.csv"
NETWORK = "data/profiling/network/*/*.csv"
COLLECTIVES = ("all_reduce", "send_recv")
ROUNDING_US = 0.5
"""The profiler's whole microseconds."""
ROUNDING_SHARE = 0.1
"""Of the time: above it a row is flagged."""
OPERATOR_REPEATS, COLLECTIVE_REPEATS = 20, 3
ELEMENT_BYTES = 2
INTERCONNECTS: Mapping[str, str] = {"_dgx": "nvswitch", "_pairwise_nvlink": "nvlink_pairs"}
"""What joins the GPUs of a node, by how its folder ends; between pairs it is PCIe."""
PAIR = 2
"""GPUs that a bridge joins."""

_COMMON: dict[str, Any] = {
    "source": SOURCE, "licence": LICENCE, "context": "device", "framework": "pytorch",
    "execution": "eager",
}  # fmt: skip


def parts(data: Path) -> Iterator[Imported]:
    """Rows at `data`, a part a file.

    Args:
        data: a folder that holds `vidur`, the folder itself, a clone, or a folder or file inside.

    Raises:
        LayoutNotFoundError: no profile is there.
        DataError: a file is damaged or lacks a column.
    """
    layout = find_layout(data, folders=("vidur",), markers=MARKERS)
    operators, copies = layout.tables(COMPUTE)
    network, more = layout.tables(NETWORK)
    collectives = [p for p in network if p.name.split(".csv")[0] in COLLECTIVES]
    if not operators and not collectives:
        raise nothing_found(data, (COMPUTE, "data/profiling/network/*/all_reduce.csv"))
    twins = _copies(collectives, layout)
    collectives = [p for p in collectives if layout.name(p) not in twins]
    read = {*operators, *collectives}
    others, _ = layout.tables("data/profiling/**/*.csv")
    left_out = {
        **{layout.name(p): "neither operators nor collectives" for p in others if p not in read},
        **copies, **more, **twins,
    }  # fmt: skip
    for path in operators:
        yield _part(path, layout, _operators, left_out)
        left_out = {}
    for path in collectives:
        yield _part(path, layout, _collectives, left_out)
        left_out = {}


def _copies(paths: list[Path], layout: Layout) -> dict[str, str]:
    """Collectives with the same bytes as those of a node type before: one GPU's, not both's."""
    first: dict[tuple[str, bytes], str] = {}
    kinds = {path.name.split(".csv")[0] for path in paths}
    every, _ = layout.whole().tables(*(f"data/profiling/network/*/{kind}.csv" for kind in kinds))
    copies = {}
    for path in every:
        name = layout.name(path)
        original = first.setdefault((path.name, content_of(path, name)), name)
        if original != name and path in paths:
            copies[name] = f"the same rows as {original}"
    return copies


def _part(
    path: Path,
    layout: Layout,
    read: Callable[[Cells, str], list[pd.DataFrame]],
    left_out: dict[str, str],
) -> Imported:
    """The rows of one file."""
    import pandas as pd

    reader = FolderReader(root=layout.root)
    out = Imported.empty(SOURCE)
    raw = reader.csv(path)
    raw["row"] = np.arange(len(raw))
    file = layout.name(path)
    folder = file.removeprefix("data/profiling/").split("/")[1]
    frames = [f for f in read(Cells(rows=raw, file=file, out=out), folder) if len(f)]
    if frames:
        out.kernels = pd.concat(frames, ignore_index=True)
    out.files, out.left_out = reader.files, left_out
    keep_valid(out)
    _flag(out.kernels)
    return out


def _flag(rows: pd.DataFrame) -> None:
    """Flags of rows that are kept and not for every use."""
    flag_where(rows, floor_share(rows) > ABOVE_PEAK, "above_peak")
    short = ROUNDING_SHARE * rows["latency_us"].to_numpy() < ROUNDING_US
    flag_where(rows, short, "rounded")


def _operators(wide: Cells, gpu: str) -> list[pd.DataFrame]:
    """Kernel rows of one model on one GPU: every operator that the file has a column for."""
    present = [o for o in OPERATORS if f"time_stats.{o}.median" in wide.rows.columns]
    if not present:
        raise DataError(f"{wide.file}: no column time_stats.OPERATOR.median")
    return [_operator(wide, name, gpu, SECOND_NORM in present) for name in present]


def _operator(wide: Cells, name: str, gpu: str, in_series: bool) -> pd.DataFrame:
    """Kernel rows of one operator; `in_series`: the MLP follows the attention."""
    import pandas as pd

    cells = Cells(rows=wide.rows.assign(folder=gpu), file=wide.file, out=wide.out)
    time = f"time_stats.{name}"
    device = device_id(SOURCE, gpu)
    cells.keep(np.full(len(cells), device is not None), "folder", "unknown_device")
    cells.keep_positive(f"{time}.median")
    cells.keep_whole(*SIZES)
    whole = {c: cells.whole(c) for c in SIZES}
    cells.keep(divides(whole), "num_tensor_parallel_workers", "not_divisible_by_parallel_degree")
    gated = cells.number("use_gated_mlp") > 0
    frames = []
    for gate, op in ((True, OPERATORS[name].gated), (False, OPERATORS[name].plain)):
        some = Cells(rows=cells.rows[gated == gate], file=cells.file, out=cells.out)
        sizes = {c: some.whole(c) for c in SIZES}
        extra = {"gates": 2 if gate else 1, "sums": 1 if in_series else 2}
        dims = OPERATORS[name].dims({**sizes, **extra})
        frames.append(kernel_rows(op, dims, "fp16", _values(some, time, device, f":{name}", {
            "model": "/".join(cells.file.split("/")[-3:-1]), "repeats": OPERATOR_REPEATS,
        })))  # fmt: skip
    return pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)


def _collectives(cells: Cells, node: str) -> list[pd.DataFrame]:
    """Kernel rows of one collective on one kind of node."""
    name = Path(cells.file).name.split(".csv")[0]
    time = f"time_stats.{name}"
    device = device_id(SOURCE, node)
    cells.rows = cells.rows.assign(folder=node)
    cells.keep(np.full(len(cells), device is not None), "folder", "unknown_device")
    if "collective" in cells.rows.columns:
        cells.keep(cells.rows["collective"] == name, "collective", "unknown_collective")
    cells.keep_positive(f"{time}.median")
    cells.keep_whole("size", "num_workers", "devices_per_node")
    cells.keep(cells.whole("size") % ELEMENT_BYTES == 0, "size", "not_whole_elements")
    ranks = cells.whole("num_workers")
    dims = {"numel": cells.whole("size") // ELEMENT_BYTES, "ranks": ranks}
    together = cells.whole("devices_per_node")
    links = [link for suffix, link in INTERCONNECTS.items() if node.endswith(suffix)]
    over_host = (ranks > PAIR) & ("nvlink_pairs" in links)
    values = _values(cells, time, device, "", {
        "library": "nccl", "repeats": COLLECTIVE_REPEATS, "interconnect": "".join(links[:1]),
        "ranks_per_node": np.minimum(ranks, together),
        "flag": np.where(ranks > together, "multi_node", np.where(over_host, "topology", "")),
    })  # fmt: skip
    return [kernel_rows(name, dims, "fp16", values)]


def _values(
    cells: Cells, time: str, device: str | None, suffix: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Columns that do not depend on the op."""
    row = cells.rows["row"].to_numpy()
    plain = cells.file.removesuffix(".gz")
    return {
        **_COMMON, "file": cells.file, "row": row, "device": device or "",
        "row_id": [f"{SOURCE}:{plain}:{r}{suffix}" for r in row],
        "latency_us": cells.number(f"{time}.median") * 1e3,
        "spread_us": cells.number(f"{time}.std") * 1e3, **more,
    }  # fmt: skip
