"""Times that must not fall with the batch: doubled kernels, and what a predictor makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from predictor.cost.rules import kernel_cost
from predictor.errors import CheckpointError
from predictor.features.table import DIM_INDEX, KernelTable, table_from_graph
from predictor.graph.ir import Kernel, KernelGraph
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.nn.latency import LatencyPredictor
from predictor.nn.rising import RISING, enlarged, lowered

CONV = {"c_in": 64, "h_in": 28, "w_in": 28, "c_out": 64, "h_out": 28, "w_out": 28, "kh": 3,
        "kw": 3, "groups": 1}  # fmt: skip
P4 = resolve_device("nvidia-tesla-p4")  # no units of another format: fp32 convolutions are learned

MakeKernel = Callable[..., Kernel]
Chain = Callable[..., KernelGraph]


def batches(table: KernelTable) -> np.ndarray:
    return table.dims[:, DIM_INDEX["batch"]]


@pytest.mark.parametrize("op", ["conv", "conv_dgrad", "conv_wgrad"])
def test_a_kernel_on_a_larger_batch_costs_what_its_rule_says(
    make_kernel: MakeKernel, chain: Chain, op: str
) -> None:
    table = table_from_graph(
        chain([make_kernel(op, batch=3, **CONV), make_kernel(op, batch=5, **CONV)])
    )
    larger = enlarged(table, 4)
    assert batches(larger).tolist() == [12, 20] and batches(table).tolist() == [3, 5]
    for i, batch in enumerate((12, 20)):
        cost = kernel_cost(op, {"batch": batch, **CONV}, "fp32")
        assert larger.flops[i] == pytest.approx(float(cost.flops))
        assert larger.read_bytes[i] == pytest.approx(float(cost.read_bytes))
        assert larger.write_bytes[i] == pytest.approx(float(cost.write_bytes))


def test_a_time_is_bounded_by_those_of_larger_batches(
    make_kernel: MakeKernel, chain: Chain
) -> None:
    convs = [make_kernel("conv", batch=b, **CONV) for b in (1, 2, 16, 1)]
    table = table_from_graph(chain([*convs, make_kernel("add", numel=9, inputs=2, outputs=1)]))
    curve = {1: 5.0, 2: 4.0, 4: 6.0, 8: 3.0, 16: 2.0, 32: 7.0, 64: 8.0, 128: 9.0}
    asked: list[int] = []

    def log_us_of(kernels: KernelTable) -> np.ndarray:
        asked.append(len(kernels))
        return np.array([curve[int(b)] for b in batches(kernels)])

    own = np.array([5.0, 4.0, 2.0, 5.0, 1.0])
    down = lowered(table, own, ("conv",), log_us_of)
    assert down.tolist() == [-2.0, -2.0, 0.0, -2.0, 0.0]  # 1: least of 2, 4, 8; 2: of 4, 8, 16
    assert asked == [9]  # three that differ, at three sizes, at once
    assert not lowered(table, own, (), log_us_of).any() and len(asked) == 1


@pytest.mark.parametrize(
    ("op", "dims", "counted"),
    [
        ("add", {"numel": 9, "inputs": 2, "outputs": 1}, "numel"),
        ("fill", {"numel": 9, "inputs": 0, "outputs": 1}, "numel"),
        ("cast", {"numel": 9, "inputs": 1, "outputs": 1}, "numel"),
        ("quantize", {"rows": 3, "cols": 16}, "rows"),
        ("softmax", {"rows": 3, "cols": 16}, "rows"),
        ("reduction", {"rows": 3, "cols": 16}, "rows"),
        ("layer_norm", {"rows": 3, "cols": 16}, "rows"),
    ],
)
def test_streaming_kernels_grow_by_elements_or_rows(
    make_kernel: MakeKernel, chain: Chain, op: str, dims: dict[str, int], counted: str
) -> None:
    table = table_from_graph(chain([make_kernel(op, **dims)]))
    larger = enlarged(table, 8)
    assert larger.dims[0, DIM_INDEX[counted]] == 8 * dims[counted]
    cost = kernel_cost(op, {**dims, counted: 8 * dims[counted]}, "fp32")
    assert larger.read_bytes[0] == pytest.approx(float(cost.read_bytes))
    assert larger.write_bytes[0] == pytest.approx(float(cost.write_bytes))


def test_a_short_stream_takes_no_longer_than_a_long_one(
    make_kernel: MakeKernel, chain: Chain
) -> None:
    sizes = (1, 8, 4096)
    table = table_from_graph(
        chain([make_kernel("tanh", numel=n, inputs=1, outputs=1) for n in sizes])
    )

    def log_us_of(kernels: KernelTable) -> np.ndarray:
        numel = kernels.dims[:, DIM_INDEX["numel"]]
        return np.where(numel < 64, 3.0, np.where(numel < 1e6, 1.0, 2.0))

    down = lowered(table, log_us_of(table), RISING, log_us_of)
    assert down.tolist() == [-2.0, -2.0, 0.0]


def test_convolutions_of_a_release_that_says_so_are_held_to_it(
    make_predictor: Callable[..., LatencyPredictor], make_kernel: MakeKernel, chain: Chain,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    free = make_predictor(
        scale=0.0, sizes={"message_layers": 0}, learned=[["conv", "fp32"], ["gemm", "fp32"]]
    )
    held = replace(free, rising=RISING)
    graph = chain([make_kernel("conv", batch=1, **CONV),
                   make_kernel("linear", batch=1, m=64, n=64, k=64)])  # fmt: skip
    before = free.predict(graph, P4, Software())
    np.testing.assert_array_equal(held.predict(graph, P4, Software()).kernel_us, before.kernel_us)
    less = 0.97 * before.kernel_us[0]  # as if the network fell with the batch

    def log_us(self: LatencyPredictor, table: KernelTable, **where: object) -> np.ndarray:
        return np.full(len(table), np.log(less))

    monkeypatch.setattr(LatencyPredictor, "_log_us", log_us)
    after = held.predict(graph, P4, Software())
    assert after.kernel_us[0] == pytest.approx(less)
    assert after.kernel_us[1] == before.kernel_us[1]  # products stay
    assert after.kernel_upper_us[0] / less == pytest.approx(
        before.kernel_upper_us[0] / before.kernel_us[0]
    )
    assert free.predict(graph, P4, Software()).kernel_us[0] == before.kernel_us[0]


@pytest.mark.parametrize("rising", [3, ["matmul"], [["conv"]]])
def test_what_cannot_rise_is_refused(
    make_predictor: Callable[..., LatencyPredictor], rising: object
) -> None:
    with pytest.raises(CheckpointError, match=r"random-v1.*model\.rising is"):
        make_predictor(sizes={"message_layers": 0}, rising=rising)


def test_a_network_that_reads_neighbours_cannot_be_held_to_it(
    make_predictor: Callable[..., LatencyPredictor],
) -> None:
    assert make_predictor(sizes={"message_layers": 0}, rising=["conv"]).rising == ("conv",)
    with pytest.raises(CheckpointError, match="message_layers"):
        make_predictor(rising=["conv"])
