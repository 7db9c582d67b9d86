"""Activation checkpointing: the forward again in the backward phase, for less memory."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import predictor
from predictor.capture.torch import capture_module
from predictor.cost.memory import memory_report
from predictor.errors import CaptureError
from predictor.lower.eager import lower_eager

ROWS, WIDTH, DEPTH = 256, 64, 6
PRODUCT = 2 * ROWS * WIDTH * 4 * WIDTH
"""FLOPs of one linear layer of a block."""


class Block(nn.Module):
    """A residual MLP: two linear layers."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).tanh())


class Stack(nn.Module):
    """Blocks, each checkpointed in the program itself where asked for."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.reentrant = reentrant

    def forward(self, x):
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def lowered(model, **options):
    x = torch.empty(ROWS, WIDTH, device="meta", requires_grad=True)
    options = {"mode": "train", "loss": lambda y: y.square().mean(), **options}
    return lower_eager(capture_module(model, x, **options))


def total(graph, phase=None):
    return sum(k.matmul_flops for k in graph.kernels if phase in (None, k.phase))


def test_a_checkpointed_stack_works_four_times_its_forward():
    forward = total(lowered(Stack()), "forward")
    assert forward == DEPTH * 2 * PRODUCT
    assert total(lowered(Stack())) == 3 * forward
    again = lowered(Stack(), recompute=True)
    assert total(again) == 4 * forward
    assert total(again, "forward") == forward
    assert total(again, "backward") == 3 * forward


@pytest.mark.parametrize(("reentrant", "skipped"), [(True, 0), (False, PRODUCT)])
def test_a_program_that_checkpoints_itself(reentrant, skipped):
    # without reentrance PyTorch stops once all that the backward needs is there: before the last
    # product of a block, whose result nothing saves
    forward = DEPTH * 2 * PRODUCT
    assert total(lowered(Stack(reentrant))) == 4 * forward - DEPTH * skipped


def test_activations_are_one_block_and_the_inputs_of_the_others():
    plain, again = (
        memory_report(lowered(Stack(), recompute=r)).activations_bytes for r in (False, True)
    )
    row = 4 * ROWS * WIDTH
    # a block saves its input (1) and the tanh (4); of `DEPTH` blocks at the loss
    assert 5 * DEPTH * row <= plain <= 5 * DEPTH * row + 12 * row
    # inputs of all blocks, one block's own (1 + 4) and gradients of the widest layer
    assert DEPTH * row <= again <= DEPTH * row + 16 * row
    assert again < 0.7 * plain


def test_recomputed_kernels_keep_their_module_and_dtype():
    model = Stack()
    graph = lowered(model, recompute=True, amp="bf16")
    products = [k for k in graph.kernels if k.name == "aten.addmm"]
    assert {k.dtype for k in products} == {"bf16"}
    backward = [k.module for k in products if k.phase == "backward"]
    assert sorted(backward) == sorted(k.module for k in products if k.phase == "forward")
    assert any(k.module == "blocks.3" for k in graph.kernels if k.phase == "backward")
    assert "6 blocks (of blocks)" in graph.workload.warnings[0]
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_a_decoder_of_the_zoo_by_hand():
    size = {"mode": "train", "batch": 1, "seq": 128}
    plain, again = (
        lower_eager(predictor.capture("llama-2-7b", recompute=r, **size)) for r in (False, True)
    )
    attention = 2 * 2 * 128**2 * 4096  # QK^T and PV by the dense convention
    layer = 2 * 128 * (4 * 4096**2 + 3 * 4096 * 11008) + attention
    head = 2 * 128 * 4096 * 32000
    assert total(plain) == 3 * (32 * layer + head)
    assert total(again) == 4 * 32 * layer + 3 * head
    assert again.peak_activation_bytes < plain.peak_activation_bytes / 5


def test_what_cannot_be_checkpointed():
    with pytest.raises(CaptureError, match="Linear has none"):
        capture_module(nn.Linear(4, 4), torch.empty(2, 4), mode="train", recompute=True)
    with pytest.raises(CaptureError, match="recompute is for training"):
        capture_module(Stack(), torch.empty(2, WIDTH), recompute=True)
    with pytest.raises(CaptureError, match="recompute is for training"):
        predictor.capture("gpt2", recompute=True)
    graph = capture_module(Stack(), torch.empty(2, WIDTH), mode="train")
    with pytest.raises(CaptureError, match="cannot be made to recompute"):
        predictor.capture(graph, recompute=True)
    with pytest.raises(CaptureError, match="decides its own recompute"):
        predictor.capture(lambda x: x, torch.empty(2), mode=None, recompute=True)
