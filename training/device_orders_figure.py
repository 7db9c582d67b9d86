"""The figure of `device_orders.py`: joint models against separate ones, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from device_efficiency import ONE, PARTS, Errors, load_errors

from predictor.atomic import write_text

COLOURS: Mapping[str, str] = {
    "release": "#1b6ca8", "reversed": "#d1495b", "random": "#2e933c",
}  # fmt: skip
WIDTH, HEIGHT, LEFT, TOP, GAP, FOOT = 220, 180, 46, 52, 46, 70
LIMIT = 1.0
"""Log ratios beyond it stand at the edge."""


def write_figure(runs: Path, path: Path) -> None:
    """Mean log of the separate model's error over the joint one's, on devices so far, by stage."""
    panels = [
        (errors, target)
        for errors in (load_errors(p.parent) for p in sorted(runs.glob("*/facts.txt")))
        for target in errors.targets()
    ]
    width, height = LEFT + len(panels) * (WIDTH + GAP), TOP + HEIGHT + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 18, "Mean log(error of separate models / error) on the devices so far", 13),
    ]
    for i, (errors, target) in enumerate(panels):
        parts += _panel(LEFT + i * (WIDTH + GAP), errors, target)
    for i, (name, colour) in enumerate(COLOURS.items()):
        x, y = LEFT + 130 * i, TOP + HEIGHT + 38
        parts.append(_line([(x, y - 4), (x + 24, y - 4)], colour))
        parts.append(_text(x + 30, y, name))
    parts.append(
        _text(LEFT, TOP + HEIGHT + 58, "solid: device parts; dashed: one model; x: devices so far")
    )
    write_text(path, "\n".join([*parts, "</svg>", ""]))


def _panel(left: float, errors: Errors, target: str) -> list[str]:
    stages = len(errors.devices)
    parts = [_text(left, TOP - 10, f"{errors.name}, {target}s", 12)]
    for level in (-LIMIT, -0.5, 0.0, 0.5, LIMIT):
        y = TOP + HEIGHT * (LIMIT - level) / (2 * LIMIT)
        colour = "#888888" if level == 0 else "#e6e6e6"
        parts.append(_line([(left, y), (left + WIDTH, y)], colour, 1.0))
        parts.append(_text(left - 34, y + 4, f"{level:+.1f}"))
    for stage in range(1, stages + 1):
        x = left + WIDTH * (stage - 1) / max(stages - 1, 1)
        parts.append(_text(x - 3, TOP + HEIGHT + 14, str(stage)))
    for name, order in errors.orders.items():
        for variant in (ONE, PARTS):
            points = []
            for i, value in enumerate(stage_means(errors, variant, order, target)):
                if np.isfinite(value):
                    inside = float(np.clip(value, -LIMIT, LIMIT))
                    x = left + WIDTH * i / max(stages - 1, 1)
                    points.append((x, TOP + HEIGHT * (LIMIT - inside) / (2 * LIMIT)))
            parts.append(_line(points, COLOURS[name], 2.0, dashed=variant == ONE))
    return parts


def stage_means(errors: Errors, variant: str, order: Sequence[str], target: str) -> list[float]:
    """By stage: mean over devices so far of log(separate error / joint error)."""
    out = []
    for i in range(1, len(order) + 1):
        so_far = [d for d in order[:i] if d in errors.judged(target)]
        out.append(float(np.mean([
            float(np.log(errors.own(d, target) / errors.error(variant, order[:i], d, target)))
            for d in so_far
        ])) if so_far else float("nan"))  # fmt: skip
    return out


def _line(
    points: Sequence[tuple[float, float]], colour: str, stroke: float = 2.0, *, dashed: bool = False
) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{stroke}"{dash}/>'
    )


def _text(x: float, y: float, words: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{words}</text>'
