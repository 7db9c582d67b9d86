"""A roofline with rates: start and work add up, devices differ, a release gives it back."""

from __future__ import annotations

import math

import pytest
import torch

from predictor.features.columns import COLUMNS
from predictor.graph.ops import OP_CLASSES, TOKENS
from predictor.nn.correction import StepKernels
from predictor.nn.rate_roofline import (
    DEVICES,
    LOG_FACTORS,
    SPREAD,
    STARTS,
    RateRoofline,
    rates_of,
)

C = len(OP_CLASSES)
GEMM, POINTWISE = TOKENS.index("gemm"), TOKENS.index("pointwise")
LAUNCH = 0.5


def model(**changes: object) -> RateRoofline:
    """Start 0.4 us, memory 1.25 and compute 2 times the roofline's; the device adds to matmul."""
    factors = torch.log(torch.tensor([0.4, 1.25, 2.0]))[:, None].repeat(1, C)
    devices = torch.zeros(3, 1, C)
    devices[2, 0, OP_CLASSES.index("matmul")] = math.log(1.5)
    values = {
        "devices": ("google-tpu-v4",), "log_factors_3C": factors, "devices_3DC": devices,
        "spread_32": torch.tensor([[0.5, 0.5], [1.0, 0.6], [0.6, 0.4]]), "launch_us": LAUNCH,
        "program_us": 0.6, "log_fp16": math.log(3.0), **changes,
    }  # fmt: skip
    return RateRoofline(**values)


def kernels(compute: float, memory: float, *, launches: int = 1, dtype: str = "bf16"):
    """(1, F) features of a kernel with those parts of its base time."""
    x = torch.zeros(1, len(COLUMNS))
    x[0, COLUMNS.index("log_compute_over_memory")] = math.log(compute / memory)
    x[0, COLUMNS.index("log_base_us")] = math.log(max(compute, memory) + LAUNCH * launches)
    x[0, COLUMNS.index("log_launches")] = math.log(launches)
    x[0, COLUMNS.index("half_precision")] = float(dtype in ("bf16", "fp16"))
    x[0, COLUMNS.index("bf16")] = float(dtype == "bf16")
    return x


def time_us(of: RateRoofline, x, token: int, *, device: int = -1, alone: float = 0.0) -> float:
    ratio = of.log_ratio(
        x, torch.tensor([token]), torch.zeros(2, 0, dtype=torch.long), torch.tensor([device]),
        torch.tensor([alone]),
    )  # fmt: skip
    assert ratio.shape == (1, 3) and len({float(v) for v in ratio[0]}) == 1
    return math.exp(float(ratio[0, 1])) * math.exp(float(x[0, COLUMNS.index("log_base_us")]))


@pytest.mark.parametrize(
    ("compute", "memory", "launches", "expected"),
    [
        (1.0, 10.0, 1, 0.4 + 12.5),
        (10.0, 1.0, 1, 0.4 + 20.0),
        (10.0, 12.0, 1, 0.4 + 20.0),  # slower compute than memory: the bound moves
        (1.0, 10.0, 3, 1.2 + 12.5),
    ],
)
def test_time_is_start_and_the_slower_of_both_rates(compute, memory, launches, expected):
    x = kernels(compute, memory, launches=launches)
    assert time_us(model(), x, POINTWISE) == pytest.approx(expected, rel=1e-4)


def test_a_known_device_adds_its_own():
    x = kernels(10.0, 1.0)
    assert time_us(model(), x, GEMM) == pytest.approx(20.4, rel=1e-4)
    assert time_us(model(), x, GEMM, device=0) == pytest.approx(30.4, rel=1e-4)
    assert time_us(model(), x, POINTWISE, device=0) == pytest.approx(20.4, rel=1e-4)


def test_fp16_slows_memory_alone():
    assert time_us(model(), kernels(1.0, 10.0, dtype="fp16"), POINTWISE) == pytest.approx(
        0.4 + 37.5, rel=1e-4
    )
    assert time_us(model(), kernels(90.0, 1.0, dtype="fp16"), POINTWISE) == pytest.approx(
        0.4 + 180.0, rel=1e-4
    )


def test_a_program_of_one_kernel_starts_too():
    x = kernels(1.0, 10.0)
    assert time_us(model(), x, POINTWISE, alone=1.0) == pytest.approx(0.6 + 12.9, rel=1e-4)
    host = model().host_us(torch.zeros(1), torch.zeros(1), torch.ones(1), torch.zeros(1))
    assert float(host[0]) < 0.01


@pytest.mark.parametrize(("time", "factor"), [(1.4, 2.0 / 1.4), (1e6, 1.0)])
def test_a_step_takes_the_start_of_its_program_where_it_tells(time, factor):
    steps = StepKernels(
        x_NF=kernels(1.0, 1.0), time_N=torch.tensor([time]), count_N=torch.ones(1),
        graph_N=torch.zeros(1, dtype=torch.long), host_us_G=torch.zeros(1),
        training_G=torch.zeros(1),
    )  # fmt: skip
    terms = model().correction_terms(steps)
    assert math.exp(float(terms.sum())) == pytest.approx(factor, rel=1e-4)


def test_device_terms_are_shares_of_time():
    terms = model().device_terms(kernels(1.0, 10.0), torch.tensor([POINTWISE]), 24)[0]
    share = 12.5 / 12.9
    assert float(terms[0]) == pytest.approx((1 - share) * 0.5 / 1.268, rel=1e-3)
    assert float(terms[1]) == pytest.approx(share * 1.0 / 1.268, rel=1e-3)
    assert float(terms[2]) == 0.0
    own = 3 + OP_CLASSES.index("elementwise")
    assert float(terms[own]) == pytest.approx(share * 0.6 / 1.268, rel=1e-3)
    assert int((terms != 0).sum()) == 3
    assert model().device_terms(kernels(1.0, 10.0), torch.tensor([POINTWISE]), 4).shape == (1, 4)


def test_a_release_gives_it_back():
    before = model()
    after = rates_of(before.tensors(), before.devices, list(OP_CLASSES))
    x = kernels(3.0, 2.0, dtype="fp16")
    assert time_us(after, x, GEMM, device=0) == time_us(before, x, GEMM, device=0)
    assert set(before.stored) == set(before.tensors()) == {LOG_FACTORS, DEVICES, SPREAD, STARTS}


def test_classes_that_a_release_did_not_know_take_the_mean():
    tensors = model().tensors()
    few = {
        **tensors, LOG_FACTORS: tensors[LOG_FACTORS][:, :2] + torch.tensor([0.0, 0.2]),
        DEVICES: tensors[DEVICES][:, :, :2],
    }  # fmt: skip
    after = rates_of(few, ("google-tpu-v4",), list(OP_CLASSES[:2]))
    assert torch.allclose(after.log_factors_3C[:, -1], tensors[LOG_FACTORS][:, 0] + 0.1)


@pytest.mark.parametrize("name", [LOG_FACTORS, DEVICES, SPREAD, STARTS])
def test_a_tensor_of_another_size_is_refused(name):
    tensors = {**model().tensors(), name: torch.zeros(7)}
    with pytest.raises(ValueError, match=name):
        rates_of(tensors, ("google-tpu-v4",), list(OP_CLASSES))


def test_unknown_classes_are_refused():
    with pytest.raises(ValueError, match="op_classes"):
        rates_of(model().tensors(), ("google-tpu-v4",), ["magic"])
