"""Pin what each shipped checkpoint predicts: writes `tests/golden/NAME.json`.

Run: `python tests/golden/make_golden.py [NAME ...]`, all shipped checkpoints when no name is given.
A refactor leaves these files as they are; a change of capture, lowering, features or composition
that moves them is meant, and says so in its commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from predictor.api import Predictor, capture, load
from predictor.atomic import write_text
from predictor.checkpoint import list_releases
from predictor.errors import UnsupportedPrecision
from predictor.graph.ir import KernelGraph
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Device, Software
from predictor.hardware.kinds import kinds_of
from predictor.lower.eager import lower_eager
from predictor.lower.xla import PYTORCH_XLA, lower_xla
from predictor.lower.xla_backends import backend_of
from predictor.nn.prediction import Interval

FOLDER = Path(__file__).parent
COMMAND = "python tests/golden/make_golden.py"
DEVICES = ("nvidia-v100-pcie-32gb", "nvidia-h100-sxm-80gb", "amd-mi300x")
TPUS = ("google-tpu-v4", "google-tpu-v5e", "google-tpu-v6e")
"""Of checkpoints that learned from TPUs alone: programs as PyTorch/XLA runs them."""
CASES: Mapping[str, Mapping[str, object]] = {
    "gpt2 infer": {"target": "gpt2", "mode": "infer", "batch": 2, "seq": 128},
    "gpt2 train": {"target": "gpt2", "mode": "train", "batch": 1, "seq": 256},
    "gpt2 train amp-fp16": {
        "target": "gpt2", "mode": "train", "batch": 1, "seq": 256, "dtype": "amp-fp16",
    },
    "resnet-50 train": {"target": "resnet-50", "mode": "train", "batch": 4},
    "vit-b-16 infer bf16": {
        "target": "vit-b-16", "mode": "infer", "batch": 2, "dtype": "bf16",
    },
    "lstm-lm train": {"target": "lstm-lm", "mode": "train", "batch": 4, "seq": 16},
}  # fmt: skip
FIRST = 6
"""Kernels whose times are kept one by one."""
DIGITS = 7


def predictions(network: Predictor) -> dict[str, object]:
    """Every case on every device, as plain values."""
    out: dict[str, object] = {}
    for name, case in CASES.items():
        graph = capture(**case)  # type: ignore[arg-type]
        amp = graph.workload.dtype.removeprefix("amp-")
        software = Software(amp=None if amp == graph.workload.dtype else amp)
        if kinds_of(network.networks.devices).known == {"tpu"}:  # type: ignore[attr-defined]
            software = replace(software, framework=PYTORCH_XLA, mode="compiled")
            for device in map(resolve_device, TPUS):
                kernels = lower_xla(graph, backend_of(device))
                out[f"{name} on {device.id}"] = _one(network, kernels, device, software)
            continue
        kernels = lower_eager(graph)
        for device in map(resolve_device, DEVICES):
            out[f"{name} on {device.id}"] = _one(network, kernels, device, software)
    return out


def _one(
    network: Predictor, kernels: KernelGraph, device: Device, software: Software
) -> dict[str, object] | str:
    try:
        found = network.predict(kernels, device, software)
    except UnsupportedPrecision as error:
        return f"refused: {type(error).__name__}"
    labels, counts = np.unique(found.label, return_counts=True)
    return {
        "step_us": _band(found.step),
        "phases_us": {name: _band(band) for name, band in found.phases.items()},
        "kernels": len(kernels.kernels),
        "labels": {str(n): int(c) for n, c in zip(labels, counts, strict=True)},
        "kernel_sum_us": _rounded(found.kernel_us.sum()),
        "kernel_lower_sum_us": _rounded(found.kernel_lower_us.sum()),
        "kernel_upper_sum_us": _rounded(found.kernel_upper_us.sum()),
        "floor_sum_us": _rounded(found.floor_us.sum()),
        "first_kernels_us": [_rounded(us) for us in found.kernel_us[:FIRST]],
    }


def _band(band: Interval) -> list[float]:
    return [_rounded(us) for us in (band.lower_us, band.latency_us, band.upper_us)]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def main(names: Sequence[str]) -> int:
    """Write the file of each named checkpoint."""
    for name in names or list_releases():
        content = {"remake": f"{COMMAND} {name}", "predictions": predictions(load(name))}
        write_text(FOLDER / f"{name}.json", json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
