"""The timm graph bank against captures at the batch that is asked for: every integer agrees."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from predictor.capture.torch import capture_module
from predictor.features.table import OP_NAMES, KernelTable, table_from_graph
from predictor.graph.ir import KernelGraph
from predictor.lower.eager import lower_eager
from predictor.traces.batch_affine import DTYPE_CODES, difference, edge_rows
from predictor.traces.graph_bank import GraphBank, load_bank

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("timm", "torchvision"))), reason="needs the zoo extra"
)
TRAINING = Path(__file__).parents[2] / "training"
PROGRAMS = (
    ("resnet10t", 176, "infer", "amp", "nchw"),
    ("resnet10t", 176, "train", "amp-unfused", "nhwc"),
    ("vit_tiny_patch16_224", 224, "infer", "amp-unfused", "nchw"),
    ("levit_128s", 224, "infer", "bf16", "nchw"),
    ("mobilevit_xxs", 256, "infer", "amp", "nhwc"),
    ("efficientnet_b0", 224, "train", "amp-unfused", "nchw"),
    ("vit_tiny_patch16_224", 224, "infer", "amp-unfused-fastnorm", "nchw"),
    ("repvgg_a0", 224, "infer", "amp-reparam", "nchw"),
)
"""Model, size, mode, variant, layout: convolutions, attention in both forms, windows folded into
the batch, both layouts, both modes, autocast and none."""
SHIPPED = (
    ("resnet10t", 176, "infer", "amp", "nchw"),
    ("vit_tiny_patch16_224", 224, "infer", "amp", "nchw"),
    ("convnext_tiny", 224, "infer", "amp", "nchw"),
)


@pytest.fixture(scope="module")
def script():
    """`training/timm_programs.py`, which imports a module beside it."""
    sys.path.insert(0, str(TRAINING))
    try:
        spec = importlib.util.spec_from_file_location(
            "timm_programs", TRAINING / "timm_programs.py"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TRAINING))
    return module


@pytest.fixture(scope="module")
def bank() -> GraphBank:
    return load_bank()


def captured(script: ModuleType, task: object) -> tuple[object, int]:
    """A program at any batch, and its number of parameters."""
    programs = script.Programs(task)
    return programs.captured(task), programs.parameters(task)


def kernels(script: ModuleType, task: object, batch: int) -> KernelGraph:
    """A program captured at its own batch."""
    found = script.Programs(task).model(task.variant)
    return lower_eager(script.op_graph(found, task, batch))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_one_capture_gives_every_batch(script, program):
    task = script.Task(
        **dict(zip(("model", "size", "mode", "variant", "layout"), program, strict=True))
    )
    graph, parameters = captured(script, task)
    half = "fp16" if "amp" in task.variant else None
    assert parameters > 0
    for batch in (2, 7):
        assert difference(graph, kernels(script, task, batch), half=half) == ""


def test_one_image_of_a_network_without_windows_is_exact_too(script):
    task = script.Task(model="resnet10t", size=176, mode="infer", variant="amp", layout="nchw")
    graph, _ = captured(script, task)
    assert difference(graph, kernels(script, task, 1), half="fp16") == ""


def test_one_image_saves_copies_and_no_arithmetic(script):
    """A batch of one folds into its neighbours without a copy; the bank keeps the copies."""
    task = script.Task(model="levit_128s", size=224, mode="infer", variant="bf16", layout="nchw")
    graph, _ = captured(script, task)
    stored = Counter(OP_NAMES[row[0]] for row in graph.rows)
    real = kernels(script, task, 1)
    assert set(stored - Counter(k.op for k in real.kernels)) == {"transpose"}
    assert len(real.kernels) < len(graph.rows)
    flops, *moved = graph.values(1)[:, -4:-1].sum(axis=0)
    assert flops == sum(k.flops for k in real.kernels)
    assert 1 < sum(moved) / sum(k.bytes for k in real.kernels) < 1.06


def test_norms_in_the_autocast_dtype_cast_nothing(script):
    base = {"model": "convnext_atto", "size": 224, "mode": "infer", "layout": "nchw"}
    fast, _ = captured(script, script.Task(variant="amp", **base))
    plain, _ = captured(script, script.Task(variant="amp-unfused", **base))
    norms = {
        variant: {row[2] for row in graph.rows if OP_NAMES[row[0]] == "layer_norm"}
        for variant, graph in (("fast", fast), ("plain", plain))
    }
    assert norms["fast"] == {DTYPE_CODES.index("half")}
    assert norms["plain"] == {DTYPE_CODES.index("fp32")}


def test_folded_branches_are_one_convolution(script):
    base = {"model": "repvgg_a0", "size": 224, "mode": "infer", "layout": "nchw"}
    plain, parameters = captured(script, script.Task(variant="amp", **base))
    folded, fewer = captured(script, script.Task(variant="amp-reparam", **base))
    counts = [sum(OP_NAMES[row[0]] == "conv" for row in g.rows) for g in (plain, folded)]
    assert counts == [44, 22]  # 22 blocks of a 3x3 and a 1x1 convolution
    # 9.11 and 8.31 million in the published tables
    assert (round(parameters / 1e6, 2), round(fewer / 1e6, 2)) == (9.11, 8.31)
    same = script.Task(variant="amp-reparam", **{**base, "model": "resnet10t"})
    assert captured(script, same)[0] == script.NOT_FOLDED


def test_attention_written_out_differs_only_where_there_is_some(script):
    base = {"size": 224, "mode": "infer", "layout": "nchw", "variant": "amp-unfused"}
    assert captured(script, script.Task(model="resnet18", **base))[0] == script.SAME
    written, _ = captured(script, script.Task(model="vit_tiny_patch16_224", **base))
    fused, _ = captured(
        script, script.Task(**{**base, "model": "vit_tiny_patch16_224", "variant": "amp"})
    )
    # 12 blocks; the one attention call becomes two products, a softmax and what stands around
    assert len(written.rows) - len(fused.rows) >= 12 * 2


@pytest.mark.parametrize("half", ["fp16", "bf16"])
@pytest.mark.parametrize("program", SHIPPED, ids=str)
def test_the_graphs_that_come_with_the_library_are_what_is_captured_today(
    script, bank, program, half
):
    model, size, mode, variant, layout = program
    name = bank.find(model, size, mode, variant, layout, batch=7)
    assert name is not None
    stored = bank.graph(name)
    found = script.build_timm(model, image_size=size, fast_norm=True)
    real = lower_eager(capture_module(found.module, found.images(7), amp=half, name=model))
    table, expected = stored.table(7, half), table_from_graph(real)
    for field in fields(KernelTable):
        assert np.array_equal(getattr(table, field.name), getattr(expected, field.name)), field.name
    assert np.array_equal(stored.edge_index.T, edge_rows(real))
    assert stored.host_calls == {p: n for p, n in real.host_ops.items() if n}
