"""Fused kernels: what goes into one, what stays apart, what is computed again."""

from __future__ import annotations

import importlib.util
import json
import statistics
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from predictor import capture
from predictor.capture.torch import capture_module
from predictor.graph.ops import OPS
from predictor.lower.eager import lower_eager
from predictor.lower.inductor import compiled, kernel_names, lower_inductor
from predictor.zoo import build

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "inductor_counts.json").read_text())
"""What TorchInductor called for ten programs: `python benchmarks/inductor_counts.py --record`."""
BACKENDS = {"triton": "triton-on-cpu", "cpp": "cpu"}
BAR_EACH, BAR_MEDIAN = 0.15, 0.05


@cache
def programs():
    place = HERE.parents[1] / "benchmarks" / "inductor_models.py"
    spec = importlib.util.spec_from_file_location("inductor_models", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def errors(name, mode):
    """Relative errors of the number of calls, by backend."""
    module, inputs = programs().build(name)
    module.train(mode == "train")
    given = {"loss": lambda out: out} if mode == "train" else {}
    graph = capture(module, inputs, mode=mode, **given)
    found = {}
    for backend, own in BACKENDS.items():
        phases = compiled(graph, backend=own, processors=RECORDED["processors"], channels_last=True)
        here = sum(one.calls for one in phases if one.phase != "optimizer")
        recorded = RECORDED["counts"][f"{name} {backend} {mode}"].values()
        there = sum(len(p["kernels"]) + len(p["library"]) for p in recorded)
        found[backend] = here / there - 1
    return found


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", sorted(programs().MODELS))
def test_as_many_calls_as_the_compiler_makes(name, mode):
    assert all(abs(error) <= BAR_EACH for error in errors(name, mode).values())


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_half_of_the_programs_have_about_its_count(backend):
    every = [errors(n, m)[backend] for n in programs().MODELS for m in ("infer", "train")]
    assert statistics.median(map(abs, every)) <= BAR_MEDIAN


def kernels(module, *inputs, mode="infer", backend="cuda", **given):
    found = {}
    for one in compiled(capture(module, inputs, mode=mode, **given), backend=backend):
        found[one.phase] = (one.calls, kernel_names(one))
    return found


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def test_a_chain_of_pointwise_calls_is_one_kernel():
    found = kernels(Of(lambda x: torch.relu(x * 2 + 1).sigmoid()), torch.empty(64, 32))
    assert found == {"forward": (1, ["poi_fused_add_mul_relu_sigmoid_2048x1"])}


def test_an_mlp_has_one_kernel_behind_each_product():
    body = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64))
    calls, names = kernels(nn.Sequential(*body, nn.Softmax(-1)), torch.empty(32, 64))["forward"]
    assert calls == 4  # two products, each with a kernel behind it
    assert names == ["per_fused_gelu_native_layer_norm_32x128", "per_fused__softmax_32x64"]


@pytest.mark.parametrize(("backend", "calls"), [("cuda", 2), ("cpu", 1)])
def test_shapes_keep_kernels_apart_on_a_gpu_and_share_a_function_on_a_cpu(backend, calls):
    both = Of(lambda x, y: (x.exp(), y.exp()))
    found = kernels(both, torch.empty(8), torch.empty(9), backend=backend)
    assert found["forward"][0] == calls


def test_columns_are_summed_apart_from_rows():
    step = kernels(
        nn.LayerNorm(128), torch.empty(32, 128), mode="train", loss=lambda y: y.pow(2).mean()
    )
    assert step["backward"][0] == 1  # x needs no gradient: sums down the columns alone


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64))


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_products_keep_their_work_and_fusion_saves_traffic(mode):
    graph = capture(mlp(), torch.empty(32, 64), mode=mode)
    eager, fused = lower_eager(graph), lower_inductor(graph)
    assert sum(k.matmul_flops for k in fused.kernels) == sum(k.matmul_flops for k in eager.kernels)
    assert sum(k.bytes for k in fused.kernels) < sum(k.bytes for k in eager.kernels)
    assert len(fused.kernels) < len(eager.kernels)
    assert all(a < b for a, b in fused.edges)


def test_a_fused_kernel_reads_its_inputs_and_writes_its_results_once():
    both = (torch.empty(64, 32), torch.empty(64, 32))
    graph = capture(Of(lambda x, y: torch.relu(x * y + 1)), both)
    (kernel,) = lower_inductor(graph).kernels
    assert (kernel.read_bytes, kernel.write_bytes) == (2 * 64 * 32 * 4, 64 * 32 * 4)
    assert kernel.dims == {"numel": 2048, "inputs": 2, "outputs": 1}
    assert kernel.flops == sum(k.flops for k in lower_eager(graph).kernels)


def test_what_a_reduction_and_its_reader_both_compute_counts_once():
    graph = capture(nn.Sequential(nn.GELU(), nn.LayerNorm(64)), torch.empty(32, 64))
    (kernel,) = lower_inductor(graph).kernels
    assert kernel.flops == sum(k.flops for k in lower_eager(graph).kernels)


@pytest.mark.parametrize("backend", ["cuda", "cpu"])
def test_what_is_written_side_by_side_still_comes_before_its_readers(backend):
    step = Of(lambda x, w: torch.cat([x.exp(), x.sin(), x.cos(), x.tan(), x + 1], dim=1) @ w)
    graph = capture(step, (torch.empty(8, 16), torch.empty(80, 4)))
    fused = lower_inductor(graph, backend=backend)
    product = next(i for i, k in enumerate(fused.kernels) if k.op == "matmul")
    assert {b for _, b in fused.edges} == {product}


def test_rows_of_a_table_are_read_not_the_table():
    look = capture(nn.Embedding(1000, 16), torch.zeros(8, dtype=torch.long))
    (kernel,) = lower_inductor(look).kernels
    assert kernel.op == "embedding"
    assert kernel.read_bytes == 8 * 16 * 4 + 8 * 8


def test_an_optimizer_step_is_one_pass_of_one_kernel():
    step = lower_inductor(capture(mlp(), torch.empty(32, 64), mode="train"))
    (update,) = [k for k in step.kernels if k.phase == "optimizer"]
    numel = update.dims["numel"]
    assert (update.read_bytes, update.write_bytes, update.launches) == (16 * numel, 12 * numel, 1)


def test_long_columns_are_summed_in_two_passes_on_a_large_device():
    graph = capture(Of(lambda x: x.sum(0)), torch.empty(8192, 64))
    sizes = {n: len(lower_inductor(graph, processors=n).kernels) for n in (1, 108)}
    assert sizes == {1: 1, 108: 2}


@pytest.mark.parametrize("name", ["resnet-18", "lstm-lm", "gcn-arxiv", "dlrm", "bert-base"])
def test_bundled_programs_keep_their_work_with_less_traffic(name):
    program = build(name, mode="train", batch=2, seq=None)
    graph = capture_module(program.module, (), program.inputs, mode="train", name=name, amp="fp16")
    eager, fused = lower_eager(graph), lower_inductor(graph)
    work, less = (sum(k.matmul_flops for k in g.kernels) for g in (eager, fused))
    assert work == less
    assert sum(k.bytes for k in fused.kernels) < 0.75 * sum(k.bytes for k in eager.kernels)
    for kernel in fused.kernels:
        assert set(kernel.dims) - set(OPS[kernel.op].optional) == set(OPS[kernel.op].dims)
        assert kernel.bytes > 0
        assert kernel.flops >= 0
    assert all(a < b for a, b in fused.edges)
    assert lower_inductor(graph) == fused
