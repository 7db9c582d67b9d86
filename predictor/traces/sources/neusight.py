"""Importer of the NeuSight measurements (kernel sweeps, in-step ops, steps, peers' predictions).

Reads the public layout as it stands, plain or gzipped, whole or in part, or one of its files. Units
there: ms; GEMM letters (B, M, N) x (B, N, K): N is contracted. Rules, each counted where it drops
a row:

* merged files that repeat the rows of others are left out (`elem`, `ln`, `softmax` and `habitat`
  where `vec` stands; the first three where `habitat` stands);
* latency missing, not finite or not positive: dropped;
* device unknown to the catalogue: dropped and named;
* a size missing, not whole, not positive, or a window larger than its padded input: dropped;
* Tesla P4 GEMM sweep rows above 1 ms show thermal throttling (efficiency falls with duration while
  the publisher's test rows on the same card do not): kept, flagged `throttled`;
* in-step rows of a graph whose op sum exceeds the measured step by more than 15% (40% for steps
  below 100 ms, where the timer's own cost a call adds up): kept, flagged `op_sum_above_step` (the
  step is the trustworthy one);
* labels give step rows whether or not they can be scored: `neusight_steps` lists the flags;
* what every source must satisfy: `predictor.traces.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from predictor.traces.schema import Imported
from predictor.traces.sources.neusight_layout import SOURCE, find_root, open_layout
from predictor.traces.sources.neusight_peers import PEERS, peer_ops, read_peers
from predictor.traces.sources.neusight_steps import read_steps
from predictor.traces.sources.neusight_sweeps import read_sweep
from predictor.traces.validate import keep_valid

__all__ = ["PEERS", "SOURCE", "find_root", "parts", "peer_ops", "read"]


def read(data: Path) -> Imported:
    """All rows at `data`, whatever part of the layout is present.

    Args:
        data: a folder that holds the layout or part of it, or one sweep or label file in it.

    Raises:
        DataError: no part of the layout is there, or a file is damaged or lacks a column.
    """
    import pandas as pd

    layout = open_layout(data)
    out = Imported.empty(SOURCE)
    frames = [
        rows for path in layout.sweeps() if (rows := read_sweep(path, layout, out)) is not None
    ]
    if frames:
        out.kernels = pd.concat(frames, ignore_index=True)
    read_steps(layout, out)
    read_peers(layout, out)
    out.files, out.left_out = layout.reader.files, layout.left_out
    keep_valid(out)
    return out


def parts(data: Path) -> Iterator[Imported]:
    """`read` as the one part of the source."""
    yield read(data)
