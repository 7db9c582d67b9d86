"""Scored rows of an adapter's device, corrected; rows that it was fitted on are not scored.

Forward and backward of a published step take the factor of the whole.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.calibrate.adapted import AdaptedPredictor
from predictor.calibrate.adapter import Adapter
from predictor.errors import AdapterError
from predictor.fit.adapting import row_hashes
from predictor.fit.data import usable_models, usable_steps
from predictor.fit.model_samples import banks_of, model_samples
from predictor.fit.readings import kernel_readings, model_readings, step_readings
from predictor.fit.rows import ScoredRows
from predictor.fit.samples import kernel_samples
from predictor.fit.step_samples import step_samples
from predictor.hardware.catalogue import resolve_device
from predictor.nn.latency import LatencyPredictor
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

FITTED = "fitted_by_adapter"


def adapt_rows(
    scored: ScoredRows, data: Imported, base: LatencyPredictor, adapter: Adapter
) -> ScoredRows:
    """The rows with those of the adapter's device corrected; all others are untouched.

    Raises:
        AdapterError: none of the rows is of its device, or the device has other facts.
    """
    rows = scored.rows
    here = (rows["device"] == adapter.device).to_numpy()
    if not here.any():
        raise AdapterError(
            f"the adapter is of {adapter.device}, and no row is: {', '.join(set(rows['device']))}"
        )
    adapter.check_device(resolve_device(adapter.device))
    found = _factors(data, AdaptedPredictor(base=base, adapter=adapter))
    keys = list(zip(rows["target"], rows["row_id"], strict=True))
    at = np.array([found.get(k, _NONE) if h else _NONE for k, h in zip(keys, here, strict=True)])
    predicted = rows["predicted_us"].to_numpy(dtype=float)
    new = rows.assign(predicted_us=predicted * np.exp(at[:, 0]))
    for name in ("lower_us", "upper_us"):
        old = rows[name].to_numpy(dtype=float)
        moved = new["predicted_us"].to_numpy() * np.exp(at[:, 1] * np.log(old / predicted))
        new[name] = np.where(here, moved, old)
    new["predicted_us"] = np.where(here, new["predicted_us"], predicted)
    own = here & _fitted(rows, data, adapter)
    new["scored"] = rows["scored"].to_numpy(dtype=bool) & ~own
    new["reason"] = np.where(own & (rows["reason"] == ""), FITTED, rows["reason"])
    counted = Counter({FITTED: int(own.sum())}) if own.any() else Counter()
    return ScoredRows(rows=new, dropped=scored.dropped, unscored=scored.unscored + counted)


_NONE = (0.0, 1.0)


def _factors(
    data: Imported, predictor: AdaptedPredictor
) -> dict[tuple[str, str], tuple[float, float]]:
    """Log factor and factor on the width of every row of the device, by target and row id."""
    base, device = predictor.base, predictor.adapter.device
    found: dict[tuple[str, str], tuple[float, float]] = {}
    refused: Counter[str] = Counter()
    kernels = data.kernels[data.kernels["device"] == device]
    if len(kernels):
        samples = kernel_samples(kernels, base.networks.devices, refused)
        if len(samples.row_id):
            readings = kernel_readings(base.networks, samples, base.learned)
            found |= _by_id("kernel", samples.row_id, predictor.corrected(readings))
    steps = step_samples(data, usable_steps(data, [device]), base.networks.devices)
    if steps is not None:
        ops, whole = step_readings(base.networks, steps, base.learned)
        found |= _by_id("step", steps.steps["row_id"], predictor.corrected(whole))
        if ops is not None:
            found |= _by_id("kernel", steps.ops["row_id"], predictor.corrected(ops))
    rows = usable_models(data, [device])
    depth = base.networks.message_layers
    models = model_samples(rows, banks_of(rows), base.networks.devices, depth, refused)
    if models is not None:
        readings = model_readings(base.networks, models, base.learned)
        found |= _by_id("step", models.rows["row_id"], predictor.corrected(readings))
    return found


def _by_id(
    target: str,
    ids: pd.Series[str] | tuple[str, ...],
    values: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> dict[tuple[str, str], tuple[float, float]]:
    return {
        (target, str(i)): (float(log), float(scale))
        for i, log, scale in zip(ids, *values, strict=True)
    }


def _fitted(rows: pd.DataFrame, data: Imported, adapter: Adapter) -> NDArray[np.bool_]:
    """Whether the adapter was fitted on each row."""
    known: set[tuple[str, str]] = set()
    for target, name in (("kernel", "kernels"), ("step", "steps")):
        table = getattr(data, name)
        table = table[table["device"] == adapter.device]
        if len(table):
            own = np.isin(row_hashes(table, name), adapter.fitted_rows)
            known |= {(target, str(i)) for i in table["row_id"][own]}
    keys = zip(rows["target"], rows["row_id"], strict=True)
    return np.array([key in known for key in keys], dtype=bool)
