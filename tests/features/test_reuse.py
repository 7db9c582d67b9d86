"""Bytes between two uses of a weight, by how a benchmark loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.features.reuse import LIMIT, log_reuse
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software

L40S = resolve_device("nvidia-l40s")  # 96 MiB of cache
MIB = 2**20
CALL = ("matmul", (1, 16, 4096, 4096), "bf16")


def reuse(table, weight_mib: float, context: str = "device", **software: str) -> float:
    kernels = table([CALL], context=context)
    found = log_reuse(kernels, np.array([weight_mib * MIB]), L40S, Software(**software))
    return float(found[0])


@pytest.mark.parametrize(
    ("framework", "weight", "scheme", "held"),
    [("trtllm", 17.5, "", 5 * 17.5), ("trtllm", 28.0, "", 4 * 28.0), ("trtllm", 96.0, "", 96.0),
     ("trtllm", 200.0, "", 200.0), ("sglang", 28.0, "", 6 * 28.0), ("vllm", 8.0, "", 6 * 8.0)],
)  # fmt: skip
def test_copies_of_a_weight(table, framework, weight, scheme, held):
    found = reuse(table, weight, framework=framework, scheme=scheme)
    assert found == pytest.approx(math.log(held / 96))


def test_a_single_copy_is_found_where_it_was_left(table):
    kernels = table([CALL], context="device")
    traffic = float((kernels.read_bytes + kernels.write_bytes)[0])
    found = reuse(table, 28.0, framework="vllm", scheme="nvfp4")
    assert found == pytest.approx(math.log(traffic / (96 * MIB)))
    assert reuse(table, 28.0, context="isolated") == pytest.approx(found)


def test_inside_a_step_nothing_waits_in_the_cache(table):
    assert reuse(table, 28.0, context="step") == LIMIT
    assert reuse(table, 1e9, framework="trtllm") == LIMIT
