"""What the interval scales of rows depend on: kind of device, and what a step is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.catalogue import resolve_device
from predictor.nn.interval_scales import StepFacts

if TYPE_CHECKING:
    import pandas as pd


def device_kinds(devices: pd.Series[str]) -> NDArray[np.str_]:
    """(N,) `gpu`, `cpu`, … of devices by id.

    Raises:
        UnknownDeviceError: a device that neither the catalogue nor a file read so far describes.
    """
    kind = {d: resolve_device(d).kind for d in devices.unique()}
    return np.array([kind[d] for d in devices], dtype=np.str_)


def step_facts(rows: pd.DataFrame) -> StepFacts:
    """Facts of step rows."""
    text = {c: rows[c].to_numpy(dtype=np.str_) for c in ("measure", "mode", "execution")}
    return StepFacts(kind=device_kinds(rows["device"]), **text)
