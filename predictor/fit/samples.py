"""Samples of kernels measured alone: rows as tensors, featurised per device and software.

Legend: N kernels, F features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.features.columns import COLUMNS, node_features, scalar_argument
from predictor.features.table import CONTEXTS
from predictor.fit.coverage import NO_COVERAGE, Coverage, coverage_of, joined
from predictor.fit.software import software_of
from predictor.hardware.catalogue import resolve_device
from predictor.nn.ensemble import effect_index
from predictor.traces.schema import kernel_table

if TYPE_CHECKING:
    import pandas as pd

KERNEL_GROUP = (
    "device", "dtype", "framework", "framework_version", "execution", "layout", "tf32", "amp",
    "library", "scheme", "routing",
)  # fmt: skip
"""Columns that decide device and software of a kernel row."""
HOSTED: tuple[int, ...] = (CONTEXTS.index("isolated"), CONTEXTS.index("in_step"))
"""Contexts whose times hold the host's launch."""
KERNEL_ROWS = 65_536
"""Kernels that are predicted at a time: memory stays bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSamples:
    """What the network reads of N kernels, wherever they were measured."""

    x_NF: Tensor
    token_N: Tensor
    base_us_N: Tensor
    datasheet_us_N: Tensor
    op_N: Tensor
    scalar_arg_N: Tensor
    device_N: Tensor
    """Index of the device's own effect (its twin's where only that is known), -1 for none."""
    host_N: Tensor
    """Index of the measuring host, -1 for one never seen."""
    coverage: Coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSamples(NodeSamples):
    """N kernels measured alone."""

    measured_us_N: Tensor
    weight_N: Tensor
    isolated_N: Tensor
    """1 of one op in a loop, timed with its launch."""
    hosted_N: Tensor
    """1 where the host's launch is in the time (alone or inside a step), 0 for device time."""
    row_id: tuple[str, ...]
    row_N: NDArray[np.int64]
    """Position of each among the rows that were given."""


def kernel_samples(
    rows: pd.DataFrame, hosts: Sequence[str], refused: Counter[str] | None = None
) -> KernelSamples:
    """Samples of kernel rows; a device outside `hosts` gets host -1.

    Rows are weighted by the inverse square root of how many rows share their op and device, so
    that large sweeps do not drown small ones.

    Args:
        rows: kernel rows.
        hosts: devices with effects of their own.
        refused: counts the rows whose device has no rate for them, by error, and leaves them out;
            without it they raise.

    Raises:
        UnsupportedPrecision, UnknownRateError: a device has no rate for a row.
    """
    parts: list[dict[str, Any]] = []
    groups: Any = rows.groupby(list(KERNEL_GROUP), sort=True).indices
    for key, where in sorted(groups.items()):
        facts = dict(zip(KERNEL_GROUP, key, strict=True))
        device, group = str(facts["device"]), rows.iloc[where]
        table, described = kernel_table(group), resolve_device(device)
        try:
            features = node_features(table, described, software_of(facts))
        except (UnsupportedPrecision, UnknownRateError) as error:
            if refused is None:
                raise
            refused[type(error).__name__] += len(group)
            continue
        parts.append(
            {
                "x_NF": features.x, "token_N": features.token,
                "base_us_N": features.roofline.base_us,
                "datasheet_us_N": features.roofline.datasheet_us, "op_N": table.op.astype(np.int64),
                "scalar_arg_N": scalar_argument(table),
                "host_N": np.full(len(table), hosts.index(device) if device in hosts else -1),
                "device_N": np.full(len(table), effect_index(device, hosts)),
                "measured_us_N": group["latency_us"].to_numpy(),
                "isolated_N": (table.context == CONTEXTS.index("isolated")).astype(np.float32),
                "hosted_N": np.isin(table.context, HOSTED).astype(np.float32),
                "coverage": coverage_of(table, features, described),
                "row_id": group["row_id"].tolist(),
                "row_N": where,
            }
        )  # fmt: skip
    if not parts:
        return _no_kernels()
    ids = tuple(i for part in parts for i in part.pop("row_id"))
    row_N = np.concatenate([part.pop("row_N") for part in parts])
    coverage = joined([part.pop("coverage") for part in parts])
    columns = {k: tensor_of(np.concatenate([p.pop(k) for p in parts])) for k in list(parts[0])}
    key_N = columns["op_N"] * (len(hosts) + 2) + columns["host_N"] + 1
    _, inverse, counts = torch.unique(key_N, return_inverse=True, return_counts=True)
    weight = counts[inverse].float().rsqrt()
    return KernelSamples(
        weight_N=weight / weight.mean(), row_id=ids, row_N=row_N, coverage=coverage, **columns
    )


def _no_kernels() -> KernelSamples:
    none, index = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    return KernelSamples(
        x_NF=torch.zeros(0, len(COLUMNS)), token_N=index, base_us_N=none, datasheet_us_N=none,
        op_N=index, scalar_arg_N=none, device_N=index, host_N=index, measured_us_N=none,
        weight_N=none, isolated_N=none, hosted_N=none, coverage=NO_COVERAGE, row_id=(),
        row_N=np.zeros(0, dtype=np.int64),
    )  # fmt: skip


def tensor_of(values: NDArray[Any]) -> Tensor:
    """Whole numbers as `long`, others as `float32`."""
    dtype = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float32
    return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
