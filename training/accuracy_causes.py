"""Why a row is far off: rules on the columns of scored rows, never written by hand.

Several may hold for a row; it is unexplained where none does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from accuracy_suites import of_kind, predicted

TINY_US = 10.0
"""A kernel below it is tiny."""
SPREAD_LIMIT = 0.1
"""Standard deviation that a source states, of the time, from which a row is unsteady."""
OUTSIDE_LIMIT = 0.1
"""Share of the predicted time from which kernels unlike those of training count."""
STRAY_FACTOR = 10.0
"""Of time over roofline, against the middle of its group's, from which a measurement is a stray."""
TIMER_MODES: tuple[str, ...] = ("isolated", "in_step")
"""Modes whose times hold the host's launch."""
UNEXPLAINED = "unexplained"


def _below_launch(rows: pd.DataFrame) -> pd.Series:
    if "host_us" not in rows.columns:
        return pd.Series(False, index=rows.index)
    return rows["mode"].isin(TIMER_MODES) & (rows["measured_us"] < rows["host_us"])


RULES: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    "flagged in the source": lambda r: r["flag"] != "",
    f"spread of the source above {SPREAD_LIMIT:.0%}": lambda r: (
        r["spread_us"] > SPREAD_LIMIT * r["measured_us"]
    ),
    "measured below the launch time": _below_launch,
    f"{STRAY_FACTOR:.0f} times off its like": lambda r: r["stray"] > np.log(STRAY_FACTOR),
    "kind never learned": lambda r: r["label"] == "roofline",
    "in part kinds never learned": lambda r: r["label"] == "mixed",
    "device never seen": lambda r: ~r["seen"].astype(bool),
    "outside the training range": lambda r: r["learned"] - r["in_distribution"] > OUTSIDE_LIMIT,
    f"kernel below {TINY_US:.0f} µs": lambda r: (
        (r["target"] == "kernel") & (r["measured_us"] < TINY_US)
    ),
}
"""By cause: whether it holds for each row."""


def causes(rows: pd.DataFrame) -> pd.DataFrame:
    """A column of truth values a rule, and `unexplained`."""
    found = pd.DataFrame({name: rule(rows).astype(bool) for name, rule in RULES.items()})
    return found.assign(**{UNEXPLAINED: ~found.any(axis=1)})


def cause_texts(rows: pd.DataFrame) -> list[str]:
    """The causes of each row in words; a flag by its name."""
    held = causes(rows)
    texts = []
    for flag, (_, row) in zip(rows["flag"], held.iterrows(), strict=True):
        named = [str(name) for name in held.columns if row[name]]
        texts.append(", ".join(f"{n} ({flag})" if n.startswith("flagged") else n for n in named))
    return texts


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Predicted rows that count once: kernels, and of steps the whole."""
    parts = [predicted(of_kind(rows, kind)) for kind in ("step", "in_step", "alone")]
    return pd.concat(parts)


def worst(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """The rows whose prediction is off by the largest factor, either way.

    Slow and fast errors weigh the same: a percentage is at most 100 where a prediction is short.
    """
    off = judged(rows).assign(off=lambda r: np.abs(r["log_ratio"]))
    return off.sort_values(["off", "row_id", "phase"], ascending=[False, True, True]).head(count)


def cause_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """By cause: share of all rows, of the worst tenth by factor, and their median errors."""
    every = judged(rows)
    off = np.abs(every["log_ratio"].to_numpy(dtype=float))
    tenth = off >= np.quantile(off, 0.9)
    ape = np.abs(np.expm1(every["log_ratio"].to_numpy(dtype=float)))
    found = []
    for name, values in causes(every).items():
        held = values.to_numpy()
        if held.any():
            found.append({
                "cause": name, "n": int(held.sum()), "of_all": float(held.mean()),
                "of_worst": float(held[tenth].mean()), "median_ape": float(np.median(ape[held])),
            })  # fmt: skip
    return pd.DataFrame(found)
