"""Capture our programs of Enzyme-JAX's benchmark into a graph bank.

    python training/capture_enzyme.py --out datasets/enzyme/graphs

Every program is lowered by JAX for the platform of each measured device, read as StableHLO and
fused by the rules of XLA for that device. Needs the `jax` extra; reading the bank does not.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from enzyme_programs import benchmarks

from predictor.hardware.catalogue import resolve_device
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import backend_of
from predictor.program import capture
from predictor.traces.batch_affine import (
    HEAD_COLUMNS,
    AffineGraph,
    edge_rows,
    host_calls,
    kernel_rows,
)
from predictor.traces.graph_bank_files import graph_id, write_bank
from predictor.traces.sources.enzyme import BACKENDS, FOLDER, SOURCE

FOLDS = 5


def captured(jitted: object, arguments: tuple[object, ...], backend: str) -> AffineGraph:
    """Kernels of a program on the device that upstream calls `backend`, at its one size."""
    device = resolve_device(backend, source=FOLDER)
    program = capture(jitted, *arguments, platform=BACKENDS[backend])  # type: ignore[arg-type]
    graph = lower_xla(program, backend_of(device))
    rows = kernel_rows(graph)
    return AffineGraph(
        rows=np.hstack([rows, np.zeros_like(rows[:, HEAD_COLUMNS:])]),
        edges=edge_rows(graph),
        host_calls=host_calls(graph),
    )


def fold_of(name: str) -> int:
    """Which fold all modes of a program are in."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % FOLDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    graphs: dict[str, AffineGraph] = {}
    index = []
    for benchmark in benchmarks():
        for mode in benchmark.modes:
            for backend in BACKENDS:
                graph = captured(*benchmark.program(mode), backend)
                name = graph_id(graph, SOURCE)
                graphs.setdefault(name, graph)
                index.append({
                    "model": benchmark.name, "size": 0, "mode": mode, "variant": "fp32",
                    "layout": backend, "batch_from": 1, "batch_to": 1, "graph": name,
                    "family": benchmark.name, "fold": fold_of(benchmark.name), "graph_group": "",
                    "cross_fold_twin": "", "parameters": 0,
                })  # fmt: skip
    write_bank(given.out, graphs, pd.DataFrame(index))
    kb = sum(f.stat().st_size for f in given.out.iterdir()) / 1e3
    sys.stdout.write(f"{given.out}: {len(index)} programs, {len(graphs)} graphs, {kb:.0f} kB\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
