"""Rows of whole steps in an evaluation: published graphs, graph banks, and those without either."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.fit.baselines import BoostedTrees, op_sums, weighted_sums
from predictor.fit.coverage import outside_of
from predictor.fit.interval_facts import step_facts
from predictor.fit.model_baselines import model_baselines
from predictor.fit.model_samples import banks_of, in_bank
from predictor.fit.recipe import Recipe
from predictor.fit.scoring import score_models
from predictor.fit.step_samples import StepSamples
from predictor.fit.suite import Suite, Trained
from predictor.nn.interval_scales import blended, step_half_width
from predictor.nn.latency import LatencyPredictor
from predictor.traces.schema import Imported
from predictor.traces.sources.neusight_peers import PEERS

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = {p: f"{p}_published" if p == "roofline" else p for p in PEERS}
"""Name of a peer's published prediction among the baselines."""
STEP_FACTS: tuple[str, ...] = (
    "row_id", "device", "graph", "model", "mode", "batch", "seq", "size", "dtype", "execution",
    "layout", "framework_version", "flag", "spread_us",
)  # fmt: skip
NO_PEER = "step_without_all_published_predictions"
NO_PART = "step_in_no_part_of_the_split"


def scorable_steps(suite: Suite, unscored: Counter[str]) -> NDArray[np.bool_]:
    """Published steps (those of `suite.steps`) that every peer predicted; the others are counted.

    They alone are scored, so that all peers are compared on the same rows.
    """
    assert suite.steps is not None
    peers, steps = suite.data.peers, suite.steps.steps
    counts = peers.groupby(["device", "graph"])["peer"].nunique()
    have = dict(zip(counts.index, counts.to_numpy(), strict=True))
    complete = np.array([
        have.get(pair, 0) == len(PEERS)
        for pair in zip(steps["device"], steps["graph"], strict=True)
    ], dtype=bool)  # fmt: skip
    if not complete.all():
        unscored[NO_PEER] += int((~complete).sum())
    return complete


def published_step_rows(
    predictor: LatencyPredictor,
    suite: Suite,
    samples: StepSamples,
    totals: pd.DataFrame,
    trees: BoostedTrees | None,
    scorable: NDArray[np.bool_],
) -> pd.DataFrame:
    """Steps of published graphs, a row a phase, with sums of baselines and peers."""
    position = {row: i for i, row in enumerate(samples.steps["row_id"])}
    at = np.array([position[r] for r in totals["row_id"]], dtype=np.int64)
    facts = {name: samples.steps[name].to_numpy()[at] for name in ("measure", "execution")}
    half = half_widths(predictor, totals.assign(**facts))
    rows = totals.assign(
        target="step", op_class="all", op="step", flag="", vocabulary_class="all",
        lower_us=totals["predicted_us"] * np.exp(-half),
        upper_us=totals["predicted_us"] * np.exp(half),
        scored=scorable[at], reason=np.where(scorable[at], "", NO_PEER.removeprefix("step_")),
        part=suite.parts_of(samples.steps["row_id"])[at],
    )  # fmt: skip
    sums = {"roofline_us": weighted_sums(samples.datasheet_us_N.numpy().astype(float), samples)}
    if trees is not None:
        sums["gradient_boosting_us"] = weighted_sums(trees.kernel_us(samples), samples)
    for name, by_phase in sums.items():
        rows[name] = [by_phase[p][i] for p, i in zip(rows["phase"], at, strict=True)]
    return _published(rows, suite.data)


def half_widths(predictor: LatencyPredictor, rows: pd.DataFrame) -> NDArray[np.float64]:
    """Half-width in log time of every step row."""
    seen, unseen = (
        step_half_width(
            predictor.calibration["step"][name], rows["phase"].to_numpy(dtype=np.str_),
            step_facts(rows), rows["outside"].to_numpy(dtype=float),
        )
        for name in ("seen", "unseen")
    )  # fmt: skip
    learned = rows["learned"].to_numpy(dtype=float)
    transferred = rows["transferred"].to_numpy(dtype=float) / np.maximum(learned, 1e-9)
    known = rows["device"].isin(predictor.networks.devices).to_numpy()
    return blended(seen, unseen, np.where(known, transferred, 1.0))


def _published(rows: pd.DataFrame, data: Imported) -> pd.DataFrame:
    """Sums of measured ops and the peers' published step predictions."""
    if len(data.ops):
        sums = op_sums(data.ops)
        rows["sum_of_measured_us"] = [
            sums[p].get((d, g), np.nan)
            for d, g, p in zip(rows["device"], rows["graph"], rows["phase"], strict=True)
        ]
    column = {"total": "latency_us", "forward": "forward_us", "backward": "backward_us"}
    for peer, group in data.peers.groupby("peer") if len(data.peers) else ():
        table = group.drop_duplicates(["device", "graph"]).set_index(["device", "graph"])
        rows[f"{PUBLISHED[str(peer)]}_us"] = [
            table[column[p]].get((d, g), np.nan)
            for d, g, p in zip(rows["device"], rows["graph"], rows["phase"], strict=True)
        ]
    return rows


def model_rows(
    predictor: LatencyPredictor,
    suite: Suite,
    recipe: Recipe,
    trained: Trained,
    unscored: Counter[str],
) -> pd.DataFrame | None:
    """Whole models whose graph a bank holds; baselines learn from the parts of the recipe."""
    models = suite.models
    if models is None:
        return None
    outside = outside_of(predictor.range_low_TF, predictor.range_high_TF)
    found = score_models(predictor.networks, models, predictor.learned, outside, predictor.measured)
    wanted = {name: models.rows[name].to_numpy() for name in ("measure", "execution")}
    half = half_widths(predictor, found.assign(**wanted))
    parts = suite.parts_of(models.rows["row_id"])
    train = np.isin(parts, recipe.parts)
    scored = parts != "unused" if suite.split.rules else np.ones(len(parts), dtype=bool)
    facts = [c for c in STEP_FACTS if c not in found.columns]
    out = found.assign(
        target="step", op_class="all", op="step", vocabulary_class="all", part=parts,
        lower_us=found["predicted_us"] * np.exp(-half),
        upper_us=found["predicted_us"] * np.exp(half), scored=scored, fitted=train,
        reason=np.where(scored, "", NO_PART.removeprefix("step_")),
        trained=models.rows["row_id"].isin(trained.steps).to_numpy(),
        **{name: models.rows[name] for name in facts},
    )  # fmt: skip
    if not scored.all():
        unscored[NO_PART] += int((~scored).sum())
    for name, values in model_baselines(models, train).items():
        out[f"{name}_us"] = values
    return out


def steps_without_prediction(suite: Suite, unscored: Counter[str]) -> pd.DataFrame:
    """Step rows that nothing is predicted for, each with its reason; they are counted.

    Flagged ones (the flag is the reason) are not scored; sound ones are, as rows without a
    prediction: they have no graph, a graph that is not at hand, or a kernel without a rate.
    """
    steps = suite.data.steps
    done: set[str] = set()
    for samples in (suite.steps.steps if suite.steps else None,
                    suite.models.rows if suite.models else None):  # fmt: skip
        if samples is not None:
            done.update(samples["row_id"])
    at = np.flatnonzero(~steps["row_id"].isin(done).to_numpy())
    rest = steps.iloc[at].reset_index(drop=True)
    flag, graph = rest["flag"].to_numpy(), rest["graph"].to_numpy()
    known = in_bank(rest, banks_of(rest)) | rest["graph"].isin(list(suite.data.graphs)).to_numpy()
    lost = np.where(known, "no_rate", "graph_not_found")
    reason = np.where(flag != "", flag, np.where(graph == "", "without_graph", lost))
    for name, count in zip(*np.unique(reason.astype(str), return_counts=True), strict=True):
        if name != "no_rate":  # counted by error where it was found
            unscored[f"step_{name}"] += int(count)
    parts = suite.step_parts[at]
    scored = (flag == "") & ((parts != "unused") if suite.split.rules else True)
    nothing = np.full(len(rest), np.nan)
    out: pd.DataFrame = rest[list(STEP_FACTS)].assign(
        phase="total", measured_us=rest["latency_us"], predicted_us=nothing, lower_us=nothing,
        upper_us=nothing, learned=nothing, target="step", op_class="all", op="step",
        vocabulary_class="all", part=parts, scored=scored, reason=reason, trained=False,
        fitted=False,
    )  # fmt: skip
    return out
