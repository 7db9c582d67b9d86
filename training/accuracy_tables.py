"""Tables of the accuracy page as Markdown; their numbers come from `score_group`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from accuracy_calibration import constant_width, inside, scores_of
from accuracy_causes import cause_shares, cause_texts, worst
from accuracy_cells import (
    ERROR_COLUMNS,
    NAMES,
    NONE,
    OWN_BASELINES,
    baseline_cell,
    error_cells,
    markdown,
    noise_cell,
    percent,
    shown_baselines,
)
from accuracy_suites import KINDS, Kind, Scored, floor_of, of_kind, predicted

from predictor.fit.groups import FITTED, score_group
from predictor.fit.metrics import errors
from predictor.report.units import duration

DECADES: tuple[tuple[float, str], ...] = (
    (10.0, "below 10 µs"), (100.0, "10 to 100 µs"), (1e3, "0.1 to 1 ms"), (1e4, "1 to 10 ms"),
    (1e5, "10 to 100 ms"), (np.inf, "100 ms and more"),
)  # fmt: skip
LIKENESS: tuple[tuple[float, str], ...] = (
    (0.01, "none of the time"), (0.5, "less than half"), (0.99, "half and more"), (np.inf, "all"),
)  # fmt: skip
DISTANCES: tuple[tuple[float, str], ...] = (
    (1e-9, "0"), (0.1, "below 0.1"), (0.5, "0.1 to 0.5"), (1.0, "0.5 to 1"), (2.0, "1 to 2"),
    (np.inf, "2 and more"),
)  # fmt: skip
"""Of the score `outside`, how far outside of the training range."""
Groups = Iterator[tuple[str, pd.DataFrame]]


def summary(suites: Sequence[Scored]) -> str:
    """A line a suite and kind of row."""
    lines = []
    for scored in suites:
        for kind, title in KINDS.items():
            rows = of_kind(scored.tested, kind)
            if rows.empty:
                continue
            group = score_group(rows)
            peers = [
                f"{NAMES[p]} {baseline_cell(group, p)}"
                for p in scored.facts.peers if p in group["baselines"]
            ]  # fmt: skip
            lines.append([
                f"[{scored.name}](#{scored.name})", title, scored.split, scored.part,
                *error_cells(rows, group), *(baseline_cell(group, b) for b in OWN_BASELINES),
                "; ".join(peers) or NONE, noise_cell(floor_of(scored, kind)),
            ])  # fmt: skip
    header = (
        "suite", "rows", "split", "part", *ERROR_COLUMNS, *(NAMES[b] for b in OWN_BASELINES),
        "published peers", "noise floor",
    )  # fmt: skip
    return markdown(header, lines, texts=4)


def baselines(scored: Scored) -> str:
    """Every baseline and peer with its whole error, beside ours on just the rows that have it."""
    lines = []
    for kind, title in KINDS.items():
        for phase, rows in _phases(scored.tested, kind):
            for name in NAMES:
                if f"{name}_us" not in rows.columns:
                    continue
                have = rows[rows[f"{name}_us"].gt(0) & rows["predicted_us"].notna()]
                if have.empty:
                    continue
                other, own = (
                    errors(have[c], have["measured_us"]) for c in (f"{name}_us", "predicted_us")
                )
                mark = "*" if name in FITTED and have["fitted"].any() else ""
                lines.append([
                    title, phase, NAMES[name] + mark, f"{len(have):,}", *_four(other), *_four(own),
                ])  # fmt: skip
    header = (
        "rows", "phase", "baseline", "n", "its MAPE", "median", "p90", "bias", "this: MAPE",
        "median", "p90", "bias",
    )  # fmt: skip
    return markdown(header, lines, texts=3)


def _four(found: Mapping[str, float]) -> list[str]:
    return [
        *(percent(found[k]) for k in ("mape", "median_ape", "p90_ape")),
        percent(found["bias"], "+.1f"),
    ]


def _phases(rows: pd.DataFrame, kind: Kind) -> Groups:
    """Rows of one kind by phase; steps have the whole as a phase of its own."""
    for phase, group in rows[rows["kind"] == kind].groupby("phase"):
        yield str(phase), group


def breakdown(scored: Scored, rows: pd.DataFrame, kind: Kind) -> str:
    """Errors of one kind of row by device, op class, dtype, phase, time and likeness."""
    found = [
        (by, value, group, score_group(group))
        for by, groups in GROUPINGS.items()
        for value, group in groups(rows, kind)
    ]
    names = shown_baselines(scored, [group for *_, group in found])
    lines = [
        [by, value, *error_cells(part, group), *(baseline_cell(group, b) for b in names)]
        for by, value, part, group in found
    ]
    header = ("by", "", *ERROR_COLUMNS, *(NAMES[b] for b in names))
    return markdown(header, lines, texts=2)


def _by(column: str) -> Callable[[pd.DataFrame, Kind], Groups]:
    def groups(rows: pd.DataFrame, kind: Kind) -> Groups:
        of = of_kind(rows, kind)
        for value, group in of.groupby(column, sort=True):
            if value != "all":
                yield str(value) or "not stated", group

    return groups


def _where_told(column: str) -> Callable[[pd.DataFrame, Kind], Groups]:
    """Groups by a column; none where no row, or every row alike, has a value."""

    def groups(rows: pd.DataFrame, kind: Kind) -> Groups:
        of = of_kind(rows, kind)
        if of[column].nunique() > 1:
            yield from _by(column)(rows, kind)

    return groups


def _by_framework_and_dtype(rows: pd.DataFrame, kind: Kind) -> Groups:
    """Groups by both where there are several frameworks."""
    both = rows.assign(both=rows["framework"] + " " + rows["dtype"])
    if rows["framework"].nunique() > 1:
        yield from _by("both")(both[both["dtype"] != ""], kind)


def _of_steps(column: str) -> Callable[[pd.DataFrame, Kind], Groups]:
    """Groups by a column that means something else for kernels; none of them."""

    def groups(rows: pd.DataFrame, kind: Kind) -> Groups:
        if kind == "step":
            yield from _where_told(column)(rows, kind)

    return groups


def _by_bin(
    bins: Sequence[tuple[float, str]], value: Callable[[pd.DataFrame], pd.Series]
) -> Callable[[pd.DataFrame, Kind], Groups]:
    """Groups below each bound."""

    def groups(rows: pd.DataFrame, kind: Kind) -> Groups:
        of = predicted(of_kind(rows, kind))
        place = np.searchsorted([bound for bound, _ in bins], value(of), side="right")
        for i, (_, name) in enumerate(bins):
            if (place == i).any():
                yield name, of[place == i]

    return groups


GROUPINGS: Mapping[str, Callable[[pd.DataFrame, Kind], Groups]] = {
    "all": lambda rows, kind: iter([("", of_kind(rows, kind))]),
    "device": _by("device"),
    "op class": _by("op_class"),
    "dtype": _by("dtype"),
    "scheme": _where_told("scheme"),
    "framework": _where_told("framework"),
    "library": _where_told("library"),
    "execution": _where_told("execution"),
    "framework and dtype": _by_framework_and_dtype,
    "phase": _phases,
    "mode": _of_steps("mode"),
    "measured time": _by_bin(DECADES, lambda r: r["measured_us"]),
    "in distribution": _by_bin(LIKENESS, lambda r: r["in_distribution"]),
    "outside training": _by_bin(DISTANCES, lambda r: r["outside"]),
}
"""How rows of one kind are cut: name of the cut, and its groups."""


def by_distance(scored: Scored) -> str:
    """Errors and intervals by how far rows lie outside of training, devices seen and unseen apart.

    Of all predicted rows that the checkpoint was not trained on, of any part: few of the test part
    lie in some of the bins.
    """
    lines = []
    every = scored.rows[~scored.rows["trained"].astype(bool)]
    for kind, title in KINDS.items():
        for seen, name in ((True, "seen"), (False, "unseen")):
            rows = every[every["seen"].astype(bool) == seen]
            for value, part in GROUPINGS["outside training"](rows, kind):
                off = np.expm1(np.abs(part["log_ratio"].to_numpy(dtype=float)))
                width = np.median(part["upper_us"] / part["lower_us"])
                lines.append([
                    title, name, value, f"{len(part):,}", percent(np.median(off)),
                    percent(np.quantile(off, 0.9)), percent(inside(part).mean(), ".0f"),
                    f"{width:.2f}", f"{scores_of(part).mean():.2f}",
                ])  # fmt: skip
    header = (
        "rows",
        "device",
        "outside by",
        "n",
        "off by: median",
        "p90",
        "covers",
        "width",
        "score",
    )
    return markdown(header, lines, texts=3)


def calibration(scored: Scored) -> str:
    """Coverage and interval score by device and class, beside a constant width."""
    lines = []
    for kind, title in KINDS.items():
        if predicted(of_kind(scored.tested, kind)).empty:
            continue
        constant = constant_width(scored, kind)
        for by in ("all", "device", "op class"):
            for value, every in GROUPINGS[by](scored.tested, kind):
                rows = predicted(every)
                if rows.empty:
                    continue
                own, other = scores_of(rows).mean(), constant.scores(rows).mean()
                width = np.median(rows["upper_us"] / rows["lower_us"])
                fixed = np.median(np.exp(2 * constant.half_of(rows)))
                lines.append([
                    title, f"{by} {value}".strip(), f"{len(rows):,}",
                    percent(inside(rows).mean(), ".0f"), f"{width:.2f}", f"{own:.2f}",
                    percent(constant.inside(rows).mean(), ".0f"),
                    f"{fixed:.2f}", f"{other:.2f}", f"{own / other:.2f}", constant.chosen_on,
                ])  # fmt: skip
    header = (
        "rows", "", "n", "covers", "width", "score", "constant: covers", "width", "score",
        "score / constant's", "chosen on",
    )  # fmt: skip
    return markdown(header, lines, texts=2)


def cause_table(scored: Scored) -> str:
    """How often each cause holds, among all rows and among the worst tenth."""
    lines = [
        [
            c["cause"], f"{c['n']:,}", percent(c["of_all"]), percent(c["of_worst"]),
            percent(c["median_ape"]),
        ]
        for c in cause_shares(scored.tested).to_dict("records")
    ]  # fmt: skip
    header = ("cause", "rows", "% of all", "% of the worst tenth", "median error of its rows")
    return markdown(header, lines, texts=1)


def worst_table(scored: Scored, count: int) -> str:
    """The rows that are off by the largest factor, each with its causes."""
    rows = worst(scored.tested, count)
    lines = [
        [
            f"{np.exp(row['off']):.2f}", "short" if row["log_ratio"] < 0 else "long",
            duration(row["measured_us"]), duration(row["predicted_us"]), row["device"],
            _what(row), row["dtype"] or NONE, row["phase"], cause, f"`{row['row_id']}`",
        ]
        for row, cause in zip(rows.to_dict("records"), cause_texts(rows), strict=True)
    ]  # fmt: skip
    header = (
        "factor", "prediction", "measured", "predicted", "device", "what", "dtype", "phase",
        "cause", "row",
    )  # fmt: skip
    return markdown(header, lines, texts=len(header))


def _what(row: Mapping[str, Any]) -> str:
    """A step by its model, a kernel by its op and what is told of its place and dimensions."""
    if row["kind"] == "step":
        batch = row.get("batch")
        told = f", batch {batch:.0f}" if batch is not None and np.isfinite(batch) else ""
        return f"{row.get('model', 'step')}, {row['mode']}{told}"
    told = (row["op"], row.get("node_name"), row.get("dims"))
    return " ".join(text for text in told if isinstance(text, str))
