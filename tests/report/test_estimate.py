"""Estimates: totals by hand, the JSON's exact shape, and what is said first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from predictor.graph.ir import KernelGraph
from predictor.hardware.device import Device, Software
from predictor.report.assemble import coverage_of, step_parts
from predictor.report.estimate import Estimate
from predictor.report.groups import group_kernels

Make = Callable[..., Estimate]

# Hand arithmetic on a device of 1 TFLOP/s and 100 GB/s; every kernel is bound by memory.
# linear m=8 n=16 k=4: 1,024 FLOPs, 4(32 + 64 + 128) = 896 B; m=16: 2,048 FLOPs, 1,536 B.
LINEAR_US = 2 + 896 / 1e5
BACKWARD_US = 2 + 1536 / 1e5
UPDATE_US = 2 + 1792 / 1e5
STEP_US = 2 * LINEAR_US + BACKWARD_US + UPDATE_US

JSON_KEYS = {
    "": {
        "target", "device", "mode", "software", "checkpoint", "adapter", "step", "phases",
        "workload", "memory", "coverage", "kernels", "warnings",
    },
    "step": {"latency_us", "lower_us", "upper_us", "level", "includes", "correction"},
    "phases": {"forward", "backward", "optimizer"},
    "workload": {
        "parameters", "flops", "matmul_flops", "bytes", "batch", "dtype", "ops", "kernels",
    },
    "memory": {
        "peak_bytes", "parameters_bytes", "gradients_bytes", "optimizer_bytes",
        "activations_bytes", "fits",
    },
    "coverage": {"learned", "measured", "transferred", "roofline", "opaque", "in_distribution"},
}  # fmt: skip
KERNEL_KEYS = {
    "name", "op_class", "phase", "count", "dims", "dtype", "flops", "bytes", "latency_us",
    "lower_us", "upper_us", "floor_us", "bound", "label",
}  # fmt: skip


def test_totals_by_hand(make_estimate: Make) -> None:
    estimate = make_estimate()
    assert estimate.latency_us == pytest.approx(STEP_US)
    assert estimate.interval_us == pytest.approx((0.95 * STEP_US, 1.1 * STEP_US))
    figures = estimate.workload
    assert figures.flops == 2 * 1024 + 2048 + 640
    assert figures.matmul_flops == 2 * 1024 + 2048
    assert figures.bytes == 2 * 896 + 1536 + 1792
    assert (figures.parameters, figures.ops, figures.kernels) == (64, 7, 4)
    assert estimate.coverage.roofline == pytest.approx(UPDATE_US / STEP_US)
    assert estimate.coverage.learned == pytest.approx(1 - UPDATE_US / STEP_US)


def test_json_has_exactly_the_documented_keys(make_estimate: Make) -> None:
    document = make_estimate().to_json()
    assert set(document) == JSON_KEYS[""]
    for name in ("step", "phases", "workload", "memory", "coverage"):
        part = document[name]
        assert isinstance(part, dict)
        assert set(part) == JSON_KEYS[name]
    kernels = document["kernels"]
    assert isinstance(kernels, list)
    assert all(set(kernel) == KERNEL_KEYS for kernel in kernels)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_absent_facts_are_null(make_estimate: Make) -> None:
    estimate = make_estimate(memory_gib=None, batch=None)
    document = json.loads(json.dumps(estimate.to_json()))
    assert document["adapter"] is None
    assert document["workload"]["batch"] is None
    assert document["memory"]["fits"] is None
    assert any("memory size of round-1 is unknown" in w for w in document["warnings"])


def test_inference_has_no_other_phase(
    make_graph: Callable[..., KernelGraph], make_estimate: Make
) -> None:
    estimate = make_estimate()
    forward = replace(estimate, phases={"forward": estimate.phases["forward"]})
    phases = forward.to_json()["phases"]
    assert isinstance(phases, dict)
    assert phases["backward"] is None
    assert phases["optimizer"] is None
    workload = make_graph(mode="infer", optimizer=None).workload
    assert step_parts(workload) == ("forward",)
    assert "optimizer" not in step_parts(replace(workload, mode="train"))
    assert estimate.step.includes == ("zero_grad", "forward", "loss", "backward", "optimizer")


def test_equal_kernels_are_counted_together(make_estimate: Make) -> None:
    groups = make_estimate().groups
    assert [(g.phase, g.op, g.count) for g in groups] == [
        ("forward", "linear", 2),
        ("optimizer", "adamw", 1),
        ("backward", "linear", 1),
    ]
    first = groups[0]
    assert (first.flops, first.bytes) == (1024, 896)
    assert first.latency_us == pytest.approx(LINEAR_US)
    assert first.share == pytest.approx(2 * LINEAR_US / STEP_US)
    assert first.dims == {"batch": 1, "m": 8, "n": 16, "k": 4}
    assert (first.name, first.bound, first.label) == ("aten.addmm", "memory", "learned")


def test_groups_add_up_whatever_the_kernels_cost(
    make_estimate: Make, make_graph: Callable[..., KernelGraph]
) -> None:
    estimate = make_estimate()
    uneven = replace(estimate.prediction, kernel_us=np.array([1.0, 3.0, 5.0, 7.0]))
    groups = group_kernels(make_graph(), uneven)
    assert sum(g.count * g.latency_us for g in groups) == pytest.approx(16.0)
    assert sum(g.share for g in groups) == pytest.approx(1.0)
    assert {g.phase: g.latency_us for g in groups}["forward"] == pytest.approx(2.0)


def test_kernel_frame_has_a_row_a_kernel(make_estimate: Make) -> None:
    frame = make_estimate().kernels
    assert len(frame) == 4
    assert frame["latency_us"].sum() == pytest.approx(STEP_US)
    assert list(frame["op_class"]) == ["matmul", "matmul", "matmul", "optimizer"]


def test_coverage_adds_up_to_one(make_estimate: Make) -> None:
    coverage = make_estimate().coverage
    assert coverage.learned + coverage.roofline + coverage.opaque == pytest.approx(1.0)
    assert coverage.in_distribution == 1.0


def test_coverage_of_nothing_is_roofline(make_estimate: Make) -> None:
    prediction = make_estimate().prediction
    nothing = replace(prediction, kernel_us=prediction.kernel_us * 0)
    assert coverage_of(nothing, np.ones(len(nothing.kernel_us))).roofline == 1.0


def test_text_names_what_a_reader_needs(make_estimate: Make) -> None:
    text = make_estimate().table()
    for expected in (
        "tiny, train, fp32, batch 8, adamw  on  round-1",
        "8.051 µs   90% interval 7.649 – 8.856 µs",
        "forward", "backward", "optimizer", "zero_grad, forward, loss, backward, optimizer",
        "64 parameters", "4 kernel launches", "learned 74.9%, roofline 25.1% of kernel time",
        "checkpoint stand-in", " m=8 n=16 k=4", "aten.addmm", "samples/s",
    ):  # fmt: skip
        assert expected in text
    assert "warning" not in text
    assert max(len(line) for line in text.splitlines()) <= 160


def test_a_recorded_step_stands_beside_its_estimate(
    make_estimate: Make, make_graph: Callable[..., KernelGraph]
) -> None:
    recorded = {"step": 90.0, "estimated": 40.0, "opaque": 10.0, "unknown": 4.0, "collectives": 6.0}
    graph = make_graph(recorded_us=recorded)
    text = " ".join(replace(make_estimate(), graph=graph).table().split())
    assert (
        "recorded 40.00 µs kernel time of the part that is estimated (opaque calls 10.00 µs); not "
        "estimated calls of which nothing is known 4.000 µs, collectives 6.000 µs; whole step "
        "90.00 µs" in text
    )
    assert "known calls 60.0%, opaque 20.0%, not estimated 20.0%" in text
    assert (
        "no data loading; left out: calls of which nothing is known, collectives recorded" in text
    )
    whole = make_graph(recorded_us={"step": 90.0, "estimated": 40.0, "opaque": 0.0, "unknown": 0.0})
    text = replace(make_estimate(), graph=whole).table()
    assert "no data loading\n" in text and "left out" not in text
    assert "recorded" not in make_estimate().table()


def test_a_long_kernel_name_leaves_the_numbers_readable(
    make_estimate: Make, make_graph: Callable[..., KernelGraph]
) -> None:
    graph = make_graph()
    name = "kineto.start" + "x" * 100 + "end"
    kernels = tuple(replace(k, name=name) for k in graph.kernels)
    estimate = replace(make_estimate(), graph=replace(graph, kernels=kernels))
    text = estimate.table()
    assert "kineto.start" in text and "xend" in text and "xx…xx" in text
    assert name not in text and " m=8 n=16 k=4" in text and " µs  memory  learned" in text
    assert {group["name"] for group in estimate.to_json()["kernels"]} == {name}  # type: ignore


def test_tokens_are_echoed(make_estimate: Make) -> None:
    text = make_estimate(tokens=64).table()
    assert "batch 8 × 8 tokens" in text
    assert "tokens/s" in text


def test_what_does_not_fit_is_said_first(make_estimate: Make) -> None:
    estimate = make_estimate(parameters_bytes=2 * 1024**3)
    assert estimate.hypothetical
    assert estimate.memory.fits is False
    assert estimate.warnings[0].startswith("does not fit: needs 2.00 GiB, round-1 has")
    assert "parameters 2.00 GiB" in estimate.warnings[0]
    assert "the latency is hypothetical" in estimate.warnings[0]
    lines = estimate.table().splitlines()
    assert lines[1].startswith("memory")
    assert "DOES NOT FIT" in lines[1]
    (step,) = [line for line in lines if line.startswith("step")]
    assert "hypothetical" in step


def test_low_trust_is_said(
    make_estimate: Make, network: object, make_graph: Callable[..., KernelGraph], device: Device
) -> None:
    from predictor.cost.memory import memory_report
    from predictor.report.assemble import assemble

    graph = make_graph(warnings=("from capture",))
    prediction = replace(
        make_estimate().prediction,
        in_distribution=np.array([True, True, False, False]),
        label=np.array(["learned", "learned", "learned", "opaque"]),
        warnings=("from the network", "from capture"),
    )
    estimate = assemble(
        graph, prediction, target="t", ops=1, device=device, software=Software(),
        memory=memory_report(graph, device), checkpoint="c", provenance={},
    )  # fmt: skip
    unlike = (BACKWARD_US + UPDATE_US) / STEP_US
    assert estimate.warnings == (
        "from capture",
        "from the network",
        f"{100 * UPDATE_US / STEP_US:.1f}% of the time is in opaque operations",
        f"{100 * unlike:.1f}% of the time is in kernels unlike those of the training data",
    )


def test_notebook_view_is_html(make_estimate: Make) -> None:
    html = make_estimate()._repr_html_()
    assert html.startswith("<pre")
    assert "round-1" in html
