"""Flags of measured rows: why a row is not for every use, and which a new measurement may mend."""

from __future__ import annotations

from predictor.traces.measure.timer import Limits, Timing

OTHER_LOAD, NOISY, COLD = "other_load", "noisy", "cold_cache"
"""The gravest first; a row has one."""
MENDABLE = (OTHER_LOAD, NOISY)
"""Flags that another measurement may mend, the gravest first."""


def flag_of(timing: Timing, limits: Limits, *, loaded: bool, cold: bool = False) -> str:
    """Why a row is not for every use; empty where it is.

    Args:
        timing: of the row.
        limits: what noisy means.
        loaded: whether others computed while it was taken.
        cold: whether its operands came from memory.
    """
    if loaded:
        return OTHER_LOAD
    if timing.noisy(limits):
        return NOISY
    return COLD if cold else ""


def gravity(flag: str) -> int:
    """How much a mendable flag says against a row; 0 for any other, or none."""
    return len(MENDABLE) - MENDABLE.index(flag) if flag in MENDABLE else 0
