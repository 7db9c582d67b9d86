"""A predictor with an adapter: its own predictions for every device but the adapter's.

Every kernel's time is multiplied by its correction, the host's by its own, and the step is put
together again. Intervals are scaled by what the measurements left uncertain, against what the prior
expected before them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.calibrate.adapter import Adapter
from predictor.calibrate.posterior import apply, variance_before
from predictor.calibrate.prior import shipped_prior
from predictor.calibrate.readings import (
    KINDS,
    NO_HOST_US,
    Floats,
    Readings,
    Singles,
    log_later,
)
from predictor.calibrate.terms import (
    BOUNDS,
    HEADS,
    HOST,
    launch_share,
    log_size,
    part_terms,
    step_terms,
)
from predictor.errors import AdapterError
from predictor.features.columns import NodeFeatures, node_features
from predictor.features.table import KernelTable, repeats_of, table_from_graph
from predictor.graph.ir import PHASES, KernelGraph
from predictor.hardware.device import Device, Software
from predictor.nn.composition import STEP_SHARPNESS
from predictor.nn.latency import LatencyPredictor, zero_shot_warning
from predictor.nn.phases import host_us
from predictor.nn.prediction import Interval, Prediction

HELD_SHARE = 0.05
"""Share of the kernels' time at the physical floor above which the reader is told."""


@dataclass(frozen=True, kw_only=True)
class AdaptedPredictor:
    """A checkpoint's predictor, corrected for one device."""

    base: LatencyPredictor
    adapter: Adapter

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self.base.name

    def predict(self, graph: KernelGraph, device: Device, software: Software) -> Prediction:
        """Kernel and step latencies of `graph` on `device`; raises as the base does.

        Raises:
            AdapterError: the device has the adapter's id and other facts.
        """
        found = self.base.predict(graph, device, software)
        if not self.adapter.check_device(device) or not graph.kernels:
            return found
        table = table_from_graph(graph)
        terms = _terms(self.base, table, node_features(table, device, software), found)
        runs = repeats_of(graph)
        weights = self.adapter.posterior.weights_T()
        kernels = _alone(terms, found.kernel_us)
        log_N, scale_N = self.corrected(kernels)
        wanted = found.kernel_us * np.exp(log_N)
        time = np.maximum(wanted, found.floor_us)
        moved = replace(
            found, kernel_us=time,
            kernel_lower_us=_end(found.kernel_lower_us, found.kernel_us, time, scale_N),
            kernel_upper_us=_end(found.kernel_upper_us, found.kernel_us, time, scale_N),
        )  # fmt: skip
        unmeasured = zero_shot_warning(device.id, self.name)
        moved = replace(
            moved, kernel_lower_us=np.maximum(moved.kernel_lower_us, found.floor_us),
            warnings=(*(w for w in found.warnings if w != unmeasured), self.adapter.line,
                      *_held(time * runs, wanted < found.floor_us)),
        )  # fmt: skip
        host = {p: host_us(graph, table, p, table.phase == i) for i, p in enumerate(PHASES)}
        before_us, after_us, floor_us = (
            us * runs for us in (found.kernel_us, time, found.floor_us)
        )
        row_T = step_row(graph, software)
        faster = float(np.exp(weights[HOST]))
        factor = float(np.exp(row_T @ weights))
        spans = {}
        for i, phase in enumerate(PHASES):
            if phase in found.phases:
                at = table.phase == i
                before = _later(float(before_us[at].sum()), host[phase])
                after = _later(float(after_us[at].sum()), host[phase] * faster) * factor
                spans[phase] = (before, after, at)
        phases: dict[str, Interval] = {}
        for phase, (before, after, at) in spans.items():
            whole = _whole(terms[at], before_us[at], host[phase], row_T)
            phases[phase] = self._moved(
                found.phases[phase], after / before, whole, float(floor_us[at].sum())
            )
        ratio = sum(s[1] for s in spans.values()) / sum(s[0] for s in spans.values())
        whole = _whole(terms, before_us, sum(host.values()), row_T)
        step = self._moved(found.step, ratio, whole, float(floor_us.sum()))
        return replace(moved, phases=phases, step=step)

    def corrected(self, readings: Readings) -> tuple[Floats, Floats]:
        """(N,) log factor on every reading, and the factor on the width of its interval."""
        log_N, after_N = apply(self.adapter.posterior, readings)
        before_N = variance_before(shipped_prior(), readings)
        return log_N, self.adapter.interval_scale * np.sqrt(after_N / before_N)

    def _moved(self, old: Interval, ratio: float, whole: Readings, floor_us: float) -> Interval:
        _, scale = self.corrected(whole)
        before, after = (
            np.array([old.latency_us]),
            np.array([max(old.latency_us * ratio, floor_us)]),
        )
        ends = (_end(np.array([end]), before, after, scale) for end in (old.lower_us, old.upper_us))
        lower, upper = (float(end[0]) for end in ends)
        return Interval(
            latency_us=float(after[0]), lower_us=max(lower, floor_us), upper_us=max(upper, floor_us)
        )


def _held(time_us: Floats, held: NDArray[np.bool_]) -> tuple[str, ...]:
    """What to say where corrections end at the physical floor: nothing below `HELD_SHARE`."""
    share = float(time_us[held].sum() / time_us.sum())
    if share <= HELD_SHARE:
        return ()
    return (
        f"{100 * share:.0f}% of the kernels' time is held at the physical floor: the adapter's "
        "rows ask for less than the device's figures allow, and intervals have no lower side "
        "there; check the rows and the device's figures",
    )


def step_row(graph: KernelGraph, software: Software) -> Singles:
    """(T,) what the terms say of a whole step of a program."""
    facts = {
        "train": graph.workload.mode == "train", "compiled": software.mode == "compiled",
        "nhwc": software.memory_format == "channels_last", "amp": software.amp is not None,
    }  # fmt: skip
    return np.asarray(step_terms({k: np.array([v]) for k, v in facts.items()}, 1)[0])


def program_reading(
    base: LatencyPredictor, graph: KernelGraph, device: Device, software: Software
) -> Readings:
    """The reading of a whole program, its measured time left open."""
    table = table_from_graph(graph)
    found = base.predict(graph, device, software)
    terms = _terms(base, table, node_features(table, device, software), found)
    host = sum(host_us(graph, table, p, table.phase == i) for i, p in enumerate(PHASES))
    whole = _whole(terms, found.kernel_us * repeats_of(graph), host, step_row(graph, software))
    return replace(whole, log_predicted_N=np.log([found.step.latency_us]))


def _terms(
    base: LatencyPredictor, table: KernelTable, features: NodeFeatures, found: Prediction
) -> Singles:
    """(N, T) what the terms say of a program's kernels."""
    heads = base.networks.device_terms(
        torch.from_numpy(features.x), torch.from_numpy(features.token), HEADS
    )
    bound = np.array([BOUNDS.index(b) for b in found.bound], dtype=np.int64)
    return part_terms(
        token_P=features.token, dtype_P=table.dtype, bound_P=bound,
        launch_P=launch_share(found.kernel_us, table.launches.astype(np.float64)),
        size_P=log_size(found.kernel_us), head_PH=heads.numpy(), alone=False,
    )  # fmt: skip


def _alone(terms_NT: Singles, time_us_N: Floats) -> Readings:
    """A reading a kernel, inside a step."""
    n = len(time_us_N)
    return Readings(
        log_predicted_N=np.log(time_us_N), log_measured_N=np.full(n, np.nan),
        kind_N=np.full(n, KINDS.index("kernel")), start_N=np.arange(n + 1), part_us_P=time_us_N,
        part_PT=terms_NT, host_us_N=np.full(n, NO_HOST_US), sharpness_N=np.full(n, STEP_SHARPNESS),
        row_NT=np.zeros_like(terms_NT), host_term=HOST,
    )  # fmt: skip


def _whole(terms_NT: Singles, time_us_N: Floats, host: float, row_T: Singles) -> Readings:
    """One reading of some kernels of a step, or of all."""
    return Readings(
        log_predicted_N=np.log([_later(float(time_us_N.sum()), host)]),
        log_measured_N=np.array([np.nan]), kind_N=np.array([KINDS.index("step")]),
        start_N=np.array([0, len(time_us_N)]), part_us_P=time_us_N, part_PT=terms_NT,
        host_us_N=np.array([max(host, NO_HOST_US)]), sharpness_N=np.array([STEP_SHARPNESS]),
        row_NT=row_T[None], host_term=HOST,
    )  # fmt: skip


def _later(device_us: float, host: float) -> float:
    """The later of device and host, smoothly."""
    if host <= 0 or device_us <= 0:
        return device_us + host
    lead = STEP_SHARPNESS * np.log(device_us / host)
    return float(np.exp(log_later(np.array(host), np.array(lead), STEP_SHARPNESS)))


def _end(end_us: Floats, old_us: Floats, new_us: Floats, scale: Floats) -> Floats:
    """One end of an interval, moved with its middle and as far from it as `scale` says."""
    return np.asarray(new_us * np.exp(scale * np.log(end_us / old_us)))


def adapted(base: object, adapter: Adapter, checkpoint_key: str) -> AdaptedPredictor:
    """A predictor with an adapter that belongs to it.

    Raises:
        AdapterError: the adapter belongs to another checkpoint, or `base` is no checkpoint's.
    """
    if not isinstance(base, LatencyPredictor):
        raise AdapterError(
            f"an adapter needs the predictor of a checkpoint (`predictor.load`), not a "
            f"{type(base).__name__}"
        )
    adapter.check_checkpoint(base.name, checkpoint_key)
    return AdaptedPredictor(base=base, adapter=adapter)
