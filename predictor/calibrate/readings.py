"""Measured readings as functions of corrections: kernels, ops inside steps and whole steps alike.

Legend: N readings, P parts (kernels of equal description in one reading), T terms.

A reading is what a clock shows. Its device time is the sum of its parts; a timer or a step that
waits for the host shows the later of device and host, smoothly. A correction is a weight for every
term; a part's time is multiplied by `exp(part · weights)`, the host's by `exp(weights[host])`, the
whole by `exp(row · weights)`. A kernel measured alone is a reading of one part, so that kernels and
steps are equations in the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Indices = NDArray[np.int64]
KINDS: tuple[str, ...] = ("alone", "kernel", "step")
"""Of reading: a kernel by itself (host launch in it or not), one inside a step, a whole step."""
NO_HOST_US = 1e-3
"""Host time of a reading that waits for no host: shorter than any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """N readings of one device, measured or to be predicted."""

    log_predicted_N: Floats
    """Log of what the checkpoint predicts without a correction."""
    log_measured_N: Floats
    """NaN where nothing was measured."""
    kind_N: Indices
    """Index into `KINDS`."""
    start_N: Indices
    """(N + 1,) where the parts of each reading begin."""
    part_us_P: Floats
    """Predicted device time."""
    part_PT: Singles
    """What each term says of a part."""
    host_us_N: Floats
    sharpness_N: Floats
    """Exponent of the smooth maximum of device and host."""
    row_NT: Singles
    """What each term says of the whole reading."""
    host_term: int
    """Place of the host's term."""

    def __len__(self) -> int:
        return len(self.log_predicted_N)

    @property
    def log_ratio_N(self) -> Floats:
        """Log of measured over predicted."""
        return self.log_measured_N - self.log_predicted_N

    def take(self, index: Indices | NDArray[np.bool_]) -> Readings:
        """The readings at `index`."""
        at = np.flatnonzero(index) if index.dtype == bool else np.asarray(index, dtype=np.int64)
        size = (self.start_N[at + 1] - self.start_N[at]).astype(np.int64)
        ends = np.cumsum(size)
        parts = np.arange(int(size.sum())) + np.repeat(self.start_N[at] - (ends - size), size)
        return Readings(
            log_predicted_N=self.log_predicted_N[at], log_measured_N=self.log_measured_N[at],
            kind_N=self.kind_N[at], start_N=np.concatenate([[0], ends]).astype(np.int64),
            part_us_P=self.part_us_P[parts], part_PT=self.part_PT[parts],
            host_us_N=self.host_us_N[at], sharpness_N=self.sharpness_N[at],
            row_NT=self.row_NT[at], host_term=self.host_term,
        )  # fmt: skip

    def corrected(self, weights_T: Floats) -> tuple[Floats, Floats]:
        """(N,) log of the factor that a correction puts on each reading, and its slope (N, T)."""
        zero_N, _ = self._log_time(np.zeros_like(weights_T))
        log_N, slope_NT = self._log_time(weights_T)
        return log_N - zero_N, slope_NT

    def _log_time(self, weights_T: Floats) -> tuple[Floats, Floats]:
        time_P = self.part_us_P * np.exp(self.part_PT @ weights_T)
        starts = self.start_N[:-1]
        device_N = np.add.reduceat(time_P, starts)
        share_P = time_P / np.repeat(device_N, np.diff(self.start_N))
        part_NT = np.add.reduceat(self.part_PT * share_P[:, None], starts, axis=0)
        host_N = np.maximum(self.host_us_N, NO_HOST_US) * np.exp(weights_T[self.host_term])
        lead_N = self.sharpness_N * np.log(device_N / host_N)
        log_N = log_later(host_N, lead_N, self.sharpness_N)
        own_N = 0.5 * (1.0 + np.tanh(0.5 * lead_N))
        slope_NT = own_N[:, None] * part_NT + self.row_NT
        slope_NT[:, self.host_term] += 1.0 - own_N
        return log_N + self.row_NT @ weights_T, slope_NT


def log_later(host_us: Floats, lead: Floats, sharpness: Floats | float) -> Floats:
    """Log of the later of device and host, smoothly.

    Args:
        host_us: above 0.
        lead: `sharpness` times the log of device over host time.
        sharpness: exponent of the smooth maximum.
    """
    return np.asarray(np.log(host_us) + np.logaddexp(0.0, lead) / sharpness)


def joined(parts: Sequence[Readings]) -> Readings:
    """The readings of all parts, in order."""
    sizes = np.concatenate([np.diff(part.start_N) for part in parts])
    names = (
        "log_predicted_N", "log_measured_N", "kind_N", "part_us_P", "part_PT", "host_us_N",
        "sharpness_N", "row_NT",
    )  # fmt: skip
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Readings(
        **columns, start_N=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        host_term=parts[0].host_term,
    )  # fmt: skip
