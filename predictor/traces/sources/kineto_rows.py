"""Rows of the schema from what was read of one device of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.roofline import roofline
from predictor.graph.ops import DIM_NAMES
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.traces.cells import device_id
from predictor.traces.kineto.activity import HOST
from predictor.traces.kineto.reading import TraceReading
from predictor.traces.schema import Imported, filled, kernel_table

if TYPE_CHECKING:
    import pandas as pd

OTHER_KIND = "device_of_other_kind"
"""Rule by which times of the host are no rows of a GPU, and kernels none of a processor."""
_SINGLE = "single_step"
_NOISY = "noisy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDevice:
    """What the device of a reading was taken for."""

    name: str
    """As the trace, or else the user, calls it."""
    id: str = ""
    """Of the catalogue or a device file; empty where rows cannot be of it."""
    rule: str = ""
    """By which rows are refused then."""


def traced_device(source: str, reading: TraceReading, given: str | None) -> TracedDevice:
    """What the device of a reading is: the trace's own name counts, else the one given.

    Times of the host alone are of a processor, kernels of anything else: another kind of device is
    refused, whoever named it.

    Args:
        source: whose aliases count first.
        reading: of one device.
        given: id of the device of traces that name none, or name one that is not known.
    """
    name = reading.summary.device
    named = "" if name in ("", HOST) else name
    found = (device_id(source, named) if named else None) or given
    if found is None:
        return TracedDevice(name=name, rule="unknown_device" if named else "device_not_named")
    of_host = name == HOST
    if of_host != (resolve_device(found).kind == "cpu"):
        return TracedDevice(name=found, rule=OTHER_KIND)
    return TracedDevice(name=name or found, id=found)


def kernel_rows(
    reading: TraceReading, device: TracedDevice, common: Mapping[str, Any], out: Imported
) -> pd.DataFrame:
    """A row a kernel; what has none is counted in `out` by rule.

    Args:
        reading: of one device.
        device: what it was taken for; without an id all calls are refused.
        common: columns that all rows share.
        out: where refused calls are counted.
    """
    file = str(common["file"])
    measured = reading.measured
    for rule, dropped in measured.dropped.items():
        out.reject(
            file=file, row=dropped.first_row, column="op", value=dropped.first_name, rule=rule,
            rows=dropped.calls, logged=False,
        )  # fmt: skip
    kernels = measured.kernels
    if not device.id and kernels:
        out.reject(
            file=file, row=kernels[0].row, column="device", value=device.name, rule=device.rule,
            rows=sum(len(k.times_us) for k in kernels), logged=False,
        )  # fmt: skip
        kernels = []
    dims = np.full((len(kernels), len(DIM_NAMES)), -1, dtype=np.int64)
    for row, one in zip(dims, kernels, strict=True):
        for place, name in enumerate(DIM_NAMES):
            row[place] = one.kernel.dims.get(name, -1)
    times = [np.array(k.times_us) for k in kernels]
    values = {
        **common, **_software(reading), "context": "step", "device": device.id,
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


def no_step_row(reading: TraceReading, device: TracedDevice) -> str:
    """Why the steps of a device have no row, by rule; empty where they have one."""
    if reading.summary.steps_found == "whole":
        return "no_step_found"
    return "events_left_out" if reading.sampled else device.rule


def step_rows(
    reading: TraceReading, device: TracedDevice, common: Mapping[str, Any]
) -> pd.DataFrame:
    """One row for the steps of a device, or none (`no_step_row` says why)."""
    if no_step_row(reading, device):
        return filled("steps", {}, 0)
    file, summary = str(common["file"]), reading.summary
    lengths = np.array(reading.step_lengths_us)
    values = {
        **common, **_software(reading), "device": device.id, "row": 0,
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
