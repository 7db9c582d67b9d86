"""`LatencyPredictor`: a checkpoint's networks with their calibration, ready to predict.

Legend: N kernels, T tokens, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.errors import CheckpointError
from predictor.features.columns import NodeFeatures, node_features
from predictor.features.compiled import CompiledGraphs
from predictor.features.links import link_us
from predictor.features.roofline import op_class_of
from predictor.features.table import OP_NAMES, KernelTable, repeats_of, table_from_graph
from predictor.graph.ir import PHASES, KernelGraph
from predictor.hardware.device import Device, Software
from predictor.hardware.kinds import DeviceKinds, kinds_of
from predictor.nn.correction import StepKernels, named_terms
from predictor.nn.ensemble import effect_index, threads
from predictor.nn.interval_scales import (
    STEP_ROOT,
    WALL,
    StepFacts,
    blended,
    kernel_levels,
    step_half_width,
    widened,
)
from predictor.nn.kernel_model import KernelModel
from predictor.nn.labels import (
    carried_warning,
    elsewhere_warning,
    labels,
    measured_here,
    reaching,
    spoken_for,
    unlearned_us,
)
from predictor.nn.learned import KIND_TOLD, Entry, Measured, measured_of, on_lanes, with_twins
from predictor.nn.older_releases import weights_of_today
from predictor.nn.phases import compose, corrected, host_warning
from predictor.nn.prediction import Prediction
from predictor.nn.priors import FOREIGN_FACTOR
from predictor.nn.release_parts import (
    RANGES,
    check_calibration,
    check_columns,
    model_of,
    ops_of,
)
from predictor.nn.rising import alone, lowered
from predictor.nn.training_range import outside_range

Floats = NDArray[np.float64]


class ReleaseLike(Protocol):
    """What is needed of a loaded checkpoint folder."""

    @property
    def name(self) -> str:
        """Name of the release."""
        ...

    @property
    def config(self) -> Mapping[str, object]:
        """Its `config.json`."""
        ...

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its weights and scaler buffers."""
        ...


@dataclass(frozen=True, kw_only=True)
class LatencyPredictor:
    """A trained model, what it was trained on, and the calibration of their intervals."""

    name: str
    networks: KernelModel
    """What answers for single kernels: networks, boosted trees or a fitted roofline."""
    learned: frozenset[Entry]
    """(token, dtype) pairs with measured rows."""
    measured: Measured
    """On which devices."""
    range_low_TF: NDArray[np.float32]
    range_high_TF: NDArray[np.float32]
    calibration: Mapping[str, Any]
    rising: tuple[str, ...] = ()
    """Op classes whose times are held to rise with the batch (`predictor.nn.rising`)."""
    compiled_graphs: CompiledGraphs = "eager"
    """Kernels that compiled steps were learned with (`predictor.features.compiled`)."""

    def predict(self, graph: KernelGraph, device: Device, software: Software) -> Prediction:
        """Kernel and step latencies of `graph` on `device`.

        Raises:
            UnsupportedPrecision, UnknownRateError: the device cannot run a kernel's dtype, or the
                catalogue does not know the rate.
        """
        table = table_from_graph(graph)
        features = node_features(table, device, software)
        known = device.id in self.networks.devices
        foreign = not known and device.kind not in self._kinds().known
        edges = torch.tensor(graph.edges, dtype=torch.long).reshape(-1, 2).T
        log_ratio = self.log_ratio(features, device.id, edges).numpy().astype(np.float64)
        base = features.roofline.base_us
        if self.rising:
            log_us = np.log(base) + log_ratio[:, 1]
            log_ratio += self._held(table, log_us, device, software)[:, None]
        is_learned = spoken_for(self.learned, table, features.roofline.path, device)
        here = measured_here(self.measured, table, device.id)
        told = software.framework_version is not None
        outside = self.outside(features, release_known=told)
        kinds = np.full(len(table), device.kind)
        names = kernel_levels(
            op_class_of(table), kinds, base * np.exp(log_ratio[:, 1]), np.array(OP_NAMES)[table.op]
        )  # fmt: skip
        scales = self.calibration["in_step"]
        log_ratio = np.where(
            here[:, None], widened(scales["seen"], log_ratio, names, outside),
            widened(scales["unseen"], log_ratio, names, outside),
        )  # fmt: skip
        time = features.roofline.base_us[:, None] * np.exp(log_ratio)
        assumed = unlearned_us(
            table, features.roofline.base_us, link_us(table, device), kind=device.kind
        )
        time = np.where(is_learned[:, None], time, assumed)
        floor = features.roofline.floor_us
        time = np.maximum(time, floor[:, None])
        if foreign:
            time = np.maximum(reaching(time), floor[:, None])
        inside = is_learned & (outside == 0) & (not foreign)
        runs = repeats_of(graph)
        whole, whole_floor = time * runs[:, None], floor * runs
        away = _mean((~here).astype(float), whole[:, 1] * is_learned) if known else 1.0
        far = _mean(outside * is_learned, whole[:, 1])
        widths = self._step_widths(graph, device, software, outside=far, transferred=away)
        if foreign:
            widths = {name: max(half, np.log(FOREIGN_FACTOR)) for name, half in widths.items()}
        phases, step, host = compose(graph, table, whole, whole_floor, is_learned, widths)
        warnings = (*self._warnings(device, known=known, foreign=foreign),
                    *host_warning(graph, step, host, whole))  # fmt: skip
        if not foreign and device.kind != "tpu":  # whatever was measured on a TPU, XLA compiled
            warnings += carried_warning(software.framework, is_learned)
        if known:
            elsewhere = is_learned & ~here
            warnings += elsewhere_warning(self.name, device.id, table, whole[:, 1], elsewhere)
        correction = self._correction(graph, features, time[:, 1], host)
        if correction:
            factor = float(np.exp(sum(correction.values())))
            step = corrected(step, factor, float(whole_floor.sum()))
            phases = {
                name: corrected(interval, factor, float(whole_floor[table.phase == i].sum()))
                for i, name in enumerate(PHASES) if (interval := phases.get(name)) is not None
            }  # fmt: skip
        return Prediction(
            kernel_us=time[:, 1], kernel_lower_us=time[:, 0], kernel_upper_us=time[:, 2],
            floor_us=floor, bound=features.roofline.bound,
            label=labels(table, is_learned, here), in_distribution=inside,
            phases=phases, step=step, correction=correction or None,
            level=float(self.calibration["level"]), warnings=warnings,
        )  # fmt: skip

    def log_ratio(self, features: NodeFeatures, device: str, edge_index_2E: Tensor) -> Tensor:
        """(N, 3) quantiles of log(device time / base time) inside a step."""
        x_NF, token_N = features.x, features.token
        of = None
        if self.rising:  # such networks read no neighbours: equal kernels are asked for once
            rows = np.column_stack([x_NF, token_N.astype(x_NF.dtype)])
            as_bytes = np.ascontiguousarray(rows).view(f"V{rows.shape[1] * rows.itemsize}")
            _, first, of = np.unique(as_bytes[:, 0], return_index=True, return_inverse=True)
            x_NF, token_N, edge_index_2E = x_NF[first], token_N[first], edge_index_2E[:, :0]
        n = len(token_N)
        with threads(1):  # a program is small: more cost more than they save
            found = self.networks.log_ratio(
                torch.from_numpy(x_NF), torch.from_numpy(token_N), edge_index_2E,
                torch.full((n,), effect_index(device, self.networks.devices)), torch.zeros(n),
            )  # fmt: skip
        return found if of is None else found[torch.from_numpy(of)]

    def _log_us(self, table: KernelTable, *, device: Device, software: Software) -> Floats:
        """(N,) log times of kernels by themselves, microseconds."""
        features = node_features(table, device, software)
        no_edges = torch.zeros(2, 0, dtype=torch.long)
        log_ratio = self.log_ratio(features, device.id, no_edges)[:, 1].numpy()
        return np.asarray(np.log(features.roofline.base_us) + log_ratio)

    def _held(
        self, table: KernelTable, log_us: Floats, device: Device, software: Software
    ) -> Floats:
        """(N,) how far log times go down to what must not be shorter.

        Of more of the same work, and, where compiled steps were learned in kernels of the eager
        program, of these as they are: fusing takes from them. Convolutions change their format.
        """
        down = np.zeros(len(table))
        if self.compiled_graphs == "eager" and software.by_inductor:
            usual = replace(software, mode="eager", memory_format="contiguous")
            eager = self._log_us(alone(table), device=device, software=usual)
            down = np.where(op_class_of(table) == "conv", 0.0, np.minimum(eager - log_us, 0.0))
        of = partial(self._log_us, device=device, software=software)
        return down + lowered(table, log_us + down, self.rising, of)

    def outside(self, features: NodeFeatures, *, release_known: bool = True) -> Floats:
        """(N,) how far each kernel lies outside of what training saw for its token; 0 inside.

        `predictor.nn.training_range` says how it is counted.
        """
        return outside_range(
            features.x, features.token, self.range_low_TF, self.range_high_TF,
            release_known=release_known,
        )  # fmt: skip

    def _step_widths(
        self, graph: KernelGraph, device: Device, software: Software, *, outside: float,
        transferred: float,
    ) -> dict[str, float]:  # fmt: skip
        """Half-width in log time of every phase, and of the whole."""
        scales = self.calibration["step"]
        phases = np.array([*PHASES, STEP_ROOT])
        backward = any(k.phase == "backward" for k in graph.kernels)
        mode = "train" if backward or graph.workload.mode == "train" else "infer"
        n = len(phases)
        facts = StepFacts(
            kind=np.full(n, device.kind), measure=np.full(n, WALL), mode=np.full(n, mode),
            execution=np.full(n, software.mode),
        )  # fmt: skip
        seen, unseen = (
            step_half_width(scales[name], phases, facts, np.full(n, outside))
            for name in ("seen", "unseen")
        )
        half = blended(seen, unseen, np.full(n, transferred))
        return dict(zip(phases.tolist(), half.tolist(), strict=True))

    def _correction(
        self, graph: KernelGraph, features: NodeFeatures, time_us: Floats, host: float
    ) -> dict[str, float]:
        """Terms of the log of the factor on the step's time; empty where nothing is corrected."""
        n = len(time_us)
        terms = self.networks.correction_terms(
            StepKernels(
                x_NF=torch.from_numpy(features.x),
                time_N=torch.from_numpy(time_us).float(),
                count_N=torch.from_numpy(repeats_of(graph)).float(),
                graph_N=torch.zeros(n, dtype=torch.long), host_us_G=torch.tensor([host]),
                training_G=torch.tensor([float(graph.workload.mode == "train")]),
            )
        )  # fmt: skip
        return named_terms(terms[0])

    def _kinds(self) -> DeviceKinds:
        """Kinds of devices with measured rows."""
        kinds = kinds_of(self.networks.devices)
        told = {entry[2] for entry in self.learned if len(entry) == KIND_TOLD}
        return replace(kinds, known=kinds.known | told)

    def _warnings(self, device: Device, *, known: bool, foreign: bool) -> tuple[str, ...]:
        found = []
        if not known:
            found.append(zero_shot_warning(device.id, self.name))
        if foreign:
            found.append(
                f"{self.name} learned from {self._kinds().text}; {device.kind} figures extrapolate"
            )
        return tuple(found)


def zero_shot_warning(device: str, checkpoint: str) -> str:
    """What is told of an estimate for a device that nothing was measured on."""
    return f"{device} is not among the measured devices of {checkpoint}: zero-shot estimate"


def _mean(values: Floats, weights: Floats) -> float:
    """Weighted mean; 0 of nothing."""
    whole = float(weights.sum())
    return float((values * weights).sum()) / whole if whole > 0 else 0.0


def load_predictor(release: ReleaseLike) -> LatencyPredictor:
    """The model of a checked release.

    Raises:
        CheckpointError: features or vocabulary of another version, or tensors that do not fit.
    """
    features, model = _mapping(release, "features"), _mapping(release, "model")
    calibration = _mapping(release, "calibration")
    try:
        columns, tokens = check_columns(features, release.config.get("vocabulary"))
        check_calibration(calibration)
        tensors = weights_of_today(
            release.tensors, columns=columns, tokens=tokens, ops=ops_of(model)
        )
        networks = model_of(model, tensors, columns, tokens)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint {release.name!r}: its parts do not fit together ({error}): train it "
            "again, or install the version that made it"
        ) from error
    low, high = (tensors[name].float() for name in RANGES)
    return LatencyPredictor(
        name=release.name,
        networks=networks,
        learned=with_twins(model["learned"]) | on_lanes(model.get("measured") or {}),
        measured=measured_of(model),
        range_low_TF=low.numpy(), range_high_TF=high.numpy(), calibration=calibration,
        rising=tuple(model.get("rising", ())),
        compiled_graphs=model.get("compiled_graphs", "eager"),
    )  # fmt: skip


def _mapping(release: ReleaseLike, key: str) -> Mapping[str, Any]:
    value = release.config.get(key)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"checkpoint {release.name!r}: {key!r} is not a mapping")
    return value
