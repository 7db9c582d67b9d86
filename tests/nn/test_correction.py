"""The bounded factor on a step's time: summaries by hand, the bound, and terms that add up."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from predictor.features.columns import COLUMNS
from predictor.features.roofline import LAUNCH_US
from predictor.graph.ir import Kernel, KernelGraph
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.nn.correction import (
    CONSTANT,
    SUMMARIES,
    StepCorrection,
    StepKernels,
    named_terms,
    summaries,
)
from predictor.nn.ensemble import Ensemble
from predictor.nn.latency import LatencyPredictor, load_predictor
from predictor.nn.latency_net import LatencyNet

LIMIT = 0.3


def steps(
    time: list[float], *, count: list[float] | None = None, host: float = 0.0, train: float = 0.0,
    graph: list[int] | None = None, **columns: list[float],
) -> StepKernels:  # fmt: skip
    n = len(time)
    x = torch.zeros(n, len(COLUMNS))
    for name, values in columns.items():
        x[:, COLUMNS.index(name)] = torch.tensor(values)
    of = graph or [0] * n
    return StepKernels(
        x_NF=x,
        time_N=torch.tensor(time), count_N=torch.tensor(count or [1.0] * n),
        graph_N=torch.tensor(of), host_us_G=torch.full((max(of) + 1,), host),
        training_G=torch.full((max(of) + 1,), train),
    )  # fmt: skip


def named(kernels: StepKernels, row: int = 0) -> dict[str, float]:
    return dict(zip(SUMMARIES, summaries(kernels)[row].tolist(), strict=True))


def test_summaries_by_hand() -> None:
    found = named(
        steps(
            [30.0, 5.0, 2.0],
            count=[2.0, 6.0, 5.0],
            host=200.0,
            train=1.0,
            compiled=[1.0, 1.0, 1.0],
            release=[-0.5, -0.5, -0.5],
            log_compute_over_memory=[1.0, -1.0, -1.0],
            log_bytes=[math.log(100) / 4, math.log(50) / 4, math.log(20) / 4],
            log_cache_ratio=[2.0, -1.0, -3.0],
            cache_known=[1.0, 1.0, 0.0],
        )
    )
    # 60 + 30 + 10 us; 200 + 300 + 100 bytes, of which the softmax's fit a known cache
    expected = {
        "compiled": 1, "release": -0.5, "training": 1, "compiled x release": -0.5,
        "training x release": -0.5, "release x release": 0.25,
        "host_over_device": math.log(2), "kernels": math.log(13),
        "kernel_over_launch": math.log(100 / 13 / LAUNCH_US), "launch_bound": 5 / 13,
        "cached_traffic": 0.5, "memory_bound": 0.4,
    }  # fmt: skip
    for name in SUMMARIES:
        assert found[name] == pytest.approx(expected.get(name, 0.0), abs=1e-5), name


def test_steps_are_summarised_apart() -> None:
    both = steps([30.0, 4.0], graph=[0, 1], host=10.0)
    assert named(both, 0) == named(steps([30.0], host=10.0))
    assert named(both, 1) == named(steps([4.0], host=10.0))


def test_a_class_counted_twice_is_two_kernels() -> None:
    assert named(steps([3.0], count=[2.0])) == named(steps([3.0, 3.0]))


def test_no_host_is_told_and_stays_finite() -> None:
    alone, later = named(steps([5.0])), named(steps([5.0], host=1e9))
    assert (alone["kernel_sum"], later["kernel_sum"]) == (1, 0)
    assert (alone["host_over_device"], later["host_over_device"]) == (-4, 2)


def test_no_gradient_reaches_the_kernels() -> None:
    kernels = steps([5.0, 7.0])
    kernels.time_N.requires_grad_(True)
    assert not summaries(kernels).requires_grad


def corrected(seed: int = 0, size: float = 1.0) -> StepCorrection:
    head = StepCorrection(LIMIT)
    generator = torch.Generator().manual_seed(seed)
    head.scale_to(torch.randn(50, len(SUMMARIES), generator=generator))
    with torch.no_grad():
        head.weight_S.copy_(size * torch.randn(len(SUMMARIES), generator=generator))
        head.bias.fill_(0.02)
    return head


def test_untrained_corrects_nothing() -> None:
    head = StepCorrection(LIMIT)
    rows = torch.randn(5, len(SUMMARIES), generator=torch.Generator().manual_seed(1))
    head.scale_to(rows)
    assert torch.equal(head(rows), torch.zeros(5))
    assert torch.equal(head.shrunk_terms(rows), torch.zeros(5, len(SUMMARIES) + 1))


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_bounded_whatever_the_weights_and_the_step(size: float) -> None:
    rows = 1e3 * torch.randn(40, len(SUMMARIES), generator=torch.Generator().manual_seed(2))
    found = corrected(size=size)(rows).detach()
    assert bool((found.abs() <= LIMIT + 1e-6).all())
    assert float(found.abs().max()) > 0.02


@pytest.mark.parametrize("size", [0.01, 1.0])
def test_terms_add_up_to_the_correction(size: float) -> None:
    head = corrected(size=size)
    rows = torch.randn(20, len(SUMMARIES), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(head.shrunk_terms(rows).sum(1), head(rows), rtol=1e-4, atol=1e-6)


def test_what_never_varied_says_nothing() -> None:
    head = StepCorrection(LIMIT)
    rows = torch.randn(20, len(SUMMARIES), generator=torch.Generator().manual_seed(4))
    rows[:, 3] = 1.0
    head.scale_to(rows)
    with torch.no_grad():
        head.weight_S.fill_(1.0)
    other = rows[:1].clone()
    other[:, 3] = 0.0
    assert float(head.terms(other)[0, 3].detach()) == 0
    assert float(head.terms(other)[0, 4].detach()) != 0


def test_terms_are_named_the_largest_first() -> None:
    terms = torch.zeros(len(SUMMARIES) + 1)
    terms[SUMMARIES.index("release")], terms[-1] = 0.1, -0.2
    assert list(named_terms(terms)) == [CONSTANT, "release"]
    assert named_terms(torch.zeros(len(SUMMARIES) + 1)) == {}


def test_members_are_averaged_and_one_without_counts_as_none(
    make_net: Callable[..., LatencyNet],
) -> None:
    kernels = steps([5.0, 70.0], host=30.0)
    with_one, without = make_net(0, correction=LIMIT), make_net(1)
    alone = Ensemble(members=(with_one,), devices=()).correction_terms(kernels)
    both = Ensemble(members=(with_one, without), devices=()).correction_terms(kernels)
    assert float(alone.abs().sum()) > 0
    torch.testing.assert_close(both, alone / 2)


SIZES = {"correction": LIMIT}


@pytest.fixture
def pair(make_release: Callable[..., object]) -> tuple[LatencyPredictor, LatencyPredictor]:
    """The same networks without and with a correction."""
    plain = load_predictor(make_release())
    longer = make_release(
        sizes=SIZES,
        tensors=lambda weights: {
            name: value + 50.0 if name.endswith("correction.bias") else value
            for name, value in weights.items()
        },
    )
    return plain, load_predictor(longer)


def test_the_step_carries_the_factor_and_kernels_do_not(
    pair: tuple[LatencyPredictor, LatencyPredictor],
    make_kernel: Callable[..., Kernel],
    chain: Callable[..., KernelGraph],
) -> None:
    plain, corrected = pair
    graph = chain([
        make_kernel("linear", batch=1, m=2048, n=512, k=512), make_kernel("softmax", rows=9, cols=9)
    ])  # fmt: skip
    device = resolve_device("nvidia-a100-pcie-40gb")
    before, after = (p.predict(graph, device, Software()) for p in (plain, corrected))
    assert before.correction is None
    assert after.correction
    factor = math.exp(sum(after.correction.values()))
    assert factor != pytest.approx(1.0, abs=1e-4)
    assert np.array_equal(before.kernel_us, after.kernel_us)
    floor = float(after.floor_us.sum())
    for name in ("latency_us", "lower_us", "upper_us"):
        for old, new in (
            (before.step, after.step), (before.phases["forward"], after.phases["forward"])
        ):  # fmt: skip
            expected = max(getattr(old, name) * factor, floor)
            assert getattr(new, name) == pytest.approx(expected)
    assert factor > 1
