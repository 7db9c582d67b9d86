"""The page of ablations, from the rows of finished runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ablation_variants import ALONE_SHAPES, PAIRS, RECIPE, TOGETHER_SHAPES

if TYPE_CHECKING:
    import pandas as pd

INTRODUCTION = """# Ablations

Made by `python training/ablations.py RECIPE... --data DIR --out docs/ablations.md`; nothing here is
written by hand. Each line trains the recipe with one thing changed and is judged on rows of the
development part of its split: families, shapes or devices never trained on. Mean absolute
percentage errors; behind a figure its difference from the recipe's, in points.

- *seed ...*: the recipe with another seed, nothing else changed. What such lines differ by is
  chance, and so may be any difference that is no larger. Where there is none, differences below
  half a point say nothing.
- *kernels only*, *steps only*: the loss terms of whole steps, or of single kernels, have weight 0.
- *each device alone*: a network for every device, of its rows only. A device that is better alone
  suffers from the others (negative transfer); a second table tells it device by device. Where the
  development part holds devices out, kernel shapes and model families of the training devices
  are held out instead for this comparison.
- *no physics residual*: the network learns time over a constant in place of time over roofline.
- *no tiled prior*, *no streamed prior*: what is known of tiles, or of what caches leave, stays out
  of the roofline that the network corrects.
- *without ...*: the columns of a group are 0 in training and in scoring. Groups whose columns never
  differ between the rows of a recipe, or that it does not read, have no line.
"""
TARGETS: tuple[str, ...] = ("step", "op", "kernel")


def page(runs: Path) -> str:
    """The page from all finished runs."""
    parts = [INTRODUCTION]
    parts += [_section(folder) for folder in sorted(p for p in runs.iterdir() if p.is_dir())]
    return "\n".join(parts)


def errors_of(rows: pd.DataFrame) -> dict[str, float]:
    """Mean absolute percentage error of each target, and of the steps of each device."""
    error = _off(rows)
    by_target = error.groupby(rows["target"]).mean()
    steps = rows["target"] == "step"
    by_device = error[steps].groupby(rows["device"][steps]).mean()
    found = {f"{target}s": float(by_target[target]) for target in TARGETS if target in by_target}
    if len(by_device) > 1:
        found |= {f"steps of {device}": float(value) for device, value in by_device.items()}
    return found


def _off(rows: pd.DataFrame) -> pd.Series[float]:
    """Absolute percentage error of every row."""
    off: pd.Series[float] = 100 * (rows["predicted_us"] / rows["measured_us"] - 1).abs()
    return off


def _section(folder: Path) -> str:
    """One recipe: a line a variant, a column a target and device; devices alone behind it."""
    import pandas as pd

    rows, shares = {}, set()
    for place in sorted(folder.iterdir()):
        facts = json.loads((place / "facts.json").read_text(encoding="utf-8"))
        rows[facts["variant"]] = pd.read_parquet(place / "rows.parquet")
        settings = ", ".join(f"`{key}={value}`" for key, value in facts["settings"].items())
        shares.add((facts["share"], settings))
    read = {
        name: errors_of(found)
        for name, found in rows.items() if name not in (TOGETHER_SHAPES, ALONE_SHAPES)
    }  # fmt: skip
    order = sorted(read, key=lambda name: (name != RECIPE, not name.startswith("seed "), name))
    base = read.get(RECIPE, {})
    columns = list(dict.fromkeys(name for found in read.values() for name in found))
    said = "; ".join(
        f"{share:.0%} of the step rows trained on" + (f", {settings}" if settings else "")
        for share, settings in sorted(shares)
    )
    lines = [f"## {folder.name}", ""]
    if order:
        lines += [f"Judged: {_counts(rows[order[0]])}; {said}.", ""]
        lines += ["| variant | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for name in order:
        cells = (_cell(read[name].get(c), base.get(c), plain=name == RECIPE) for c in columns)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *_alone(rows), ""])


def _counts(rows: pd.DataFrame) -> str:
    count = rows["target"].value_counts()
    return ", ".join(f"{count[target]:,} {target}s" for target in TARGETS if target in count)


def _alone(rows: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Each device by itself against all together, where there are several."""
    for together, alone in PAIRS:
        if together not in rows or alone not in rows or rows[together]["device"].nunique() < 2:
            continue
        both = (rows[together], rows[alone])
        targets = [t for t in TARGETS if all((found["target"] == t).any() for found in both)]
        shapes = "shapes and families never seen" if alone == ALONE_SHAPES else "the same rows"
        yield from ("", f"Networks of all devices together, and of each alone ({shapes}):", "")
        head = [cell for t in targets for cell in (f"{t}s: n", "together", "alone")]
        yield "| device | " + " | ".join(head) + " |"
        yield "|---|" + "--:|" * len(head)
        for device in (*sorted(rows[together]["device"].unique()), "all"):
            cells = [cell for t in targets for cell in _pair(both, device, t)]
            yield f"| {device} | " + " | ".join(cells) + " |"


def _pair(both: Sequence[pd.DataFrame], device: str, target: str) -> tuple[str, str, str]:
    """Rows, error together, and alone with its difference, of one device."""
    found = [
        _off(rows[(rows["target"] == target) & ((rows["device"] == device) | (device == "all"))])
        for rows in both
    ]
    joint, own = (float(off.mean()) for off in found)
    return f"{len(found[0]):,}", _cell(joint, None, plain=True), _cell(own, joint, plain=False)


def _cell(value: float | None, base: float | None, *, plain: bool) -> str:
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:.1f}" if plain or base is None else f"{value:.1f} ({value - base:+.1f})"
