"""Phases and the step from kernel times: device work, host work, whichever is later."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.features.table import KernelTable, repeats_of
from predictor.graph.ir import PHASES, KernelGraph
from predictor.nn.composition import step_us
from predictor.nn.interval_scales import STEP_ROOT
from predictor.nn.prediction import Interval
from predictor.nn.priors import HOST_BACKWARD_SHARE, HOST_CALL_US, HOST_LAUNCH_US, HOST_SPREAD

Floats = NDArray[np.float64]
HOST_BOUND = 1.1
"""Ratio of step to device time from which a step is called host-bound."""


def compose(
    graph: KernelGraph, table: KernelTable, time: Floats, floor: Floats,
    learned: NDArray[np.bool_], widths: Mapping[str, float],
) -> tuple[dict[str, Interval], Interval, float]:  # fmt: skip
    """Phase and step intervals (device and host time, whichever is later), and host time.

    Args:
        graph: the kernels.
        table: the same as columns.
        time: (N, 3) of all runs of each kernel.
        floor: (N,) of all runs of each kernel.
        learned: whether the model speaks for each.
        widths: half-width in log time, by phase and of the whole.
    """
    phases: dict[str, Interval] = {}
    total, all_host = np.zeros(3), 0.0
    for i, phase in enumerate(PHASES):
        rows = table.phase == i
        if not rows.any() and not graph.host_ops.get(phase):
            continue
        host = host_us(graph, table, phase, rows)
        all_host += host
        device = _band(time[rows], floor[rows], learned[rows], widths[phase])
        phases[phase] = _interval(_later(device, host))
        device = _band(time[rows], floor[rows], learned[rows], widths[STEP_ROOT])
        total += _later(device, host)
    if graph.issued == "device":  # one program, whatever is known of its phases
        total = _band(time, floor, learned, widths[STEP_ROOT])
    return phases, _interval(total), all_host


def host_us(graph: KernelGraph, table: KernelTable, phase: str, rows: NDArray[np.bool_]) -> float:
    """Time of the host to issue a phase, microseconds; none where the device issues it."""
    if graph.issued == "device":
        return 0.0
    if graph.replayed:
        return host_time_us(phase, float(rows.any()), 0.0)
    launches = float((table.launches * repeats_of(graph))[rows].sum())
    return host_time_us(phase, launches, float(graph.host_ops.get(phase, 0)))


def host_time_us(phase: str, launches: float, calls: float) -> float:
    """Time of the host for a phase of so many launches and framework calls (views included)."""
    share = 1.0 if phase == "forward" else HOST_BACKWARD_SHARE
    return share * (HOST_LAUNCH_US * launches + HOST_CALL_US * max(calls - launches, 0.0))


def _band(time: Floats, floor: Floats, learned: NDArray[np.bool_], half: float) -> Floats:
    """(lower, mid, upper) device time of a phase, never below the sum of its floors.

    The learned part has an interval of its own (kernel intervals do not add up to a step's); the
    unlearned part adds its kernels' assumed bounds.
    """
    known = float(time[learned, 1].sum())
    rest = time[~learned].sum(axis=0)
    learned_band = np.array([known * np.exp(-half), known, known * np.exp(half)])
    learned_band = np.maximum(learned_band, floor[learned].sum())
    return np.asarray(learned_band + rest, dtype=np.float64)


def _later(device: Floats, host: float) -> Floats:
    """(lower, mid, upper) of the later of device and host, the host's assumption spread too."""
    host_band = host * np.array([HOST_SPREAD[0], 1.0, HOST_SPREAD[1]])
    if host <= 0 or not device[1] > 0:
        return np.asarray(device + host_band, dtype=np.float64)
    out = step_us(torch.from_numpy(device), torch.from_numpy(host_band))
    return np.asarray(out.numpy(), dtype=np.float64)


def host_warning(graph: KernelGraph, step: Interval, host: float, time: Floats) -> tuple[str, ...]:
    """Says so where the host's assumed time adds a tenth or more to the device's."""
    if not len(time) and host > 0:
        return ("no kernel is launched: the time is the host's alone",)
    if not len(time):
        why = "the program computes nothing, or its tensors have no elements"
        return (f"no kernel is launched, so that there is no time: {why}",)
    if graph.issued == "device":
        return ()
    device = float(time[:, 1].sum())
    if step.latency_us < HOST_BOUND * device:
        return ()
    return (
        f"host-bound: issuing the calls takes about {host / 1e3:.2f} ms (assumed: "
        f"{HOST_LAUNCH_US:g} us a launch, {HOST_CALL_US:g} us a view, less in backward), the "
        f"kernels {device / 1e3:.2f} ms; the interval allows a host twice as fast or slow",
    )


def _interval(band: Floats) -> Interval:
    return Interval(
        latency_us=float(band[1]), lower_us=float(min(band[0], band[1])),
        upper_us=float(max(band[2], band[1])),
    )  # fmt: skip


def corrected(interval: Interval, factor: float, floor_us: float) -> Interval:
    """The interval times the factor, never below the physical floor."""
    return Interval(
        latency_us=max(interval.latency_us * factor, floor_us),
        lower_us=max(interval.lower_us * factor, floor_us),
        upper_us=max(interval.upper_us * factor, floor_us),
    )
