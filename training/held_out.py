"""What a run's cross-validation says of devices, families and shapes never seen, as one page.

    python training/held_out.py RUN --out docs/held-out.md

RUN is the folder that `predictor train` wrote. Intervals are judged by scales that the group of a
row did not fit (`predictor.fit.interval_check`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.atomic import write_text
from predictor.checkpoint import RELEASE_FOLDER
from predictor.errors import DataError, PredictorError
from predictor.fit.crossval import TABLES, HeldOut
from predictor.fit.interval_check import judged
from predictor.fit.train import HELD_OUT
from predictor.hardware.device_file import adopt_device_file

if TYPE_CHECKING:
    import pandas as pd

INTRODUCTION = """# {name}: devices, families and shapes that it did not see

Made by `python training/held_out.py RUN --out docs/held-out.md` from the grouped cross-validation
of the recipe `{name}`; nothing here is written by hand.

- In a fold several groups are held out at once, here about a {share} of all devices with their
  near-twins, or of all model families and kernel shapes, and **one network is trained for
  {epochs} epochs** (the release: {members} networks of {final_epochs}). So errors here are above
  those of the release on a device that alone is new.
- Errors are percent of the measured time. **Roofline**: the sustained roofline with a launch,
  nothing learned, on the same rows.
- **covers**: share of the rows inside their {level:.0%} interval; **score**: interval score of
  Gneiting and Raftery (2007) in log time, smaller is better. Scales were fitted on other groups
  than the row's. **Constant**: one width for all rows of a source, fitted on its other groups.
"""
TITLES = {"device": "Devices never seen", "model": "Families and shapes never seen, devices seen"}
BUCKETS = (0.0, 1e-9, 0.1, 0.5, 1.0, 2.0, np.inf)
BUCKET_NAMES = ("inside", "to 0.1", "to 0.5", "to 1", "to 2", "above 2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument(
        "--device-file", action="append", default=[], type=Path,
        help="describes a device that the catalogue lacks",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    try:
        for path in args.device_file:
            adopt_device_file(path)
        write_text(args.out, page(args.run))
    except PredictorError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def page(run: Path) -> str:
    """The page as Markdown.

    Raises:
        DataError: the folder holds no finished run.
    """
    import pandas as pd

    try:
        config = json.loads((run / RELEASE_FOLDER / "config.json").read_text(encoding="utf-8"))
        tables = {t: pd.read_parquet(run / HELD_OUT / f"{t}.parquet") for t in TABLES}
    except (OSError, ValueError) as error:  # missing, or damaged JSON or Parquet
        raise DataError(f"{run} is not the folder of a finished run ({error})") from error
    recipe, level = config["training"], float(config["calibration"]["level"])
    rows = judged(HeldOut(**tables), level)
    folds = recipe["calibration"]["most_folds"]
    lines = [
        INTRODUCTION.format(
            name=config["name"], level=level, share={2: "half", 3: "third"}.get(folds, "part"),
            epochs=recipe["calibration"]["epochs"] or recipe["optimizer"]["epochs"],
            members=recipe["network"]["members"], final_epochs=recipe["optimizer"]["epochs"],
        )
    ]  # fmt: skip
    for kind, title in TITLES.items():
        tables_of_kind = list(_section(rows, kind))
        if tables_of_kind:
            lines += [f"## {title}", "", *tables_of_kind]
    return "\n".join(lines)


def _section(rows: dict[str, pd.DataFrame], kind: str) -> Iterator[str]:
    steps, kernels = rows["steps"], rows["kernels"]
    if len(steps):
        whole = steps[(steps["fold_kind"] == kind) & (steps["phase"] == "total")]
        yield from _table("Whole steps", whole, ["source", "device"])
        yield from _table("Whole steps by how they ran", whole, ["source", "mode", "execution"])
    if len(kernels):
        own = kernels[kernels["fold_kind"] == kind]
        yield from _table("Kernels", own, ["source", "op_class"])
        yield from _table("Kernels by device", own, ["source", "device"])
        typed = own[own["dtype"].notna()] if "dtype" in own else own.iloc[:0]
        yield from _table("Kernels by dtype and framework", typed, ["source", "framework", "dtype"])
        yield from _distance("Kernels", own)
    if len(steps):
        yield from _distance("Whole steps", whole)


def _table(title: str, rows: pd.DataFrame, keys: list[str]) -> Iterator[str]:
    if not len(rows):
        return
    roofline = "base_us" in rows
    yield f"### {title}, by {' and '.join(k.replace('_', ' ') for k in keys)}"
    yield ""
    head = [*keys, "n", "MAPE", "median", "p90", "bias", *(["roofline"] if roofline else [])]
    head += ["covers", "score", "constant covers", "constant score"]
    yield f"| {' | '.join(h.replace('_', ' ') for h in head)} |"
    yield "|" + "---|" * len(keys) + "--:|" * (len(head) - len(keys))
    for key, group in rows.groupby(keys, sort=True, dropna=False):
        yield f"| {' | '.join([*(str(k) or '–' for k in key), *_figures(group, roofline)])} |"
    yield ""


def _figures(rows: pd.DataFrame, roofline: bool) -> list[str]:
    off = rows["predicted_us"] / rows["measured_us"] - 1.0
    size = off.abs()
    out = [
        f"{len(rows):,}", *(f"{100 * v:.1f}" for v in (size.mean(), size.median())),
        f"{100 * size.quantile(0.9):.1f}", f"{100 * off.mean():+.1f}",
    ]  # fmt: skip
    if roofline:
        base = (rows["base_us"] / rows["measured_us"] - 1.0).abs()
        out.append(f"{100 * base.mean():.1f}" if base.notna().all() else "–")
    out += [f"{100 * rows['covered'].mean():.0f}", f"{rows['score'].mean():.2f}"]
    known = rows["constant_score"].notna().all()
    out.append(f"{100 * rows['constant_covered'].mean():.0f}" if known else "–")
    return [*out, f"{rows['constant_score'].mean():.2f}" if known else "–"]


def _distance(title: str, rows: pd.DataFrame) -> Iterator[str]:
    """Error by how far outside of the training range: whether the flag tells anything."""
    import pandas as pd

    if not len(rows):
        return
    log_off = np.log(rows["predicted_us"] / rows["measured_us"]).abs()
    bucket = pd.cut(rows["outside"], [-1.0, *BUCKETS[1:]], labels=list(BUCKET_NAMES), ordered=True)
    yield f"### {title}, by distance from the training range"
    yield ""
    yield "In training deviations; error in log time."
    yield ""
    yield "| distance | n | median | p90 |"
    yield "|---|--:|--:|--:|"
    for name, group in log_off.groupby(bucket, observed=True):
        yield f"| {name} | {len(group):,} | {group.median():.3f} | {group.quantile(0.9):.3f} |"
    yield ""


if __name__ == "__main__":
    raise SystemExit(main())
