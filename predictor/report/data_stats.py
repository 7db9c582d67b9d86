"""Statistics of measured data as tables for a reader and as a figure (HTML)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.atomic import write_text
from predictor.errors import MissingExtraError
from predictor.traces.noise import CURVE, PAIRS, Noise
from predictor.traces.stats import DataStats

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PAIR_TEXT: Mapping[str, str] = {
    "repeat": "repeated within one release",
    "unstated": "same size, other facts without a column",
    "library": "library or settings, same release",
    "release": "next release of one framework",
    "framework": "another framework",
    "source": "another source",
}
"""What the two measurements of a pair differ in."""
_NOISE_TITLE = "Noise: two measurements of one kernel on one device, percent by which they differ"
LEAST_PERCENT = 0.01
"""Left end of the figure's axis, %: equal times stand there."""


def stats_view(stats: DataStats) -> RenderableType:
    """Rows by source, device, op class and mode, what imports dropped, and noise."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_sources(stats)]
    parts += [Text(line) for line in _notes(stats)]
    if stats.total("kernels"):
        parts += [Text(), _counts(stats, "kernels", "source", "device")]
        parts += [Text(), _counts(stats, "kernels", "op_class", "dtype", "scheme")]
    if stats.total("steps"):
        parts += [Text(), _counts(stats, "steps", "source", "device")]
        parts += [Text(), _counts(stats, "steps", "source", "mode", "dtype", "measure")]
    if stats.noise is not None and stats.total("kernels"):
        parts += [Text(), _noise(stats.noise)]
    return Group(*parts)


def write_noise_figure(noise: Noise, file: Path) -> None:
    """Distributions of the ratio between two measurements of one kernel, a panel a kind of pair.

    Args:
        noise: as measured.
        file: HTML that holds all it needs (about 5 MB).

    Raises:
        MissingExtraError: plotly is not installed.
    """
    check_figure_extra()
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    pairs = [p for p in PAIRS if any(pair == p for pair, _ in noise.curves)]
    titles = [PAIR_TEXT[p] for p in pairs] or ["no kernel was measured twice"]
    figure = make_subplots(rows=1, cols=len(titles), subplot_titles=titles, shared_yaxes=True)
    classes = sorted({op_class for _, op_class in noise.curves})
    shown: set[str] = set()
    for (pair, op_class), ratios in noise.curves.items():
        line = go.Scatter(
            x=np.maximum(100 * ratios, LEAST_PERCENT).tolist(), y=list(CURVE), name=op_class,
            legendgroup=op_class, showlegend=op_class not in shown, mode="lines",
            line={"color": _colour(classes.index(op_class))},
        )  # fmt: skip
        figure.add_trace(line, row=1, col=pairs.index(pair) + 1)
        shown.add(op_class)
    figure.update_xaxes(type="log", title_text="difference, %")
    figure.update_yaxes(title_text="share of pairs", range=[0, 1], col=1)
    figure.update_layout(title="Two measurements of one kernel on one device", height=480)
    write_text(file, figure.to_html(include_plotlyjs=True, full_html=True))


def check_figure_extra() -> None:
    """Refuse before the work when the figure cannot be drawn.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    if find_spec("plotly") is None:
        raise MissingExtraError(
            "--html needs plotly, which the `report` extra brings: "
            "pip install -c constraints.txt -e '.[report]'"
        )


def _colour(place: int) -> str:
    """Colours that differ: golden-angle steps around the wheel."""
    return f"hsl({place * 137.5 % 360:.0f}, 65%, 45%)"


def _table(columns: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "))
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _sources(stats: DataStats) -> Table:
    table = _table(("source",), ("kernel rows", "step rows", "flagged", "devices"))
    kernels, steps = stats.by("kernels", "source"), stats.by("steps", "source")
    devices: Counter[str] = Counter()
    measured = (stats.by(table, "source", "device") for table in ("kernels", "steps"))
    devices.update(source for source, _ in {pair for found in measured for pair in found})
    for (source,) in sorted({*kernels, *steps}):
        k, s = kernels.get((source,), Counter()), steps.get((source,), Counter())
        numbers = (k["rows"], s["rows"], k["flagged"] + s["flagged"], devices[source])
        table.add_row(source, *(f"{n:,}" for n in numbers))
    return table


def _notes(stats: DataStats) -> list[str]:
    lines = []
    for source, dropped in sorted(stats.dropped.items()):
        if dropped:
            counts = ", ".join(f"{n:,} {rule}" for rule, n in sorted(dropped.items()))
            lines.append(f"dropped by the import of {source}: {counts}")
    flags: dict[tuple[str, str], int] = {}
    for table in ("kernels", "steps"):
        for (source, flag), counted in stats.by(table, "source", "flag").items():
            if flag:
                flags[source, flag] = flags.get((source, flag), 0) + counted["rows"]
    by_source: dict[str, list[str]] = {}
    for (source, flag), n in sorted(flags.items()):
        by_source.setdefault(source, []).append(f"{n:,} {flag}")
    lines += [f"kept with a flag, {source}: {', '.join(n)}" for source, n in by_source.items()]
    lines += [
        f"{source}: {n:,} rows left out, an earlier folder has the same file and row"
        for source, n in sorted(stats.repeated.items())
    ]
    return lines


def _counts(stats: DataStats, table: str, *columns: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    names = " × ".join(c.replace("_", " ") for c in columns)
    made = _table(columns, ("rows", "flagged"))
    for key, counted in stats.by(table, *columns).items():
        made.add_row(*(k or "-" for k in key), f"{counted['rows']:,}", f"{counted['flagged']:,}")
    title = Text(f"{table[:-1].capitalize()} rows by {names}", style="bold")
    return Group(title, made)


def _noise(noise: Noise) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if noise.groups.empty:
        return Text("Noise: no kernel was measured twice on one device")
    table = _table(
        ("differ in", "op class", "dtype", "scheme"), ("pairs", "median", "90th percentile"),
    )  # fmt: skip
    for row in noise.groups.to_dict("records"):
        table.add_row(
            PAIR_TEXT[row["pair"]], row["op_class"], row["dtype"], row["scheme"] or "-",
            f"{row['n']:,}", f"{100 * row['median']:.1f}%", f"{100 * row['p90']:.1f}%",
        )  # fmt: skip
    return Group(Text(_NOISE_TITLE, style="bold"), table)
