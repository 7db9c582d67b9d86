"""Ratios of step times on two devices: measured, predicted, and what datasheets would say.

    python training/enzyme_ratios.py DIR --checkpoint NAME [--out PAGE.md]

Every program of `enzyme` that both devices ran and that is rewritten here is a pair. Baselines: the
ratio of memory bandwidths, and of peaks of matrix products (what XLA takes fp32 products in: TF32
on the GPU, bf16 on the TPU); the peak of vector units stands beside them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from predictor.atomic import write_text
from predictor.checkpoint import DEFAULT_CHECKPOINT
from predictor.fit.evaluate import evaluate
from predictor.hardware.catalogue import resolve_device

TIME, OVER = "google-tpu-v6e", "nvidia-a100-sxm-40gb"
LARGE = "llama_"
"""Beginning of the names of programs that are more than a few operations."""
BASELINES = ("bandwidth", "peak")


def pairs_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted times of both devices by program, and their ratios.

    Args:
        rows: scored rows of `enzyme`.
    """
    table = rows.pivot(index="model", columns="device", values=["measured_us", "predicted_us"])
    found = pd.DataFrame({
        f"{what}_{short}": table[f"{what}_us"][device]
        for what in ("measured", "predicted") for short, device in (("over", OVER), ("time", TIME))
    }).dropna()  # fmt: skip
    for what in ("measured", "predicted"):
        found[what] = found[f"{what}_time"] / found[f"{what}_over"]
    time, over = resolve_device(TIME), resolve_device(OVER)
    found["bandwidth"] = over.memory_bw_gbps / time.memory_bw_gbps
    found["peak"] = over.peak_tf32_tflops / time.peak_bf16_tflops
    return found


def errors(pairs: pd.DataFrame, what: str) -> pd.Series:
    """Error of a column of ratios against the measured ones, as fractions."""
    return (pairs[what] / pairs["measured"] - 1).abs()


def page_of(pairs: pd.DataFrame) -> str:
    """The tables, as Markdown."""
    large = pairs.index.str.startswith(LARGE)
    columns = ("predicted", *BASELINES)
    lines = ["| pairs | n | " + " | ".join(f"{name}, median (greatest)" for name in columns) + " |",
             "|---|--:|" + "--:|" * len(columns)]  # fmt: skip
    for title, mask in (("decoder", large), ("a few operations", ~large)):
        part = pairs[mask]
        cells = [f"{errors(part, c).median():.0%} ({errors(part, c).max():.0%})" for c in columns]
        lines.append(f"| {title} | {len(part)} | " + " | ".join(cells) + " |")
    lines += ["", "| program | A100, us: measured, predicted | v6e, us: measured, predicted | "
              "v6e/A100: measured, predicted | error |", "|---|--:|--:|--:|--:|"]  # fmt: skip
    for name, row in pairs.iterrows():
        shown = str(name).split("_dim_")[0] + "/" + str(name).rpartition("/")[2]
        shown = str(name) if "_dim_" not in str(name) else shown
        cells = [
            f"{row['measured_over']:.1f}, {row['predicted_over']:.1f}",
            f"{row['measured_time']:.2f}, {row['predicted_time']:.2f}",
            f"{row['measured']:.2f}, {row['predicted']:.2f}",
            f"{row['predicted'] / row['measured'] - 1:+.0%}",
        ]
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--checkpoint", default=DEFAULT_CHECKPOINT)
    parser.add_argument("--out", type=Path, metavar="PAGE.md")
    given = parser.parse_args(arguments)
    scored = evaluate("enzyme", [given.data], checkpoint=given.checkpoint).scored.rows
    scored = scored[scored["target"] == "step"]
    pairs = pairs_of(scored[np.isfinite(scored["predicted_us"].to_numpy(dtype=float))])
    text = page_of(pairs)
    if given.out is None:
        sys.stdout.write(text)
    else:
        write_text(given.out, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
