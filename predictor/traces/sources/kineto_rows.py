"""Rows of the schema from what was read of one device of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.roofline import roofline
from predictor.graph.ops import DIM_NAMES
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.traces.kineto.activity import HOST
from predictor.traces.kineto.reading import TraceReading
from predictor.traces.schema import Imported, filled, kernel_table

if TYPE_CHECKING:
    import pandas as pd

_SINGLE = "single_step"
_NOISY = "noisy"


def kernel_rows(
    reading: TraceReading, device: str | None, common: Mapping[str, Any], out: Imported
) -> pd.DataFrame:
    """A row a kernel; what has none is counted in `out` by rule.

    Args:
        reading: of one device.
        device: catalogue id, None where it is not known: then all calls are refused.
        common: columns that all rows share.
        out: where refused calls are counted.
    """
    file = str(common["file"])
    measured = reading.measured
    for rule, dropped in measured.dropped.items():
        out.reject(
            file=file, row=dropped.first_row, column="op", value=dropped.first_name, rule=rule,
            rows=dropped.calls,
        )  # fmt: skip
    kernels = measured.kernels
    if device is None and kernels:
        out.reject(
            file=file, row=kernels[0].row, column="device", value=reading.summary.device,
            rule=no_device_rule(reading), rows=sum(len(k.times_us) for k in kernels),
        )  # fmt: skip
        kernels = []
    dims = np.full((len(kernels), len(DIM_NAMES)), -1, dtype=np.int64)
    for row, one in zip(dims, kernels, strict=True):
        for place, name in enumerate(DIM_NAMES):
            row[place] = one.kernel.dims.get(name, -1)
    times = [np.array(k.times_us) for k in kernels]
    values = {
        **common, **_software(reading), "context": "step", "device": device or "",
        "row": np.array([k.row for k in kernels], dtype=np.int64),
        "row_id": [f"{common['source']}:{file.removesuffix('.gz')}:{k.row}" for k in kernels],
        **{
            column: [getattr(k.kernel, column) for k in kernels]
            for column in ("op", "phase", "dtype", "flops", "read_bytes", "write_bytes")
        },
        "latency_us": [float(np.median(t)) for t in times],
        "spread_us": [float(t.std()) for t in times],
        "repeats": [float(len(t)) for t in times],
        "tf32": [k.tf32 for k in kernels], "flag": [k.flag for k in kernels],
        "model": model_name(file),
        **{f"dim_{name}": dims[:, place] for place, name in enumerate(DIM_NAMES)},
    }  # fmt: skip
    return filled("kernels", values, len(kernels))


def step_rows(
    reading: TraceReading, device: str | None, common: Mapping[str, Any], out: Imported
) -> pd.DataFrame:
    """One row for the steps of a device, or none."""
    file, summary = str(common["file"]), reading.summary
    rule = ""
    if summary.steps_found == "whole":
        rule = "no_step_found"
    elif reading.sampled:
        rule = "events_left_out"
    elif device is None:
        rule = no_device_rule(reading)
    if rule:
        out.reject(
            file=file, row=None, column="device" if device is None else "step",
            value=summary.device or summary.steps_found, rule=rule,
        )  # fmt: skip
        return filled("steps", {}, 0)
    lengths = np.array(reading.step_lengths_us)
    values = {
        **common, **_software(reading), "device": device, "row": 0,
        "row_id": f"{common['source']}:{file.removesuffix('.gz')}:step:{reading.number}",
        "model": model_name(file), "mode": reading.mode, "dtype": reading.step_dtype,
        "devices": float(summary.world_size), "measure": "wall",
        "latency_us": float(np.median(lengths)), "spread_us": float(lengths.std()),
        "repeats": float(len(lengths)), "flag": _steps_flag(lengths),
    }  # fmt: skip
    return filled("steps", values, 1)


def _steps_flag(lengths_us: NDArray[np.float64]) -> str:
    """`single_step`; `noisy` where lengths spread by more than their median; else empty."""
    if len(lengths_us) == 1:
        return _SINGLE
    return _NOISY if lengths_us.std() > np.median(lengths_us) else ""


def no_device_rule(reading: TraceReading) -> str:
    """The rule by which rows without a device of the catalogue are refused."""
    return "device_not_named" if reading.summary.device in ("", HOST) else "unknown_device"


def floor_share(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Physical floor of each kernel row by its time; TF32 where the kernels' names tell it."""
    share = np.zeros(len(rows))
    for key, index in rows.groupby(["device", "tf32"]).indices.items():
        assert isinstance(key, tuple)
        device, on = key[0], key[1] == "on"
        software = Software(matmul_tf32=on, conv_tf32=on)
        some = rows.iloc[index]
        floor_us = roofline(kernel_table(some), resolve_device(str(device)), software).floor_us
        share[index] = floor_us / some["latency_us"].to_numpy(dtype=np.float64)
    return share


def model_name(file: str) -> str:
    """A trace's name without folder and endings."""
    return file.rpartition("/")[2].partition(".json")[0]


def _software(reading: TraceReading) -> dict[str, Any]:
    replayed = reading.summary.replayed > 0
    return {
        "framework": "pytorch", "framework_version": reading.framework_version,
        "execution": "cuda_graph" if replayed else "eager",
    }  # fmt: skip
