"""Cells of the accuracy page: names, numbers and tables in Markdown; errors in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from accuracy_calibration import scores_of
from accuracy_suites import NoiseFloor, Scored, predicted

NONE = "–"
NAMES: Mapping[str, str] = {
    "roofline": "roofline", "flops_law": "FLOPs law", "gradient_boosting": "gradient boosting",
    "best_proxy": "best proxy device", "neusight": "NeuSight", "habitat": "Habitat",
    "micro": "Li et al.", "roofline_published": "published roofline",
    "sum_of_measured": "sum of measured ops",
}  # fmt: skip
OWN_BASELINES: tuple[str, ...] = ("roofline", "flops_law", "gradient_boosting")
ERROR_COLUMNS: tuple[str, ...] = ("n", "MAPE", "median", "p90", "bias", "covers", "score")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int) -> str:
    """A table; the first `texts` columns are left-aligned."""
    rule = ["---" if i < texts else "--:" for i in range(len(header))]
    lines = [header, rule, *([c.replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def percent(share: float | None, form: str = ".1f") -> str:
    """A fraction in percent, without the sign."""
    return NONE if share is None or not np.isfinite(share) else format(100 * share, form)


def error_cells(rows: pd.DataFrame, group: Mapping[str, Any]) -> list[str]:
    """The cells of `ERROR_COLUMNS`; `*` marks errors on rows that trained the checkpoint."""
    found = predicted(rows)
    n = f"{group['n']:,}"
    if group["n_predicted"] < group["n"]:
        n += f" ({group['n_predicted']:,} predicted)"
    score = f"{scores_of(found).mean():.2f}" if len(found) else NONE
    mark = "*" if group["n_trained"] else ""
    return [
        n, percent(group["mape"]) + mark, percent(group["median_ape"]), percent(group["p90_ape"]),
        percent(group["bias"], "+.1f"), percent(group["interval90_coverage"], ".0f"), score,
    ]  # fmt: skip


def baseline_cell(group: Mapping[str, Any], name: str) -> str:
    """MAPE of a baseline; where some rows lack it, how many have it and our error on those."""
    found = group["baselines"].get(name)
    if found is None:
        return NONE
    shown = percent(found["mape"]) + ("*" if found["n_fitted"] else "")
    if found["n"] == group["n"]:
        return shown
    return f"{shown} (n = {found['n']:,}; this {percent(found['own_mape'])})"


def noise_cell(noise: NoiseFloor | None) -> str:
    """Median and 90th percentile of the noise floor."""
    if noise is None:
        return "unknown"
    named = (("median", noise.median), ("p90", noise.p90))
    return ", ".join(f"{name} {percent(v)}" for name, v in named if v is not None)


def shown_baselines(scored: Scored, groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Baselines and published peers that any group has, in a fixed order."""
    there = {name for group in groups for name in group["baselines"]}
    return [name for name in (*OWN_BASELINES, *scored.facts.peers) if name in there]
