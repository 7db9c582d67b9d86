"""An evaluation as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from predictor.fit.evaluate import Evaluation

STEP_BASELINES: tuple[str, ...] = (
    "neusight", "habitat", "micro", "roofline_published", "roofline", "flops_law",
    "gradient_boosting", "best_proxy", "sum_of_measured",
)  # fmt: skip
KERNEL_BASELINES: tuple[str, ...] = (
    "neusight",
    "habitat",
    "micro",
    "roofline_published",
    "roofline",
    "gradient_boosting",
)
INSIDE: tuple[str, ...] = ("in_step", "step")
"""Contexts of kernels timed inside a step."""
ALONE: tuple[str, ...] = ("isolated", "device")
"""Modes of kernels that were measured one by one."""
LEGEND = (
    "learned: share of the predicted time that the network speaks for; the rest is labelled "
    "roofline. cover: share inside the 90% interval."
)
STAR = "*: fitted on some of these rows."
BRACKETS = "In brackets: own error on the rows that have the baseline, where some lack it."


def evaluation_view(evaluation: Evaluation) -> RenderableType:
    """Steps, in-step ops and isolated kernels, then what was left out and what to know."""
    from rich.console import Group
    from rich.text import Text

    groups = evaluation.groups
    parts: list[RenderableType] = [
        Text(
            f"suite {evaluation.suite}, split {evaluation.split}, checkpoint "
            f"{evaluation.checkpoint}: mean absolute percentage errors",
            style="bold",
        )
    ]
    every_step = [g for g in groups if g["target"] == "step"]
    steps = [g for g in every_step if g["mode"] == "all"]
    modes = [g for g in every_step if g["mode"] != "all" and g["phase"] == "total"]
    if len({g["mode"] for g in modes}) < 2:
        modes = []
    shown: list[dict[str, Any]] = []
    ops = [g for g in groups if g["mode"] in INSIDE and g["device"] in ("all", "test")]
    kernels = [g for g in groups if g["mode"] in ALONE and g["op_class"] == "all"]
    classes = [g for g in groups if g["mode"] in ALONE and g["device"] in ("all", "test")]
    for title, rows, by, names in (
        ("whole steps", steps, ("device", "part", "phase"), STEP_BASELINES),
        ("whole steps by mode", modes, ("device", "part", "mode"), STEP_BASELINES),
        ("ops inside steps", ops, ("device", "phase", "op_class"), KERNEL_BASELINES),
        (
            "kernels alone by device",
            kernels,
            ("device", "part", "mode", "phase"),
            KERNEL_BASELINES,
        ),
        (
            "kernels alone by class",
            classes,
            ("device", "mode", "phase", "op_class"),
            KERNEL_BASELINES,
        ),
    ):
        if rows:
            rows = _without_repeats(rows)
            shown += rows
            parts += [Text(), _table(title, rows, by, names)]
    predicted = any(g["n_predicted"] for g in groups)
    parts += [Text(_legend(shown) if predicted else "nothing to score")]
    parts += [Text(), *_summary(evaluation.summary)]
    scored = evaluation.scored
    for title, counts in (
        ("dropped by the import", scored.dropped),
        ("without a prediction or score", scored.unscored),
    ):
        named = [f"{n:,} {reason}" for reason, n in sorted(counts.items()) if n]
        parts += [Text(f"{title}: {', '.join(named)}")] if named else []
    parts += [Text(f"- {note}") for note in evaluation.notes]
    return Group(*parts)


def _without_repeats(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of a table without those over all devices that repeat the group of the only one."""
    keys = ("target", "mode", "phase", "op_class", "n")
    alone = {tuple(g[k] for k in keys) for g in rows if g["device"] not in ("all", "test")}
    return [g for g in rows if g["device"] != "all" or tuple(g[k] for k in keys) not in alone]


def _legend(groups: Sequence[dict[str, Any]]) -> str:
    """What columns and signs mean, of those that the tables have."""
    baselines = [(g, b) for g in groups for b in g["baselines"].values()]
    starred = any(g["n_trained"] for g in groups) or any(b["n_fitted"] for _, b in baselines)
    bracketed = any(_in_brackets(g, b) for g, b in baselines)
    return " ".join([LEGEND, *([STAR] if starred else []), *([BRACKETS] if bracketed else [])])


def _in_brackets(group: dict[str, Any], baseline: dict[str, Any]) -> bool:
    """Whether some rows of a group lack a baseline, so that the own error on the others is told."""
    return baseline["n"] != group["n"] and baseline["own_mape"] is not None


def _table(
    title: str, rows: Sequence[dict[str, Any]], by: Sequence[str], baselines: Sequence[str]
) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for name in by:
        table.add_column(name.replace("_", " "), no_wrap=True)
    for name in ("n", "predicted", "MAPE", "median", "p90", "bias", "cover", "learned"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = [b for b in baselines if any(b in g["baselines"] for g in rows)]
    for name in shown:
        table.add_column(name.replace("_", " "), justify="right")
    for g in rows:
        mape = _share(g["mape"]) + ("*" if g["n_trained"] else "")
        table.add_row(
            *(str(g[name]) for name in by), f"{g['n']:,}", f"{g['n_predicted']:,}", mape,
            _share(g["median_ape"]), _share(g["p90_ape"]), _share(g["bias"], "+.1%"),
            _share(g["interval90_coverage"], ".0%"), _share(g["learned"], ".0%"),
            *(_baseline(g, name) for name in shown),
        )  # fmt: skip
    return table


def _share(value: float | None, form: str = ".1%") -> str:
    return "–" if value is None else format(value, form)


def _baseline(group: dict[str, Any], name: str) -> str:
    found = group["baselines"].get(name)
    if found is None:
        return "–"
    shown = f"{found['mape']:.1%}" + ("*" if found["n_fitted"] else "")
    return f"{shown} ({found['own_mape']:.1%})" if _in_brackets(group, found) else shown


def _summary(summary: dict[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    lines: list[RenderableType] = []
    for phase in ("total", "forward", "backward"):
        entry = summary.get(phase)
        if not entry:
            continue
        low, high = entry["mape90"]
        text = f"{phase}: {entry['mape']:.1%} [{low:.1%}, {high:.1%}], n = {entry['n']:,}"
        if "neusight_mape" in entry:
            low, high = entry["neusight_mape90"]
            less, more = entry["difference90"]
            text += (
                f"; NeuSight {entry['neusight_mape']:.1%} [{low:.1%}, {high:.1%}]; "
                f"difference [{less:+.1%}, {more:+.1%}]"
            )
        lines.append(Text(text))
    if lines:
        devices = ", ".join(summary["devices"])
        part = "test part" if summary["part"] == "test" else "all parts: none is held out"
        lines.insert(0, Text(f"steps of {devices}, {part} (90% bootstrap by device and model)"))
    return lines
