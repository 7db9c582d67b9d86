"""Measured graphs as tables and back: kernels, nodes and edges, a row each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from predictor.errors import DataError
from predictor.features.table import CONTEXTS, OP_NAMES, KernelTable, op_index
from predictor.graph.ir import PHASES
from predictor.graph.ops import DIM_NAMES
from predictor.traces.schema import MeasuredGraph

if TYPE_CHECKING:
    import pandas as pd

_DIMS = tuple(f"dim_{d}" for d in DIM_NAMES)
GRAPH_TABLES: Mapping[str, Mapping[str, str]] = {
    "graphs": {
        "graph": "str", "kernel": "int64", "node": "int64", "node_name": "str",
        "node_class": "str", "repetitions": "float64", "op": "str", "phase": "str",
        "dtype": "str", "context": "str", "launches": "int64", "flops": "float64",
        "read_bytes": "float64", "write_bytes": "float64", **dict.fromkeys(_DIMS, "int64"),
    },
    "graph_nodes": {
        "graph": "str", "node": "int64", "node_name": "str", "node_class": "str",
        "repetitions": "float64",
    },
    "graph_edges": {"graph": "str", "producer": "int64", "consumer": "int64"},
}  # fmt: skip
"""Columns of the tables and their types."""


def graphs_to_tables(graphs: Mapping[str, MeasuredGraph]) -> dict[str, pd.DataFrame]:
    """Tables of `GRAPH_TABLES`: graphs in order, kernels in stream order, nodes in order."""
    import pandas as pd

    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in GRAPH_TABLES}
    for name, graph in graphs.items():
        parts["graphs"].append(_kernels(name, graph))
        nodes = {
            "graph": name, "node": np.arange(len(graph.nodes)), "node_name": list(graph.nodes),
            "node_class": list(graph.node_class), "repetitions": graph.node_weight,
        }  # fmt: skip
        parts["graph_nodes"].append(pd.DataFrame(nodes))
        producer, consumer = graph.edge_index
        edges = {"graph": name, "producer": producer, "consumer": consumer}
        parts["graph_edges"].append(pd.DataFrame(edges))
    out = {}
    for table, dtypes in GRAPH_TABLES.items():
        joined = pd.concat(parts[table], ignore_index=True) if graphs else pd.DataFrame()
        out[table] = joined.reindex(columns=list(dtypes)).astype(dict(dtypes))
    return out


def _kernels(name: str, graph: MeasuredGraph) -> pd.DataFrame:
    import pandas as pd

    table = graph.table
    columns = {
        "graph": name, "kernel": np.arange(len(table)), "node": graph.node,
        "node_name": [graph.nodes[i] for i in graph.node],
        "node_class": [graph.node_class[i] for i in graph.node], "repetitions": graph.weight,
        "op": [OP_NAMES[i] for i in table.op], "phase": [PHASES[i] for i in table.phase],
        "dtype": table.dtype.tolist(), "context": [CONTEXTS[i] for i in table.context],
        "launches": table.launches, "flops": table.flops, "read_bytes": table.read_bytes,
        "write_bytes": table.write_bytes,
        **{column: table.dims[:, i] for i, column in enumerate(_DIMS)},
    }  # fmt: skip
    return pd.DataFrame(columns)


def graphs_from_tables(tables: Mapping[str, pd.DataFrame]) -> dict[str, MeasuredGraph]:
    """Graphs of the tables that `graphs_to_tables` makes.

    Raises:
        DataError: a column is missing, a name is not in the vocabulary, or an index is out of
            range.
    """
    for table, dtypes in GRAPH_TABLES.items():
        for column in dtypes:
            if column not in tables[table].columns:
                raise DataError(f"{table}.parquet: no column {column!r}")
    kernels = dict(list(tables["graphs"].groupby("graph", sort=False)))
    edges = dict(list(tables["graph_edges"].groupby("graph", sort=False)))
    graphs: dict[str, MeasuredGraph] = {}
    for name, nodes in tables["graph_nodes"].groupby("graph", sort=False):
        own = kernels.get(name, tables["graphs"].iloc[:0])
        pairs = edges.get(name, tables["graph_edges"].iloc[:0])
        graphs[str(name)] = _graph(str(name), own, nodes, pairs)
    return graphs


def _graph(
    name: str, kernels: pd.DataFrame, nodes: pd.DataFrame, edges: pd.DataFrame
) -> MeasuredGraph:
    phases = {p: i for i, p in enumerate(PHASES)}
    contexts = {c: i for i, c in enumerate(CONTEXTS)}
    for column, known in (("op", OP_NAMES), ("phase", phases), ("context", contexts)):
        bad = kernels[~kernels[column].isin(list(known))]
        if len(bad):
            raise DataError(
                f"graphs.parquet: graph {name!r}, column {column!r}: unknown value "
                f"{bad[column].iloc[0]!r}; import the source again"
            )
    edge_index = edges[["producer", "consumer"]].to_numpy(dtype=np.int64).T
    node = kernels["node"].to_numpy(dtype=np.int64)
    if _outside(edge_index, len(kernels)) or _outside(node, len(nodes)):
        raise DataError(f"graph tables: graph {name!r} names a kernel or node that is not there")
    return MeasuredGraph(
        name=name,
        table=KernelTable(
            op=op_index(kernels["op"].tolist()),
            phase=kernels["phase"].map(phases).to_numpy().astype(np.int8),
            dtype=np.array(kernels["dtype"].tolist(), dtype=np.str_),
            dims=kernels[list(_DIMS)].to_numpy(dtype=np.int64),
            flops=kernels["flops"].to_numpy(dtype=np.float64),
            read_bytes=kernels["read_bytes"].to_numpy(dtype=np.float64),
            write_bytes=kernels["write_bytes"].to_numpy(dtype=np.float64),
            launches=kernels["launches"].to_numpy(dtype=np.int64),
            context=kernels["context"].map(contexts).to_numpy().astype(np.int8),
        ),
        weight=kernels["repetitions"].to_numpy(dtype=np.float64),
        node=node,
        nodes=tuple(nodes["node_name"]),
        node_weight=nodes["repetitions"].to_numpy(dtype=np.float64),
        node_class=tuple(nodes["node_class"]),
        edge_index=edge_index,
    )


def _outside(index: np.ndarray, size: int) -> bool:
    return bool(index.size and (index.min() < 0 or index.max() >= size))
