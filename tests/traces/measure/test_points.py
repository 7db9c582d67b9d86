"""Kernels of programs as points: the point's call is captured as the very kernel."""

from __future__ import annotations

import pytest

from predictor.graph.ir import Kernel
from predictor.traces.measure.cases import kernel_of
from predictor.traces.measure.kinds import kind_of
from predictor.traces.measure.points import point_of, points_of

CONV = {"batch": 2, "c_in": 8, "h_in": 14, "w_in": 14, "c_out": 16, "h_out": 7, "w_out": 7,
        "kh": 3, "kw": 3, "groups": 1}  # fmt: skip
DEPTHWISE = {**CONV, "c_out": 8, "groups": 8}
ATTENTION = {"batch": 2, "heads": 8, "kv_heads": 2, "q_len": 16, "kv_len": 32, "head_dim": 64,
             "causal": 0}  # fmt: skip
KERNELS = [
    ("linear", "forward", {"batch": 1, "m": 32, "n": 24, "k": 16}),
    ("matmul", "forward", {"batch": 1, "m": 32, "n": 24, "k": 16}),
    ("matmul", "backward", {"batch": 1, "m": 32, "n": 24, "k": 16}),
    ("bmm", "forward", {"batch": 4, "m": 8, "n": 8, "k": 16}),
    ("conv", "forward", CONV),
    ("conv", "forward", DEPTHWISE),
    ("conv_dgrad", "backward", CONV),
    ("conv_wgrad", "backward", CONV),
    ("attention", "forward", ATTENTION),
    ("attention_backward", "backward", {**ATTENTION, "kv_heads": 8}),
    ("softmax", "forward", {"rows": 4, "cols": 32}),
    ("layer_norm_backward", "backward", {"rows": 4, "cols": 32}),
    ("reduction", "forward", {"rows": 4, "cols": 32}),
    ("add", "forward", {"numel": 100, "inputs": 2, "outputs": 1}),
    ("gelu", "forward", {"numel": 100, "inputs": 1, "outputs": 1}),
    ("where", "forward", {"numel": 100, "inputs": 3, "outputs": 1}),
    ("gelu_backward", "backward", {"numel": 100, "inputs": 2, "outputs": 1}),
    ("adamw", "optimizer", {"numel": 400, "tensors": 4}),
]


def kernel(op, phase, dims, dtype="fp32"):
    return Kernel(op=op, phase=phase, dims=dims, dtype=dtype, flops=1, read_bytes=1, write_bytes=1)


@pytest.mark.parametrize(("op", "phase", "dims"), KERNELS)
def test_the_call_of_a_point_launches_the_kernel(op, phase, dims):
    point = point_of(kernel(op, phase, dims))
    assert point is not None
    found = kernel_of(kind_of(point.kind).case(point.sizes, point.dtype))
    assert (found.op, found.phase, dict(found.dims)) == (op, phase, dims)


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("conv", {**CONV, "w_in": 28}), ("conv", {**CONV, "kh": 2, "kw": 2}),
        ("linear", {"batch": 3, "m": 32, "n": 24, "k": 16}),
        ("attention", {**ATTENTION, "window": 4}),
        ("add", {"numel": 100, "inputs": 5, "outputs": 1}),
        ("embedding", {"rows": 4, "cols": 32}),
    ],
)  # fmt: skip
def test_a_kernel_that_no_kind_calls_is_no_point(op, dims):
    assert point_of(kernel(op, "forward", dims)) is None


def test_a_dtype_that_the_kind_has_not_is_no_point():
    assert point_of(kernel("softmax", "forward", {"rows": 4, "cols": 32}, dtype="fp8")) is None


def test_equal_kernels_are_one_point():
    rows = {"rows": 4, "cols": 32}
    found = points_of(
        [kernel("softmax", "forward", rows)] * 3 + [kernel("embedding", "forward", rows)]
    )
    assert [p.key for p in found] == ["softmax fp32 warm cols=32 rows=4"]
