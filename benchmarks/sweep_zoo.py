"""Every bundled model on every device of the catalogue: what is answered, what refused, and why.

Run: `python benchmarks/sweep_zoo.py [--checkpoint NAME|DIR] [--model NAME ...] [--device ID ...]`.
Each program is captured once and estimated on all devices, in fp32 and in one reduced precision
(bf16, or fp16 autocast where the device has no bf16), for inference and for training. Answers must
be finite, positive, ordered and never below the physical floor; a refusal must have one of the
reasons that the catalogue justifies. Exits with 1 when anything breaks these rules.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from predictor.api import Predictor, capture, compare, load
from predictor.checkpoint import DEFAULT_CHECKPOINT
from predictor.errors import UnknownDeviceError
from predictor.graph.ir import KernelGraph, OpGraph
from predictor.graph.ops import OPS
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.device import Device, Software
from predictor.hardware.peaks import MATRIX_CLASSES, max_clock_peak_tflops, supported_dtypes
from predictor.hardware.sustained import cache_mib
from predictor.report.estimate import Estimate
from predictor.zoo import ZOO

MODES = ("infer", "train")
REDUCED = ("bf16", "amp-fp16")
CACHE_FACTOR = 4.0
"""Operands this much larger than the cache cannot hide in it."""
SLACK = 1e-9


@dataclass(kw_only=True)
class Report:
    """Outcomes by (dtype, mode), and what broke a rule."""

    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, dtype: str, mode: str, outcome: str) -> None:
        """Count one program on one device."""
        self.outcomes[(dtype, mode, outcome)] += 1

    def lines(self) -> list[str]:
        """The counts as text."""
        names = sorted({outcome for _, _, outcome in self.outcomes})
        rows = sorted({(dtype, mode) for dtype, mode, _ in self.outcomes})
        out = [f"{'outcome':28}" + "".join(f"{f'{d} {m}':>16}" for d, m in rows)]
        for name in names:
            counts = "".join(f"{self.outcomes[(d, m, name)]:>16,}" for d, m in rows)
            out.append(f"{name:28}{counts}")
        return out


def sweep(
    network: Predictor,
    *,
    models: Iterable[str] = tuple(ZOO),
    devices: Sequence[Device] | None = None,
    modes: Sequence[str] = MODES,
    batch: int | None = None,
    seq: int | None = None,
) -> Report:
    """Estimate every model on every device; `batch` and `seq` replace the models' own sizes."""
    report = Report()
    every = tuple(load_catalogue().values()) if devices is None else tuple(devices)
    single = _without_packages(every, report)
    for model in models:
        length = seq if ZOO[model].seq is not None else None
        for mode in modes:
            left = _one(network, model, mode, "fp32", single, report, batch=batch, seq=length)
            left = single
            for dtype in REDUCED:  # the second only where the first has no path
                left = _one(network, model, mode, dtype, left, report, batch=batch, seq=length)
    return report


def _without_packages(devices: Iterable[Device], report: Report) -> list[Device]:
    kept = []
    for device in devices:
        if device.scope != "package":
            kept.append(device)
            continue
        try:
            resolve_device(device.id)
            report.violations.append(f"{device.id}: a package row was accepted")
        except UnknownDeviceError:
            report.add("any", "mode", "refused: package")
    return kept


def _one(
    network: Predictor,
    model: str,
    mode: str,
    dtype: str,
    devices: Sequence[Device],
    report: Report,
    *,
    batch: int | None,
    seq: int | None,
) -> list[Device]:
    """One program on many devices; gives those without a path for its dtype."""
    if not devices:
        return []
    graph: OpGraph = capture(model, mode=mode, dtype=dtype, batch=batch, seq=seq)
    found = compare(graph, devices=devices, checkpoint=network)
    where = f"{model} {mode} {dtype}"
    for estimate in found.estimates:
        report.add(dtype, mode, _outcome(estimate))
        report.violations += [f"{where} on {estimate.device.id}: {b}" for b in broken(estimate)]
    by_id = {device.id: device for device in devices}
    for device_id, text in found.refused.items():
        reason = _reason(by_id[device_id], dtype)
        report.add(dtype, mode, f"refused: {reason}")
        if reason == "no reason" or device_id not in text:
            report.violations.append(f"{where} on {device_id}: refused without a reason: {text}")
    return [by_id[d] for d in found.refused if _reason(by_id[d], dtype) == "dtype"]


def _outcome(estimate: Estimate) -> str:
    if estimate.memory.fits is None:
        return "answered, memory unknown"
    return "answered" if estimate.memory.fits else "does not fit (hypothetical)"


def _reason(device: Device, dtype: str) -> str:
    """Why the catalogue lets this device refuse this dtype."""
    kinds = {"amp-fp16": ("fp16", "fp32")}.get(dtype, (dtype,))
    if device.memory_bw_gbps is None:
        return "unknown bandwidth"
    if any(kind in device.unsupported_dtypes for kind in kinds):
        return "dtype"
    if any(kind not in supported_dtypes(device) for kind in kinds):
        return "unknown peak"
    tf32 = "fp32" in kinds and device.vendor == "nvidia" and "tf32" not in device.unsupported_dtypes
    return "unknown peak" if tf32 and device.peak_tf32_tflops is None else "no reason"


def broken(estimate: Estimate) -> list[str]:
    """Rules that an answer breaks."""
    prediction, step = estimate.prediction, estimate.step
    out = []
    times = (prediction.kernel_lower_us, prediction.kernel_us, prediction.kernel_upper_us)
    if not all(np.isfinite(t).all() and (t > 0).all() for t in times):
        out.append("a kernel time is not finite and positive")
    if (times[0] > times[1]).any() or (times[1] > times[2]).any():
        out.append("a kernel interval is not ordered")
    if (times[0] < prediction.floor_us * (1 - SLACK)).any():
        out.append("a kernel is below its stated floor")
    out += _below_the_datasheet(estimate.graph, times[1], estimate.device, estimate.software)
    for name, band in (("step", step), *estimate.phases.items()):
        if not 0 < band.lower_us <= band.latency_us <= band.upper_us < float("inf"):
            out.append(f"{name} interval {band.lower_us}, {band.latency_us}, {band.upper_us}")
    if step.lower_us < prediction.floor_us.sum() * (1 - SLACK):
        out.append("the step's lower bound is below the sum of the floors")
    parts = sum(band.latency_us for band in estimate.phases.values())
    if not np.isclose(parts, step.latency_us):
        out.append(f"phases add up to {parts}, the step is {step.latency_us}")
    return out + _memory(estimate)


def _below_the_datasheet(
    graph: KernelGraph, kernel_us: np.ndarray, device: Device, software: Software
) -> list[str]:
    """Independent of the prediction's own floor; convolutions may beat their direct FLOPs."""
    out = []
    cache = cache_mib(device)
    bandwidth = device.memory_bw_gbps
    assert bandwidth is not None
    for kernel, us in zip(graph.kernels, kernel_us, strict=True):
        op_class = OPS[kernel.op].op_class
        if op_class in MATRIX_CLASSES and op_class != "conv" and kernel.flops:
            top = max_clock_peak_tflops(
                device, op_class=op_class, dtype=kernel.dtype, software=software
            )
            if kernel.flops / us > top * 1e6 * (1 + SLACK):
                out.append(f"{kernel.name} runs above the peak of {device.id}")
        large = cache is not None and kernel.bytes > CACHE_FACTOR * cache * 2**20
        if large and kernel.bytes / us > bandwidth * 1e3 * (1 + SLACK):
            out.append(f"{kernel.name} moves more than the bandwidth of {device.id}")
    return out


def _memory(estimate: Estimate) -> list[str]:
    """What must be said about memory."""
    fits, text = estimate.memory.fits, " ".join(estimate.warnings)
    if (fits is None) != (estimate.device.memory_gib is None):
        return [f"fits is {fits} with {estimate.device.memory_gib} GiB"]
    if fits is None and "memory" not in text:
        return ["an unknown memory size is not mentioned"]
    if fits is False and "does not fit" not in text:
        return ["a program that does not fit is not called so"]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep and print the counts; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default=DEFAULT_CHECKPOINT, help="shipped name or folder")
    parser.add_argument("--model", action="append", choices=tuple(ZOO), help="only these models")
    parser.add_argument("--device", action="append", help="only these devices")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    devices = [load_catalogue()[d] for d in given.device] if given.device else None
    start = time.perf_counter()
    report = sweep(load(given.checkpoint), models=given.model or tuple(ZOO), devices=devices)
    print("\n".join(report.lines()))
    print(f"{sum(report.outcomes.values()):,} programs x devices in "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    for violation in report.violations[:50]:
        print(f"VIOLATION {violation}")
    print(f"{len(report.violations)} violations")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
