"""What a reader must know beside the figures of an evaluation, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from predictor.fit.coverage import Coverage
from predictor.fit.rows import ScoredRows
from predictor.fit.suite import Suite
from predictor.hardware.catalogue import adopted_devices, load_catalogue
from predictor.hardware.kinds import kinds_of
from predictor.nn.latency import LatencyPredictor
from predictor.nn.learned import Entry, speaks

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 8
"""Kinds, devices or flags that a sentence names; the others are counted."""


def notes_of(suite: Suite, predictor: LatencyPredictor, scored: ScoredRows) -> tuple[str, ...]:
    """Sentences on training rows, learned kinds of kernel, devices and flags."""
    rows = scored.rows
    if rows.empty:
        return ()
    rows = rows[rows["scored"].to_numpy(dtype=bool)]
    return (
        *_training(suite, predictor.name, rows), *_learned(suite, predictor, rows),
        *_devices(predictor, rows), *_flags(rows),
    )  # fmt: skip


def _training(suite: Suite, name: str, rows: pd.DataFrame) -> Iterator[str]:
    n = int(rows["trained"].sum())
    if n:
        yield (
            f"{name} was trained on {n:,} of these {len(rows):,} rows (marked *): their errors "
            "are not errors on unseen rows"
        )
    else:
        yield f"{name} was not trained on any of these rows"
    fitted = int(rows["fitted"].sum())
    if fitted:
        yield (
            f"the baselines that are fitted saw {fitted:,} of these rows, the training part of "
            f"split {suite.split.name!r} (marked *)"
        )


def _learned(suite: Suite, predictor: LatencyPredictor, rows: pd.DataFrame) -> Iterator[str]:
    """Which kinds of kernel are answered from the roofline."""
    there = rows[rows["label"] != ""]
    unlearned = int((there["label"] == "roofline").sum())
    mixed = int((there["label"] == "mixed").sum())
    if not unlearned and not mixed:
        return
    kinds: dict[str, int] = {}
    for samples in (suite.kernels, suite.steps, suite.models):
        if samples is not None:
            kinds |= unlearned_kinds(samples.coverage, predictor.learned)
    named = sorted(kinds, key=lambda kind: (-kinds[kind], kind))[:SHOWN]
    more = f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else ""
    partly = f", {mixed:,} in part" if mixed else ""
    yield (
        f"{unlearned:,} of {len(there):,} predicted rows are labelled roofline{partly}: "
        f"{predictor.name} learned no row of {', '.join(named)}{more}; their time is the roofline "
        "at an assumed efficiency"
    )


def unlearned_kinds(coverage: Coverage, learned: Collection[Entry]) -> dict[str, int]:
    """Kernels by the kinds (token and dtype) that a checkpoint has not learned."""
    speaks_N = coverage.learned(learned).numpy()
    counts = np.bincount(coverage.kind_N[~speaks_N], minlength=len(coverage.kinds))
    found: dict[str, int] = {}
    for (token, dtype, kind, _), n in zip(coverage.kinds, counts, strict=True):
        if n:
            path = " on units of another format" if speaks(learned, token, dtype, kind) else ""
            name = f"{token} {dtype}{path}"
            found[name] = found.get(name, 0) + int(n)
    return found


def _devices(predictor: LatencyPredictor, rows: pd.DataFrame) -> Iterator[str]:
    unseen = sorted(set(rows["device"]) - set(predictor.networks.devices))
    if unseen:
        yield f"devices that {predictor.name} was not trained on: {_named(unseen)}"
    catalogue = {**load_catalogue(), **adopted_devices()}
    learned = kinds_of(predictor.networks.devices)
    odd = [
        d for d in sorted(set(rows["device"]))
        if d not in predictor.networks.devices and catalogue[d].kind not in learned.known
    ]  # fmt: skip
    if odd:
        yield f"{predictor.name} learned from {learned.text}; figures for {_named(odd)} extrapolate"


def _flags(rows: pd.DataFrame) -> Iterator[str]:
    counts = rows.loc[rows["flag"] != "", "flag"].value_counts()
    if len(counts):
        named = [f"{n:,} {flag}" for flag, n in counts.items()]
        yield f"rows with a flag are among these (the source's card says why): {', '.join(named)}"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
