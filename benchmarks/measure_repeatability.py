"""Two runs of the same kernels: how far they lie apart, and how many rows are flagged.

    python benchmarks/measure_repeatability.py [--points 200] [--threads N] [--seconds 0.15]

Bars: 10% at the median, 25% at the 90th percentile, at most 10% of rows noisy. Needs a machine that
does nothing else; the load of others is told.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from predictor.traces.measure.flags import COLD, NOISY, OTHER_LOAD
from predictor.traces.measure.grid import Point, read_grid
from predictor.traces.measure.kernels import KernelRun
from predictor.traces.measure.local import LocalDevice, local_device
from predictor.traces.measure.rows_file import RowsFile, read_rows
from predictor.traces.measure.timer import Limits

MEDIAN, P90, NOISY_SHARE = 0.10, 0.25, 0.10


def one_run(
    device: LocalDevice, points: list[Point], limits: Limits, path: Path
) -> dict[str, tuple[float, str]]:
    """Time and flag of each point."""
    rows = RowsFile(path, "kernels")
    start = time.monotonic()
    KernelRun(device, rows, limits).run(points)
    frame, kept = read_rows(path)
    print(
        f"{path.stem}: {rows.rows} rows in {time.monotonic() - start:.0f} s, "
        f"{dict(rows.flags())}, refused {dict(rows.refused)}"
    )
    times = frame[["latency_us", "flag"]].itertuples(index=False)
    return dict(zip(kept["keys"], times, strict=True))


def report(first: dict[str, tuple[float, str]], second: dict[str, tuple[float, str]]) -> bool:
    """Print how far the runs lie apart; whether all bars hold."""
    both = [key for key in first if key in second]
    pairs = np.array([(first[key][0], second[key][0]) for key in both])
    apart = np.abs(pairs[:, 0] / pairs[:, 1] - 1)
    flags = [run[key][1] for run in (first, second) for key in run]
    shares = {name: flags.count(name) / len(flags) for name in (NOISY, OTHER_LOAD, COLD)}
    median, p90 = float(np.median(apart)), float(np.quantile(apart, 0.9))
    print(f"{len(both)} kernels in both: {median:.1%} apart at the median, {p90:.1%} at the 90th "
          f"percentile, {apart.max():.1%} at most")  # fmt: skip
    print(", ".join(f"{share:.1%} {name}" for name, share in shares.items()))
    for at in np.argsort(-apart)[:5]:
        print(f"  {apart[at]:6.1%}  {pairs[at, 0]:10.1f} and {pairs[at, 1]:10.1f} us  {both[at]}")
    held = {
        f"median <= {MEDIAN:.0%}": median <= MEDIAN,
        f"90th percentile <= {P90:.0%}": p90 <= P90,
        f"noisy <= {NOISY_SHARE:.0%}": shares[NOISY] <= NOISY_SHARE,
        "no other load": shares[OTHER_LOAD] == 0,
    }
    print(", ".join(f"{name}: {'holds' if ok else 'MISSED'}" for name, ok in held.items()))
    return all(held.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--grid", default="full")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=0.15)
    given = parser.parse_args()
    device = local_device("cpu", threads=given.threads)
    points = read_grid(given.grid)
    points = random.Random(1).sample(points, min(given.points, len(points)))
    print(f"{device.device.id}, {device.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            one_run(device, points, Limits(seconds=given.seconds), Path(folder) / f"{name}.parquet")
            for name in ("first", "second")
        ]
    return 0 if report(*runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
