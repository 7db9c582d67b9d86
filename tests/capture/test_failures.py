"""A program that cannot be captured is told where, why and what to pass instead."""

import sys

import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module, capture_step
from predictor.errors import CaptureError


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def flex(x):
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(x, x, x)


class OwnError(KeyError):
    """A program's own exception."""


def own(x):
    raise OwnError("no such expert")


class RootError(Exception):
    """A class of its own, below none of the built-in ones."""


def outside(x):
    raise RootError("not a LookupError")


def quit_now(x):
    sys.exit(3)


def endless(x):
    return endless(x)


@pytest.mark.parametrize(
    ("model", "args", "kwargs", "words"),
    [
        (nn.Linear(4, 4), (), None, ["missing 1 required", "pass every input"]),
        (nn.Linear(4, 4), (), {"foo": torch.ones(1)}, ["'foo'", "names that forward() takes"]),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5)),
            torch.ones(2, 4),
            None,
            ["module '1'", "[2, 4]", "check the shapes"],
        ),
        (nn.Linear(4, 4), torch.ones(2, 4, dtype=torch.long), None, ["dtype"]),
        (Call(flex), torch.ones(1, 2, 128, 16), None, ["FlexAttention cannot be captured"]),
        (nn.DataParallel(nn.Linear(4, 4)), torch.ones(2, 4), None, ["`module.module`"]),
        (nn.LazyLinear(4), torch.ones(2, 4), None, ["lazy module", "run it once"]),
        (Call(lambda x: x.to_sparse()), torch.ones(2, 4), None, ["cannot capture Call"]),
        (Call(own), torch.ones(2, 4), None, ["in own", "no such expert"]),
        (Call(outside), torch.ones(2, 4), None, ["in outside", "RootError: not a LookupError"]),
        (Call(quit_now), torch.ones(2, 4), None, ["in quit_now", "SystemExit: 3"]),
        (Call(endless), torch.ones(2, 4), None, ["RecursionError", "less deeply"]),
        (Call(lambda x: x.new_empty(1 << 62)), torch.ones(2), None, ["64 bits"]),
        (Call(lambda x: x.view(torch.uint1)), torch.ones(2, dtype=torch.uint8), None, ["uint1"]),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_messages(model, args, kwargs, words):
    with pytest.raises(CaptureError) as caught:
        capture_module(model, args, kwargs)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused():
    with pytest.raises(CaptureError, match=r"eager nn\.Module"):
        capture_module(torch.jit.script(nn.Linear(4, 4)), torch.ones(2, 4))


def test_a_sparse_operand_where_dense_is_known_only():
    matrix = torch.eye(4).to_sparse()
    with pytest.raises(CaptureError, match="sparse tensor of shape"):
        capture_module(Call(lambda x: matrix * x), torch.ones(4, 4))


def test_a_parameter_from_outside():
    outside = nn.Parameter(torch.ones(4))
    with pytest.raises(CaptureError, match="register it in the module"):
        capture_module(Call(lambda x: x * outside), torch.ones(4))


def test_a_write_that_breaks_the_backward():
    model = nn.Sequential(nn.Linear(4, 4), Call(lambda x: x.relu_().mul_(2)))
    with pytest.raises(CaptureError, match="write out of place"):
        capture_module(model, torch.ones(2, 4), mode="train")


def test_an_interrupt_passes_through():
    def interrupt(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture_module(Call(interrupt), torch.ones(2, 4))


def test_nothing_to_train():
    with pytest.raises(CaptureError, match="no trainable parameter"):
        capture_module(nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4), mode="train")


def test_a_step_that_reaches_its_tensors_through_globals():
    with pytest.raises(CaptureError, match="not through globals"):
        capture_step(lambda: torch.ones(3) + 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "eval"}, "'infer' or 'train'"),
        ({"optimizer": "lion"}, "capture_step"),
        ({"amp": "fp8"}, "fp16 or bf16"),
        ({"dtype": "int8"}, "fp32, fp16, bf16"),
        ({"dtype": "bf16", "amp": "fp16"}, "for fp32 modules"),
    ],
)
def test_words_outside_the_tables(options, words):
    with pytest.raises(CaptureError, match=words):
        capture_module(nn.Linear(4, 4), torch.ones(2, 4), **options)


def test_not_a_module():
    with pytest.raises(CaptureError, match=r"expected an nn\.Module"):
        capture_module(torch.ones(2), torch.ones(2))
