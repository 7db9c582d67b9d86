"""Hand-worked shapes, counts and bytes of captured modules."""

import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module
from predictor.errors import CaptureError


class Call(nn.Module):
    """A module made of a function and the modules it uses."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def test_linear_forward_is_one_product_with_a_transposed_weight():
    graph = capture_module(nn.Linear(1024, 4096), torch.empty(8, 1024))
    view, product = graph.nodes
    assert (view.op, view.attrs["view"]) == ("aten.t", True)
    assert product.op == "aten.addmm"
    assert [s.shape for s in product.inputs] == [(4096,), (8, 1024), (1024, 4096)]
    assert [s.role for s in product.inputs] == ["parameter", "input", "parameter"]
    assert view.outputs[0].storage_id == view.inputs[0].storage_id == product.inputs[2].storage_id
    assert product.deps == (0,)
    assert product.outputs[0].storage_bytes == 8 * 4096 * 4


@pytest.mark.parametrize(("needs_grad", "products"), [(False, 2), (True, 3)])
def test_linear_training_products(needs_grad, products, matmul_flops):
    x = torch.empty(8, 1024, requires_grad=needs_grad)
    graph = capture_module(nn.Linear(1024, 4096), x, mode="train", loss=lambda y: y.sum())
    assert matmul_flops(graph) == products * 2 * 8 * 1024 * 4096


def test_phases_follow_each_other():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    graph = capture_module(model, torch.empty(8, 16), mode="train")
    phases = [n.phase for n in graph.nodes]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)
    assert phases.count("optimizer") == 1
    assert next(n.op for n in graph.nodes if n.phase == "backward") == "aten.ones_like"


def test_modules_are_named_in_both_directions(ops):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 4)))
    graph = capture_module(model, torch.empty(8, 16), mode="train")
    products = [(n.phase, n.module) for n in graph.nodes if n.op in ("aten.addmm", "aten.mm")]
    assert products == [
        ("forward", "0"),
        ("forward", "2.0"),
        ("backward", "2.0"),
        ("backward", "2.0"),
        ("backward", "0"),
    ]
    (relu,) = [n for n in graph.nodes if n.op == "aten.threshold_backward"]
    assert relu.module == "1"


def test_one_layer_called_twice_is_counted_twice_and_held_once(matmul_flops):
    twice = Call(lambda self, x: self.layer(self.layer(x)), layer=nn.Linear(64, 64, bias=False))
    graph = capture_module(twice, torch.empty(8, 64))
    assert matmul_flops(graph) == 131_072
    assert graph.workload.parameters == 4_096


def test_tied_weights_are_counted_once():
    model = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 100, bias=False))
    model[1].weight = model[0].weight
    graph = capture_module(model, torch.zeros(2, 5, dtype=torch.long), mode="train")
    assert graph.workload.parameters == 1600
    assert graph.nodes[-1].attrs["tensors"] == 1
    assert len({s.storage_id for n in graph.nodes for s in n.inputs if s.role == "parameter"}) == 1


def test_frozen_first_layer_needs_three_products_of_a_layer(matmul_flops):
    layers = [nn.Linear(64, 64, bias=False) for _ in range(2)]
    layers[0].requires_grad_(False)
    graph = capture_module(
        nn.Sequential(*layers), torch.empty(8, 64), mode="train", loss=lambda y: y.sum()
    )
    assert matmul_flops(graph) == 3 * 2 * 8 * 64 * 64
    assert graph.nodes[-1].attrs["numel"] == 4096
    work = graph.workload
    assert (work.parameters, work.trainable_parameters, work.trainable_bytes) == (8192, 4096, 16384)


def test_expanded_input_touches_its_storage_once():
    graph = capture_module(Call(lambda self, x: x.expand(4096, 1024) + 1), torch.ones(1, 1024))
    view, add = graph.nodes
    assert view.attrs["view"]
    assert add.inputs[0].shape == (4096, 1024)
    assert add.inputs[0].touched_bytes == add.inputs[0].storage_bytes == 4096


def test_slice_touches_the_slice_of_its_storage():
    graph = capture_module(Call(lambda self, x: x[:2] + 1), torch.ones(8, 16))
    spec = graph.nodes[-1].inputs[0]
    assert (spec.touched_bytes, spec.storage_bytes) == (2 * 16 * 4, 8 * 16 * 4)


def test_empty_product():
    graph = capture_module(Call(lambda self, a, b: a @ b), (torch.empty(0, 8), torch.empty(8, 4)))
    (node,) = graph.nodes
    assert (node.op, node.outputs[0].shape, node.outputs[0].touched_bytes) == ("aten.mm", (0, 4), 0)


def test_in_place_ops_are_marked_and_order_their_readers():
    def body(self, x):
        y = x + 1
        y.mul_(2)
        return y.exp()

    add, mul, exp = capture_module(Call(body), torch.empty(4)).nodes
    assert mul.attrs["inplace"] is True
    assert mul.outputs[0].storage_id == add.outputs[0].storage_id
    assert (mul.deps, exp.deps) == ((0,), (1,))


def test_keyword_inputs_and_pytrees():
    def body(self, batch, *, scale):
        first, rest = batch["pair"]
        return {"out": self.layer(first) * scale + rest["more"]}

    graph = capture_module(
        Call(body, layer=nn.Linear(4, 4)),
        ({"pair": [torch.empty(2, 4), {"more": torch.empty(4)}]},),
        {"scale": torch.empty(2, 4)},
    )
    assert [n.op for n in graph.nodes] == ["aten.t", "aten.addmm", "aten.mul", "aten.add"]
    assert {s.role for n in graph.nodes[2:] for s in n.inputs} == {"input", "activation"}


def test_half_precision_modules_keep_their_dtype():
    graph = capture_module(nn.Linear(8, 8).bfloat16(), torch.empty(2, 8, dtype=torch.bfloat16))
    assert graph.workload.dtype == "bf16"
    assert {s.dtype for n in graph.nodes for s in (*n.inputs, *n.outputs)} == {"bf16"}


def test_dtype_casts_parameters_and_floating_inputs_only():
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8))
    graph = capture_module(model, torch.zeros(2, 3, dtype=torch.long), dtype="fp16")
    assert graph.workload.dtype == "fp16"
    assert graph.workload.parameters_bytes == (80 + 72) * 2
    assert graph.nodes[0].inputs[1].dtype == "int64"


def test_dropout_is_one_kernel_in_training_and_none_in_inference(ops):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
    train = capture_module(model, torch.empty(2, 8), mode="train")
    assert ops(train)["aten.native_dropout"] == ops(train)["aten.native_dropout_backward"] == 1
    assert set(ops(capture_module(model, torch.empty(2, 8)))) == {"aten.addmm"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_runs_the_forward_again_in_the_backward_phase(reentrant, ops):
    from torch.utils.checkpoint import checkpoint

    body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    model = Call(lambda self, x: checkpoint(self.body, x, use_reentrant=reentrant), body=body)
    x = torch.empty(4, 16, requires_grad=True)
    graph = capture_module(model, x, mode="train", loss=lambda y: y.sum())
    assert ops(graph, "forward")["aten.addmm"] == 2
    assert ops(graph, "backward")["aten.addmm"] >= 1
    assert ops(graph, "backward")["aten.mm"] == 4
    assert {n.module for n in graph.nodes if n.op == "aten.mm"} == {"body.0", "body.2"}


def test_gradients_have_their_role_and_land_in_the_optimizer():
    graph = capture_module(nn.Linear(8, 4), torch.empty(2, 8), mode="train")
    update = graph.nodes[-1]
    assert [s.shape for s in update.inputs] == [(4, 8), (4,)]
    for dep in update.deps:
        assert {s.role for s in graph.nodes[dep].outputs} == {"gradient"}


@pytest.mark.parametrize(
    ("dtype", "optimizer", "state_bytes"),
    [("fp32", "adamw", 8_008_008), ("bf16", "adamw", 4_004_008), ("fp32", "sgd", 0)],
)
def test_optimizer_states(dtype, optimizer, state_bytes):
    graph = capture_module(
        nn.Linear(1000, 1000), torch.empty(2, 1000), mode="train", optimizer=optimizer, dtype=dtype
    )
    update = graph.nodes[-1]
    assert update.op == f"predictor.{optimizer}"
    assert update.attrs["state_bytes"] == state_bytes
    assert (update.attrs["numel"], update.attrs["tensors"]) == (1_001_000, 2)


def test_no_optimizer():
    graph = capture_module(nn.Linear(8, 4), torch.empty(2, 8), mode="train", optimizer=None)
    assert {n.phase for n in graph.nodes} == {"forward", "backward"}
    assert graph.workload.trainable_bytes == (32 + 4) * 4


@pytest.mark.parametrize(
    ("model", "x", "note"),
    [
        (nn.Linear(8, 4), torch.empty(2, 8), "cross-entropy over the output's last axis"),
        (nn.Embedding(9, 4), torch.zeros(2, 3, dtype=torch.long), "every token"),
        (nn.Conv2d(3, 4, 1), torch.empty(2, 3, 4, 4), "mean of the outputs"),
    ],
)
def test_default_loss_is_noted(model, x, note):
    (warning,) = capture_module(model, x, mode="train").workload.warnings
    assert note in warning


def test_own_loss_of_the_output_is_taken(ops):
    model = Call(lambda self, x: {"loss": self.layer(x).pow(2).sum()}, layer=nn.Linear(4, 4))
    graph = capture_module(model, torch.empty(2, 4), mode="train")
    assert graph.workload.warnings == ()
    assert ops(graph, "forward") == {"aten.addmm": 1, "aten.pow": 1, "aten.sum": 1}


def test_loss_must_be_a_scalar():
    with pytest.raises(CaptureError, match=r"scalar tensor, not \(2, 4\)"):
        capture_module(nn.Linear(8, 4), torch.empty(2, 8), mode="train", loss=lambda y: y)


def test_workload_of_a_token_model():
    work = capture_module(nn.Embedding(100, 8), torch.zeros(3, 7, dtype=torch.long)).workload
    assert (work.batch, work.tokens, work.inputs_bytes) == (3, 21, 168)


def test_train_mode_keeps_parts_that_are_in_eval_mode(ops):
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.5))
    model[2].eval()
    assert "aten.native_dropout" not in ops(capture_module(model, torch.empty(4, 8), mode="train"))
    model.eval()  # the top in eval mode: a training step trains all of it
    assert "aten.native_dropout" in ops(capture_module(model, torch.empty(4, 8), mode="train"))


def test_host_tensors_launch_nothing():
    def body(self, x):
        rates = [float(r) for r in torch.linspace(0, 0.1, 3)]
        mask = torch.triu(torch.full((4, 4), float("-inf")), 1)
        return x * rates[1] + mask

    graph = capture_module(Call(body), torch.empty(4, 4))
    assert [n.op for n in graph.nodes] == ["aten.mul", "aten.add"]


def test_devices_named_by_the_program_stay_symbolic():
    def body(self, x):
        return (x.cuda() + torch.zeros(4, device="cuda")).to("cuda:0", torch.float16).cpu()

    graph = capture_module(Call(body), torch.empty(4))
    assert [n.op for n in graph.nodes] == ["aten.zeros", "aten.add", "aten._to_copy"]
