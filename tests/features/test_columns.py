"""Feature columns: mechanisms at hand-worked shapes, finite on every device, hashed by name."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.errors import PredictorError
from predictor.features import columns
from predictor.features.columns import (
    COLUMNS,
    columns_hash,
    gemm_view,
    node_features,
    scalar_argument,
    token_of,
)
from predictor.graph.ops import OP_CLASSES, OPS, TOKENS
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.device import Software

FRAMEWORK = Software()
A100 = "nvidia-a100-sxm-80gb"  # 108 SMs
PREDICTABLE = [d for d in load_catalogue().values() if d.scope != "package" and d.memory_bw_gbps]


@pytest.fixture
def column(table):
    """Values of one column for calls on a device."""

    def values(name, calls, device=A100, **options):
        features = node_features(table(calls, **options), resolve_device(device), FRAMEWORK)
        return features.x[:, COLUMNS.index(name)].tolist()

    return values


def view(table, call):
    return tuple(float(v[0]) for v in gemm_view(table([call])))


def test_a_convolution_is_an_implicit_product(table):
    # m = 8 * 112 * 112 positions, n = 128 channels, k = 64 * 7 * 7
    call = ("conv", (8, 64, 224, 224, 128, 112, 112, 7, 7, 1), "fp32")
    assert view(table, call) == (100_352, 128, 3136, 1)


def test_groups_of_a_convolution_are_its_batch(table):
    call = ("conv", (8, 64, 56, 56, 128, 56, 56, 3, 3, 32), "fp32")
    assert view(table, call) == (25_088, 4, 18, 32)


def test_attention_is_seen_by_its_scores(table):
    call = ("attention", (4, 32, 8, 1024, 2048, 128, 1), "fp16")
    assert view(table, call) == (1024, 2048, 128, 128)


def test_products_are_seen_as_they_are(table):
    assert view(table, ("bmm", (80, 1024, 64, 512), "fp32")) == (1024, 64, 512, 80)
    assert view(table, ("grouped_mm", (8, 4096, 1024, 512), "bf16")) == (512, 1024, 512, 8)
    assert view(table, ("add", (64, 2, 1), "fp32")) == (0, 0, 0, 0)


def test_tiles_that_fill_every_unit_lose_nothing(column):
    # 108 tiles of 128 x 128 on 108 SMs; one row more needs another wave
    fits, more = ("matmul", (1, 128 * 108, 128, 512), "fp32"), (
        "matmul", (1, 128 * 108 + 1, 128, 512), "fp32",
    )  # fmt: skip
    loss = column("best_tile_loss", [fits, more])
    assert loss[0] == pytest.approx(0, abs=1e-6)
    assert 0.05 < loss[1] < math.log(2)
    assert column("tile128_loss", [fits]) == [0.0]
    assert column("tile64_loss", [fits])[0] == pytest.approx(-math.log(0.82), rel=1e-5)


def test_a_product_smaller_than_a_tile_loses_the_rest_of_the_device(column):
    # 32 x 32 is one of 108 tiles, at 0.55 of the rate
    small = ("matmul", (1, 32, 32, 4096), "fp32")
    assert column("best_tile_loss", [small])[0] == pytest.approx(math.log(108 / 0.55), rel=1e-5)
    assert column("split_k_room", [small])[0] > 0
    assert column("split_k_room", [("matmul", (1, 8192, 8192, 4096), "fp32")]) == [0.0]


def test_alignment(column):
    calls = [("matmul", (1, m, 64, 64), "fp16") for m in (64, 68, 66, 65)]
    assert column("m_odd", calls) == [0, 0, 1, 1]
    assert column("m_mod32", calls) == [0, 1, 1, 1]


def test_broadcast_operands_are_seen_in_the_bytes(table):
    kernels = table([("add", (1024, 2, 1), "fp32")] * 3 + [("mul", (1024, 1, 1), "fp32")])
    # full operands, a row of 32, a number, and an op with one operand
    reads = np.array([8192.0, 4096 + 128, 4096 + 4, 4096])
    kernels = replace(kernels, read_bytes=reads)
    x = node_features(kernels, resolve_device(A100), FRAMEWORK).x
    assert x[:, COLUMNS.index("broadcast")].tolist() == [0, 1, 1, 0]


def test_a_number_beside_a_tensor(table):
    calls = [("mul", (64, 2, 1), "fp32"), ("mul", (64, 1, 1), "fp32"), ("gelu", (64, 1, 1), "fp32")]
    assert scalar_argument(table(calls)).tolist() == [0, 1, 0]


def test_columns_of_one_kind_are_off_elsewhere(column):
    calls = [("add", (4096, 2, 1), "fp32"), ("softmax", (64, 64), "fp32")]
    for name in ("is_gemm", "log_m", "best_tile_loss", "m_odd", "log_window", "log_c_in", "bias"):
        assert column(name, calls) == [0, 0], name


def test_context_of_the_measurement(column):
    call = [("matmul", (1, 4096, 4096, 4096), "fp32")]
    assert column("isolated", call) == [0]
    assert column("isolated", call, context="isolated") == [1]
    # boost is spent first where power binds: on an L4, not on an A100
    assert column("boost_room", call, "nvidia-l4", context="isolated")[0] > 0.5
    assert column("boost_room", call, context="isolated")[0] < 0.05
    assert column("boost_room", call, "nvidia-l4") == [0]


def test_tokens_are_those_of_the_vocabulary(table, mixed):
    found = [TOKENS[i] for i in token_of(table(mixed))]
    assert found == [OPS[op].token for op, _, _ in mixed]


def test_unknown_cache_is_masked_not_zero(table):
    device = replace(resolve_device(A100), l2_mib=None, llc_mib=None)
    x = node_features(table([("add", (2**24, 2, 1), "fp32")]), device, FRAMEWORK).x
    assert x[0, COLUMNS.index("cache_known")] == 0
    assert np.isfinite(x).all()


@pytest.mark.parametrize("device", PREDICTABLE, ids=lambda d: d.id)
def test_every_column_is_finite_on_every_device(table, mixed, device):
    computed = 0
    for dtype in ("fp32", "fp16", "bf16", "fp8", "int8"):
        for op_class in OP_CLASSES:
            calls = [(op, dims, dtype) for op, dims, _ in mixed if OPS[op].op_class == op_class]
            try:
                features = node_features(table(calls), device, FRAMEWORK)
            except PredictorError as error:
                assert device.id in str(error)
                continue
            computed += len(calls)
            assert features.x.shape == (len(calls), len(COLUMNS))
            assert np.isfinite(features.x).all(), (op_class, dtype)
            assert features.x.dtype == np.float32
            assert (features.roofline.base_us > 0).all()
    assert computed > 100


def test_the_hash_names_columns_tokens_and_version(monkeypatch):
    text = f"{columns.FEATURES_VERSION}|{','.join(COLUMNS)}|{','.join(TOKENS)}"
    assert columns_hash() == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert columns_hash(COLUMNS[::-1]) != columns_hash()
    assert columns_hash(tokens=TOKENS[1:]) != columns_hash()
    before = columns_hash()
    monkeypatch.setattr(columns, "FEATURES_VERSION", columns.FEATURES_VERSION + 1)
    assert columns_hash() != before
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_grouped_convolutions_tell_their_width(column):
    def conv(channels, groups, window=3):
        return ("conv", (8, channels, 28, 28, channels, 28, 28, window, window, groups), "fp16")

    calls = [conv(96, 1), conv(96, 96), conv(96, 96, 9), conv(96, 4), conv(128, 8)]
    assert column("depthwise", calls) == [0, 1, 1, 0, 0]
    assert column("depthwise_wide", calls) == [0, 0, 1, 0, 0]
    assert column("grouped", calls) == [0, 0, 0, 1, 1]
    assert column("group_uneven", calls) == [0, 0, 0, 1, 0]  # 24 channels a group, 16
