"""What can be done on a new device without a network that learned from others.

All of them see the same k measured rows, and whatever other devices measured.

| name | is |
|---|---|
| `flops_law` | time is FLOPs over the datasheet's peak, times a factor: the median one of other
  devices at k = 0, else the median one of the k rows; from `LINE_ROWS` on a line in logs |
| `bandwidth` | the time of the same row on one other device, times the ratio of the memory
  bandwidths: at k = 0 the device of the nearest bandwidth, else the one that fits the k rows best |
| `proxy` | the same through a line in logs fitted on the k rows (below `LINE_ROWS` an offset), on
  the device that it fits best |

Legend: N rows to predict, K rows measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Device, Software
from predictor.hardware.peaks import mem_bw_gbps, peak_tflops
from predictor.hardware.twins import twins

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
LINE_ROWS = 5
"""Rows from which a slope is fitted beside the offset."""
LEAST_MATCHED = 0.5
"""Share of the rows to predict that a proxy must have measured."""


def log_work(frame: pd.DataFrame, device: str) -> Floats:
    """(N,) log of FLOPs over the peak of the device in the dtype of each row."""
    described = resolve_device(device)
    peak = {str(d): _peak(described, str(d)) for d in frame["dtype"].unique()}
    rate = frame["dtype"].map(peak).to_numpy(dtype=float)
    return np.asarray(np.log(np.maximum(frame["flops"].to_numpy(dtype=float), 1.0) / rate))


def _peak(device: Device, dtype: str) -> float:
    """TFLOPS of products in a dtype; in single precision where the device has no such path."""
    for wanted in (dtype.removeprefix("amp-"), "fp32"):
        try:
            return peak_tflops(device, op_class="matmul", dtype=wanted, software=Software())
        except (UnsupportedPrecision, UnknownRateError):
            continue
    return 1.0


def line(x_K: Floats, y_K: Floats) -> tuple[float, float]:
    """(slope, offset) of a line in logs; slope 1 below `LINE_ROWS`, or where x does not vary."""
    if len(x_K) < LINE_ROWS or np.ptp(x_K) < 1e-9:
        return 1.0, float(np.median(y_K - x_K))
    slope, offset = np.polyfit(x_K, y_K, 1)
    return float(slope), float(offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """What one other device measured in one setting: log time by key, of a sample where asked."""

    device: str
    setting: str
    log_us: pd.Series[float]


def proxies_of(rows: pd.DataFrame, device: str) -> list[Proxy]:
    """Tables of all devices but `device` and its twins.

    Args:
        rows: with `device`, `proxy_setting`, `key`, `measured_us`, `units`.
        device: the new one.
    """
    import pandas as pd

    others = rows[~rows["device"].isin(list(twins(device)))]
    found = []
    for (name, setting), own in others.groupby(["device", "proxy_setting"], sort=True):
        log_us = pd.Series(
            np.log((own["measured_us"] / own["units"]).to_numpy(dtype=float)), index=own["key"]
        )
        found.append(
            Proxy(device=str(name), setting=str(setting), log_us=log_us.groupby(level=0).median())
        )
    return found


class ProxyPredictor:
    """Log times of some rows of a new device, by what other devices measured of the same."""

    def __init__(self, rows: pd.DataFrame, device: str, proxies: list[Proxy]) -> None:
        """`rows`: with `key` and `units`; measured and predicted ones alike."""
        self.log_units: Floats = np.log(rows["units"].to_numpy(dtype=np.float64))
        bw = mem_bw_gbps(resolve_device(device))
        self.tables: list[Floats] = []
        self.scale: list[float] = []
        for proxy in proxies:
            known = np.asarray(proxy.log_us.reindex(rows["key"]), dtype=np.float64)
            other = resolve_device(proxy.device).memory_bw_gbps
            if other is not None and np.isfinite(known).mean() >= LEAST_MATCHED:
                self.tables.append(known)
                self.scale.append(float(np.log(other / bw)))

    def bandwidth(self, log_us_K: Floats, measured_K: NDArray[np.int64]) -> Floats | None:
        """(N,) log time by the ratio of bandwidths; None without a proxy."""
        if not self.tables:
            return None
        scaled = [
            table + scale + self.log_units
            for table, scale in zip(self.tables, self.scale, strict=True)
        ]
        if not len(measured_K):
            return scaled[int(np.argmin(np.abs(self.scale)))]
        off = [_error(values[measured_K] - log_us_K) for values in scaled]
        return scaled[int(np.argmin(off))]

    def proxy(self, log_us_K: Floats, measured_K: NDArray[np.int64]) -> Floats | None:
        """(N,) log time by the best line; None without a proxy that measured one of the K."""
        best: tuple[float, Floats] | None = None
        for table in self.tables:
            values = table + self.log_units
            x_K = values[measured_K]
            known = np.isfinite(x_K)
            if not known.any():
                continue
            slope, offset = line(x_K[known], log_us_K[known])
            off = _error(np.where(known, slope * x_K + offset - log_us_K, np.nan))
            if best is None or off < best[0]:
                best = (off, slope * values + offset)
        return None if best is None else best[1]


def _error(off_K: Floats) -> float:
    """Mean error over the rows that a proxy has, more where it lacks some."""
    known = np.isfinite(off_K)
    if not known.any():
        return float("inf")
    return float(np.abs(off_K[known]).mean() / known.mean())


def flops_law(
    work_N: Floats, work_K: Floats, log_us_K: Floats, elsewhere: Mapping[str, float]
) -> Floats | None:
    """(N,) log time by the law.

    Args:
        work_N: `log_work` of the rows to predict.
        work_K: of the measured ones.
        log_us_K: log of their times.
        elsewhere: median of log time less `log_work` on each other device; without one, and
            without measured rows, there is no law.
    """
    if len(work_K):
        slope, offset = line(work_K, log_us_K)
        return slope * work_N + offset
    return work_N + float(np.median(list(elsewhere.values()))) if elsewhere else None
