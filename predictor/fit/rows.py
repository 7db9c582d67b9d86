"""Scored rows of a suite: every measured row with prediction, interval and baselines beside it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.fit.baselines import BoostedTrees, op_sums, weighted_sums
from predictor.fit.crossval import NODE_OP_CLASS
from predictor.fit.data import usable_models
from predictor.fit.model_baselines import model_baselines
from predictor.fit.model_samples import banks_of, model_samples
from predictor.fit.samples import StepSamples, kernel_samples, step_samples
from predictor.fit.scoring import score_kernels, score_models, score_steps
from predictor.fit.splits import Split
from predictor.graph.ops import OPS
from predictor.nn.latency import LatencyPredictor
from predictor.traces.schema import Imported
from predictor.traces.sources.neusight_peers import PEERS

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

PUBLISHED = {p: f"{p}_published" if p == "roofline" else p for p in PEERS}
"""Name of a peer's published prediction among the baselines."""


@dataclass(slots=True, kw_only=True)
class ScoredRows:
    """Rows of one suite, and the rows that could not be scored by reason."""

    rows: pd.DataFrame
    excluded: Counter[str]


def score(
    predictor: LatencyPredictor,
    data: Imported,
    split: Split,
    trees: BoostedTrees | None,
    peer_ops: Callable[[], pd.DataFrame],
) -> ScoredRows:
    """Predict every row of the suite and put the baselines beside it."""
    import pandas as pd

    excluded: Counter[str] = Counter(data.dropped)
    parts: list[pd.DataFrame] = []
    if len(data.kernels):
        parts.append(_kernel_rows(predictor, data, split, trees, excluded))
    steps = _scorable_steps(data, excluded)
    samples = step_samples(data, steps, predictor.networks.devices)
    if samples is not None:
        step_parts = split.parts(samples.steps, "steps")
        ops, totals = score_steps(predictor.networks, samples)
        if len(ops):
            ops = _op_rows(predictor, samples, ops, trees, peer_ops())
            parts.append(ops.assign(part=step_parts[ops["graph_index"]]))
        totals = _step_rows(predictor, data, samples, totals, trees)
        part_of = dict(zip(samples.steps["row_id"], step_parts, strict=True))
        parts.append(totals.assign(part=totals["row_id"].map(part_of)))
    models = _model_rows(predictor, data, split, excluded)
    if models is not None:
        parts.append(models)
    if not parts:
        return ScoredRows(rows=pd.DataFrame(), excluded=excluded)
    rows = pd.concat(parts, ignore_index=True)
    rows["seen"] = rows["device"].isin(predictor.networks.devices)
    return ScoredRows(rows=rows, excluded=excluded)


def _scorable_steps(data: Imported, excluded: Counter[str]) -> pd.DataFrame:
    """Step rows with a graph; the others are counted by reason."""
    steps = data.steps
    if steps.empty:
        return steps
    for flag, count in steps["flag"].value_counts().items():
        if flag:
            excluded[f"step_{flag}"] += int(count)
    plain = steps[(steps["flag"] == "") & steps["graph"].isin(list(data.graphs))]
    peers = data.peers
    if peers.empty:
        excluded["step_without_all_published_predictions"] += len(plain)
        return plain.assign(scored=False)
    have = peers.groupby(["device", "graph"])["peer"].nunique()
    complete = [
        bool(have.get((d, g), 0) == len(PEERS))
        for d, g in zip(plain["device"], plain["graph"], strict=True)
    ]
    excluded["step_without_all_published_predictions"] += len(plain) - int(sum(complete))
    return plain.assign(scored=complete)


def _known(predictor: LatencyPredictor, devices: pd.Series[str]) -> NDArray[np.bool_]:
    return np.asarray(devices.isin(predictor.networks.devices))


def _widen(
    predictor: LatencyPredictor, rows: pd.DataFrame, scales: Mapping[str, Any]
) -> pd.DataFrame:
    """Conformalise the quantiles of kernel rows by op class, for devices seen or unseen."""
    known = _known(predictor, rows["device"])
    extra = np.array([
        float((s := scales["seen" if k else "unseen"]).get(c, s["default"]))
        for c, k in zip(rows["vocabulary_class"], known, strict=True)
    ])  # fmt: skip
    mid = rows["predicted_us"]
    return rows.assign(
        lower_us=np.minimum(rows["lower_us"] * np.exp(-extra), mid),
        upper_us=np.maximum(rows["upper_us"] * np.exp(extra), mid),
    )


def _kernel_rows(
    predictor: LatencyPredictor,
    data: Imported,
    split: Split,
    trees: BoostedTrees | None,
    excluded: Counter[str],
) -> pd.DataFrame:
    """Every kernel row; one whose device has no rate for it is there without a prediction."""
    refused: Counter[str] = Counter()
    samples = kernel_samples(data.kernels, predictor.networks.devices, refused)
    for error, count in refused.items():
        excluded[f"kernel_{error}"] += count
    found = score_kernels(predictor.networks, samples, predictor.learned)
    found["roofline_us"] = samples.datasheet_us_N.numpy()
    if trees is not None:
        found["gradient_boosting_us"] = trees.kernel_us(
            samples.x_NF.numpy(), samples.token_N.numpy(), samples.base_us_N.numpy()
        )
    facts = data.kernels[["row_id", "source", "device", "op", "dtype", "scheme", "phase", "flag",
                          "context", "latency_us"]]  # fmt: skip
    rows = facts.merge(found.drop(columns="measured_us"), on="row_id", how="left")
    classes = [OPS[o].op_class for o in rows["op"]]
    rows = rows.rename(columns={"context": "mode", "latency_us": "measured_us"}).assign(
        target="kernel", op_class=classes, vocabulary_class=classes, scored=True,
        part=split.parts(data.kernels, "kernels"),
    )  # fmt: skip
    alone = rows["mode"] == "isolated"
    calibration = predictor.calibration
    pieces = [
        _widen(predictor, rows[mask], calibration[name])
        for mask, name in ((alone, "isolated"), (~alone, "in_step"))
        if mask.any()
    ]
    import pandas as pd

    return pd.concat(pieces).sort_index()


def _model_rows(
    predictor: LatencyPredictor, data: Imported, split: Split, excluded: Counter[str]
) -> pd.DataFrame | None:
    """Whole models whose graph a bank holds; those without one are counted."""
    steps = data.steps
    alone = (steps["flag"] == "") & (steps["graph"] == "")
    if alone.any():
        excluded["step_without_graph"] += int(alone.sum())
    rows = usable_models(data, steps["device"].unique())
    depth = predictor.networks.members[0].config.message_layers
    refused: Counter[str] = Counter()
    models = model_samples(rows, banks_of(rows), predictor.networks.devices, depth, refused)
    for error, count in refused.items():
        excluded[f"step_{error}"] += count
    if models is None:
        return None
    found = score_models(predictor.networks, models, predictor.learned)
    scales = predictor.calibration["step"]
    half = np.array([
        float(scales["seen" if known else "unseen"]["total"])
        for known in _known(predictor, found["device"])
    ])  # fmt: skip
    parts = split.parts(models.rows, "steps")
    facts = ("source", "dtype", "execution", "layout", "framework_version", "size")
    out = found.assign(
        target="step", op_class="all", op="step", flag="", vocabulary_class="all", part=parts,
        lower_us=found["predicted_us"] * np.exp(-half),
        upper_us=found["predicted_us"] * np.exp(half),
        scored=parts != "unused" if split.rules else True,
        **{name: models.rows[name] for name in facts},
    )  # fmt: skip
    if split.rules:
        excluded["step_in_no_part_of_the_split"] += int((parts == "unused").sum())
    for name, values in model_baselines(models, parts == "train").items():
        out[f"{name}_us"] = values
    return out


def _op_rows(
    predictor: LatencyPredictor,
    samples: StepSamples,
    ops: pd.DataFrame,
    trees: BoostedTrees | None,
    peers: pd.DataFrame,
) -> pd.DataFrame:
    import torch

    from predictor.fit.module import op_device_us

    vocabulary = [NODE_OP_CLASS.get(c, c.removeprefix("other_")) for c in ops["node_class"]]
    rows = ops.assign(
        target="kernel", mode="in_step", op_class=ops["node_class"], op=ops["node_class"],
        vocabulary_class=vocabulary, flag="", scored=True, step_mode=ops["mode"],
        roofline_us=op_device_us(samples, samples.datasheet_us_N).numpy(),
    )  # fmt: skip
    if trees is not None:
        each = trees.kernel_us(
            samples.x_NF.numpy(), samples.token_N.numpy(), samples.base_us_N.numpy()
        )
        rows["gradient_boosting_us"] = op_device_us(
            samples, torch.as_tensor(each, dtype=torch.float32)
        ).numpy()
    if len(peers):
        rows = rows.join(
            peers.set_index(["device", "graph", "node_name", "phase"]),
            on=["device", "graph", "node_name", "phase"],
        )
    return _widen(predictor, rows, predictor.calibration["in_step"])


def _step_rows(
    predictor: LatencyPredictor,
    data: Imported,
    samples: StepSamples,
    totals: pd.DataFrame,
    trees: BoostedTrees | None,
) -> pd.DataFrame:
    known = _known(predictor, totals["device"])
    scales = predictor.calibration["step"]
    half = np.array([
        float((s := scales["seen" if k else "unseen"]).get(p, s["total"]))
        for p, k in zip(totals["phase"], known, strict=True)
    ])  # fmt: skip
    rows = totals.assign(
        target="step", op_class="all", op="step", flag="", vocabulary_class="all",
        lower_us=totals["predicted_us"] * np.exp(-half),
        upper_us=totals["predicted_us"] * np.exp(half),
    )  # fmt: skip
    scored = samples.steps.set_index("row_id")["scored"]
    rows["scored"] = rows["row_id"].map(scored).astype(bool)
    sums = {"roofline_us": weighted_sums(samples.datasheet_us_N.numpy().astype(float), samples)}
    if trees is not None:
        each = trees.kernel_us(
            samples.x_NF.numpy(), samples.token_N.numpy(), samples.base_us_N.numpy()
        )
        sums["gradient_boosting_us"] = weighted_sums(each, samples)
    position = {row: i for i, row in enumerate(samples.steps["row_id"])}
    at = [position[r] for r in rows["row_id"]]
    for name, by_phase in sums.items():
        rows[name] = [by_phase[p][i] for p, i in zip(rows["phase"], at, strict=True)]
    return _published(rows, data)


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


def baselines_of(rows: pd.DataFrame) -> Sequence[str]:
    """Names of the baseline columns present."""
    own = {"measured_us", "predicted_us", "lower_us", "upper_us", "base_us", "host_us"}
    return [c.removesuffix("_us") for c in rows.columns if c.endswith("_us") and c not in own]
