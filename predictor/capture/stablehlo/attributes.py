"""Attributes of StableHLO operations as plain values: one row an operation that needs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from predictor.capture.stablehlo.mosaic import MOSAIC, mosaic_facts

Attrs: TypeAlias = Mapping[str, Any]
"""Attributes of an MLIR operation by name."""
Reading: TypeAlias = Callable[[Attrs], dict[str, object]]

_CONVOLUTION_DIMENSIONS = (
    "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions",
    "kernel_input_feature_dimension", "kernel_output_feature_dimension",
    "kernel_spatial_dimensions", "output_batch_dimension", "output_feature_dimension",
    "output_spatial_dimensions",
)  # fmt: skip
_GATHER_DIMENSIONS = (
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims",
    "start_indices_batching_dims", "start_index_map", "index_vector_dim",
)  # fmt: skip
_SCATTER_DIMENSIONS = (
    "update_window_dims", "inserted_window_dims", "input_batching_dims",
    "scatter_indices_batching_dims", "scattered_dims_to_operand_dims", "index_vector_dim",
)  # fmt: skip

_LHS_TYPE = re.compile(r"lhs_precision_type = (\w+)")
_PRODUCTS = re.compile(r"num_primitive_operations = (\d+)")
_ALGORITHM_DTYPES: Mapping[str, str] = {
    "f64": "fp64", "f32": "fp32", "tf32": "tf32", "f16": "fp16", "bf16": "bf16",
}  # fmt: skip
"""Library dtype of the types that an algorithm multiplies in; `f8…` are fp8."""


def ints(value: Any) -> list[int]:
    """Integers of an array or dense attribute, row by row."""
    return [int(v) for v in value]


def _plain(value: Any) -> object:
    return int(value) if isinstance(value, int) else ints(value)


def _array(*names: str) -> Reading:
    """Integer arrays; absent ones are left out."""
    return lambda attrs: {name: ints(attrs[name]) for name in names if name in attrs}


def _integer(*names: str) -> Reading:
    return lambda attrs: {name: int(attrs[name].value) for name in names if name in attrs}


def _words(attrs: Attrs, name: str) -> list[str]:
    """The last words of enumeration attributes: `#stablehlo<precision HIGHEST>` is `HIGHEST`."""
    if name not in attrs:
        return []
    return [str(one).rstrip(">").split()[-1] for one in attrs[name]]


def _groups(attrs: Attrs) -> dict[str, object]:
    """How many devices exchange, from the shape of the replica groups."""
    found: dict[str, object] = {}
    for name in ("replica_groups", "source_target_pairs"):
        if name in attrs:
            found[name] = [int(size) for size in attrs[name].type.shape]
    for name in ("all_gather_dim", "scatter_dimension", "split_dimension", "concat_dimension"):
        if name in attrs:
            found[name] = int(attrs[name].value)
    return found


def _dot_general(attrs: Attrs) -> dict[str, object]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.DotDimensionNumbers(attrs["dot_dimension_numbers"])
    return {
        "lhs_batch": ints(numbers.lhs_batching_dimensions),
        "rhs_batch": ints(numbers.rhs_batching_dimensions),
        "lhs_contract": ints(numbers.lhs_contracting_dimensions),
        "rhs_contract": ints(numbers.rhs_contracting_dimensions),
        "precision": _words(attrs, "precision_config"),
        **_algorithm(attrs),
    }


def _algorithm(attrs: Attrs) -> dict[str, object]:
    """Dtype that a named algorithm multiplies in, and how many products it makes of one."""
    if "algorithm" not in attrs:
        return {}
    text = str(attrs["algorithm"])
    kind, count = _LHS_TYPE.search(text), _PRODUCTS.search(text)
    if kind is None or count is None:
        raise ValueError(f"dot algorithm {text[:80]}")
    named = "fp8" if kind[1].startswith("f8") else _ALGORITHM_DTYPES[kind[1]]
    return {"algorithm": [named, int(count[1])]}


def _dot(attrs: Attrs) -> dict[str, object]:
    return {"precision": _words(attrs, "precision_config")}


def _convolution(attrs: Attrs) -> dict[str, object]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ConvDimensionNumbers(attrs["dimension_numbers"])
    found = {name: _plain(getattr(numbers, name)) for name in _CONVOLUTION_DIMENSIONS}
    for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation"):
        if name in attrs:
            found[name] = ints(attrs[name])
    if "window_reversal" in attrs:
        found["window_reversal"] = [bool(v) for v in attrs["window_reversal"]]
    for name in ("feature_group_count", "batch_group_count"):
        found[name] = int(attrs[name].value)
    return {**found, "precision": _words(attrs, "precision_config")}


def _gather(attrs: Attrs) -> dict[str, object]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.GatherDimensionNumbers(attrs["dimension_numbers"])
    found = {name: _plain(getattr(numbers, name)) for name in _GATHER_DIMENSIONS}
    return {**found, "slice_sizes": ints(attrs["slice_sizes"])}


def _scatter(attrs: Attrs) -> dict[str, object]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ScatterDimensionNumbers(attrs["scatter_dimension_numbers"])
    found = {name: _plain(getattr(numbers, name)) for name in _SCATTER_DIMENSIONS}
    return {**found, "unique": "unique_indices" in attrs and bool(attrs["unique_indices"].value)}


def _custom_call(attrs: Attrs) -> dict[str, object]:
    found: dict[str, object] = {"target": attrs["call_target_name"].value}
    config = attrs.get("backend_config", None)
    if found["target"] == MOSAIC and isinstance(held := getattr(config, "value", None), str):
        found |= mosaic_facts(held)
    elif config is not None:
        found["config"] = str(config)[:4000]
    for name in ("mhlo.sharding", "kernel_name"):
        if name in attrs:
            found[name] = attrs[name].value
    more = attrs.get("mhlo.backend_config", None)
    if more is not None and "name" in more:  # a Triton kernel
        found.setdefault("kernel_name", more["name"].value)
    return found


def _constant(attrs: Attrs) -> dict[str, object]:
    """The value of one integer, and whether all elements are equal; large data is not read."""
    value = attrs["value"]
    numel = 1
    for size in value.type.shape:
        numel *= size
    splat = numel == 1 or bool(getattr(value, "is_splat", False))
    found: dict[str, object] = {"splat": splat}
    if splat and str(value).startswith("dense<1.000000e+00>"):
        found["one"] = True
    if numel == 1 and str(value.type.element_type).startswith(("i", "ui")):
        found["value"] = int(value[0])
    return found


def _compare(attrs: Attrs) -> dict[str, object]:
    return {"direction": str(attrs["comparison_direction"]).rstrip(">").split()[-1]}


def _fft(attrs: Attrs) -> dict[str, object]:
    kind = str(attrs["fft_type"]).rstrip(">").split()[-1]
    return {"kind": kind, "length": ints(attrs["fft_length"])}


def _composite(attrs: Attrs) -> dict[str, object]:
    return {"name": attrs["name"].value, "decomposition": attrs["decomposition"].value}


def _sharding(attrs: Attrs) -> dict[str, object]:
    return {"sharding": str(attrs["sharding"])}


def _manual(attrs: Attrs) -> dict[str, object]:
    return {name: str(attrs[name]) for name in ("in_shardings", "out_shardings") if name in attrs}


_COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute",
    "collective_broadcast",
)  # fmt: skip

READINGS: Mapping[str, Reading] = {
    "func.call": lambda attrs: {"callee": attrs["callee"].value},
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dot": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.broadcast_in_dim": _array("broadcast_dimensions"),
    "stablehlo.transpose": _array("permutation"),
    "stablehlo.reduce": _array("dimensions"),
    "stablehlo.reverse": _array("dimensions"),
    "stablehlo.reduce_window": _array(
        "window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding"
    ),
    "stablehlo.select_and_scatter": _array("window_dimensions", "window_strides", "padding"),
    "stablehlo.slice": _array("start_indices", "limit_indices", "strides"),
    "stablehlo.dynamic_slice": _array("slice_sizes"),
    "stablehlo.pad": _array("edge_padding_low", "edge_padding_high", "interior_padding"),
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.concatenate": _integer("dimension"),
    "stablehlo.sort": _integer("dimension"),
    "stablehlo.iota": _integer("iota_dimension"),
    "stablehlo.get_tuple_element": _integer("index"),
    "stablehlo.custom_call": _custom_call,
    "stablehlo.constant": _constant,
    "stablehlo.compare": _compare,
    "stablehlo.fft": _fft,
    "stablehlo.composite": _composite,
    "chlo.top_k": _integer("k"),
    "sdy.sharding_constraint": _sharding,
    "sdy.reshard": _sharding,
    "sdy.manual_computation": _manual,
    **{f"stablehlo.{name}": _groups for name in _COLLECTIVES},
}  # fmt: skip
"""What is read of each operation; operations without a row have no attribute that matters."""
