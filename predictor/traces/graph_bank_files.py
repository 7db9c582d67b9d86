"""The graph bank on disk: five Parquet files, written whole.

| file | a row is |
|---|---|
| `index.parquet` | a program: model, size, mode, variant, layout, batches, graph id, model facts |
| `graphs.parquet` | a graph: id, number of kernels and edges, framework calls by phase |
| `specs.parquet` | a distinct kernel: op, phase, dtype; dimensions and costs, `const` and `slope` |
| `stream.parquet` | a kernel of a graph: its spec, how many edges lead to it |
| `edges.parquet` | an edge: how many kernels back its producer stands |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.atomic import replacing_file
from predictor.errors import DataError
from predictor.features.table import DIM_INDEX, OP_NAMES
from predictor.graph.ir import PHASES
from predictor.graph.ops import OPS
from predictor.traces.batch_affine import (
    DTYPE_CODES,
    HEAD_COLUMNS,
    MOST_DIMS,
    NUMBERS,
    AffineGraph,
)
from predictor.traces.graph_bank import GraphBank, Specs

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
FILES = ("index", "graphs", "specs", "stream", "edges")
PACKAGE = "predictor._{}_graphs"
"""Package of the graphs of a source."""
COMPRESSION_LEVEL = 19
_META = b"predictor"


def graph_id(graph: AffineGraph, prefix: str = "timm") -> str:
    """Name of a graph by its content: equal kernels, edges and framework calls, equal name."""
    triples, places = np.unique(graph.rows[:, :HEAD_COLUMNS], axis=0, return_inverse=True)
    names = [(OP_NAMES[o], PHASES[p], DTYPE_CODES[d]) for o, p, d in triples.tolist()]
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    digest = hashlib.sha256()
    digest.update(json.dumps([sorted(names), MOST_DIMS, graph.host_calls]).encode())
    for part in (rank[places.reshape(-1)], graph.rows[:, HEAD_COLUMNS:], graph.edges):
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return f"{prefix}-{digest.hexdigest()[:16]}"


def write_bank(folder: Path, graphs: Mapping[str, AffineGraph], index: pd.DataFrame) -> None:
    """Write graphs (by id) and the index of programs that refer to them."""
    import pandas as pd

    specs: dict[bytes, int] = {}
    stream: list[NDArray[np.int64]] = []
    inputs: list[NDArray[np.int64]] = []
    back: list[NDArray[np.int64]] = []
    for graph in graphs.values():
        rows = np.ascontiguousarray(graph.rows, dtype=np.int64)
        numbers = [specs.setdefault(row.tobytes(), len(specs)) for row in rows]
        stream.append(np.array(numbers, dtype=np.int64))
        inputs.append(np.bincount(graph.edges[:, 1], minlength=len(rows)))
        back.append(graph.edges[:, 1] - graph.edges[:, 0])
    table = np.frombuffer(b"".join(specs), dtype=np.int64).reshape(len(specs), -1)
    head = pd.DataFrame({
        "graph": list(graphs),
        "kernels": [len(g.rows) for g in graphs.values()],
        "edges": [len(g.edges) for g in graphs.values()],
        **{f"host_{p}": [g.host_calls[i] for g in graphs.values()] for i, p in enumerate(PHASES)},
    })  # fmt: skip
    joined = pd.DataFrame({"spec": _joined(stream), "inputs": _joined(inputs)})
    frames = {
        "index": index, "graphs": head, "specs": _spec_frame(table), "stream": joined,
        "edges": pd.DataFrame({"back": _joined(back)}),
    }  # fmt: skip
    for name in FILES:
        _write(frames[name], folder / f"{name}.parquet")


def read_bank(folder: Path) -> GraphBank:
    """Read what `write_bank` wrote.

    Raises:
        DataError: a file is missing, or has another version.
    """
    frames = {name: _read(folder / f"{name}.parquet") for name in FILES}
    heads, stream = frames["graphs"], frames["stream"]
    return GraphBank(
        index=frames["index"],
        ids={name: i for i, name in enumerate(heads["graph"])},
        specs=_specs(frames["specs"], frames["specs"].attrs["meta"]),
        stream=stream["spec"].to_numpy().astype(np.intp),
        stream_start=_starts(heads["kernels"]),
        inputs=stream["inputs"].to_numpy().astype(np.int64),
        back=frames["edges"]["back"].to_numpy().astype(np.int64),
        edge_start=_starts(heads["edges"]),
        host=heads[[f"host_{p}" for p in PHASES]].to_numpy(dtype=np.int64),
    )


def shipped_folder(source: str = "timm") -> Path:
    """The folder of a source's bank that comes with the library.

    Raises:
        DataError: this installation has none.
    """
    try:
        root = resources.files(PACKAGE.format(source))
    except ModuleNotFoundError as error:
        beside = Path(__file__).parents[2] / "datasets" / source / "graphs"
        if (beside / "index.parquet").is_file():  # a checkout installed before it had this bank
            return beside
        raise DataError(
            f"this installation has no graph bank of {source}: install the library again, or give "
            f"the folder that `training/capture_{source}.py` wrote"
        ) from error
    return Path(str(root))


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int32]:
    return np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int32)


def _starts(counts: pd.Series[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts.to_numpy(dtype=np.int64))])


def _number_columns() -> list[str]:
    places = [f"dim{i}" for i in range(MOST_DIMS)]
    return [f"{c}{end}" for end in ("", "_slope") for c in (*places, *NUMBERS)]


def _spec_frame(table: NDArray[np.int64]) -> pd.DataFrame:
    import pandas as pd

    head = {
        name: np.array(names)[table[:, i]]
        for i, (name, names) in enumerate(
            (("op", OP_NAMES), ("phase", PHASES), ("dtype", DTYPE_CODES))
        )
    }
    numbers = dict(zip(_number_columns(), table[:, HEAD_COLUMNS:].T, strict=True))
    return pd.DataFrame({**head, **numbers})


def _specs(frame: pd.DataFrame, meta: Mapping[str, Any]) -> Specs:
    dims: Mapping[str, list[str]] = meta["dims"]
    most = int(meta["most_dims"])
    places = np.full((len(OP_NAMES), most), -1, dtype=np.int64)
    for i, name in enumerate(OP_NAMES):
        known = [DIM_INDEX.get(d, -1) for d in dims.get(name, ())]
        places[i, : len(known)] = known
    columns = [f"dim{i}" for i in range(most)]
    ops = {name: i for i, name in enumerate(OP_NAMES)}
    missing = sorted(set(frame["op"].unique()) - set(ops))
    if missing:
        raise DataError(f"the graph bank holds op {missing[0]!r}, unknown to this version")
    phases = {name: i for i, name in enumerate(PHASES)}
    dtypes = {name: i for i, name in enumerate(DTYPE_CODES)}
    return Specs(
        op=frame["op"].map(ops).to_numpy().astype(np.int16),
        phase=frame["phase"].map(phases).to_numpy().astype(np.int8),
        dtype=frame["dtype"].map(dtypes).to_numpy().astype(np.int16),
        dtypes=DTYPE_CODES,
        dims=frame[columns].to_numpy(dtype=np.int64),
        dims_slope=frame[[f"{c}_slope" for c in columns]].to_numpy(dtype=np.int64),
        dim_places=places,
        numbers=frame[list(NUMBERS)].to_numpy(dtype=np.int64),
        numbers_slope=frame[[f"{c}_slope" for c in NUMBERS]].to_numpy(dtype=np.int64),
    )


def _write(frame: pd.DataFrame, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    meta = {"version": VERSION, "most_dims": MOST_DIMS, "dims": {o: OPS[o].dims for o in OPS}}
    table = table.replace_schema_metadata({_META: json.dumps(meta).encode()})
    with replacing_file(path) as temporary:
        pq.write_table(
            table, temporary, compression="zstd", compression_level=COMPRESSION_LEVEL,
            row_group_size=2**22,
        )  # fmt: skip


def _read(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"{path}: this file of the graph bank is missing")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    meta = json.loads((table.schema.metadata or {}).get(_META, b"{}"))
    if meta.get("version") != VERSION:
        raise DataError(
            f"{path} has version {meta.get('version')!r} of the graph bank; this library reads "
            f"{VERSION}"
        )
    frame: pd.DataFrame = table.to_pandas()
    frame.attrs["meta"] = meta
    return frame
