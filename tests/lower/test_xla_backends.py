"""Tiles and systolic arrays of TPUs, and which backend compiles for a device."""

import pytest

from predictor.hardware.catalogue import resolve_device
from predictor.lower.xla_backends import CPU, GPU, backend_of, tpu


@pytest.mark.parametrize(
    ("device", "name", "side"),
    [
        ("nvidia-a100-sxm-80gb", "gpu", None), ("google-tpu-v3-core", "tpu", 128),
        ("google-tpu-v5e", "tpu", 128), ("google-tpu-v6e", "tpu", 256),
        ("google-tpu7x-device", "tpu", 256),
    ],
)  # fmt: skip
def test_the_backend_of_a_device(device, name, side):
    found = backend_of(resolve_device(device))
    assert (found.name, found.matrix_side) == (name, side)


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((256, 1024), "fp32", 256 * 1024 * 4),  # whole tiles
        ((256, 1000), "fp32", 1000 * 256 * 4),  # the other way round, tiles are whole
        ((10, 100), "fp32", 16 * 128 * 4),  # 8 rows of 128 lanes
        ((10, 100), "bf16", 16 * 128 * 2),  # 16 rows
        ((4, 3, 128), "fp32", 3 * 8 * 128 * 4),  # 4 fill half a tile, 3 would fill less
        ((1000,), "fp32", 1024 * 4),
        ((), "fp32", 4),
    ],
)
def test_tensors_fill_tiles(shape, dtype, size):
    assert tpu(128).stored_bytes(shape, dtype) == pytest.approx(size)


def test_other_backends_have_no_tiles():
    for backend in (CPU, GPU):
        assert backend.stored_bytes((10, 100), "fp32") == 4000
        assert backend.padded(10) == 10
    assert tpu(256).padded(300) == 512
