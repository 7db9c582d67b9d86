"""Every bundled model, inference and training: each call that computes has a rule."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from predictor.capture.torch import capture_module
from predictor.cost.memory import memory_report
from predictor.graph.ops import OPS
from predictor.lower.eager import lower_eager
from predictor.zoo import ZOO, build

SHORT = dict.fromkeys(
    ("llama-3-70b", "llama-3-8b", "llama-2-7b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b",
     "gpt3-xl", "gpt3-2.7b", "gpt2-xl", "opt-1.3b"),
    64,
)  # fmt: skip
"""Sequence lengths that keep nothing but the counts smaller."""


def captured(name, mode, **options):
    program = build(name, mode=mode, batch=2, seq=SHORT.get(name))
    return capture_module(program.module, (), program.inputs, mode=mode, name=name, **options)


def total(graph):
    return sum(k.matmul_flops for k in graph.kernels)


CASES = [(name, None) for name in sorted(ZOO)] + [
    (name, "fp16")
    for name in (
        "bert-large", "gpt2", "lstm-lm", "resnet-50", "vit-b-16", "mixtral-8x7b", "t5-base",
        "convnext-base", "sd-1.5-unet", "whisper-base", "dlrm", "gcn-arxiv",
    )
]  # fmt: skip
LEAST_RATIO = {"gcn-arxiv": 2.6}
"""Training FLOPs by forward FLOPs, at least: the adjacency of a graph gets no gradient."""


@pytest.mark.parametrize(("name", "amp"), CASES)
def test_every_call_has_a_rule_and_sane_kernels(name, amp):
    forward = lower_eager(captured(name, "infer", amp=amp))
    step = lower_eager(captured(name, "train", amp=amp))
    for graph in (forward, step):
        assert graph.kernels
        for kernel in graph.kernels:
            assert set(kernel.dims) - set(OPS[kernel.op].optional) == set(OPS[kernel.op].dims)
            assert all(size >= 0 for size in kernel.dims.values())
            assert math.isfinite(kernel.flops)
            assert kernel.flops >= 0
            assert kernel.bytes > 0
            assert kernel.launches >= 1
        assert all(0 <= a < b < len(graph.kernels) for a, b in graph.edges)
        assert min(graph.edge_bytes) > 0
        linked = {k for edge in graph.edges for k in edge}
        alone = [k for i, k in enumerate(graph.kernels) if i not in linked]
        assert len([k for k in alone if k.dims.get("numel") != 1]) < 0.1 * len(graph.kernels)
    # the backward is twice the forward, but for inputs that need no gradient
    assert LEAST_RATIO.get(name, 2.9) * total(forward) < total(step) <= 3 * total(forward)
    phases = [k.phase for k in step.kernels]
    assert phases == sorted(phases, key=("forward", "backward", "optimizer").index)
    assert phases.count("optimizer") == 1
    report = memory_report(step)
    assert report.peak_bytes >= report.parameters_bytes + report.optimizer_bytes
    assert report.optimizer_bytes >= 2 * step.workload.trainable_bytes


def test_language_model_follows_the_published_count():
    # GPT-2 large, 4 x 1024 tokens: 6*T*(36*12*1280^2 + 50257*1280) + 12*36*4*1024^2*1280
    program = build("gpt2-large", mode="train", batch=4, seq=1024)
    graph = lower_eager(capture_module(program.module, (), program.inputs, mode="train"))
    weights = 36 * 12 * 1280**2 + 50257 * 1280
    assert total(graph) == 6 * 4096 * weights + 12 * 36 * 4 * 1024**2 * 1280
    attention = [k for k in graph.kernels if OPS[k.op].op_class == "attention"]
    assert len(attention) == 2 * 36
