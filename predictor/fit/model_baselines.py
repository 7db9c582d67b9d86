"""Baselines for whole models: roofline, a FLOPs law, boosted trees, the best proxy device.

All but the roofline learn from the training part of the split, and predict the other rows. The
best proxy sees the very model it is asked for, measured on another device: what a lookup in a
table of another device can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.features.table import OP_NAMES
from predictor.fit.model_samples import ModelSamples
from predictor.graph.ops import OP_CLASSES, OPS, TOKENS

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
PROXY_MODELS = 10
"""Models on which the line from a proxy device to the asked one is fitted."""
PROXY_KEYS = ("mode", "model", "size", "dtype", "layout", "execution")
TREES = 300
_CLASS_OF_TOKEN = np.array([
    OP_CLASSES.index(next(OPS[o].op_class for o in OP_NAMES if OPS[o].token == token))
    for token in TOKENS
])  # fmt: skip


def model_baselines(models: ModelSamples, train_M: NDArray[np.bool_]) -> dict[str, Floats]:
    """(M,) times by each baseline, microseconds; NaN where it has none.

    Args:
        models: all rows.
        train_M: rows that a baseline may learn from.
    """
    found = {"roofline": _sums(models, models.datasheet_us_C)}
    if train_M.sum() >= PROXY_MODELS:
        found["flops_law"] = _flops_law(models, train_M)
        found["gradient_boosting"] = _trees(models, found["roofline"], train_M)
        found["best_proxy"] = _best_proxy(models.rows, train_M)
    return found


def _sums(models: ModelSamples, value_C: torch.Tensor) -> Floats:
    """(M,) sums over the kernels of each model."""
    weighted = (value_C * models.count_C).double().numpy()
    return np.add.reduceat(weighted, models.start_M[:-1].numpy())


def _flops_law(models: ModelSamples, train_M: NDArray[np.bool_]) -> Floats:
    """Log time is linear in log (FLOPs / FLOPs a roofline microsecond of the device) and mode.

    The device enters through the roofline time of its matrix work alone, so that one law serves
    devices that were not measured.
    """
    compute = models.flops_C > 0
    bound = torch.where(compute, models.datasheet_us_C, torch.zeros(()))
    work = np.log(np.maximum(_sums(models, bound), 1e-3))
    rows = models.rows
    x = np.stack(
        [np.ones(len(rows)), work, rows["mode"] == "train", rows["execution"] == "compiled"], axis=1
    ).astype(float)
    y = np.log(models.measured_us_M.double().numpy())
    solution, *_ = np.linalg.lstsq(x[train_M], y[train_M], rcond=None)
    return np.asarray(np.exp(x @ solution))


def _trees(models: ModelSamples, roofline_us: Floats, train_M: NDArray[np.bool_]) -> Floats:
    """Boosted trees of log(time / sustained roofline) on sums over each model's kernels."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    base = _sums(models, models.base_us_C)
    op_class = torch.from_numpy(_CLASS_OF_TOKEN)[models.token_C]
    none = torch.zeros(())
    shares = [
        _sums(models, torch.where(op_class == i, models.base_us_C, none)) / base
        for i in range(len(OP_CLASSES))
    ]
    rows = models.rows
    size = rows["size"].fillna(rows["seq"]).fillna(1.0).to_numpy(dtype=float)
    software = models.x_CF[models.start_M[:-1]]
    x = np.stack(
        [
            *shares, np.log(base), np.log(roofline_us), np.log(_sums(models, models.flops_C) + 1.0),
            np.log(_sums(models, models.bytes_C)), _sums(models, torch.ones(())),
            np.log(rows["batch"].to_numpy(dtype=float)), np.log(size),
            rows["mode"] == "train", *software.numpy().T[_software_columns()],
        ],
        axis=1,
    ).astype(float)  # fmt: skip
    y = np.log(models.measured_us_M.double().numpy() / base)
    model = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=TREES, learning_rate=0.06, random_state=0
    )
    weight = models.weight_M.numpy()
    model.fit(x[train_M], y[train_M], sample_weight=weight[train_M])
    return np.asarray(base * np.exp(model.predict(x)))


def _software_columns() -> list[int]:
    from predictor.features.columns import COLUMNS

    return [COLUMNS.index(c) for c in ("compiled", "channels_last", "release", "bf16")]


def _best_proxy(rows: pd.DataFrame, train_M: NDArray[np.bool_]) -> Floats:
    """Time of the same model on another device, through a line fitted on ten training models.

    The proxy with the smallest error on those ten is taken. `train_M` only decides which models
    the line may see on the asked device; proxies may have measured anything.
    """
    import pandas as pd

    log_us = np.log(rows["latency_us"].to_numpy(dtype=float))
    group = rows.groupby(["device", "framework_version", "library", *PROXY_KEYS[3:]], sort=True)
    number = group.ngroup().to_numpy()
    key = pd.util.hash_pandas_object(rows[list(PROXY_KEYS[:3])], index=False).to_numpy()
    tables = {g: pd.Series(log_us[number == g], index=key[number == g]) for g in np.unique(number)}
    tables = {g: t[~t.index.duplicated()] for g, t in tables.items()}
    device = {g: rows["device"].to_numpy()[number == g][0] for g in tables}
    out = np.full(len(rows), np.nan)
    for asked, own in tables.items():
        here = np.flatnonzero(number == asked)
        allowed = np.unique(key[here[train_M[here]]])
        line = _best_line(
            own, allowed, [t for g, t in tables.items() if device[g] != device[asked]]
        )
        if line is not None:
            slope, offset, proxy = line
            out[here] = np.exp(slope * proxy.reindex(key[here]).to_numpy() + offset)
    return out


def _best_line(
    own: pd.Series[float], allowed: NDArray[Any], proxies: list[pd.Series[float]]
) -> tuple[float, float, pd.Series[float]] | None:
    best: tuple[float, float, float, pd.Series[float]] | None = None
    for proxy in proxies:
        common = np.sort(np.intersect1d(allowed, proxy.index.to_numpy()))
        if len(common) < PROXY_MODELS:
            continue
        chosen = common[:: max(len(common) // PROXY_MODELS, 1)][:PROXY_MODELS]
        x, y = proxy[chosen].to_numpy(), own[chosen].to_numpy()
        slope, offset = np.polyfit(x, y, 1)
        error = float(np.abs(slope * x + offset - y).mean())
        if best is None or error < best[0]:
            best = (error, float(slope), float(offset), proxy)
    return None if best is None else best[1:]
