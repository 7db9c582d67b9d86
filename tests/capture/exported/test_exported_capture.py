"""Exported programs give the graph of the module that they were exported from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

import predictor
from predictor.capture.exported.archive import read_description
from predictor.capture.exported.capture import capture_exported
from predictor.capture.exported.decode import decode
from predictor.capture.exported.records import Body, Call, ExportedGraph, Input, Ref, TensorMeta
from predictor.errors import CaptureError, CostRuleError
from predictor.graph.ir import OpGraph

pytestmark = pytest.mark.filterwarnings(
    "ignore:The tensor attributes", "ignore:`isinstance.treespec, LeafSpec.`"
)
Nodes = Callable[[OpGraph], list[tuple[Any, ...]]]
Program = Callable[[str], tuple[nn.Module, torch.Tensor]]
Saved = Callable[..., str]


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", ["mlp", "lstm", "vision", "language"])
def test_same_graph_as_the_module(
    name: str, mode: Any, program: Program, saved: Saved, nodes: Nodes
) -> None:
    module, inputs = program(name)
    module.train(mode == "train")
    exported = torch.export.export(module, (inputs,))
    direct = predictor.capture(module, inputs, mode=mode)
    for target in (exported, saved(module, inputs)):
        graph = predictor.capture(target, mode=mode)
        assert nodes(graph) == nodes(direct)
        assert replace(graph.workload, name="") == replace(direct.workload, name="")
    assert predictor.capture(exported).workload.name == type(module).__name__


@pytest.mark.parametrize("dtype", ["amp-fp16", "bf16"])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_same_graph_in_half_precision(
    mode: Any, dtype: str, program: Program, nodes: Nodes
) -> None:
    module, tokens = program("language")
    module.train(mode == "train")
    direct = predictor.capture(module, tokens, mode=mode, dtype=dtype)
    exported = torch.export.export(module, (tokens,))
    assert nodes(predictor.capture(exported, mode=mode, dtype=dtype)) == nodes(direct)


def test_an_unlifted_program_is_a_module_like_any_other(program: Program) -> None:
    module, tokens = program("language")
    exported = torch.export.export(module.eval(), (tokens,))
    graph = predictor.capture(exported.module(), tokens)
    assert "predictor.sdpa" in {node.op for node in graph.nodes}  # not taken apart


def test_regions_keep_their_state() -> None:
    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.first(x)
            return self.second(y) + y

    exported = torch.export.export(Regions(), (torch.zeros(4, 8),))
    direct = predictor.capture(Regions(), torch.zeros(4, 8), mode="train")
    graph = predictor.capture(exported, mode="train")
    assert [(n.op, n.phase) for n in graph.nodes] == [(n.op, n.phase) for n in direct.nodes]
    assert graph.workload.trainable_bytes == 4 * (64 + 8)  # of the second layer alone


def test_regions_of_autocast_cast() -> None:
    size = TensorMeta(sizes=(8, 8), strides=(8, 1), offset=0, dtype=torch.float32)
    product = Call(
        target="aten.mm.default", args=(Ref("a"), Ref("a")), kwargs={}, results="b", metas=(size,)
    )
    inner = Body(inputs=("a",), calls=(product,), outputs=(Ref("b"),))
    region = Call(
        target="higher_order.wrap_with_autocast",
        args=("cuda", torch.bfloat16, True, None, inner, Ref("x")),
        kwargs={},
        results=("y",),
    )
    outer = Body(inputs=("x",), calls=(region,), outputs=(Ref("y"),))
    given = Input(name="x", kind="input", meta=size)
    graph = capture_exported(
        ExportedGraph(
            name="region", inputs=(given,), body=outer, dialect="training", user_outputs=(0,)
        )
    )
    assert [n.op for n in graph.nodes] == ["aten._to_copy", "aten._to_copy", "aten.mm"]
    assert graph.nodes[-1].outputs[0].dtype == "bf16"


def test_checks_of_the_export_are_no_calls(saved: Saved) -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(4, dtype=torch.float64).to(x.dtype) + x

    path = saved(Checked(), torch.zeros(4))
    described = decode(read_description(Path(path)), path)
    assert "aten._assert_tensor_metadata.default" in {c.target for c in described.body.calls}
    ops = ["aten.zeros", "aten._to_copy", "aten.add"]
    assert [n.op for n in predictor.capture(path).nodes] == ops


# -- sizes --------------------------------------------------------------------------------------


@pytest.fixture
def free(program: Program) -> torch.export.ExportedProgram:
    """The language model with a free batch (2 to 64) and sequence."""
    module, tokens = program("language")
    shapes = {"tokens": {0: Dim("batch", min=2, max=64), 1: Dim("length", min=4)}}
    return torch.export.export(module.eval(), (tokens,), dynamic_shapes=shapes)


@pytest.mark.parametrize(
    "sizes",
    [
        {"dims": {"batch": 8, "length": 32}},
        {"dims": {"tokens.0": 8, "tokens.1": 32}},
        {"batch": 8, "seq": 32},
        {"batch": 8, "dims": {"length": 32}},
    ],
)
def test_free_sizes_are_bound(
    sizes: dict[str, Any],
    free: torch.export.ExportedProgram,
    program: Program,
    nodes: Nodes,
) -> None:
    module, _ = program("language")
    direct = predictor.capture(module.eval(), torch.zeros(8, 32, dtype=torch.long))
    graph = predictor.capture(free, **sizes)
    assert nodes(graph) == nodes(direct)
    assert graph.workload.tokens == 256


def test_free_sizes_of_a_file_go_by_symbol(
    free: torch.export.ExportedProgram, tmp_path: Any, nodes: Nodes
) -> None:
    path = str(tmp_path / "free.pt2")
    torch.export.save(free, path)
    with pytest.raises(CaptureError, match=r"leaves sizes free") as failed:
        predictor.capture(path)
    text = str(failed.value)
    assert "dimension 0 of tokens, 2 to 64, exported with 4" in text
    assert "dimension 1 of tokens, from 4, exported with 16" in text
    symbol = text.partition("as in --dim ")[2].partition("=")[0]
    graph = predictor.capture(path, dims={symbol: 8}, seq=32)
    assert nodes(graph) == nodes(predictor.capture(free, batch=8, seq=32))


def test_sizes_derived_from_others() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 4) @ y

    half = Dim("half", min=2)
    shapes = ({0: 2 * half}, None)
    program = torch.export.export(
        Halves(), (torch.zeros(8, 4), torch.zeros(4, 2)), dynamic_shapes=shapes
    )
    graph = predictor.capture(program, dims={"half": 10})
    assert graph.nodes[-1].outputs[0].shape == (20, 2)


def test_numbers_among_the_inputs_are_sizes_too(tmp_path: Path) -> None:
    class Cut(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x[:n] * 2

    shapes = ({0: Dim("rows", min=8)}, Dim.DYNAMIC)
    program = torch.export.export(Cut(), (torch.zeros(8, 4), 3), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "cut.pt2")
    for target in (program, str(tmp_path / "cut.pt2")):
        with pytest.raises(CaptureError, match="the number n, from 0"):
            predictor.capture(target, dims={"x.0": 16})
        graph = predictor.capture(target, dims={"x.0": 16, "n": 5})
        assert graph.nodes[-1].outputs[0].shape == (5, 4)


def test_a_batch_that_is_several_is_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(0) + y.sum(0)

    shapes = ({0: Dim("a", min=2)}, {0: Dim("b", min=2)})
    inputs = (torch.zeros(4, 4), torch.zeros(6, 4))
    program = torch.export.export(Two(), inputs, dynamic_shapes=shapes)
    with pytest.raises(CaptureError, match="has 2 free dimension 0 among its inputs"):
        predictor.capture(program, batch=8)
    assert predictor.capture(program, dims={"a": 8, "b": 9}).workload.batch == 8


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({}, "leaves sizes free: batch (dimension 0 of tokens, 2 to 64, exported with 4); length"),
        ({"batch": 8}, "leaves sizes free: length (dimension 1 of tokens, from 4"),
        ({"batch": 65, "seq": 8}, "batch=65 is outside of what Language was exported for: 2 to 64"),
        ({"batch": 1, "seq": 8}, "2 to 64"),
        ({"dims": {"width": 3}}, "no free size 'width'; free sizes: batch (dimension 0 of tokens"),
        ({"batch": 8, "dims": {"tokens.0": 9, "length": 8}}, "is 9 already"),
    ],
)
def test_sizes_that_cannot_be(
    sizes: dict[str, Any], said: str, free: torch.export.ExportedProgram
) -> None:
    with pytest.raises(CaptureError) as failed:
        predictor.capture(free, **sizes)
    assert said in str(failed.value).replace("s52=", "batch=")


def test_sizes_of_a_program_that_has_none(program: Program) -> None:
    module, inputs = program("mlp")
    exported = torch.export.export(module, (inputs,))
    with pytest.raises(CaptureError, match=r"no free dimension 0 .*fixed by the export"):
        predictor.capture(exported, batch=8)
    with pytest.raises(CaptureError, match="every size is fixed by the export"):
        predictor.capture(exported, dims={"batch": 8})


# -- what a program can be asked for ------------------------------------------------------------


def test_a_decomposed_program_is_inference(program: Program) -> None:
    module, tokens = program("language")
    decomposed = torch.export.export(module.eval(), (tokens,)).run_decompositions()
    graph = predictor.capture(decomposed)
    assert {"aten.addmm", "aten.native_layer_norm"} <= {node.op for node in graph.nodes}
    with pytest.raises(CaptureError, match="decomposed for inference"):
        predictor.capture(decomposed, mode="train")


def test_what_a_program_was_exported_for_is_said(program: Program) -> None:
    module, inputs = program("vision")
    trains = torch.export.export(module.train(), (inputs,))
    evaluates = torch.export.export(module.eval(), (inputs,))
    assert "train mode" in predictor.capture(trains).workload.warnings[0]
    assert "eval mode" in predictor.capture(evaluates, mode="train").workload.warnings[0]
    assert not predictor.capture(evaluates).workload.warnings


def test_own_inputs_and_recompute_are_refused(program: Program) -> None:
    module, inputs = program("mlp")
    exported = torch.export.export(module, (inputs,))
    with pytest.raises(CaptureError, match="has its inputs"):
        predictor.capture(exported, inputs)
    with pytest.raises(CaptureError, match="no blocks to recompute"):
        predictor.capture(exported, mode="train", recompute=True)


def test_own_loss_and_optimizer(program: Program, nodes: Nodes) -> None:
    module, inputs = program("mlp")
    exported = torch.export.export(module, (inputs,))

    def loss(output: Any) -> torch.Tensor:
        return torch.as_tensor(output.square().mean())

    options: dict[str, Any] = {"mode": "train", "loss": loss, "optimizer": "sgd"}
    direct = predictor.capture(module, inputs, **options)
    assert nodes(predictor.capture(exported, **options)) == nodes(direct)


def test_operators_of_other_libraries_are_taken_as_described(saved: Saved) -> None:
    @torch.library.custom_op("predictor_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("an operator of another library ran")

    twice.register_fake(lambda x: torch.empty_like(x))

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return twice(x @ x) + 1

    shapes = ({0: Dim("n", min=2), 1: Dim("n", min=2)},)
    path = saved(Custom(), torch.zeros(4, 4), dynamic_shapes=shapes)
    graph = predictor.capture(path, batch=16)
    (node,) = [n for n in graph.nodes if n.op == "predictor_tests.twice"]
    assert node.inputs[0].shape == node.outputs[0].shape == (16, 16)
    assert "predictor_tests.twice is an operator of another" in graph.workload.warnings[0]
    with pytest.raises(CostRuleError, match="twice"):
        predictor.estimate(graph, device="nvidia-t4")
    assert predictor.estimate(graph, device="nvidia-t4", allow_opaque=True).coverage.opaque > 0


# -- programs that hold their own backward --------------------------------------------------------


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.second(self.first(x).relu()), labels)


@pytest.fixture
def joint() -> torch.export.ExportedProgram:
    from torch.export.experimental import _export_forward_backward

    inputs = (torch.zeros(3, 8), torch.zeros(3, dtype=torch.long))
    return _export_forward_backward(torch.export.export(WithLoss(), inputs))


def test_a_program_with_its_backward_is_a_training_step(
    joint: torch.export.ExportedProgram, tmp_path: Any, nodes: Nodes
) -> None:
    inputs = (torch.zeros(3, 8), torch.zeros(3, dtype=torch.long))
    direct = predictor.capture(
        WithLoss(), inputs, mode="train", loss=lambda out: torch.as_tensor(out)
    )
    graph = predictor.capture(joint)
    assert "in decomposed calls" in graph.workload.warnings[0]
    held = replace(graph.workload, name="", warnings=())
    assert held == replace(direct.workload, name="", warnings=())
    products = ("aten.mm", "aten.addmm")
    for phase, counted in (("forward", 2), ("backward", 3)):
        for one in (graph, direct):
            assert counted == sum(n.op in products and n.phase == phase for n in one.nodes)
    assert graph.nodes[-1].op == "predictor.adamw"
    assert graph.nodes[-1].attrs == direct.nodes[-1].attrs
    assert [n.phase for n in graph.nodes] == sorted(
        (n.phase for n in graph.nodes), key=["forward", "backward", "optimizer"].index
    )
    path = str(tmp_path / "joint.pt2")
    torch.export.save(joint, path)
    assert nodes(predictor.capture(path, mode="train")) == nodes(graph)


def test_a_program_with_its_backward_is_no_inference(joint: torch.export.ExportedProgram) -> None:
    with pytest.raises(CaptureError, match="exported with its loss and backward"):
        predictor.capture(joint, mode="infer")
