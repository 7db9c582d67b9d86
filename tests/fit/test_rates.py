"""The fit of rates finds what made the rows, and one odd device does not move the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from predictor.errors import DataError
from predictor.features.columns import COLUMNS
from predictor.fit.candidates import fit_model
from predictor.fit.coverage import NO_COVERAGE
from predictor.fit.fitting import FitData
from predictor.fit.rates import fit_rates
from predictor.fit.recipe import load_recipe
from predictor.fit.samples import KernelSamples
from predictor.graph.ops import OP_CLASSES, TOKENS

TPUS = ("google-tpu-v3-core", "google-tpu-v5e", "google-tpu-v6e")
LAUNCH = 0.5
GEMM, POINTWISE = TOKENS.index("gemm"), TOKENS.index("pointwise")


def rows(slow: float = 1.0, devices: tuple[str, ...] = TPUS) -> FitData:
    """Sixty kernels: start 0.3 us, memory at 1.1 and compute at 1.3 of the roofline.

    The last device's memory is `slow` times slower.
    """
    rng = np.random.default_rng(0)
    n = 60
    device = np.arange(n) % len(devices)
    token = np.where(np.arange(n) // 3 % 2, GEMM, POINTWISE)
    memory, ratio = np.exp(rng.uniform(-2, 6, n)), np.where(token == GEMM, 2.0, -6.0)
    compute = memory * np.exp(ratio)
    x = np.zeros((n, len(COLUMNS)), dtype=np.float32)
    base = np.maximum(memory, compute) + LAUNCH
    x[:, COLUMNS.index("log_compute_over_memory")] = ratio
    x[:, COLUMNS.index("log_base_us")] = np.log(base)
    rate = 1.1 * np.where(device == len(devices) - 1, slow, 1.0)
    measured = 0.3 + np.maximum(1.3 * compute, rate * memory)
    whole, some = (torch.from_numpy(v) for v in (token, device))
    zeros = torch.zeros(n)
    kernels = KernelSamples(
        x_NF=torch.from_numpy(x), token_N=whole, base_us_N=torch.from_numpy(base).float(),
        datasheet_us_N=zeros, op_N=whole, scalar_arg_N=zeros, device_N=some, host_N=some,
        coverage=NO_COVERAGE, measured_us_N=torch.from_numpy(measured).float(),
        weight_N=torch.ones(n), isolated_N=zeros, hosted_N=zeros,
        row_id=tuple(map(str, range(n))), row_N=np.arange(n),
    )  # fmt: skip
    return FitData(hosts=devices, kernels=kernels, steps=None, ratios=None)


def factor(model, term: int, name: str) -> float:
    return float(torch.exp(model.log_factors_3C[term, OP_CLASSES.index(name)]))


def test_rates_are_found():
    model = fit_rates(rows())
    assert factor(model, 1, "elementwise") == pytest.approx(1.1, rel=0.05)
    assert factor(model, 2, "matmul") == pytest.approx(1.3, rel=0.08)  # devices take a part


def test_an_odd_device_keeps_its_oddity_to_itself():
    model = fit_rates(rows(slow=4.0))
    assert factor(model, 1, "elementwise") == pytest.approx(1.1, rel=0.1)
    own = model.devices_3DC[1, :, OP_CLASSES.index("elementwise")]
    assert float(torch.exp(own[2])) == pytest.approx(4.0, rel=0.15)
    assert float(own[:2].abs().max()) < 0.1


def test_classes_without_rows_stay_near_the_mean():
    model = fit_rates(rows())
    for term in range(3):
        seen = model.log_factors_3C[term].mean()
        assert abs(float(model.log_factors_3C[term, OP_CLASSES.index("norm")] - seen)) < 0.1


def test_the_same_rows_give_the_same_numbers():
    first, second = fit_rates(rows()), fit_rates(rows())
    assert torch.equal(first.log_factors_3C, second.log_factors_3C)


def test_devices_of_several_kinds_are_refused():
    with pytest.raises(DataError, match="one kind of device, not gpu, tpu"):
        fit_rates(rows(devices=("google-tpu-v4", "nvidia-t4")))


def test_the_recipe_of_the_release_asks_for_tpus():
    recipe = load_recipe(Path(__file__).parents[2] / "training" / "recipes" / "tpu-v1.toml")
    assert recipe.split == "tpus"
    model = fit_model("rates", recipe, rows(), None, progress=False)
    assert model.devices == TPUS
