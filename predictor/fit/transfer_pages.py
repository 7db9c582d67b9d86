"""A transfer report as a Markdown page, JSON and a figure.

Draws are told by their mean and standard deviation; of a device that was measured in several
settings, each draw counts by the mean over these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.atomic import replacing_file
from predictor.fit.transfer_curves import METHODS, OURS, Plan, Score
from predictor.fit.transfer_suites import KIND_TEXT, SUITES

if TYPE_CHECKING:
    import pandas as pd

TITLES: Mapping[str, str] = {
    OURS: "**network + adapter**", "flops_law": "FLOPs law", "bandwidth": "bandwidth scaling",
    "proxy": "best proxy, log-linear", "gradient_boosting": "gradient boosting retrained",
    "fine_tuning": "full fine-tuning",
}  # fmt: skip
COLOURS: Mapping[str, str] = {
    OURS: "#1b6ca8", "flops_law": "#edae49", "bandwidth": "#2e933c", "proxy": "#7b5e7b",
    "gradient_boosting": "#d1495b", "fine_tuning": "#444444",
}  # fmt: skip
ALL = "mean over devices"
PARTIAL = 0.95
"""Share of the rows below which a baseline is marked: it is told on the rows that it has."""
INTRODUCTION = """# From a datasheet, then from a few measurements

Made by `predictor transfer-report`; nothing here is written by hand. [docs/transfer.md](transfer.md)
says what the suites and methods are and how to make it again.

Every device is new to the network that predicts it: it and its near-twins were held out of
training. **k** of its rows are measured, an adapter is fitted on them, and the rows of other models
or shapes are scored. Figures are mean absolute errors in percent, mean ± standard deviation over
{draws} draws; trees and fine-tuning, a fit a draw, over {costly}. k = 0 is the datasheet alone.
*covers*: share of the scored rows inside the adapter's 90% interval, and the median half-width of
that interval in percent. \\*: on the share of the rows that the baseline has (below {partial:.0%}).
"""  # noqa: E501


def summary(scores: Sequence[Score]) -> pd.DataFrame:
    """One row a suite, network, device, method and budget: mean and spread over draws."""
    import pandas as pd

    rows = pd.DataFrame(list(scores))
    rows = rows[rows["mape"].notna()]
    for column in ("covered", "half_width"):
        if column not in rows:
            rows[column] = float("nan")
    by = ["suite", "network", "device", "method", "k"]
    draws = rows.groupby([*by, "draw"], as_index=False, sort=False).agg(
        mape=("mape", "mean"), median_ape=("median_ape", "mean"), n=("n", "sum"),
        share=("share", "mean"), covered=("covered", "mean"), half_width=("half_width", "mean"),
        settings=("setting", "nunique"),
    )  # fmt: skip
    found = draws.groupby(by, as_index=False, sort=False).agg(
        mape=("mape", "mean"), spread=("mape", "std"), median_ape=("median_ape", "mean"),
        n=("n", "mean"), share=("share", "mean"), covered=("covered", "mean"),
        half_width=("half_width", "mean"), draws=("draw", "nunique"),
        settings=("settings", "max"),
    )  # fmt: skip
    return found.assign(spread=found["spread"].fillna(0.0))


def to_json(scores: Sequence[Score], plan: Plan, notes: Sequence[str]) -> dict[str, Any]:
    """The summary and every draw, as plain values."""
    found = summary(scores)
    return {
        "budgets": list(plan.budgets), "draws": plan.draws, "notes": list(notes),
        "summary": [_plain(row) for row in found.to_dict("records")], "draws_of": list(scores),
    }  # fmt: skip


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(k): (None if isinstance(v, float) and v != v else getattr(v, "item", lambda v=v: v)())
        for k, v in row.items()
    }


def page(scores: Sequence[Score], plan: Plan, notes: Sequence[str]) -> str:
    """The report as Markdown."""
    found = summary(scores)
    lines = [
        INTRODUCTION.format(draws=plan.draws, costly=plan.costly_draws, partial=PARTIAL),
        *(f"- {note}" for note in notes), "",
    ]  # fmt: skip
    for (suite, network), rows in found.groupby(["suite", "network"], sort=False):
        lines += _section(str(suite), str(network), rows, plan)
    return "\n".join(lines).rstrip() + "\n"


def _section(suite: str, network: str, rows: pd.DataFrame, plan: Plan) -> Iterator[str]:
    of = SUITES[suite]
    budgets = [k for k in plan.budgets if (rows["k"] == k).any()]
    yield f"## {suite}: {KIND_TEXT[of.evidence]} → {KIND_TEXT[of.target]} ({network})"
    yield ""
    yield f"| device | scored | method | {' | '.join(map(str, budgets))} |"
    yield "|---|--:|---|" + "--:|" * len(budgets)
    devices = list(dict.fromkeys(rows["device"]))
    for device in [*devices, *([ALL] if len(devices) > 1 else [])]:
        own = rows if device == ALL else rows[rows["device"] == device]
        scored = "" if device == ALL else f"{int(own['n'].max()):,}"
        first = f"{device} | {scored}"
        for method in (m for m in METHODS if (own["method"] == m).any()):
            of_method = own[own["method"] == method]
            cells = [_cell(of_method[of_method["k"] == k], len(devices), device) for k in budgets]
            yield f"| {first} | {TITLES[method]} | {' | '.join(cells)} |"
            first = " | "
            if method == OURS and device != ALL:
                covers = [_covers(of_method[of_method["k"] == k]) for k in budgets]
                yield f"| {first} | *covers* | {' | '.join(covers)} |"
    yield ""


def _cell(rows: pd.DataFrame, devices: int, device: str) -> str:
    """Mean and spread; over devices only where all have the figure."""
    if device == ALL:
        return f"{100 * rows['mape'].mean():.1f}" if len(rows) == devices else "–"
    if rows.empty:
        return "–"
    row = rows.iloc[0]
    spread = f" ± {100 * row['spread']:.1f}" if row["draws"] > 1 else ""
    star = f"\\* ({row['share']:.0%})" if row["share"] < PARTIAL else ""
    return f"{100 * row['mape']:.1f}{spread}{star}"


def _covers(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "–"
    row = rows.iloc[0]
    return f"{100 * row['covered']:.0f}, ±{100 * row['half_width']:.0f}"


def write_figure(scores: Sequence[Score], plan: Plan, path: Path) -> None:
    """A panel a suite: error by budget, methods as means over devices (HTML, plotly)."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    found = summary(scores)
    panels = list(dict.fromkeys(zip(found["suite"], found["network"], strict=True)))
    figure = make_subplots(
        rows=-(-len(panels) // 2), cols=2, subplot_titles=[f"{s} ({n})" for s, n in panels]
    )
    told: set[str] = set()
    for i, (suite, network) in enumerate(panels):
        rows = found[(found["suite"] == suite) & (found["network"] == network)]
        place = {"row": i // 2 + 1, "col": i % 2 + 1}
        for method in METHODS:
            own = rows[rows["method"] == method]
            if own.empty:
                continue
            mean = own.groupby("k")[["mape", "spread"]].mean()
            figure.add_trace(
                go.Scatter(
                    x=[str(k) for k in mean.index], y=100 * mean["mape"], name=_name(method),
                    error_y={"array": 100 * mean["spread"]}, legendgroup=method,
                    showlegend=method not in told, line={"color": COLOURS[method]},
                ),
                **place,
            )  # fmt: skip
            told.add(method)
        figure.update_xaxes(
            type="category", categoryarray=[str(k) for k in plan.budgets], title="measured rows",
            **place,
        )  # fmt: skip
        figure.update_yaxes(title="error, %", rangemode="tozero", **place)
    figure.update_layout(height=360 * -(-len(panels) // 2), title="Error on a device never seen")
    with replacing_file(path) as fresh:
        fresh.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")


def _name(method: str) -> str:
    return TITLES[method].strip("*")
