"""Capture a sample of HW-GPT-Bench's architectures into a graph bank.

    python training/capture_gptbench.py DIR --work runs/gptbench --out datasets/gptbench/graphs

DIR holds the published gpt_s/m/l_latency.csv. Of every size and every class of equal hidden size,
layers and bias the first architectures by a hash of their index are taken, so the sample is the
same anywhere. Each is captured at the batch it was measured with and kept in the work folder: a run
that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from predictor.atomic import replacing_file
from predictor.graph.ir import KernelGraph
from predictor.lower.eager import lower_eager
from predictor.program import capture
from predictor.traces.batch_affine import (
    HEAD_COLUMNS,
    AffineGraph,
    edge_rows,
    host_calls,
    kernel_rows,
)
from predictor.traces.graph_bank_files import graph_id, write_bank
from predictor.traces.sources.gptbench import BATCH, SEQ, files_of, model_name
from predictor.zoo.hw_gpt import HwGpt, HwGptConfig

A_CLASS = 22
"""Architectures of each class: 22 x 18 classes x 3 sizes = 1,188."""
FOLDS = 5
CLASS = ("embed_dim", "n_layer", "bias")


def ranked(size: str, index: int) -> bytes:
    """Where an architecture stands in the order of the sample."""
    return hashlib.sha256(f"{size}:{index}".encode()).digest()


def sample_of(size: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The architectures of one size to capture."""
    order = sorted(range(len(rows)), key=lambda i: ranked(size, int(rows["arch_index"].iloc[i])))
    return rows.iloc[order].groupby(list(CLASS), sort=True).head(A_CLASS)


def config_of(row: pd.Series) -> HwGptConfig:
    """The architecture of a published row."""
    return HwGptConfig.of(row["embed_dim"], row["n_head"], row["mlp_ratio"], row["bias"])


def captured(config: HwGptConfig, batch: int) -> KernelGraph:
    """Kernels of one forward pass under autocast."""
    with torch.device("meta"):
        module, tokens = HwGpt(config).eval(), torch.zeros(batch, SEQ, dtype=torch.long)
    return lower_eager(capture(module, tokens, mode="infer", dtype="amp-fp16"))


def at_one_batch(graph: KernelGraph) -> AffineGraph:
    """A graph that is exact at its own batch: all slopes are zero."""
    rows = kernel_rows(graph, half="fp16")
    return AffineGraph(
        rows=np.hstack([rows, np.zeros_like(rows[:, HEAD_COLUMNS:])]),
        edges=edge_rows(graph),
        host_calls=host_calls(graph),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    graphs: dict[str, AffineGraph] = {}
    index = []
    _, files = files_of(given.folder)
    for size, path in files.items():
        chosen = sample_of(size, pd.read_csv(path))
        for done, (_, row) in enumerate(chosen.iterrows(), 1):
            config, number = config_of(row), int(row["arch_index"])
            kept = given.work / f"{size}-{number}.pickle"
            if not kept.is_file():
                with replacing_file(kept) as fresh:
                    fresh.write_bytes(pickle.dumps(at_one_batch(captured(config, BATCH[size]))))
            graph = pickle.loads(kept.read_bytes())
            name = graph_id(graph, "gptbench")
            graphs.setdefault(name, graph)
            index.append({
                "model": model_name(size, number), "size": SEQ, "mode": "infer", "variant": "amp",
                "layout": "", "batch_from": BATCH[size], "batch_to": BATCH[size], "graph": name,
                "family": f"gpt-{size}", "fold": int.from_bytes(ranked("fold", number)[:4]) % FOLDS,
                "graph_group": "", "cross_fold_twin": "", "parameters": config.parameters,
            })  # fmt: skip
            if done % 20 == 0:
                sys.stdout.write(f"{size}: {done} of {len(chosen)}\n")
                sys.stdout.flush()
    write_bank(given.out, graphs, pd.DataFrame(index))
    mb = sum(f.stat().st_size for f in given.out.iterdir()) / 1e6
    sys.stdout.write(f"{given.out}: {len(index)} programs, {len(graphs)} graphs, {mb:.1f} MB\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
