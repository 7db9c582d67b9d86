"""Kernels of the vocabulary with their measured times, from the units of a trace.

What is opaque is counted by the rule that says why, so that calls kept and dropped together are the
calls read. Equal kernels of a trace are one row: the median over their calls.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from predictor.cost.rules import kernel_cost
from predictor.graph.ir import DTYPE_BYTES, Kernel, Phase
from predictor.graph.ops import OPS
from predictor.traces.kineto.activity import Activity
from predictor.traces.kineto.events import ABSENT
from predictor.traces.kineto.names import KINDS, MEMCPY, MEMSET, collective_of
from predictor.traces.kineto.steps import Step, Steps
from predictor.traces.kineto.units import Unit

_COMMUNICATION = KINDS.index("communication")
_COLLECTIVE_DTYPES: Mapping[str, str] = {
    "float": "fp32", "float32": "fp32", "double": "fp64", "half": "fp16", "float16": "fp16",
    "bfloat16": "bf16", "int8": "int8", "char": "int8", "byte": "uint8", "uint8": "uint8",
    "int": "int32", "int32": "int32", "long": "int64", "int64": "int64", "bool": "bool",
}  # fmt: skip
_TF32 = re.compile(r"tf32|_s1688|_s16816", re.IGNORECASE)
"""Kernels of cuBLAS, cuDNN and CUTLASS that take fp32 operands through TF32 units."""


@dataclass(slots=True, kw_only=True)
class MeasuredKernel:
    """Equal kernels of one trace."""

    kernel: Kernel
    row: int
    """Place in the file of the first op (or event)."""
    times_us: array[float] = field(default_factory=lambda: array("d"))
    """Of each call."""
    flag: str = ""
    tf32: str = ""
    """`on` or `off` where the kernels' names tell, for fp32 matrix work."""


@dataclass(slots=True, kw_only=True)
class Dropped:
    """Calls without a row, by one rule."""

    first_row: int
    first_name: str
    calls: int = 0
    time_ns: Counter[str] = field(default_factory=Counter)
    """By name."""


@dataclass(slots=True, kw_only=True)
class Measured:
    """Kernels of one device of a trace."""

    kernels: list[MeasuredKernel]
    dropped: dict[str, Dropped]
    """By rule."""
    phases: set[Phase]
    """Phases that something ran in."""

    @property
    def calls(self) -> int:
        """Calls read: kept and dropped."""
        kept = sum(len(k.times_us) for k in self.kernels)
        return kept + sum(d.calls for d in self.dropped.values())


def measured_kernels(
    units: Iterable[Unit], activity: Activity, steps: Steps, *, keep_last: bool = False
) -> Measured:
    """Equal kernels together.

    Args:
        units: of the device.
        activity: of the device.
        steps: of the device; calls of a last step that may be cut off are dropped.
        keep_last: keep them.
    """
    cut = _cut_step(steps, keep_last=keep_last)
    found: dict[object, MeasuredKernel] = {}
    dropped: dict[str, Dropped] = {}
    phases: set[Phase] = set()
    for unit in units:
        phases.add(unit.phase)
        kernel, rule, flag = _kernel_of(unit, activity)
        if cut is not None and unit.launch_ns >= cut.host_start_ns:
            kernel, rule = None, "in_last_step"
        if kernel is None:
            out = dropped.get(rule)
            if out is None:
                out = dropped[rule] = Dropped(first_row=unit.row, first_name=unit.name)
            out.calls += 1
            out.time_ns[unit.name] += unit.time_ns
            continue
        tf32 = _tf32_of(unit, kernel, activity)
        key = (
            kernel.op, kernel.phase, tuple(sorted(kernel.dims.items())), kernel.dtype, tf32, flag,
            kernel.flops, kernel.read_bytes, kernel.write_bytes,
        )  # fmt: skip
        entry = found.get(key)
        if entry is None:
            entry = found[key] = MeasuredKernel(kernel=kernel, row=unit.row, flag=flag, tf32=tf32)
        entry.times_us.append(unit.time_ns / 1000)
    return Measured(kernels=list(found.values()), dropped=dropped, phases=phases)


def _cut_step(steps: Steps, *, keep_last: bool) -> Step | None:
    kept = steps.complete(keep_last=keep_last)
    return None if len(kept) == len(steps.all) else steps.all[-1]


def _kernel_of(unit: Unit, activity: Activity) -> tuple[Kernel | None, str, str]:
    """Kernel of a unit, the rule where it has none, and a flag."""
    if unit.events and activity.kind[unit.events[0]] == _COMMUNICATION:
        kernel, rule = _collective(unit, activity)
        return kernel, rule, "waits_for_peers" if kernel else ""
    if unit.events and (moved := _moved(unit, activity)) is not None:
        return moved, "", ""
    if unit.kernel is None:
        return None, unit.reason, ""
    return replace(unit.kernel, phase=unit.phase), "", ""


def _collective(unit: Unit, activity: Activity) -> tuple[Kernel | None, str]:
    detail = activity.events.detail_of(unit.events[0])
    if detail is None or detail.elements < 1:
        return None, "collective_size_not_recorded"
    if detail.ranks < 2:
        return None, "collective_group_not_recorded"
    dtype = _COLLECTIVE_DTYPES.get(detail.dtype.lower())
    if dtype is None:
        return None, "collective_dtype_unknown"
    op = collective_of(detail.collective or unit.name)
    dims = {"numel": detail.elements, "ranks": detail.ranks}
    return _made(op, unit.phase, dims, dtype), ""


def _moved(unit: Unit, activity: Activity) -> Kernel | None:
    """A unit that the copy engine or the driver did alone: bytes and direction are recorded.

    Copies on the device that an op of the vocabulary made stay what the op is.
    """
    events = activity.events
    some = np.array(unit.events)
    categories = set(events["category"][some].tolist())
    if not categories <= {MEMCPY, MEMSET} or len(categories) > 1:
        return None
    details = [events.detail_of(int(e)) for e in some]
    if any(d is None or d.size_bytes == ABSENT for d in details):
        return None
    size = sum(d.size_bytes for d in details if d is not None)
    name = events.name_of(int(some[0]))
    crosses = "HtoD" in name or "DtoH" in name
    if size < 1 or (unit.kernel is not None and not crosses):
        return None
    dtype = unit.kernel.dtype if unit.kernel is not None else "uint8"
    numel = int(size / DTYPE_BYTES[dtype])
    if MEMSET in categories:
        return _made("fill", unit.phase, {"numel": numel, "inputs": 0, "outputs": 1}, dtype)
    if crosses:
        return _made("transfer", unit.phase, {"numel": max(1, numel)}, dtype)
    return _made("copy", unit.phase, {"numel": numel, "inputs": 1, "outputs": 1}, dtype)


def _made(op: str, phase: Phase, dims: dict[str, int], dtype: str) -> Kernel:
    """A kernel with work and traffic by its op's rule."""
    cost = kernel_cost(op, {name: np.array([size]) for name, size in dims.items()}, dtype)
    flops, read, write = (
        float(np.ravel(np.asarray(value, dtype=np.float64))[0])
        for value in (cost.flops, cost.read_bytes, cost.write_bytes)
    )
    return Kernel(
        op=op, phase=phase, dims=dims, dtype=dtype, flops=flops, read_bytes=read,
        write_bytes=write, name=op,
    )  # fmt: skip


def _tf32_of(unit: Unit, kernel: Kernel, activity: Activity) -> str:
    if kernel.dtype != "fp32" or OPS[kernel.op].op_class not in ("matmul", "conv"):
        return ""
    if not unit.events:
        return ""
    names = [activity.events.name_of(e) for e in unit.events]
    return "on" if any(_TF32.search(name) for name in names) else "off"
