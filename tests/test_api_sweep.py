"""Programs of several kinds on every device of the catalogue, from the shipped checkpoint."""

from __future__ import annotations

import json

import numpy as np
import pytest

import predictor
from predictor.checkpoint import DEFAULT_CHECKPOINT, list_releases
from predictor.errors import UnknownDeviceError, UnsupportedPrecision
from predictor.hardware.catalogue import load_catalogue
from predictor.report.estimate import Estimate

pytestmark = pytest.mark.skipif(
    DEFAULT_CHECKPOINT not in list_releases(), reason="the default is not in checkpoints/"
)
DEVICES = load_catalogue()


def lawful(estimate: Estimate) -> bool:
    """Finite, positive, ordered, at or above the floor, and coverage whole."""
    step, kernels, shares = estimate.step, estimate.prediction, estimate.coverage
    labelled = (
        shares.learned + shares.measured + shares.transferred + shares.roofline + shares.opaque
    )
    times = (kernels.kernel_lower_us, kernels.kernel_us, kernels.kernel_upper_us)
    json.dumps(estimate.to_json(), allow_nan=False)
    return bool(
        0 < step.lower_us <= step.latency_us <= step.upper_us < float("inf")
        and all(np.isfinite(t).all() for t in times)
        and (times[0] <= times[1]).all()
        and (times[1] <= times[2]).all()
        and (times[1] >= kernels.floor_us * (1 - 1e-9)).all()
        and abs(labelled - 1) < 1e-6
    )


@pytest.mark.parametrize(
    ("target", "mode", "dtype"),
    [
        ("gpt2", "infer", "fp32"),
        ("gpt2", "train", "amp-fp16"),
        ("resnet-50", "infer", "bf16"),
        ("lstm-lm", "train", "fp32"),
        ("vit-b-16", "infer", "amp-bf16"),
    ],
)
def test_every_device_answers_or_says_why(target: str, mode: str, dtype: str) -> None:
    graph = predictor.capture(target, mode=mode, dtype=dtype)  # type: ignore[arg-type]
    refused: dict[str, str] = {}
    for device in DEVICES.values():
        try:
            assert lawful(predictor.estimate(graph, device=device)), device.id
        except (UnsupportedPrecision, UnknownDeviceError) as error:
            refused[device.id] = str(error)
    assert all(
        "peak is unknown" in why
        or "bandwidth is unknown" in why
        or "no hardware path" in why
        or "package of several devices" in why
        for why in refused.values()
    )
    assert len(refused) < len(DEVICES) / 2
    assert {"nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb"}.isdisjoint(refused)
