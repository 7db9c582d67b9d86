"""The page and the figure of `device_orders.py`, from the errors of its trainings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from device_efficiency import (
    ONE,
    PARTS,
    Efficiency,
    Errors,
    efficiencies,
    frozen,
    load_errors,
    noise,
)
from device_variants import VARIANTS

from predictor.atomic import write_text
from predictor.hardware.twins import twins

INTRODUCTION = """# Devices over time

Made by `python training/device_orders.py --data DIR --out docs/device-orders.md --runs RUNS`;
nothing here is written by hand. Devices of a source join one by one, in three orders: by release
(within a year by name), reversed, and at random. After each, a small network
(`training/device_orders.toml`) is trained from the start on all devices so far (updates grow with
the root of their number), and judged on every device: **on fold 1 of shapes (kernels; products by
their n and k) or models (steps), which no device trains on**; fold 0 is not read. Errors are mean
absolute percentage errors.

| model | is |
|---|---|
| separate | a network for each device, of its rows alone |
"""
MODELS_AFTER = """| frozen trunk | device parts trained on the first half of an order; \
every later device gets an adapter ([calibrate](calibrate.md)) on all its rows (1,000 at most), \
and nothing else changes |
| physics | the prior of the networks (roofline and tile model), untrained |
| 10 rows | an adapter on ten random rows of the device, mean of three draws; *alone*: a network \
trained on just these |

With E_own the error of a device in its separate model, E_now that of the model trained when it
joined (on it and all before it), E_all that of the model of all devices:

    FTE = log(E_own / E_now)      BTE = log(E_now / E_all)      TE = FTE + BTE = log(E_own / E_all)

forward, backward and whole transfer efficiency (Vogelstein et al., arXiv 2004.12908), natural
logarithms: +0.10 is an error smaller by a tenth thanks to other devices, below 0 they do harm. They
are the logarithmic form of forward and backward transfer (FWT, BWT) of Lopez-Paz and Ranzato (2017,
arXiv 1706.08840): theirs take differences of accuracies, and forward transfer *before* a task is
seen, against an untrained model. That is here *unseen*: log(E_physics / E_before), with E_before
the error before the device joined. *Unseen, 10 rows*: the smaller of two errors with ten rows alone
(a network of them; physics with an adapter), over that of the network before the device joined with
an adapter on the same ten. *Unseen* leaves out devices of which a near-twin has joined.

**Noise**: single devices and all devices together are trained with a second seed; the figure is the
median over devices of how far TE moves. A device is harmed where its TE is below minus that.
"""
SHORT = ("nvidia-", "amd-", "intel-", "google-")
COLOURS: Mapping[str, str] = {
    "release": "#1b6ca8", "reversed": "#d1495b", "random": "#2e933c",
}  # fmt: skip


def page(runs: Path) -> str:
    """The page from all streams whose trainings have begun."""
    rows = [f"| {v.name} | {v.text} |" for v in VARIANTS]
    parts = [INTRODUCTION + "\n".join(rows) + "\n" + MODELS_AFTER]
    streams = [load_errors(place.parent) for place in sorted(runs.glob("*/facts.txt"))]
    parts.append(
        "![error over that of the separate model, stage by stage](figures/device-orders.svg)\n"
    )
    parts += ["## All streams", "", *summary(streams), ""]
    parts += ["## All devices joined", "", *joined(streams), ""]
    parts += ["## Weights of devices, alignment", "", *extras(streams), ""]
    for errors in streams:
        for target in errors.targets():
            parts += [f"## {errors.name}, {target}s", "", *_stream(errors, target)]
    return "\n".join(parts).rstrip() + "\n"


def summary(streams: Sequence[Errors]) -> list[str]:
    """Mean and standard deviation over devices and orders of every efficiency."""
    lines = [
        "Mean ± standard deviation over devices and orders (TE: over devices); *n* devices.", "",
        "| stream | model | n | FTE | BTE | TE | noise of TE | unseen | unseen, 10 rows |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for errors, target in _each(streams):
        for variant in (ONE, PARTS):
            found = efficiencies(errors, variant, target)
            whole = [e.total for e in found if e.order == "release"]
            new = [e for e in found if not twin_seen(errors, e)]
            cells = [
                _spread([e.forward for e in found if e.position]),
                _spread([e.backward for e in found if e.position < len(errors.devices) - 1]),
                _spread(whole), f"{noise(errors, variant, target):.2f}",
                _spread([e.unseen for e in new]), _spread([e.unseen_ten for e in new]),
            ]  # fmt: skip
            lines.append(
                f"| {errors.name}, {target}s | {variant} | {len(whole)} | {' | '.join(cells)} |"
            )
    return lines


def joined(streams: Sequence[Errors]) -> list[str]:
    """Ways to hold all devices against separate models."""
    lines = [
        "Mean over devices of log(error of separate models / error) when all have joined, in "
        "brackets how many devices are worse than their separate model by more than the noise. "
        "*Frozen trunk*: the mean over orders, of the devices that came later. *Least error*: the "
        "way whose mean is the largest, *separate* where all are below 0.", "",
        "| stream | n | one model | device parts | frozen trunk | least error |",
        "|---|--:|--:|--:|--:|---|",
    ]  # fmt: skip
    for errors, target in _each(streams):
        devices = errors.judged(target)
        limit = noise(errors, PARTS, target)
        found = {
            variant: {
                d: [errors.error(variant, errors.devices, d, target)] for d in devices
            } for variant in (ONE, PARTS)
        }  # fmt: skip
        found["frozen trunk"] = {
            d: [
                frozen(errors, order, d, target) for order in errors.orders.values()
                if order.index(d) >= len(order) // 2
            ] for d in devices
        }  # fmt: skip
        cells, means = [], {"separate": 0.0}
        for name, of in found.items():
            logs = np.array([
                np.mean(np.log(errors.own(d, target) / np.array(of[d])))
                for d in devices if of[d]
            ])  # fmt: skip
            logs = logs[np.isfinite(logs)]
            means |= {name: float(logs.mean())} if len(logs) else {}
            harmed = int((logs < -limit).sum())
            cells.append(f"{logs.mean():+.2f} ({harmed}/{len(logs)})" if len(logs) else "–")
        best = max(means, key=lambda name: means[name])
        lines.append(
            f"| {errors.name}, {target}s | {len(devices)} | {' | '.join(cells)} | {best} |"
        )
    return lines


def twin_seen(errors: Errors, found: Efficiency) -> bool:
    """Whether a near-twin joined before a device."""
    return bool(twins(found.device) & set(errors.orders[found.order][: found.position]))


def extras(streams: Sequence[Errors]) -> list[str]:
    """Variants of device parts against it: mean log ratio of errors, and of how many devices."""
    others = [v.name for v in VARIANTS if v.name not in (ONE, PARTS)]
    lines = [
        "Mean over devices of log(error of device parts / error), by release: above 0 the change "
        "pays; in brackets the devices that it makes better, of all. *Seen*: all devices trained "
        "on. *Unseen*: the second half of the devices, trained on the first.", "",
        "| stream | " + " | ".join(f"{n}: seen | unseen" for n in others) + " |",
        "|---|" + "--:|--:|" * len(others),
    ]  # fmt: skip
    for errors, target in _each(streams):
        cells = []
        for name in others:
            cells += [gain(errors, name, target, seen=seen) for seen in (True, False)]
        lines.append(f"| {errors.name}, {target}s | {' | '.join(cells)} |")
    return lines


def gain(errors: Errors, variant: str, target: str, *, seen: bool) -> str:
    """Mean log ratio of the errors of device parts and a variant, and how many get better."""
    half = errors.devices[: len(errors.devices) // 2]
    trained = errors.devices if seen else half
    judged = [d for d in errors.judged(target) if seen or not ({d, *twins(d)} & set(half))]
    ratios = np.array([
        np.log(errors.error(PARTS, trained, d, target) / errors.error(variant, trained, d, target))
        for d in judged
    ])  # fmt: skip
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return "–"
    return f"{ratios.mean():+.2f} ({(ratios > 0).sum()}/{len(ratios)})"


def _each(streams: Sequence[Errors]) -> Iterator[tuple[Errors, str]]:
    for errors in streams:
        for target in errors.targets():
            yield errors, target


def _stream(errors: Errors, target: str) -> list[str]:
    lines = [*_rows(errors, target), "", *by_device(errors, target), ""]
    for name in errors.orders:
        lines += [f"**{name}**", "", *by_stage(errors, name, target), ""]
    return lines


def _rows(errors: Errors, target: str) -> list[str]:
    rows = errors.facts["rows"]
    counts = [
        f"{short(d)} {rows[d][target]['held']} ({rows[d][target]['known']})"
        for d in errors.judged(target)
    ]
    return ["Rows that judge, in brackets those that adapters may read: " + ", ".join(counts) + "."]


def by_device(errors: Errors, target: str) -> list[str]:
    """Errors and efficiencies of each device, and whether others harm it."""
    lines = [
        "| device | physics | separate | one model | device parts | one model: FTE, BTE, TE "
        "| device parts: FTE, BTE, TE | harmed in |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    found = {v: efficiencies(errors, v, target) for v in (ONE, PARTS)}
    limit = {v: noise(errors, v, target) for v in found}
    for device in errors.judged(target):
        cells = [errors.physics(device, target), errors.own(device, target)]
        cells += [errors.error(v, errors.devices, device, target) for v in found]
        logs, harmed = [], []
        for variant, every in found.items():
            own = [e for e in every if e.device == device]
            mean = [float(np.mean([getattr(e, n) for e in own])) for n in _EFFICIENCIES]
            logs.append(", ".join(_signed(value) for value in mean))
            harmed += [variant] if mean[2] < -limit[variant] else []
        lines.append(
            f"| {short(device)} | {' | '.join(map(_percent, cells))} | {' | '.join(logs)} | "
            f"{', '.join(harmed) or '–'} |"
        )
    return lines


_EFFICIENCIES = ("forward", "backward", "total")


def by_stage(errors: Errors, order_name: str, target: str) -> list[str]:
    """Mean errors of the devices so far, and errors of the next one before it joins."""
    order = errors.orders[order_name]
    lines = [
        "| joined | so far: separate | one model | device parts | frozen trunk "
        "| next | 0 rows: physics | one model | device parts "
        "| 10 rows: alone | physics | one model | device parts | all its rows: adapter "
        "| separate |",
        "|---|--:|--:|--:|--:|---|" + "--:|" * 9,
    ]  # fmt: skip
    for i, device in enumerate(order):
        so_far = [d for d in order[: i + 1] if d in errors.judged(target)]
        means = [
            _mean([errors.own(d, target) for d in so_far]),
            *(_mean([errors.error(v, order[: i + 1], d, target) for d in so_far])
              for v in (ONE, PARTS)),
            _mean([frozen(errors, order, d, target) for d in so_far])
            if i >= len(order) // 2 else float("nan"),
        ]  # fmt: skip
        coming = order[i + 1] if i + 1 < len(order) else None
        new, mark = ["–"] * 9, "–"
        if coming is not None and coming in errors.judged(target):
            mark = short(coming) + ("*" if twins(coming) & set(order[: i + 1]) else "")
            new = [_percent(value) for value in _coming(errors, order[: i + 1], coming, target)]
        cells = " | ".join(map(_percent, means))
        lines.append(f"| {short(device)} | {cells} | {mark} | {' | '.join(new)} |")
    if any("* |" in line for line in lines):
        lines += ["", "\\* a near-twin has joined already"]
    return lines


def _coming(errors: Errors, seen: Sequence[str], device: str, target: str) -> list[float]:
    """Errors of a device that has not joined, at 0, 10 and all rows."""

    def both(what: str) -> list[float]:
        return [errors.error(v, seen, device, target, what) for v in (ONE, PARTS)]

    return [
        errors.physics(device, target), *both("zero"), errors.few(device, target),
        errors.physics(device, target, "ten"), *both("ten"), both("all")[1],
        errors.own(device, target),
    ]  # fmt: skip


def short(device: str) -> str:
    """A device's id without its vendor."""
    for prefix in SHORT:
        device = device.removeprefix(prefix)
    return device


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _percent(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "–"


def _signed(value: float) -> str:
    return f"{value:+.2f}" if np.isfinite(value) else "–"


def _spread(values: Sequence[float]) -> str:
    there = np.array([v for v in values if np.isfinite(v)])
    return f"{there.mean():+.2f} ± {there.std():.2f}" if len(there) else "–"


WIDTH, HEIGHT, LEFT, TOP, GAP, FOOT = 230, 180, 46, 52, 30, 70
LIMIT = 1.0
"""Log ratios beyond it stand at the edge."""


def write_figure(runs: Path, path: Path) -> None:
    """Mean log of the separate model's error over the joint one's, on devices so far, by stage."""
    panels = list(_each([load_errors(p.parent) for p in sorted(runs.glob("*/facts.txt"))]))
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
        out.append(_mean([
            float(np.log(errors.own(d, target) / errors.error(variant, order[:i], d, target)))
            for d in so_far
        ]))  # fmt: skip
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
