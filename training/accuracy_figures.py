"""Error distributions as an SVG: share of rows below an error, a panel a kind of row.

Drawn without a plotting library, so that the same rows give the same bytes and a page shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import pandas as pd
from accuracy_cells import NAMES, percent
from accuracy_suites import KINDS, NoiseFloor, Scored, floor_of, of_kind, predicted
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVELS: Floats = np.linspace(0.0, 1.0, 101)
LOW, HIGH = 0.001, 10.0
"""Ends of the axis of errors, fractions: a logarithm's; what lies outside stands at the end."""
TICKS: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0, 10.0)
COLOURS: Mapping[str, str] = {
    "this": "#1b6ca8", "gradient_boosting": "#d1495b", "roofline": "#8d99ae",
    "flops_law": "#edae49", "best_proxy": "#7b5e7b", "neusight": "#2e933c", "habitat": "#00798c",
    "micro": "#9c6644", "roofline_published": "#c0c4cc", "sum_of_measured": "#444444",
}  # fmt: skip
WIDTH, HEIGHT, LEFT, TOP, GAP, FOOT = 300, 220, 46, 52, 40, 44
LINE_PX = 14


def error_levels(rows: pd.DataFrame, column: str) -> Floats:
    """Absolute percentage error (a fraction) at each level of `LEVELS`."""
    off = np.abs(rows[column].to_numpy(dtype=float) / rows["measured_us"].to_numpy(dtype=float) - 1)
    return np.asarray(np.quantile(off, LEVELS))


def panels_of(scored: Scored) -> list[tuple[str, dict[str, Floats], NoiseFloor | None]]:
    """By kind of row: title, error levels of the checkpoint and each baseline, noise floor.

    A baseline is drawn where every predicted row of the panel has it.
    """
    found = []
    for kind, title in KINDS.items():
        rows = predicted(of_kind(scored.tested, kind))
        if rows.empty:
            continue
        curves = {"this": error_levels(rows, "predicted_us")}
        for name in NAMES:
            column = f"{name}_us"
            if column in rows.columns and (rows[column] > 0).all():
                curves[name] = error_levels(rows, column)
        found.append((f"{title}, n = {len(rows):,}", curves, floor_of(scored, kind)))
    return found


def figure(scored: Scored) -> str:
    """The SVG of one suite."""
    panels = panels_of(scored)
    names = [n for n in COLOURS if any(n in curves for _, curves, _ in panels)]
    width = LEFT + len(panels) * (WIDTH + GAP)
    height = TOP + HEIGHT + FOOT + LINE_PX * len(names)
    heading = f"{scored.name}: share of the rows with an error below"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 18, heading, size=13),
    ]
    for i, (title, curves, noise) in enumerate(panels):
        parts += _panel(LEFT + i * (WIDTH + GAP), title, curves, noise)
    for i, name in enumerate(names):
        y = TOP + HEIGHT + FOOT + LINE_PX * i
        parts.append(_line(LEFT, y - 4, LEFT + 24, y - 4, COLOURS[name], 2.5))
        parts.append(_text(LEFT + 30, y, _name(name, scored)))
    return "\n".join([*parts, "</svg>", ""])


def _name(curve: str, scored: Scored) -> str:
    return scored.checkpoint if curve == "this" else NAMES[curve]


def _panel(
    left: float, title: str, curves: Mapping[str, Floats], noise: NoiseFloor | None
) -> list[str]:
    parts = [
        _text(left, TOP - 10, title, size=12),
        f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" '
        'stroke="#888888"/>',
    ]
    for tick in TICKS:
        x = left + _x(tick)
        parts.append(_line(x, TOP, x, TOP + HEIGHT, "#e6e6e6", 1))
        parts.append(_text(x, TOP + HEIGHT + 14, f"{100 * tick:g}%", anchor="middle"))
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + (1 - level) * HEIGHT
        parts.append(_line(left, y, left + WIDTH, y, "#e6e6e6", 1))
        parts.append(_text(left - 4, y + 4, f"{level:.0%}", anchor="end"))
    for name in reversed(list(curves)):  # the checkpoint's lies on top
        parts.append(_curve(left, curves[name], COLOURS[name], 2.5 if name == "this" else 1.5))
    at = None if noise is None else noise.median or noise.p90
    if noise is not None and at is not None:
        x = left + _x(at)
        word = "median" if noise.median else "p90"
        parts.append(_line(x, TOP, x, TOP + HEIGHT, "#000000", 1, dashed=True))
        parts.append(_text(x + 3, TOP + HEIGHT - 6, f"noise {word} {percent(at)}%"))
    return parts


def _x(error: float) -> float:
    """Place of an error on the axis."""
    inside = min(max(error, LOW), HIGH)
    return float(WIDTH * np.log(inside / LOW) / np.log(HIGH / LOW))


def _curve(left: float, levels: Sequence[float] | Floats, colour: str, stroke: float) -> str:
    points = " ".join(
        f"{left + _x(error):.1f},{TOP + (1 - level) * HEIGHT:.1f}"
        for error, level in zip(levels, LEVELS, strict=True)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>'


def _line(
    x: float, y: float, to_x: float, to_y: float, colour: str, stroke: float, *,
    dashed: bool = False,
) -> str:  # fmt: skip
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" '
        f'stroke-width="{stroke}"{dash}/>'
    )


def _text(x: float, y: float, words: str, *, size: int = 11, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
