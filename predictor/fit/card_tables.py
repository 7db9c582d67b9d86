"""Tables of a model card: errors on what was held out, and how far seeds lie apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.nn.learned import CLASS_OF_TOKEN

_TITLES: Mapping[str, tuple[str, str]] = {
    "device": ("Device never seen", "Device never seen"),
    "model": ("Model family never seen, device seen", "Kernel shape never seen, device seen"),
}
"""By kind of fold: title of a table of whole steps, and of one of kernels."""


def held_out_tables(metrics: Mapping[str, Any], *, of_sources: bool) -> list[str]:
    """Markdown of the held-out errors, devices never seen and then what is unseen on known ones.

    Args:
        metrics: of the checkpoint.
        of_sources: whether several sources trained it: rows then stand by source and device, which
            a fold may hold several of.
    """
    out: list[str] = []
    for kind in _TITLES:
        if of_sources and metrics.get("by_device"):
            out += [*_steps_by_device(metrics, kind), "", *_kernels_by_class(metrics, kind), ""]
        else:
            out += [*_by_fold(metrics, kind), ""]
    return out[:-1]


def measured_table(measured: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """Markdown of the op classes measured on each device, with their dtypes; nothing of none."""
    if not measured:
        return []
    out = [
        "## Measured on", "",
        "Op classes by device. What was learned on other devices alone is `transferred`: it has "
        "the interval of a device never seen, and the estimate says so.", "",
        "| device | op classes |", "|---|---|",
    ]  # fmt: skip
    for device, pairs in measured.items():
        classes: dict[str, set[str]] = {}
        for token, dtype in pairs:
            classes.setdefault(CLASS_OF_TOKEN[token].replace("_", " "), set()).add(dtype)
        told = (f"{name} ({', '.join(sorted(of))})" for name, of in sorted(classes.items()))
        out.append(f"| {device} | {', '.join(told)} |")
    return [*out, ""]


def seed_table(metrics: Mapping[str, Any]) -> list[str]:
    """Markdown of the errors of each seed; nothing where there is one network."""
    entries = metrics.get("seeds", [])
    if not entries:
        return []
    count = len(entries[0]["members"])
    out = [
        "## Spread over seeds", "",
        "MAPE of each network alone, and of all together, on rows of the training devices that the "
        "recipe's samples leave out (near the training rows, but none of them).", "",
        f"| source | rows | n | {' | '.join(f'seed {i}' for i in range(count))} | together |",
        f"|---|---|--:|{'--:|' * count}--:|",
    ]  # fmt: skip
    for e in entries:
        each = " | ".join(f"{m['mape']:.1%}" for m in e["members"])
        together = f"{e['together']['mape']:.1%}"
        out.append(f"| {e['source']} | {e['target']}s | {e['n']:,} | {each} | {together} |")
    return [*out, ""]


def _steps_by_device(metrics: Mapping[str, Any], kind: str) -> list[str]:
    rows = _of(metrics["by_device"], kind, "step")
    title = f"{_TITLES[kind][0]}, whole steps"
    if not rows:
        return [f"{title}: not run."]
    out = [
        f"{title}:", "",
        "| source | device | n | MAPE | median | p90 | bias |", "|---|---|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    return out + [f"| {g['source']} | {g['device']} | {_errors(g)}" for g in rows]


def _kernels_by_class(metrics: Mapping[str, Any], kind: str) -> list[str]:
    """Of each op class the mean over devices, and the best and the worst of them."""
    rows = _of(metrics["by_device"], kind, "kernel")
    title = f"{_TITLES[kind][kind == 'model']}, kernels alone or in a step"
    if not rows:
        return [f"{title}: not run."]
    out = [
        f"{title}; mean over devices (lowest to highest):", "",
        "| source | op class | devices | n | MAPE | median |", "|---|---|--:|--:|--:|--:|",
    ]  # fmt: skip
    for source, group in sorted({(g["source"], g["group"]) for g in rows}):
        of = [g for g in rows if (g["source"], g["group"]) == (source, group)]
        mape = [g["mape"] for g in of]
        median = float(np.mean([g["median_ape"] for g in of]))
        out.append(
            f"| {source} | {group} | {len(of)} | {sum(g['n'] for g in of):,} | {np.mean(mape):.1%} "
            f"({min(mape):.1%} to {max(mape):.1%}) | {median:.1%} |"
        )
    return out


def _by_fold(metrics: Mapping[str, Any], kind: str) -> list[str]:
    """Whole steps by fold; kernels alone where no step was held out."""
    of_kind = [g for g in metrics["held_out"] if g["fold_kind"] == kind]
    rows = [g for g in of_kind if g["target"] == "step"]
    (title, kernels), group = _TITLES[kind], "phase"
    if not rows and of_kind:
        rows = [g for g in of_kind if g["target"] == "isolated"]
        title, group = kernels, "op"
    if not rows:
        return [f"{title}: not run."]
    out = [
        f"{title}, {'whole steps' if group == 'phase' else 'kernels'}:", "",
        f"| held out | {group} | n | MAPE | median | p90 | bias |", "|---|---|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    return out + [f"| {g['fold']} | {g['group']} | {_errors(g)}" for g in rows]


def _of(groups: Sequence[Mapping[str, Any]], kind: str, target: str) -> list[Mapping[str, Any]]:
    return [g for g in groups if (g["fold_kind"], g["target"]) == (kind, target)]


def _errors(g: Mapping[str, Any]) -> str:
    return (
        f"{g['n']} | {g['mape']:.1%} | {g['median_ape']:.1%} | {g['p90_ape']:.1%} | "
        f"{g['bias']:+.1%} |"
    )
