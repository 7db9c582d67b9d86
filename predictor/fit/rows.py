"""Scored rows of a suite: every measured row with prediction, interval and baselines beside it.

| column | holds |
|---|---|
| `learned` | share of the predicted time that the networks speak for; the rest is an assumed
  efficiency of the roofline (label `roofline`) |
| `in_distribution` | share of the predicted time in kernels that the networks speak for and whose
  every feature lies within what training saw |
| `outside` | how far its features lie outside of training (`predictor.nn.training_range`), 0
  inside; of a step, the mean over the learned kernels by time |
| `dims` | dimensions of a kernel, `m=128 n=64 k=32` |
| `scheme`, `framework`, `library` | of a kernel: how its operands are quantised, what launched it
  and what it comes from, as the source names them |
| `spread_us` | standard deviation that the source states of the measurement, where it does |
| `transferred` | share of the predicted time that the networks speak for, in classes of kernel
  that were not measured on the device |
| `label` | `learned`, `roofline`, or `mixed` (a step of both) |
| `scored` | whether the row counts in the tables |
| `reason` | why there is no prediction, or why the row is not scored; else empty |
| `trained` | whether the checkpoint was trained on the row |
| `fitted` | whether the baselines were fitted on it (those that are fitted) |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.fit.baselines import BoostedTrees
from predictor.fit.coverage import outside_of
from predictor.fit.crossval import NODE_OP_CLASS
from predictor.fit.interval_facts import device_kinds
from predictor.fit.recipe import Recipe
from predictor.fit.scoring import score_kernels, score_steps
from predictor.fit.step_rows import (
    model_rows,
    published_step_rows,
    scorable_steps,
    steps_without_prediction,
)
from predictor.fit.step_samples import StepSamples, op_device_us
from predictor.fit.suite import Suite, Trained, kernels_to_learn_from, steps_to_learn_from
from predictor.graph.ops import OPS
from predictor.nn.interval_scales import kernel_levels, widened
from predictor.nn.latency import LatencyPredictor

if TYPE_CHECKING:
    import pandas as pd

KERNEL_FACTS: tuple[str, ...] = (
    "row_id", "device", "op", "dtype", "scheme", "framework", "library", "phase", "flag", "context",
    "latency_us", "spread_us",
)  # fmt: skip
TRANSFERRED = 0.5
"""Share of the time of an op beyond which it counts as not measured on its device."""


@dataclass(slots=True, kw_only=True)
class ScoredRows:
    """Rows of one suite, and the rows that could not be scored by reason."""

    rows: pd.DataFrame
    dropped: Counter[str]
    """Rows that the import refused, by rule."""
    unscored: Counter[str]
    """Rows without a prediction, or left out of the tables, by reason."""

    @property
    def excluded(self) -> Counter[str]:
        """All of them."""
        return self.dropped + self.unscored


def score(
    predictor: LatencyPredictor,
    suite: Suite,
    trees: BoostedTrees | None,
    peer_ops: Callable[[], pd.DataFrame],
    *,
    recipe: Recipe,
    trained: Trained,
) -> ScoredRows:
    """Predict every row of the suite and put the baselines beside it.

    Args:
        predictor: the checkpoint.
        suite: rows and samples.
        trees: the gradient-boosting baseline of kernels.
        peer_ops: published predictions of ops inside steps.
        recipe: of the checkpoint; says which flags the trees left out.
        trained: rows that the checkpoint was trained on.
    """
    import pandas as pd

    unscored = Counter(suite.refused)
    parts: list[pd.DataFrame] = []
    if len(suite.data.kernels):
        parts.append(_kernel_rows(predictor, suite, trees, recipe, trained))
    if suite.steps is not None:
        ranges = (predictor.range_low_TF, predictor.range_high_TF)
        ops, totals = score_steps(
            predictor.networks, suite.steps, predictor.learned, outside_of(*ranges),
            predictor.measured,
        )  # fmt: skip
        fitted = steps_to_learn_from(suite, recipe) if trees is not None else None
        if len(ops):
            rows = _op_rows(predictor, suite, suite.steps, ops, trees, peer_ops())
            parts.append(_with_steps(rows, suite.steps, fitted, trained))
        scorable = scorable_steps(suite, unscored)
        totals = published_step_rows(predictor, suite, suite.steps, totals, trees, scorable)
        parts.append(_with_steps(totals, suite.steps, fitted, trained))
    models = model_rows(predictor, suite, recipe, trained, unscored)
    if models is not None:
        parts.append(models)
    rest = steps_without_prediction(suite, unscored)
    if len(rest):
        parts.append(rest)
    rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if len(rows):
        share = rows["learned"].to_numpy(dtype=float)
        label = np.where(share >= 1, "learned", np.where(share > 0, "mixed", "roofline"))
        rows["label"] = np.where(np.isfinite(share), label, "")
        rows["source"] = suite.data.source
        rows["seen"] = rows["device"].isin(predictor.networks.devices)
    return ScoredRows(rows=rows, dropped=Counter(suite.data.dropped), unscored=unscored)


def _widen(
    predictor: LatencyPredictor, rows: pd.DataFrame, scales: Mapping[str, Any]
) -> pd.DataFrame:
    """Conformalise the quantiles of kernel rows, for classes seen or unseen on their device."""
    known = rows["device"].isin(predictor.networks.devices).to_numpy()
    known = known & ~(rows["transferred"].to_numpy(dtype=float) > TRANSFERRED)
    columns = ("lower_us", "predicted_us", "upper_us")
    log_time = np.log(rows[list(columns)].to_numpy(dtype=float))
    levels = kernel_levels(
        rows["vocabulary_class"].to_numpy(dtype=np.str_), device_kinds(rows["device"]),
        rows["predicted_us"].to_numpy(dtype=float), rows["op"].to_numpy(dtype=np.str_),
    )  # fmt: skip
    outside = np.nan_to_num(rows["outside"].to_numpy(dtype=float))
    for kind, where in (("seen", known), ("unseen", ~known)):
        log_time[where] = widened(
            scales[kind], log_time[where], [names[where] for names in levels], outside[where]
        )
    return rows.assign(lower_us=np.exp(log_time[:, 0]), upper_us=np.exp(log_time[:, 2]))


def _kernel_rows(
    predictor: LatencyPredictor,
    suite: Suite,
    trees: BoostedTrees | None,
    recipe: Recipe,
    trained: Trained,
) -> pd.DataFrame:
    """Every kernel row; one whose device has no rate for it is there without a prediction."""
    import pandas as pd

    samples = suite.kernels
    outside = outside_of(predictor.range_low_TF, predictor.range_high_TF)
    found = score_kernels(
        predictor.networks, samples, predictor.learned, outside, predictor.measured
    )
    found = found.drop(columns=["row_id", "measured_us"])
    found["roofline_us"] = samples.datasheet_us_N.numpy()
    fitted = np.zeros(len(suite.kernel_parts), dtype=bool)
    if trees is not None:
        found["gradient_boosting_us"] = trees.kernel_us(samples)
        fitted = kernels_to_learn_from(suite, recipe)
    facts = suite.data.kernels[list(KERNEL_FACTS)].reset_index(drop=True)
    found = found.set_index(samples.row_N).reindex(facts.index)
    classes = facts["op"].map({name: op.op_class for name, op in OPS.items()})
    rows = pd.concat(
        [facts.rename(columns={"context": "mode", "latency_us": "measured_us"}), found], axis=1
    ).assign(
        target="kernel", op_class=classes, vocabulary_class=classes, scored=True,
        part=suite.kernel_parts, trained=trained.kernels, fitted=fitted,
        reason=np.where(found["predicted_us"].isna(), "no_rate", ""),
        dims=_dims(suite.data.kernels),
    )  # fmt: skip
    alone = rows["mode"] == "isolated"
    pieces = [
        _widen(predictor, rows[mask], predictor.calibration[name])
        for mask, name in ((alone, "isolated"), (~alone, "in_step"))
        if mask.any()
    ]
    return pd.concat(pieces).sort_index()


def _dims(kernels: pd.DataFrame) -> NDArray[np.object_]:
    """Dimensions of every kernel row in words, in the order of its op; unknown ones left out."""
    found = np.empty(len(kernels), dtype=object)
    for op, at in kernels.groupby("op", sort=False).indices.items():
        names = (*OPS[str(op)].dims, *OPS[str(op)].optional)
        sizes = kernels.iloc[at][[f"dim_{name}" for name in names]].to_numpy().tolist()
        found[at] = [
            " ".join(f"{name}={n}" for name, n in zip(names, row, strict=True) if n >= 0)
            for row in sizes
        ]
    return found


def _op_rows(
    predictor: LatencyPredictor,
    suite: Suite,
    samples: StepSamples,
    ops: pd.DataFrame,
    trees: BoostedTrees | None,
    peers: pd.DataFrame,
) -> pd.DataFrame:
    """Rows of ops timed inside steps, by the class that is published for them."""
    import torch

    vocabulary = [NODE_OP_CLASS.get(c, c.removeprefix("other_")) for c in ops["node_class"]]
    rows = ops.assign(
        target="kernel", mode="in_step", op_class=ops["node_class"], op=ops["node_class"],
        vocabulary_class=vocabulary, scored=True, reason="", step_mode=ops["mode"],
        part=suite.parts_of(samples.steps["row_id"])[ops["graph_index"].to_numpy()],
        roofline_us=op_device_us(samples, samples.datasheet_us_N).numpy(),
    )  # fmt: skip
    if trees is not None:
        each = torch.as_tensor(trees.kernel_us(samples), dtype=torch.float32)
        rows["gradient_boosting_us"] = op_device_us(samples, each).numpy()
    if len(peers):
        rows = rows.join(
            peers.set_index(["device", "graph", "node_name", "phase"]),
            on=["device", "graph", "node_name", "phase"],
        )
    return _widen(predictor, rows, predictor.calibration["in_step"])


def _with_steps(
    rows: pd.DataFrame, samples: StepSamples, fitted: NDArray[np.bool_] | None, trained: Trained
) -> pd.DataFrame:
    """`rows` with `trained` and `fitted` of the step that each belongs to."""
    ids = samples.steps["row_id"].tolist()
    own = [ids.index(i) for i in rows["row_id"]] if "graph_index" not in rows.columns else None
    at = rows["graph_index"].to_numpy(dtype=np.int64) if own is None else np.array(own, dtype=int)
    known = np.array([i in trained.steps for i in ids], dtype=bool)
    learned = np.zeros(len(ids), dtype=bool) if fitted is None else fitted
    return rows.assign(trained=known[at], fitted=learned[at])


def baselines_of(rows: pd.DataFrame) -> Sequence[str]:
    """Names of the baseline columns present."""
    own = {
        "measured_us", "predicted_us", "lower_us", "upper_us", "base_us", "host_us", "spread_us",
    }  # fmt: skip
    return [c.removesuffix("_us") for c in rows.columns if c.endswith("_us") and c not in own]
