"""Prior of a device's corrections: how far devices lay from predictions that had not seen them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from predictor.calibrate.readings import KINDS, Floats, Indices
from predictor.calibrate.terms import GROUPS, TERM_GROUP

PRIOR_FILE = "prior.toml"
WIDTHS: tuple[float, ...] = (0.0, 0.35, 0.7, 1.0, 1.6, 2.5, 4.0)
"""Factors on the spread of all terms that a fit weighs against each other; 0 corrects nothing."""
CHANCES: tuple[float, ...] = (0.2, 0.3, 0.25, 0.15, 0.075, 0.02, 0.005)
"""How likely each is before any reading: most devices lie nearer than the widest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Variances in log time."""

    variance_T: Floats
    """Of every term's weight; 0 switches a term off."""
    noise_K: Floats
    """Of what no term explains, by kind of reading (`KINDS`)."""
    chance_W: Floats = field(default_factory=lambda: np.array(CHANCES))
    """How likely a device's corrections are `WIDTHS` times as wide, before any reading."""

    def noise_of(self, kind_N: Indices) -> Floats:
        """(N,) noise variance of readings."""
        return np.asarray(self.noise_K[kind_N])

    def widened(self, factor: float) -> Prior:
        """The same with every term's spread times `factor`."""
        return replace(self, variance_T=self.variance_T * factor**2)


def prior_of(spread: Mapping[str, float], noise: Sequence[float]) -> Prior:
    """The prior with a standard deviation for each group of terms, and each kind of reading."""
    unknown = sorted(set(spread) - set(GROUPS))
    assert not unknown, f"no group of terms {unknown}"
    return Prior(
        variance_T=np.array([spread.get(group, 0.0) ** 2 for group in TERM_GROUP]),
        noise_K=np.array(noise, dtype=np.float64) ** 2,
    )


def shipped_prior() -> Prior:
    """The prior that comes with the library (`prior.toml`)."""
    values = _shipped()
    return prior_of(values["spread"], [values["noise"][kind] for kind in KINDS])


def shipped_interval_scale() -> float:
    """Factor on the spread that a fit leaves, so that intervals cover on devices held out."""
    return float(_shipped()["interval"]["scale"])


@cache
def _shipped() -> dict[str, Any]:
    text = resources.files("predictor.calibrate").joinpath(PRIOR_FILE).read_text(encoding="utf-8")
    return tomllib.loads(text)
