"""Columns of instruction issue and of stacked memory."""

from __future__ import annotations

import math

import pytest

from predictor.features.columns import COLUMNS, node_features
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software

A100, A6000, CPU = (
    "nvidia-a100-sxm-40gb", "nvidia-rtx-a6000", "intel-i9-10940x",
)  # fmt: skip


@pytest.fixture
def features(table):
    """Features of calls on a device."""

    def of(calls, device=A100):
        return node_features(table(calls), resolve_device(device), Software())

    return of


def value(found, name, row=0):
    return float(found.x[row, COLUMNS.index(name)])


def test_elements_by_units_and_clock(features):
    found = features([("mul", (2**24, 2, 1), "fp16"), ("matmul", (1, 512, 512, 512), "fp16")])
    # 108 SMs at 1,410 MHz issue 152,280 elements a microsecond at one a clock
    expected = math.log(2**24 / 152_280 / found.roofline.base_us[0])
    assert value(found, "log_issue") == pytest.approx(expected, rel=1e-5)
    assert value(found, "log_issue", row=1) == 0.0  # a product


def test_bandwidth_does_not_issue(features):
    # twice the bandwidth, the same units x clock: more of the time is issue
    call = [("mul", (2**24, 2, 1), "fp16")]
    assert value(features(call), "log_issue") > value(features(call, A6000), "log_issue") + 0.3


def test_rows_and_columns_are_elements(features):
    found = features([("softmax", (4096, 1024), "fp32")])
    expected = math.log(2**22 / 152_280 / found.roofline.base_us[0])
    assert value(found, "log_issue") == pytest.approx(expected, rel=1e-5)


def test_attention_counts_by_flops(features):
    found = features([("attention", (4, 32, 8, 1024, 2048, 128, 1), "fp16")])
    assert value(found, "log_issue") != 0.0


def test_stacked_memory(features):
    call = [("mul", (2**20, 2, 1), "fp32")]
    assert value(features(call), "stacked_memory") == 1.0
    assert value(features(call, A6000), "stacked_memory") == 0.0


def test_a_processor_has_neither(features):
    found = features([("mul", (2**20, 2, 1), "fp32")], CPU)
    assert (value(found, "log_issue"), value(found, "stacked_memory")) == (0.0, 0.0)
