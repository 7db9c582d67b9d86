"""The parts of a release, checked before use: network sizes, tensors, calibration.

Every check raises `ValueError` with one line; `load_predictor` names the release around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeGuard

from torch import Tensor

from predictor.features.columns import COLUMNS, columns_hash
from predictor.features.compiled import COMPILED_GRAPHS
from predictor.features.table import OP_NAMES
from predictor.graph.ir import DTYPE_BYTES
from predictor.graph.ops import TOKENS
from predictor.hardware.kinds import KIND_NAMES
from predictor.nn.boosted_trees import BoostedTrees, trees_of
from predictor.nn.ensemble import Ensemble
from predictor.nn.fitted_roofline import FittedRoofline, roofline_of
from predictor.nn.interval_scales import BAND, OUTSIDE
from predictor.nn.kernel_model import KernelModel
from predictor.nn.latency_net import LatencyNet, NetConfig
from predictor.nn.rate_roofline import RateRoofline, rates_of
from predictor.nn.rising import RISING
from predictor.nn.tokens import trunk_tokens

NETWORK, BOOSTED_TREES, ROOFLINE = "latency_net", "boosted_trees", "roofline"
RATES = "rates"
"""Kinds of model that a release may hold."""
RANGES: tuple[str, ...] = ("range.low", "range.high")
LARGEST_SCALE = 10.0
"""Of an interval, in units of log latency: a factor of 22,000 either way."""
_SETTINGS: Mapping[Any, str] = {
    "int": "a whole number", "float": "a number from 0", "bool": "true or false",
}  # fmt: skip
"""What a field of `NetConfig` may be, by its type."""
_MODEL_KINDS: Mapping[str, type] = {
    "network": dict, "members": int, "devices": list, "learned": list,
}  # fmt: skip
_SCALES: Mapping[str, str] = {"isolated": "default", "in_step": "default", "step": "total"}
"""Interval scales by context, with the entry that must be there."""


def networks_of(
    model: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    columns: Sequence[str] = COLUMNS,
    tokens: Sequence[str] = TOKENS,
) -> tuple[LatencyNet, ...]:
    """The trained networks of a release, in evaluation mode.

    Args:
        model: its `model` entry.
        tensors: all its tensors, in today's order; weights may be stored as float16.
        columns: the feature columns that it was trained on, for the sizes that it states.
        tokens: its tokens, likewise.
    """
    _check_model(model, columns, tokens)
    sizes = {"ops": len(OP_NAMES), "features": len(COLUMNS), "tokens": len(TOKENS)}
    config = NetConfig(**{**model["network"], **sizes})
    nets = tuple(LatencyNet(config, trunk_tokens()) for _ in range(model["members"]))
    states = {f"member{i}.{k}": v for i, n in enumerate(nets) for k, v in n.state_dict().items()}
    _check_tensors(states, tensors)
    for i, net in enumerate(nets):
        state = {k: tensors[f"member{i}.{k}"] for k in net.state_dict()}
        net.load_state_dict(
            {k: v.float() if v.is_floating_point() else v for k, v in state.items()}
        )
        net.eval()
    return nets


def model_of(
    model: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    columns: Sequence[str] = COLUMNS,
    tokens: Sequence[str] = TOKENS,
) -> KernelModel:
    """The model of a release, of the kind that `model.kind` tells.

    Args:
        model: its `model` entry.
        tensors: all its tensors, in today's order.
        columns: the feature columns that it was trained on.
        tokens: its tokens.
    """
    kind = model.get("kind", NETWORK)
    _check_compiled(model)
    if kind == NETWORK:
        members = networks_of(model, tensors, columns, tokens)
        return Ensemble(members=members, devices=tuple(map(str, model["devices"])))
    if kind not in (BOOSTED_TREES, ROOFLINE, RATES):
        known = ", ".join((NETWORK, BOOSTED_TREES, ROOFLINE, RATES))
        raise ValueError(f"model.kind is {kind!r}; known: {known}")
    for key in ("devices", "learned"):
        if not isinstance(model.get(key), list):
            raise ValueError(f"model.{key} is {model.get(key)!r}, not a list")
    _check_learned(model)
    devices = tuple(map(str, model["devices"]))
    own: BoostedTrees | FittedRoofline | RateRoofline
    if kind == BOOSTED_TREES:
        own = trees_of(tensors, devices, columns, tokens)
    elif kind == RATES:
        own = rates_of(tensors, devices, model.get("op_classes"))
    else:
        own = roofline_of(tensors, devices, model.get("op_classes"))
    _check_tensors({name: tensors[name] for name in own.stored}, tensors)
    return own


def ops_of(model: Mapping[str, Any]) -> list[str]:
    """The ops that a release knows; without a list of them, today's."""
    ops = model.get("ops", list(OP_NAMES))
    return ops if isinstance(ops, list) else []


def _check_model(model: Mapping[str, Any], columns: Sequence[str], tokens: Sequence[str]) -> None:
    """Kinds of the values of `model`, and its sizes against the names that it states."""
    for key, kind in _MODEL_KINDS.items():
        if not isinstance(model.get(key), kind) or isinstance(model[key], bool):
            raise ValueError(f"model.{key} is {model.get(key)!r}, not {_article(kind)}")
    if model["members"] < 1:
        raise ValueError(f"model.members is {model['members']}, at least 1 is needed")
    _check_network(model["network"], {"features": len(columns), "tokens": len(tokens)})
    network, devices = model["network"], model["devices"]
    if network["hosts"] != len(devices):
        raise ValueError(f"network.hosts is {network['hosts']}, devices are {len(devices)}")
    if network["ops"] != len(ops_of(model)):
        raise ValueError(f"network.ops is {network['ops']}, model.ops does not list as many")
    _check_learned(model)
    _check_rising(model)


def _check_learned(model: Mapping[str, Any]) -> None:
    """What was learned, and (in releases that tell) on which device each pair was measured."""
    _check_entries(model["learned"], "model.learned", (2, 3))
    measured = model.get("measured", {})
    if not isinstance(measured, dict):
        raise ValueError(f"model.measured is {measured!r}, not a mapping of devices")
    for device, pairs in measured.items():
        if device not in model["devices"]:
            raise ValueError(f"model.measured tells of {device!r}, which model.devices does not")
        _check_entries(pairs, f"model.measured.{device}", (2,))


def _check_rising(model: Mapping[str, Any]) -> None:
    """Op classes held to rise with the batch: kernels are asked for alone, so none have edges."""
    rising = model.get("rising", [])
    if not isinstance(rising, list) or not all(name in RISING for name in rising):
        raise ValueError(f"model.rising is {rising!r}, not a list of {', '.join(RISING)}")
    if rising and model["network"]["message_layers"]:
        raise ValueError("model.rising needs a network without message_layers")


def _check_compiled(model: Mapping[str, Any]) -> None:
    """Which kernels compiled steps were learned with; releases before the choice: eager's."""
    graphs = model.get("compiled_graphs", "eager")
    if graphs not in COMPILED_GRAPHS:
        known = ", ".join(COMPILED_GRAPHS)
        raise ValueError(f"model.compiled_graphs is {graphs!r}; known: {known}")


def _check_entries(entries: object, where: str, lengths: Sequence[int]) -> None:
    """A list of lists of so many texts: token, dtype, and a kind of device where three may be."""
    if not isinstance(entries, list):
        raise ValueError(f"{where} is {entries!r}, not a list")
    for entry in entries:
        fits = isinstance(entry, list) and len(entry) in lengths
        if not fits or not all(isinstance(name, str) for name in entry):
            kind = ", or with a kind of device" if 3 in lengths else ""
            raise ValueError(f"{where} holds {entry!r}, not token and dtype{kind}")
        if entry[1] not in DTYPE_BYTES:
            raise ValueError(f"{where} holds {entry!r}: no dtype {entry[1]!r}")
        if len(entry) == 3 and entry[2] not in KIND_NAMES:
            raise ValueError(f"{where} holds {entry!r}: no kind of device {entry[2]!r}")


def _check_network(network: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    known = {f.name: f for f in fields(NetConfig)}
    for key, value in network.items():
        if key not in known:
            raise ValueError(f"unknown key network.{key}; known: {', '.join(known)}")
        if not _is_setting(value, known[key].type):
            raise ValueError(f"network.{key} is {value!r}, not {_SETTINGS[known[key].type]}")
    for key, spec in known.items():
        if spec.default is MISSING and key not in network:
            raise ValueError(f"network.{key} is missing")
    for key, size in sizes.items():
        if network[key] != size:
            raise ValueError(f"network.{key} is {network[key]}, its names are {size}")


def _is_setting(value: object, kind: Any) -> bool:
    """Whether a value of `config.json` can be a field of that type; JSON writes 3.0 as 3 too."""
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and value >= 0
    return isinstance(value, int | float) and 0 <= value < math.inf


def _check_tensors(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Names and shapes of all tensors, none left over."""
    for name in RANGES:
        shape = tuple(found[name].shape) if name in found else None
        if shape != (len(TOKENS), len(COLUMNS)):
            raise ValueError(f"tensor {name} is {_shape(shape)}, not tokens x features")
    for name, tensor in expected.items():
        shape = tuple(found[name].shape) if name in found else None
        if shape != tuple(tensor.shape):
            raise ValueError(f"tensor {name} is {_shape(shape)}, not {_shape(tuple(tensor.shape))}")
    for name in found:
        if name not in expected and name not in RANGES:
            raise ValueError(f"tensor {name} belongs to nothing")


def check_calibration(calibration: Mapping[str, Any]) -> None:
    """Level, and a scale for devices seen and unseen in every context."""
    level = calibration.get("level")
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"calibration.level is {level!r}, not a share")
    for context, needed in _SCALES.items():
        by_kind = calibration.get(context)
        for kind in ("seen", "unseen"):
            scales = by_kind.get(kind) if isinstance(by_kind, dict) else None
            if not isinstance(scales, dict) or needed not in scales:
                raise ValueError(f"calibration.{context}.{kind}.{needed} is missing")
            for name, value in scales.items():
                whole = context == "step" or name in (BAND, OUTSIDE)
                low = 0.0 if whole else -LARGEST_SCALE  # a half width, or its correction
                if not _is_number(value) or not low <= value <= LARGEST_SCALE:
                    raise ValueError(
                        f"calibration.{context}.{kind}.{name} is {value!r}, not a number from "
                        f"{low:g} to {LARGEST_SCALE:g}"
                    )


def check_columns(features: Mapping[str, Any], vocabulary: object) -> tuple[list[str], list[str]]:
    """Names behind the weights: its columns and tokens, as its hash says."""
    columns = features.get("columns")
    if not _is_names(columns) or not _is_names(vocabulary):
        raise ValueError("features.columns and vocabulary are not lists of different names")
    if features.get("hash") != columns_hash(columns, vocabulary):
        raise ValueError(
            "features.columns and vocabulary are not those that features.hash stands for, or "
            "their meaning changed since"
        )
    return columns, vocabulary


def _is_names(value: Any) -> TypeGuard[list[str]]:
    texts = isinstance(value, list) and all(isinstance(v, str) for v in value)
    return texts and len(set(value)) == len(value) > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _article(kind: type) -> str:
    return {dict: "a mapping", int: "an integer", list: "a list"}[kind]


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape)) or "a number"
