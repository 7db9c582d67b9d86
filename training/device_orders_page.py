"""The page of `device_orders.py`, from the errors of its trainings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from device_efficiency import (
    LONGER,
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
from numpy.typing import NDArray

from predictor.hardware.twins import twins

INTRODUCTION = """# Devices over time

Made by `python training/device_orders.py --data DIR --out docs/device-orders.md --runs RUNS`;
nothing here is written by hand. Devices of a source join one by one, in three orders: by release
(within a year by name), reversed, and at random. After each, a small network
(`training/device_orders.toml`) is trained from the start on all devices so far (updates grow with
the root of their number), and judged on every device: **on fold 1 of shapes (kernels; products by
their n and k) or models (steps), which no device trains on**; fold 0 is not read. A P100 trains and
takes its place where it measured fp16, and is not judged there: its products take no path of their
own, so that predictions fall back on assumed times, whatever the network. Errors are mean absolute
percentage errors.

| model | is |
|---|---|
| separate | a network for each device, of its rows alone |
"""
MODELS_AFTER = """| frozen trunk | device parts trained on the first half of an order; \
every later device gets an adapter ([calibrate](calibrate.md)) on its rows, as many as stand in \
brackets below (separate models train on more), and nothing else changes |
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
FROZEN = "frozen trunk"
SHORT = ("nvidia-", "amd-", "intel-", "google-")


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
    parts += ["## Before a device joins", "", *by_number(streams), ""]
    parts += ["## Updates, weights of devices, alignment", "", *extras(streams), ""]
    parts += [*verdicts(streams), ""]
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
    names = (ONE, LONGER[ONE], PARTS, LONGER[PARTS], FROZEN)
    lines = [
        "Mean over devices of log(error of separate models / error) when all have joined, in "
        "brackets how many devices are worse than their separate model by more than the noise. "
        "*Frozen trunk*: the mean over orders, of the devices that came later. *Least error*: the "
        "way whose mean is the largest, *separate* where all are below 0.", "",
        f"| stream | n | {' | '.join(names)} | least error |",
        "|---|--:|" + "--:|" * len(names) + "---|",
    ]  # fmt: skip
    for errors, target in _each(streams):
        limit = noise(errors, PARTS, target)
        cells, means = [], {"separate": 0.0}
        for name in names:
            logs = against_separate(errors, name, target)
            means |= {name: float(logs.mean())} if len(logs) else {}
            harmed = int((logs < -limit).sum())
            cells.append(f"{logs.mean():+.2f} ({harmed}/{len(logs)})" if len(logs) else "–")
        best = max(means, key=lambda name: means[name])
        lines.append(
            f"| {errors.name}, {target}s | {len(errors.judged(target))} | {' | '.join(cells)} | "
            f"{best} |"
        )
    return lines


def against_separate(errors: Errors, name: str, target: str) -> NDArray[np.float64]:
    """Of each device that has the figure: log(error of its separate model / error)."""
    out = []
    for device in errors.judged(target):
        found = [errors.error(name, errors.devices, device, target)]
        if name == FROZEN:
            found = [
                frozen(errors, order, device, target) for order in errors.orders.values()
                if order.index(device) >= len(order) // 2
            ]  # fmt: skip
        if found:
            out.append(np.mean(np.log(errors.own(device, target) / np.array(found))))
    logs = np.array(out, dtype=np.float64)
    return logs[np.isfinite(logs)]


def by_number(streams: Sequence[Errors]) -> list[str]:
    """Unseen devices by how many have joined: at no rows, and at ten."""
    most = max((len(errors.devices) for errors, _ in _each(streams)), default=1) - 1
    lines = [
        "*Unseen*, and *unseen, 10 rows*, of device parts, by how many devices have joined (mean "
        "over orders; near-twins left out).", "",
        "| stream | " + " | ".join(str(i) for i in range(1, most + 1)) + " |",
        "|---|" + "--:|" * most,
    ]  # fmt: skip
    for errors, target in _each(streams):
        found = [e for e in efficiencies(errors, PARTS, target) if not twin_seen(errors, e)]
        cells = []
        for i in range(1, most + 1):
            here = [e for e in found if e.position == i]
            cells.append(
                ", ".join(_signed(_finite_mean([getattr(e, n) for e in here]))
                          for n in ("unseen", "unseen_ten"))
            )  # fmt: skip
        lines.append(f"| {errors.name}, {target}s | {' | '.join(cells)} |")
    return lines


def verdicts(streams: Sequence[Errors]) -> list[str]:
    """Which changes pay: mean gain and more devices better than worse, both beyond the noise."""
    lines = [
        "A change pays where its mean gain is above the noise of TE and more than half of the "
        "devices get better; it costs where the mean is below minus the noise. Unseen devices are "
        "three at most: an indication.", "",
    ]  # fmt: skip
    for variant in VARIANTS:
        if variant.every_order or variant.name == LONGER[ONE]:
            continue
        told: dict[str, list[str]] = {"pays": [], "costs": []}
        for errors, target in _each(streams):
            limit = noise(errors, PARTS, target)
            for seen in (True, False):
                logs = gains(errors, variant.name, target, seen=seen)
                if not len(logs):
                    continue
                text = f"{errors.name} {target}s {'seen' if seen else 'unseen'} {logs.mean():+.2f}"
                if logs.mean() > limit and (logs > 0).mean() > 0.5:
                    told["pays"].append(text)
                elif logs.mean() < -limit:
                    told["costs"].append(text)
        said = "; ".join(f"{word}: {', '.join(of) or 'nowhere'}" for word, of in told.items())
        lines.append(f"- **{variant.name}**: {said}.")
    return lines


def twin_seen(errors: Errors, found: Efficiency) -> bool:
    """Whether a near-twin joined before a device."""
    return bool(twins(found.device) & set(errors.orders[found.order][: found.position]))


def extras(streams: Sequence[Errors]) -> list[str]:
    """Variants of device parts against it: mean log ratio of errors, and of how many devices."""
    others = [v.name for v in VARIANTS if not v.every_order and v.name != LONGER[ONE]]
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
    ratios = gains(errors, variant, target, seen=seen)
    if not len(ratios):
        return "–"
    return f"{ratios.mean():+.2f} ({(ratios > 0).sum()}/{len(ratios)})"


def gains(errors: Errors, variant: str, target: str, *, seen: bool) -> NDArray[np.float64]:
    """Of each device: log(error of device parts / error of the variant).

    Seen devices are those of all, trained on; unseen ones those of the second half by release,
    trained on the first, without near-twins of these.
    """
    half = errors.devices[: len(errors.devices) // 2]
    trained = errors.devices if seen else half
    judged = [d for d in errors.judged(target) if seen or not ({d, *twins(d)} & set(half))]
    ratios = np.array([
        np.log(errors.error(PARTS, trained, d, target) / errors.error(variant, trained, d, target))
        for d in judged
    ])  # fmt: skip
    return ratios[np.isfinite(ratios)]


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
    text = "Rows that judge, in brackets those that adapters may read: " + ", ".join(counts) + "."
    none = not any(rows[d][target]["known"] for d in errors.judged(target))
    return [text + (f" No {target} trains here: other kinds of rows do." if none else "")]


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
        "| 10 rows: alone | physics | one model | device parts | its rows: adapter "
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


def _finite_mean(values: Sequence[float]) -> float:
    return _mean([v for v in values if np.isfinite(v)])


def _percent(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "–"


def _signed(value: float) -> str:
    return f"{value:+.2f}" if np.isfinite(value) else "–"


def _spread(values: Sequence[float]) -> str:
    there = np.array([v for v in values if np.isfinite(v)])
    return f"{there.mean():+.2f} ± {there.std():.2f}" if len(there) else "–"
