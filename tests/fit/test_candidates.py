"""The simple kinds of model recover what they can express, and trees survive as arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from predictor.features.columns import COLUMNS
from predictor.fit.candidates import (
    TimedKernels,
    fit_boosted_trees,
    fit_roofline,
    tree_arrays,
)
from predictor.graph.ops import OP_CLASSES, TOKENS
from predictor.nn.boosted_trees import tree_inputs, trees_of
from predictor.nn.fitted_roofline import CLASS_OF_TOKEN

GEMM, SOFTMAX = TOKENS.index("gemm"), TOKENS.index("softmax")


def kernels(n: int, *, isolated: bool = True) -> TimedKernels:
    """Products at half the roofline plus 10 us, softmaxes at a quarter plus 4 us."""
    rng = np.random.default_rng(0)
    token = np.where(np.arange(n) % 2, GEMM, SOFTMAX)
    base = np.exp(rng.uniform(-2.0, 8.0, n))
    time = base * np.where(token == GEMM, 2.0, 4.0)
    if isolated:
        time = time + np.where(token == GEMM, 10.0, 4.0)
    return TimedKernels(
        x_NF=rng.normal(size=(n, len(COLUMNS))).astype(np.float32), token_N=token, base_us_N=base,
        measured_us_N=time, isolated_N=np.full(n, isolated), weight_N=np.ones(n),
    )  # fmt: skip


def of_class(values: torch.Tensor, token: int) -> float:
    return float(values[CLASS_OF_TOKEN[token]])


def test_efficiency_and_launch_are_recovered() -> None:
    model = fit_roofline(kernels(400), ("nvidia-t4",))
    for token, factor, launch in ((GEMM, 2.0, 10.0), (SOFTMAX, 4.0, 4.0)):
        assert np.exp(of_class(model.log_ratio_C, token)) == pytest.approx(factor, rel=0.1)
        assert of_class(model.launch_us_C, token) == pytest.approx(launch, rel=0.15)


def test_kernels_inside_a_step_have_no_launch() -> None:
    model = fit_roofline(kernels(100, isolated=False), ())
    assert not model.launch_us_C.any()
    assert np.exp(of_class(model.log_ratio_C, GEMM)) == pytest.approx(2.0, rel=1e-4)


def test_a_class_of_few_rows_takes_what_holds_for_all() -> None:
    rows = kernels(8, isolated=False)  # four each
    model = fit_roofline(rows, ())
    assert len({round(float(v), 5) for v in model.log_ratio_C}) == 1
    assert len(model.log_ratio_C) == len(OP_CLASSES)


def test_stored_trees_answer_as_they_were_fitted() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, len(COLUMNS))).astype(np.float32)
    token = rng.integers(0, len(TOKENS), 500)
    inputs = tree_inputs(x, token)
    y = np.sin(3 * x[:, 0]) + (token > 5) + x[:, 1] * x[:, 2]
    fitted = HistGradientBoostingRegressor(max_iter=40, early_stopping=False).fit(inputs, y)
    arrays = tree_arrays(fitted)
    new = tree_inputs(rng.normal(size=(200, len(COLUMNS))).astype(np.float32), token[:200])
    assert np.allclose(arrays.sums(new), fitted.predict(new), atol=1e-9)


def test_trees_learn_what_depends_on_the_kernel_and_come_back_from_a_release() -> None:
    rows = kernels(600, isolated=False)
    model = fit_boosted_trees(rows, ("nvidia-t4",))
    again = trees_of(model.tensors(), model.devices)
    none = torch.zeros(len(rows))
    given = (
        torch.from_numpy(rows.x_NF), torch.from_numpy(rows.token_N), torch.zeros(2, 0), none, none,
    )  # fmt: skip
    found = model.log_ratio(*given)[:, 1]
    assert torch.equal(again.log_ratio(*given)[:, 1], found)
    expected = np.log(np.where(rows.token_N == GEMM, 2.0, 4.0))
    assert np.abs(found.numpy() - expected).max() < 0.01
