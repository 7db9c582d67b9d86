"""Where the time of a kernel comes from: learned on the device, transferred, or a roofline.

Legend: N kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from predictor.features.columns import token_of
from predictor.features.roofline import op_class_of
from predictor.features.table import KernelTable
from predictor.graph.ops import TOKENS
from predictor.hardware.device import FUSED, Device
from predictor.hardware.kinds import and_list
from predictor.hardware.peaks import MATRIX_CLASSES
from predictor.nn.learned import Entry, Measured, speaks, speaks_on_lanes
from predictor.nn.priors import (
    EFFICIENCY,
    FOREIGN_FACTOR,
    SPREAD,
    SPREAD_DEFAULT,
    SPREAD_OF_KIND,
)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
CARRIED: Mapping[str, str] = {
    FUSED: "TensorRT or ONNX Runtime", "jax": "XLA", "torch_xla": "XLA",
}  # fmt: skip
"""Runtimes without a measured row on GPUs and processors, by framework."""
ELSEWHERE = 0.1
"""Share of the time in classes never measured on a known device, beyond which it is said."""


def spoken_for(
    learned: Collection[Entry], table: KernelTable, path: NDArray[np.str_], device: Device
) -> Flags:
    """(N,) whether the model speaks for each kernel.

    It does where rows of the kernel's token and dtype were measured on such a kind of device and
    the same hardware path: fp32 convolutions on fp32 lanes say nothing of TF32 ones. Halves
    on fp32 lanes it knows from rows of the device.
    """
    known = _of_kinds(table, lambda token, dtype: speaks(learned, token, dtype, device.kind))
    lanes = _of_kinds(table, lambda t, dtype: speaks_on_lanes(learned, t, dtype, device.id))
    return known & np.where(on_native_path(table, path), True, lanes & (path == "fp32"))


def measured_here(measured: Measured, table: KernelTable, device: str) -> Flags:
    """(N,) whether the class of each kernel was measured on the device."""
    return _of_kinds(table, lambda token, dtype: measured.here(device, token, dtype))


def _of_kinds(table: KernelTable, holds: Callable[[str, str], bool]) -> Flags:
    """(N,) what holds for the token and dtype of each kernel."""
    pairs = zip(token_of(table), table.dtype, strict=True)
    return np.fromiter((holds(TOKENS[t], str(d)) for t, d in pairs), dtype=bool, count=len(table))


def labels(table: KernelTable, learned: Flags, here: Flags) -> NDArray[np.str_]:
    """Label of each kernel.

    Args:
        table: the kernels.
        learned: whether the model speaks for each.
        here: whether its class was measured on this device.
    """
    unlearned = np.where(op_class_of(table) == "opaque", "opaque", "roofline")
    return np.where(learned, np.where(here, "learned", "transferred"), unlearned)


def elsewhere_warning(
    checkpoint: str, device: str, table: KernelTable, time_us: Floats, elsewhere: Flags
) -> tuple[str, ...]:
    """Says so where much of a known device's time is in classes that were not measured on it."""
    whole = float(time_us.sum())
    share = float(time_us[elsewhere].sum()) / whole if whole > 0 else 0.0
    if share <= ELSEWHERE:
        return ()
    classes, dtypes = op_class_of(table)[elsewhere], table.dtype[elsewhere]
    told = np.where(np.isin(classes, list(MATRIX_CLASSES)), np.char.add(" ", dtypes), "")
    names, place = np.unique(np.char.add(classes.astype(str), told), return_inverse=True)
    cost = np.bincount(place.reshape(-1), weights=time_us[elsewhere])
    costliest = [str(names[i]).replace("_", " ") for i in np.argsort(-cost, kind="stable")]
    return (
        f"{share:.1%} of the time is in kernels that {checkpoint} learned on other devices, never "
        f"on {device}: {and_list(costliest)}",
    )


def carried_warning(framework: str, learned: Flags) -> tuple[str, ...]:
    """Says so where learned kernels run in a runtime that no measured row is of."""
    if framework not in CARRIED or not learned.any():
        return ()
    return (
        "learned times are those of kernels under PyTorch and serving libraries, carried to this "
        f"runtime: no measured row is of {CARRIED[framework]}",
    )


def reaching(time_N3: Floats) -> Floats:
    """(N, 3) times whose ends are a factor `FOREIGN_FACTOR` or more from the mid."""
    lower, mid, upper = time_N3.T
    ends = np.minimum(lower, mid / FOREIGN_FACTOR), mid, np.maximum(upper, mid * FOREIGN_FACTOR)
    return np.stack(ends, axis=1)


def on_native_path(table: KernelTable, path: NDArray[np.str_]) -> NDArray[np.bool_]:
    """(N,) whether no matrix unit of another dtype than the kernel's does its arithmetic."""
    matrix = np.isin(op_class_of(table), sorted(MATRIX_CLASSES))
    return np.asarray(~(matrix & (path != "") & (path != table.dtype)))


def unlearned_us(
    table: KernelTable, base_us: Floats, link_us: Floats | None = None, *, kind: str = "gpu"
) -> Floats:
    """(N, 3) assumed times of kernels that no measured row covers.

    Args:
        table: the kernels.
        base_us: their rooflines.
        kind: of the device.
        link_us: time of collectives over the links, where it is known: what they take at least.
    """
    classes = op_class_of(table)
    efficiency = np.array([EFFICIENCY[str(c)] for c in classes])
    spread = np.array([SPREAD.get(str(c), SPREAD_DEFAULT) for c in classes]).reshape(-1, 2)
    low, high = SPREAD_OF_KIND.get(kind, (np.inf, 0.0))
    spread = np.stack([np.minimum(spread[:, 0], low), np.maximum(spread[:, 1], high)], axis=1)
    mid = base_us / efficiency
    if link_us is not None:
        mid = np.maximum(mid, link_us)
    return np.stack([mid * spread[:, 0], mid, mid * spread[:, 1]], axis=1)
