"""What a checkpoint predicts for a kernel graph, whatever its weights are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.features.columns import COLUMNS
from predictor.graph.ir import Kernel, KernelGraph
from predictor.graph.ops import OPS
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.device import Software
from predictor.hardware.peaks import max_clock_peak_tflops, mem_bw_gbps
from predictor.nn.latency import LatencyPredictor
from predictor.nn.prediction import Prediction
from predictor.nn.priors import HOST_BACKWARD_SHARE, HOST_CALL_US, HOST_LAUNCH_US

A100 = "nvidia-a100-pcie-40gb"
H100 = "nvidia-h100-sxm-80gb"
EAGER = Software()

MakeKernel = Callable[..., Kernel]
Chain = Callable[..., KernelGraph]
MakePredictor = Callable[..., LatencyPredictor]


@pytest.fixture
def step(make_kernel: MakeKernel, chain: Chain) -> KernelGraph:
    """A small training step: classes that were trained, classes that never were, all phases."""
    return chain([
        make_kernel("embedding", rows=2048, cols=512),
        make_kernel("linear", batch=1, m=2048, n=512, k=512),
        make_kernel("attention", batch=2, heads=8, kv_heads=8, q_len=1024, kv_len=1024,
                    head_dim=64, causal=1),
        make_kernel("add", numel=2048 * 512, inputs=2, outputs=1),
        make_kernel("layer_norm", rows=2048, cols=512),
        make_kernel("softmax", "backward", rows=2048, cols=512),
        make_kernel("matmul", "backward", batch=1, m=2048, n=512, k=512),
        make_kernel("opaque", "backward", numel=4096),
        make_kernel("adamw", "optimizer", numel=10_000_000, tensors=12),
    ])  # fmt: skip


def check(out: Prediction, graph: KernelGraph) -> None:
    """What holds for every prediction."""
    assert len(out.kernel_us) == len(graph.kernels)
    for times in (out.kernel_us, out.kernel_lower_us, out.kernel_upper_us):
        assert np.isfinite(times).all()
        assert (times > 0).all()
        assert (times >= out.floor_us * (1 - 1e-12)).all()
    assert (out.kernel_lower_us <= out.kernel_us).all()
    assert (out.kernel_us <= out.kernel_upper_us).all()
    for interval in (out.step, *out.phases.values()):
        assert np.isfinite([interval.lower_us, interval.latency_us, interval.upper_us]).all()
        assert 0 <= interval.lower_us <= interval.latency_us <= interval.upper_us
    assert set(out.bound.tolist()) <= {"compute", "memory", "launch"}


@pytest.mark.parametrize("device", [A100, "nvidia-a100-sxm-80gb", H100, "amd-mi300x", "nvidia-l4"])
@pytest.mark.parametrize("scale", [0.0, 0.2, 3.0])
def test_times_are_finite_positive_ordered_and_never_below_the_floor(
    make_predictor: MakePredictor, step: KernelGraph, device: str, scale: float
) -> None:
    out = make_predictor(scale=scale).predict(step, resolve_device(device), EAGER)
    check(out, step)
    assert out.level == 0.9


@pytest.mark.parametrize("device", [A100, H100])
def test_no_bound_of_a_step_is_below_the_sum_of_its_floors(
    make_predictor: MakePredictor, make_kernel: MakeKernel, chain: Chain, device: str
) -> None:
    # weights so large that every mid stands on its floor: the interval may not go below it
    mm = [make_kernel("linear", batch=1, m=8192, n=8192, k=8192) for _ in range(8)]
    graph = chain([*mm, *(replace(k, phase="backward") for k in mm)])
    for scale in (0.0, 3.0):
        out = make_predictor(scale=scale).predict(graph, resolve_device(device), EAGER)
        assert out.step.lower_us >= out.floor_us.sum() * (1 - 1e-9)
        for phase in ("forward", "backward"):
            assert out.phases[phase].lower_us >= out.floor_us[:8].sum() * (1 - 1e-9)


def test_floor_is_the_peak_at_the_highest_clock_or_the_bandwidth(
    predictor: LatencyPredictor, make_kernel: MakeKernel, chain: Chain
) -> None:
    kernels = [
        make_kernel("linear", batch=1, m=8192, n=8192, k=8192),
        make_kernel("add", numel=2**28, inputs=2, outputs=1),  # 3.2 GB: no cache holds it
    ]
    for device in (resolve_device(d) for d in (A100, H100, "nvidia-l4", "nvidia-t4", "amd-mi210")):
        out = predictor.predict(chain(kernels), device, EAGER)
        top = max_clock_peak_tflops(device, op_class="matmul", dtype="fp32", software=EAGER)
        assert out.kernel_us[0] >= 2 * 8192**3 / (top * 1e6)
        assert out.kernel_us[1] >= 12 * 2**28 / (mem_bw_gbps(device) * 1e3)


SIZES = st.integers(1, 5000)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    m=SIZES, n=SIZES, k=SIZES, batch=st.integers(1, 64),
    device=st.sampled_from([A100, H100, "nvidia-tesla-p4", "nvidia-rtx-4090", "google-tpu-v5e"]),
    dtype=st.sampled_from(["fp32", "bf16"]),
)  # fmt: skip
def test_random_shapes_keep_the_laws(predictor, make_kernel, chain, m, n, k, batch, device, dtype):
    graph = chain(
        [
            make_kernel("bmm", dtype=dtype, batch=batch, m=m, n=n, k=k),
            make_kernel("add", dtype=dtype, numel=batch * m * n, inputs=2, outputs=1),
            make_kernel("softmax", dtype=dtype, rows=batch * m, cols=n),
        ]
    )
    found = resolve_device(device)
    try:
        out = predictor.predict(graph, found, EAGER)
    except UnsupportedPrecision:
        assert dtype == "bf16" or found.kind == "tpu"
        return
    check(out, graph)
    top = max_clock_peak_tflops(found, op_class="matmul", dtype=dtype, software=EAGER)
    assert graph.kernels[0].flops / out.kernel_us[0] <= top * 1e6 * (1 + 1e-9)


def test_labels_say_who_speaks(
    predictor: LatencyPredictor, step: KernelGraph, make_kernel: MakeKernel, chain: Chain
) -> None:
    out = predictor.predict(step, resolve_device(A100), EAGER)
    by_op = dict(zip([k.op for k in step.kernels], out.label.tolist(), strict=True))
    assert by_op == {
        "embedding": "roofline", "linear": "learned", "attention": "roofline", "add": "learned",
        "layer_norm": "learned", "softmax": "learned", "matmul": "learned", "opaque": "opaque",
        "adamw": "roofline",
    }  # fmt: skip
    assert out.in_distribution.tolist() == [label == "learned" for label in out.label]
    half = chain([make_kernel("linear", dtype="bf16", batch=1, m=64, n=64, k=64)])
    answer = predictor.predict(half, resolve_device(A100), EAGER)
    assert answer.label.tolist() == ["roofline"]  # trained in fp32 only
    assert answer.in_distribution.tolist() == [False]


def test_a_class_never_measured_on_a_known_device_is_transferred_wider_and_said(
    make_predictor: MakePredictor, make_kernel: MakeKernel, chain: Chain
) -> None:
    measured = {A100: [["gemm", "fp32"]], "nvidia-t4": [["gemm", "fp32"], ["softmax", "fp32"]]}
    told = make_predictor(scale=0.0, measured=measured)
    untold = make_predictor(scale=0.0)  # as releases were before
    mm = make_kernel("linear", batch=1, m=4096, n=4096, k=4096)
    rows = make_kernel("softmax", rows=400_000, cols=512)
    graph, device = chain([mm, rows]), resolve_device(A100)
    out, plain = (network.predict(graph, device, EAGER) for network in (told, untold))
    assert out.label.tolist() == ["learned", "transferred"]
    assert plain.label.tolist() == ["learned", "learned"]
    np.testing.assert_array_equal(out.kernel_us, plain.kernel_us)
    spread = [np.log(p.kernel_upper_us / p.kernel_us) for p in (out, plain)]
    assert spread[0][0] == spread[1][0]
    assert spread[0][1] - spread[1][1] == pytest.approx(0.3 - 0.1)  # unseen for seen
    share = out.kernel_us[1] / out.kernel_us.sum()
    half = np.log(out.step.upper_us / out.step.latency_us)
    assert half == pytest.approx((1 - share) * 0.1 + share * 0.3, rel=1e-2)
    (text,) = (w for w in out.warnings if "learned on other devices" in w)
    assert f"{share:.1%} of the time" in text and f"never on {A100}: softmax" in text
    assert plain.warnings == ()
    alone = told.predict(chain([mm] * 12), device, EAGER)
    assert set(alone.label.tolist()) == {"learned"} and alone.warnings == ()


def test_on_a_device_never_seen_all_is_transferred(
    predictor: LatencyPredictor, step: KernelGraph
) -> None:
    out = predictor.predict(step, resolve_device(H100), EAGER)
    assert set(out.label.tolist()) == {"transferred", "roofline", "opaque"}
    assert not any("learned on other devices" in w for w in out.warnings)  # zero-shot says it


def test_unlearned_kernels_do_not_depend_on_the_weights(
    make_predictor: MakePredictor, step: KernelGraph
) -> None:
    first = make_predictor(scale=0.1).predict(step, resolve_device(H100), EAGER)
    second = make_predictor(scale=1.0).predict(step, resolve_device(H100), EAGER)
    unlearned = first.label != "transferred"
    np.testing.assert_array_equal(first.kernel_us[unlearned], second.kernel_us[unlearned])
    assert (first.kernel_us[~unlearned] != second.kernel_us[~unlearned]).any()


def test_a_feature_outside_the_training_range_is_out_of_distribution(
    make_predictor: MakePredictor, step: KernelGraph
) -> None:
    def narrow(tensors):
        return {**tensors, "range.high": tensors["range.high"] * 0 - 1e30}

    out = make_predictor(tensors=narrow).predict(step, resolve_device(A100), EAGER)
    assert not out.in_distribution.any()
    assert "learned" in out.label


def test_phases_add_up_to_the_step(predictor: LatencyPredictor, step: KernelGraph) -> None:
    out = predictor.predict(step, resolve_device(A100), EAGER)
    assert list(out.phases) == ["forward", "backward", "optimizer"]
    total = sum(interval.latency_us for interval in out.phases.values())
    assert out.step.latency_us == pytest.approx(total)
    assert out.step.latency_us >= out.kernel_us.sum() * (1 - 1e-9)


def test_an_empty_graph_takes_no_time(predictor: LatencyPredictor, chain: Chain) -> None:
    out = predictor.predict(chain([]), resolve_device(A100), EAGER)
    assert len(out.kernel_us) == 0
    assert out.phases == {}
    assert (out.step.lower_us, out.step.latency_us, out.step.upper_us) == (0.0, 0.0, 0.0)


def test_calls_without_kernels_take_the_time_of_the_host(
    predictor: LatencyPredictor, chain: Chain, make_kernel: MakeKernel
) -> None:
    views = chain([], host_ops={"forward": 100})
    out = predictor.predict(views, resolve_device(A100), EAGER)
    assert out.phases["forward"].latency_us == pytest.approx(100 * HOST_CALL_US)
    assert out.step.latency_us == pytest.approx(100 * HOST_CALL_US)
    graph = chain(
        [make_kernel("linear", batch=1, m=4096, n=4096, k=4096)],
        host_ops={"forward": 1, "backward": 50},
    )
    out = predictor.predict(graph, resolve_device(A100), EAGER)
    assert out.phases["backward"].latency_us == pytest.approx(
        50 * HOST_CALL_US * HOST_BACKWARD_SHARE
    )
    check(out, graph)


@pytest.mark.parametrize(("phase", "share"), [("forward", 1.0), ("backward", HOST_BACKWARD_SHARE)])
def test_three_thousand_tiny_kernels_take_the_time_of_the_host(
    make_predictor: MakePredictor, chain: Chain, make_kernel: MakeKernel, phase: str, share: float
) -> None:
    tiny = make_kernel("add", phase, numel=64, inputs=2, outputs=1)
    graph = chain([tiny] * 3000)
    out = make_predictor(scale=0.0).predict(graph, resolve_device(H100), EAGER)
    host = 3000 * HOST_LAUNCH_US * share
    assert out.kernel_us.sum() < host
    assert host <= out.step.latency_us <= 1.02 * host
    views = replace(graph, host_ops={phase: 5000})
    more = make_predictor(scale=0.0).predict(views, resolve_device(H100), EAGER)
    assert more.step.latency_us == pytest.approx(
        out.step.latency_us + 2000 * HOST_CALL_US * share, rel=0.02
    )


def test_a_host_bound_step_says_so_and_allows_another_host(
    make_predictor: MakePredictor, chain: Chain, make_kernel: MakeKernel
) -> None:
    tiny = make_kernel("add", "forward", numel=64, inputs=2, outputs=1)
    out = make_predictor(scale=0.0).predict(chain([tiny] * 3000), resolve_device(H100), EAGER)
    host = 3000 * HOST_LAUNCH_US
    assert out.step.lower_us < 0.75 * host
    assert out.step.upper_us == pytest.approx(2 * host, rel=0.02)
    assert any("host-bound" in text and "27.00 ms" in text for text in out.warnings)
    large = chain([make_kernel("linear", batch=1, m=8192, n=8192, k=8192)] * 20)
    out = make_predictor(scale=0.0).predict(large, resolve_device(H100), EAGER)
    assert not any("host-bound" in text for text in out.warnings)


def test_a_program_without_a_kernel_says_so(
    make_predictor: MakePredictor, chain: Chain, make_kernel: MakeKernel
) -> None:
    one = chain([make_kernel("add", numel=64, inputs=2, outputs=1)])
    views = replace(one, kernels=(), edges=(), host_ops={"forward": 2})
    out = make_predictor(scale=0.0).predict(views, resolve_device(A100), EAGER)
    assert out.step.latency_us == 2 * HOST_CALL_US
    assert [text for text in out.warnings if "kernel" in text] == [
        "no kernel is launched: the time is the host's alone"
    ]


def test_large_kernels_hide_the_host(
    predictor: LatencyPredictor, chain: Chain, make_kernel: MakeKernel
) -> None:
    graph = chain([make_kernel("linear", batch=1, m=8192, n=8192, k=8192)] * 20)
    out = predictor.predict(graph, resolve_device(A100), EAGER)
    assert out.step.latency_us == pytest.approx(out.kernel_us.sum(), rel=1e-6)


def test_a_dtype_without_a_path_is_refused(
    predictor: LatencyPredictor, chain: Chain, make_kernel: MakeKernel
) -> None:
    graph = chain([make_kernel("linear", dtype="fp8", batch=1, m=64, n=64, k=64)])
    with pytest.raises(UnsupportedPrecision, match=r"nvidia-a100-pcie-40gb.*fp8"):
        predictor.predict(graph, resolve_device(A100), EAGER)
    check(predictor.predict(graph, resolve_device(H100), EAGER), graph)


def test_an_unknown_bandwidth_is_refused(predictor: LatencyPredictor, step: KernelGraph) -> None:
    blind = replace(resolve_device(A100), memory_bw_gbps=None)
    with pytest.raises(UnknownRateError, match="bandwidth is unknown"):
        predictor.predict(step, blind, EAGER)


def test_the_same_call_gives_the_same_bits(make_predictor: MakePredictor, step: KernelGraph):
    predictor, device = make_predictor(), resolve_device(H100)
    first = predictor.predict(step, device, EAGER)
    predictor.predict(step, resolve_device(A100), EAGER)
    for again in (predictor, make_predictor()):
        second = again.predict(step, device, EAGER)
        for name in ("kernel_us", "kernel_lower_us", "kernel_upper_us", "floor_us"):
            assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
        assert first.step == second.step
        assert first.phases == second.phases


def test_the_number_of_threads_is_the_callers(
    predictor: LatencyPredictor, step: KernelGraph
) -> None:
    torch.set_num_threads(2)  # the fixture puts it back
    many = predictor.predict(step, resolve_device(A100), EAGER)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    one = predictor.predict(step, resolve_device(A100), EAGER)
    assert many.kernel_us.tobytes() == one.kernel_us.tobytes()


def test_devices_never_seen_get_wider_intervals_and_a_warning(
    make_predictor: MakePredictor, make_kernel: MakeKernel, chain: Chain
) -> None:
    predictor = make_predictor(scale=0.0)
    graph = chain([make_kernel("linear", batch=1, m=4096, n=4096, k=4096)] * 4)
    seen = predictor.predict(graph, resolve_device(A100), EAGER)
    twin = replace(resolve_device(A100), id="my-a100")
    unseen = predictor.predict(graph, twin, EAGER)
    assert seen.step.latency_us == unseen.step.latency_us
    assert seen.step.upper_us == pytest.approx(seen.step.latency_us * np.exp(0.1), rel=1e-3)
    assert unseen.step.upper_us == pytest.approx(unseen.step.latency_us * np.exp(0.3), rel=1e-3)
    assert seen.warnings == ()
    assert any("my-a100" in w and "zero-shot" in w for w in unseen.warnings)
    half = chain([replace(graph.kernels[0], dtype="bf16")])
    tpu = predictor.predict(half, resolve_device("google-tpu-v5p"), EAGER)
    assert any("tpu" in w for w in tpu.warnings)


def test_every_class_of_the_vocabulary_is_predicted(
    predictor: LatencyPredictor, make_kernel: MakeKernel, chain: Chain
) -> None:
    kernels = [make_kernel(op, **dict.fromkeys(row.dims, 2)) for op, row in OPS.items()]
    graph = chain(kernels)
    for device in (A100, H100, "amd-mi300x"):
        check(predictor.predict(graph, resolve_device(device), EAGER), graph)


def test_every_device_of_the_catalogue_answers_or_says_why(
    predictor: LatencyPredictor, step: KernelGraph
) -> None:
    answered = 0
    for device in load_catalogue().values():
        try:
            check(predictor.predict(step, device, EAGER), step)
            answered += 1
        except UnsupportedPrecision as error:
            assert device.id in str(error)
    assert answered > 60


CPUS = ("intel-xeon-phi-7250", "intel-i9-10940x")


def test_what_was_trained_on_decides_what_extrapolates(
    predictor: LatencyPredictor, step: KernelGraph
) -> None:
    cpu, gpu = resolve_device(CPUS[0]), resolve_device(H100)
    on_gpus = predictor.predict(step, cpu, EAGER).warnings
    assert any("learned from GPUs; cpu figures extrapolate" in w for w in on_gpus)
    networks = replace(predictor.networks, devices=CPUS)
    learned = replace(predictor, networks=networks)
    assert not any("learned from" in w for w in learned.predict(step, cpu, EAGER).warnings)
    unseen = learned.predict(step, gpu, EAGER).warnings
    assert any("learned from CPUs; gpu figures extrapolate" in w for w in unseen)
    # a device file that is not read here: its kind is not known, its id is said
    mine = replace(cpu, id="my-cpu")
    alone = replace(predictor, networks=replace(networks, devices=("my-cpu", "my-other")))
    assert not any("learned from" in w for w in alone.predict(step, mine, EAGER).warnings)
    other = alone.predict(step, gpu, EAGER).warnings
    assert any("learned from my-cpu and my-other; gpu figures extrapolate" in w for w in other)


def test_a_release_that_nobody_told_is_no_reason_to_be_out_of_distribution(
    predictor: LatencyPredictor, step: KernelGraph
) -> None:
    low, high = predictor.range_low_TF.copy(), predictor.range_high_TF.copy()
    at = COLUMNS.index("release")
    seen = low[:, at] <= high[:, at]
    low[seen, at] = high[seen, at] = 0.9  # rows of PyTorch 2.13 alone
    narrow = replace(predictor, range_low_TF=low, range_high_TF=high)
    device = resolve_device(A100)

    def inside(version: str | None) -> list[bool]:
        software = Software(framework_version=version)
        return narrow.predict(step, device, software).in_distribution.tolist()

    assert any(inside("2.13.0"))
    assert inside(None) == inside("2.13.0")
    assert not any(inside("2.4.1"))  # told, and another one than trained


@pytest.mark.parametrize("scale", [0.0, 0.2])
def test_every_interval_on_a_kind_never_learned_is_wide(
    make_predictor: MakePredictor, step: KernelGraph, scale: float
) -> None:
    entries = [["gemm", "fp32", "gpu"], ["pointwise", "fp32", "gpu"]]
    for model in ({}, {"learned": entries}):
        predictor = make_predictor(scale=scale, **model)
        out = predictor.predict(step, resolve_device("intel-i9-10940x"), EAGER)
        check(out, step)
        reach = np.maximum(out.kernel_us / 3, out.floor_us)
        assert (out.kernel_lower_us <= reach * (1 + 1e-12)).all()
        assert (out.kernel_upper_us >= 3 * out.kernel_us * (1 - 1e-12)).all()
        assert out.step.upper_us > 2.9 * out.kernel_us.sum()
        assert not out.in_distribution.any()
        gpu = predictor.predict(step, resolve_device("nvidia-l4"), EAGER)
        assert (gpu.kernel_upper_us < 3 * gpu.kernel_us).any()
        assert gpu.in_distribution.any()


def test_a_kind_that_entries_name_is_learned(make_predictor: MakePredictor, step: KernelGraph):
    entries = [["pointwise", "fp32", "cpu"], ["pointwise", "fp32", "tpu"]]
    predictor = make_predictor(learned=entries, devices=["my-one", "my-other"])
    cpu = predictor.predict(step, resolve_device("intel-i9-10940x"), EAGER)
    gpu = predictor.predict(step, resolve_device(A100), EAGER)
    assert not any("extrapolate" in w for w in cpu.warnings)
    assert any("gpu figures extrapolate" in w for w in gpu.warnings)


@pytest.mark.parametrize(
    ("framework", "device", "said"),
    [
        ("pytorch", A100, None),
        ("fused inference", A100, "TensorRT or ONNX Runtime"),
        ("fused inference", H100, "TensorRT or ONNX Runtime"),
        ("jax", A100, "XLA"),
        ("torch_xla", H100, "XLA"),
        ("jax", "intel-i9-10940x", None),  # nothing was learned on such a kind of device
    ],
)
def test_times_carried_to_another_runtime_say_so(
    make_predictor: MakePredictor, step: KernelGraph, framework: str, device: str, said: str | None
) -> None:
    out = make_predictor().predict(step, resolve_device(device), Software(framework=framework))
    told = [w for w in out.warnings if "carried to this runtime" in w]
    assert len(told) == (said is not None)
    assert all(w.endswith(f"no measured row is of {said}") for w in told)


def test_nothing_learned_is_nothing_carried(make_predictor: MakePredictor, chain: Chain,
                                            make_kernel: MakeKernel):  # fmt: skip
    graph = chain([make_kernel("opaque", numel=4096)])
    out = make_predictor().predict(graph, resolve_device(A100), Software(framework="jax"))
    assert not any("carried" in w for w in out.warnings)
