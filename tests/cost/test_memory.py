"""Memory of a step: liveness on hand-written graphs, states, caches, and what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.cost.liveness import memory_peaks
from predictor.cost.memory import (
    CONTEXT_RESERVE_GIB,
    GIB,
    embedding_gradient_elements,
    kv_cache_bytes,
    memory_report,
    optimizer_state_bytes,
)
from predictor.cost.optimizers import ADAMW, SGD, SGD_MOMENTUM
from predictor.graph.ir import KernelGraph, OpGraph, OpNode, TensorSpec, Workload
from predictor.hardware.device import Device

WORK = Workload(
    name="linear", mode="train", parameters=1_001_000, trainable_parameters=1_001_000,
    parameters_bytes=4_004_000, trainable_bytes=4_004_000, buffers_bytes=16, inputs_bytes=64,
    batch=1, tokens=None, dtype="fp32", optimizer="adamw",
)  # fmt: skip


def tensor(storage: int, size: int, role="activation") -> TensorSpec:
    return TensorSpec(
        shape=(size // 4,), dtype="fp32", storage_id=storage, storage_bytes=size,
        touched_bytes=size, role=role,
    )  # fmt: skip


def node(op: str, inputs, outputs, phase="forward", **attrs) -> OpNode:
    return OpNode(op=op, phase=phase, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs)


def device(**fields) -> Device:
    return Device(id="test", vendor="nvidia", kind="gpu", **fields)


def test_adamw_states_follow_the_parameters():
    # C1: Linear(1000, 1000), two tensors
    assert optimizer_state_bytes(4 * 1_001_000, 2, ADAMW) == 8_008_008
    assert optimizer_state_bytes(2 * 1_001_000, 2, ADAMW) == 4_004_008
    assert optimizer_state_bytes(4 * 1_001_000, 2, SGD) == 0
    assert optimizer_state_bytes(4 * 1_001_000, 2, SGD_MOMENTUM) == 4_004_000


def test_adamw_states_are_what_torch_allocates():
    import torch

    for dtype, right in ((torch.float32, 8_008_008), (torch.bfloat16, 4_004_008)):
        layer = torch.nn.Linear(1000, 1000, dtype=dtype)
        step = torch.optim.AdamW(layer.parameters())
        layer(torch.ones(1, 1000, dtype=dtype)).sum().backward()
        step.step()
        states = [t for s in step.state.values() for t in s.values()]
        assert sum(t.numel() * t.element_size() for t in states) == right


def test_key_value_cache_counts_key_value_heads():
    # C3: Llama-3-8B, 8192 tokens
    assert kv_cache_bytes(layers=32, kv_heads=8, head_dim=128, tokens=1) == 131_072
    assert kv_cache_bytes(layers=32, kv_heads=8, head_dim=128, tokens=8192) == GIB
    assert kv_cache_bytes(layers=32, kv_heads=32, head_dim=128, tokens=8192) == 4 * GIB


def test_sparse_embedding_gradient_holds_its_rows():
    # C5: Embedding(50000, 64), 4 ids
    table = {"num_embeddings": 50_000, "embedding_dim": 64, "ids": 4}
    assert embedding_gradient_elements(**table, sparse=False) == 3_200_000
    assert embedding_gradient_elements(**table, sparse=True) == 256


def training_graph() -> OpGraph:
    """x -> a (kept for backward) -> b -> c; then da from c and a, dw from da."""
    x, w = tensor(0, 40, "input"), tensor(1, 400, "parameter")
    a, b, c = tensor(2, 100), tensor(3, 100), tensor(4, 60)
    da, dw = tensor(5, 100), tensor(6, 400, "gradient")
    nodes = (
        node("aten.add", [x, w], [a]),
        node("aten.relu", [a], [b]),
        node("aten.sum", [b], [c]),
        node("aten.mul", [c, a], [da], "backward"),
        node("aten.sum", [da, x], [dw], "backward"),
        node("predictor.adamw", [w], [], "optimizer", numel=100, tensors=1),
    )
    return OpGraph(workload=WORK, nodes=nodes)


def test_storages_live_from_first_to_last_use():
    # at `mul`: c 60 + a 100 + da 100; at `sum`: a 100 + b 100 + c 60
    peaks = memory_peaks(training_graph())
    assert peaks.activation_bytes == 260
    # at the update: gradient 400 + one temporary of 100 fp32
    assert peaks.step_bytes == 800


def test_views_keep_their_storage_alive():
    whole, part, out = tensor(1, 100), tensor(1, 100), tensor(2, 40)
    later = tensor(3, 40)
    graph = OpGraph(
        workload=WORK,
        nodes=(
            node("aten.ones", [], [whole]),
            node("aten.view", [whole], [part]),
            node("aten.neg", [out], [later]),
            node("aten.sum", [part], [out]),
        ),
    )
    assert memory_peaks(graph).activation_bytes == 180


def test_items_of_a_step():
    report = memory_report(training_graph())
    assert report.parameters_bytes == 4_004_016
    assert report.gradients_bytes == 4_004_000
    assert report.optimizer_bytes == 804  # of the 400 bytes that the graph updates
    assert report.activations_bytes == 260
    assert report.peak_bytes == 4_004_016 + 64 + 804 + 4_004_000
    assert report.fits is None
    assert report.warnings == ()


def test_kernels_and_calls_report_the_same():
    from predictor.lower.eager import lower_eager

    graph = training_graph()
    assert memory_report(lower_eager(graph)) == memory_report(graph)


def kernels(step_gib: float, **changes) -> KernelGraph:
    return KernelGraph(
        workload=replace(WORK, **changes), kernels=(), edges=(), edge_bytes=(),
        peak_activation_bytes=step_gib * GIB / 2, peak_step_bytes=step_gib * GIB,
    )  # fmt: skip


@pytest.mark.parametrize(("step_gib", "fits"), [(78.0, True), (81.0, False)])
def test_what_exceeds_the_usable_memory_does_not_fit(step_gib, fits):
    # C6
    report = memory_report(kernels(step_gib), device(memory_gib=80.0))
    assert report.fits is fits
    assert report.capacity_bytes == int((80.0 - CONTEXT_RESERVE_GIB) * GIB)
    assert bool(report.warnings) is not fits
    if not fits:
        assert "does not fit test" in report.warnings[0]
    items = (report.parameters_bytes, report.gradients_bytes, report.optimizer_bytes)
    assert all(items)


def test_reported_size_goes_before_the_datasheet():
    report = memory_report(kernels(78.0), device(memory_gib=80.0, memory_reported_gib=75.0))
    assert report.fits is False


def test_unknown_size_is_a_warning():
    report = memory_report(kernels(1.0), device())
    assert report.fits is None
    assert report.capacity_bytes is None
    assert "unknown" in report.warnings[0]


def test_inference_keeps_neither_gradients_nor_states():
    report = memory_report(kernels(1.0, mode="infer", optimizer=None), device(memory_gib=80.0))
    assert report.gradients_bytes == report.optimizer_bytes == 0


def test_optimizer_can_be_chosen():
    graph = kernels(1.0)
    assert memory_report(graph, None, "sgd").optimizer_bytes == 0
    assert memory_report(graph, None, "sgd", momentum=0.9).optimizer_bytes == 4_004_000
    assert memory_report(graph, None, "adamw").optimizer_bytes == 8_008_000
