"""Capture the programs that the project measures itself into the graph bank `own`.

    python training/capture_own.py --out datasets/own/graphs

No device is needed: graphs are those that an estimate would see, each at its own batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from own_programs import FOLDS, Spec, on_a_gpu, steps

from predictor.graph.ir import KernelGraph
from predictor.lower.eager import lower_eager
from predictor.traces.batch_affine import (
    HEAD_COLUMNS,
    AffineGraph,
    edge_rows,
    host_calls,
    kernel_rows,
)
from predictor.traces.graph_bank_files import graph_id, write_bank


def at_one_batch(graph: KernelGraph) -> AffineGraph:
    """A graph that is exact at its own batch: all slopes are zero."""
    rows = kernel_rows(graph)
    return AffineGraph(
        rows=np.hstack([rows, np.zeros_like(rows[:, HEAD_COLUMNS:])]),
        edges=edge_rows(graph),
        host_calls=host_calls(graph),
    )


def index_row(spec: Spec, mode: str, dtype: str, graph: str, parameters: int) -> dict[str, object]:
    """Line of a program in the bank's index."""
    return {
        "model": spec.name, "size": spec.size if spec.takes != "other" else 0, "mode": mode,
        "variant": dtype, "layout": "", "batch_from": spec.batch, "batch_to": spec.batch,
        "graph": graph, "family": spec.family, "fold": FOLDS[spec.family], "graph_group": "",
        "cross_fold_twin": "", "parameters": parameters,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", metavar="WORD", default="", help="models whose name has it")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    graphs: dict[str, AffineGraph] = {}
    index = []
    for spec, mode, dtype in (*steps(), *on_a_gpu()):
        if given.only not in spec.name:
            continue
        captured = spec.graph(mode, dtype)
        graph = at_one_batch(lower_eager(captured))
        name = graph_id(graph, "own")
        graphs.setdefault(name, graph)
        index.append(index_row(spec, mode, dtype, name, captured.workload.parameters))
    write_bank(given.out, graphs, pd.DataFrame(index))
    mb = sum(f.stat().st_size for f in given.out.iterdir()) / 1e6
    sys.stdout.write(f"{given.out}: {len(index)} programs, {len(graphs)} graphs, {mb:.2f} MB\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
