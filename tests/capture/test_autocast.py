"""The cast policy: CUDA's lists, cached weight casts, and the regions that a program enters."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from predictor.capture import autocast
from predictor.capture.torch import capture_module
from predictor.errors import CaptureError

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


class Call(nn.Module):
    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args):
        return self.function(self, *args)


def casts(graph, phase="forward"):
    """(role and shape cast, dtype it is cast to), in order."""
    return [
        (n.inputs[0].role, n.inputs[0].shape, n.outputs[0].dtype)
        for n in graph.nodes
        if n.op == "aten._to_copy" and n.phase == phase
    ]


@pytest.mark.skipif(not HEADER.is_file(), reason="PyTorch was installed without headers")
@pytest.mark.parametrize(
    ("macro", "table"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", autocast.LOWER),
        ("AT_FORALL_FP32", autocast.FP32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", autocast.FP32_DTYPE),
        ("AT_FORALL_PROMOTE", autocast.PROMOTE),
    ],
)
def test_lists_hold_what_pytorch_lists(macro, table):
    body = re.search(rf"#define {macro}\(_\)(.*?)(?:\n\n|\n#)", HEADER.read_text(), re.S)
    assert body is not None
    listed = set(re.findall(r"_\((\w+)", body.group(1)))
    assert listed <= table


def test_linear_casts_input_weight_and_bias():
    graph = capture_module(nn.Linear(8, 4), torch.empty(2, 8), amp="bf16")
    assert graph.workload.dtype == "amp-bf16"
    assert casts(graph) == [
        ("input", (2, 8), "bf16"),
        ("parameter", (4, 8), "bf16"),
        ("parameter", (4,), "bf16"),
    ]


def test_trained_weights_are_cast_once_a_forward_and_frozen_ones_at_every_use():
    layer = nn.Linear(8, 8, bias=False)
    twice = Call(lambda self, x: self.layer(self.layer(x)), layer=layer)
    graph = capture_module(twice, torch.empty(2, 8), amp="fp16")
    assert [c[0] for c in casts(graph)] == ["input", "parameter"]
    layer.requires_grad_(False)
    graph = capture_module(twice, torch.empty(2, 8), amp="fp16")
    assert [c[0] for c in casts(graph)] == ["input", "parameter", "parameter"]


def test_gradients_return_in_the_parameters_dtype():
    graph = capture_module(nn.Linear(8, 4), torch.empty(2, 8), mode="train", amp="bf16")
    assert sorted(c[1:] for c in casts(graph, "backward") if c[2] == "fp32") == [
        ((4,), "fp32"),
        ((4, 8), "fp32"),
    ]
    assert {s.dtype for s in graph.nodes[-1].inputs} == {"fp32"}


@pytest.mark.parametrize(
    ("function", "out"),
    [
        (lambda h: h @ h.transpose(0, 1), "fp16"),
        (lambda h: torch.einsum("ij,kj->ik", h, h), "fp16"),
        (lambda h: h + 1, "fp16"),
        (lambda h: h.relu(), "fp16"),
        (lambda h: h.mean(), "fp16"),
        (lambda h: torch.cat([h, h]), "fp16"),
        (lambda h: h.softmax(-1), "fp32"),
        (lambda h: F.log_softmax(h, -1), "fp32"),
        (lambda h: h.sum(), "fp32"),
        (lambda h: h.cumsum(0), "fp32"),
        (lambda h: h.norm(), "fp32"),
        (lambda h: h**2, "fp32"),
        (lambda h: 2**h, "fp32"),
        (lambda h: 1 / h, "fp32"),
        (lambda h: h.exp(), "fp32"),
        (lambda h: h.rsqrt(), "fp32"),
        (lambda h: F.layer_norm(h, (8,)), "fp32"),
        (lambda h: F.rms_norm(h, (8,)), "fp32"),
        (lambda h: F.mse_loss(h, torch.zeros_like(h)), "fp32"),
        (lambda h: F.cross_entropy(h, torch.zeros(8, dtype=torch.long, device=h.device)), "fp32"),
        (lambda h: torch.addcmul(h, h, h), "fp16"),
        (lambda h: torch.addcmul(h, h.float(), h), "fp32"),
        (lambda h: F.scaled_dot_product_attention(h.float(), h, h), "fp16"),
    ],
)
def test_result_dtypes_are_those_of_cuda_autocast(function, out):
    graph = capture_module(Call(lambda _, h: function(h)), torch.empty(8, 8).half(), amp="fp16")
    assert graph.nodes[-1].outputs[0].dtype == out


def test_fp64_is_left_alone():
    graph = capture_module(nn.Linear(8, 4).double(), torch.empty(2, 8).double(), amp="fp16")
    assert casts(graph) == []


def test_cross_entropy_keeps_the_logits_dtype_up_to_the_loss():
    def loss(_, h):
        return F.cross_entropy(h, torch.zeros(8, dtype=torch.long, device=h.device))

    graph = capture_module(Call(loss), torch.empty(8, 8).half(), amp="fp16")
    dtypes = {n.op: n.outputs[0].dtype for n in graph.nodes}
    assert dtypes["aten._log_softmax"] == "fp16"
    assert dtypes["aten.nll_loss_forward"] == "fp32"


def test_recurrent_layers_are_cast_whole():
    graph = capture_module(nn.LSTM(4, 8), torch.empty(5, 2, 4), amp="fp16")
    (node,) = [n for n in graph.nodes if n.op == "predictor.rnn"]
    assert {s.dtype for s in (*node.inputs, *node.outputs)} == {"fp16"}


def test_binary_cross_entropy_is_refused_as_in_pytorch():
    def loss(self, x):
        probabilities = torch.sigmoid(self.layer(x))
        return F.binary_cross_entropy(probabilities, torch.ones_like(probabilities))

    with pytest.raises(CaptureError, match="binary_cross_entropy_with_logits"):
        capture_module(Call(loss, layer=nn.Linear(4, 1)), torch.empty(2, 4), amp="fp16")


def test_regions_of_the_program_are_honoured():
    def body(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            low = self.layer(x)
            with torch.autocast(device_type=x.device.type, enabled=False):
                full = self.layer(x)
        return low + full + self.layer(x)

    graph = capture_module(Call(body, layer=nn.Linear(4, 4)), torch.empty(2, 4))
    assert [n.outputs[0].dtype for n in graph.nodes if n.op == "aten.addmm"] == [
        "bf16",
        "fp32",
        "fp32",
    ]


def test_recomputation_in_the_backward_is_cast_too():
    from torch.utils.checkpoint import checkpoint

    model = Call(
        lambda self, x: checkpoint(self.body, x, use_reentrant=False),
        body=nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
    )
    graph = capture_module(model, torch.empty(2, 8), mode="train", amp="bf16")
    products = [n for n in graph.nodes if n.op in ("aten.addmm", "aten.mm")]
    assert {s.dtype for n in products for s in n.inputs} == {"bf16"}


class _Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func.overloadpacket.__name__, result))
        return result


def test_casts_equal_those_of_cpu_autocast_where_the_lists_coincide():
    def body(self, x):
        h = F.relu(self.conv(x)).flatten(1)
        h = self.second(F.gelu(self.first(h)))
        return (h @ h.transpose(0, 1)) + self.second(h[:, :16].float())

    model = Call(body, conv=nn.Conv2d(3, 4, 3), first=nn.Linear(144, 16), second=nn.Linear(16, 16))
    x = torch.ones(16, 3, 8, 8)
    with _Log() as log, torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
    real = [
        (name, tuple(out.shape), str(out.dtype))
        for name, out in log.calls
        if name in ("_to_copy", "convolution", "mkldnn_convolution", "addmm", "mm", "add", "gelu")
    ]
    graph = capture_module(model, x, amp="bf16")
    names = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}
    captured = [
        (n.op.removeprefix("aten."), n.outputs[0].shape, names[n.outputs[0].dtype])
        for n in graph.nodes
        if n.op.removeprefix("aten.") in ("_to_copy", "convolution", "addmm", "mm", "add", "gelu")
    ]
    assert Counter(captured) == Counter(real)  # a call's own casts come in no fixed order
    assert [c for c in captured if c[0] != "_to_copy"] == [c for c in real if c[0] != "_to_copy"]


def test_a_program_that_asks_for_autocast_on_its_tensors_device_is_answered():
    class Asks(torch.nn.Module):
        def forward(self, x):
            if torch.is_autocast_enabled(x.device.type):
                x = x.to(torch.get_autocast_dtype(x.device.type))
            with torch.autocast(x.device.type, enabled=False):
                return torch.nn.functional.layer_norm(x, x.shape[-1:])

    x = torch.empty(4, 8, device="meta")
    inside = capture_module(Asks(), x, amp="bf16")
    norms = [n.outputs[0].dtype for n in inside.nodes if "norm" in n.op]
    assert set(norms) == {"bf16"}
    plain = capture_module(Asks(), x)
    assert {n.outputs[0].dtype for n in plain.nodes if "norm" in n.op} == {"fp32"}
    assert torch.is_autocast_enabled("cpu") is False  # the own function is back
