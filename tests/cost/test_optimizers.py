"""Optimizer passes against `torch.optim`, and the launch chunks of multi-tensor kernels."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.cost import optimizers
from predictor.cost.optimizers import (
    ADAMW,
    ADAMW_FUSED,
    CHUNK_ELEMENTS,
    MAX_BLOCKS,
    MAX_TENSORS,
    SGD,
    SGD_MOMENTUM,
    SGD_NESTEROV,
    even_sizes,
    optimizer_cost,
    pass_launches,
    step_launches,
)


def test_traffic_of_an_element():
    # foreach AdamW: 12 reads and 8 writes in 8 passes; the fused kernel 4 and 3
    assert (ADAMW.reads, ADAMW.writes, len(ADAMW.passes)) == (12, 8, 8)
    assert (ADAMW_FUSED.reads, ADAMW_FUSED.writes) == (4, 3)
    assert (SGD.reads, SGD.writes) == (2, 1)
    assert (SGD_MOMENTUM.reads, SGD_MOMENTUM.writes) == (5, 3)
    assert (SGD_NESTEROV.reads, SGD_NESTEROV.writes) == (7, 4)
    decayed = optimizer_cost("sgd", momentum=0.9, weight_decay=1e-4)
    assert (decayed.reads, decayed.writes, decayed.states) == (7, 4, 1)


def test_passes_are_those_of_the_foreach_implementations():
    import torch
    from torch.optim.adamw import adamw
    from torch.optim.sgd import sgd

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = str(func).split(".")[1]
            if name.startswith("_foreach"):
                self.calls.append(name.removeprefix("_foreach_"))
            return func(*args, **(kwargs or {}))

    def tensors():
        return [torch.zeros(3), torch.zeros(2)]

    steps = [torch.tensor(1.0), torch.tensor(1.0)]
    with Recorder() as seen:
        adamw(
            tensors(), tensors(), tensors(), tensors(), [], steps, foreach=True, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=1e-2, eps=1e-8, maximize=False,
        )  # fmt: skip
    ours = [p.name.split("(")[0] for p in ADAMW.passes]
    assert seen.calls[0] == "add_"  # the step counters, on the host
    assert seen.calls[1:] == ours
    with Recorder() as seen:
        sgd(
            tensors(), tensors(), tensors(), foreach=True, weight_decay=0.0, momentum=0.9, lr=0.1,
            dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
    assert seen.calls == [p.name.split("(")[0] for p in SGD_MOMENTUM.passes]
    with Recorder() as seen:
        sgd(
            tensors(), tensors(), tensors(), foreach=True, weight_decay=0.0, momentum=0.9, lr=0.1,
            dampening=0.0, nesterov=True, maximize=False,
        )  # fmt: skip
    assert seen.calls == [p.name.split("(")[0] for p in SGD_NESTEROV.passes]


def test_launches_by_tensors_and_by_blocks():
    assert pass_launches([], depth=1) == 0
    assert pass_launches([0, 0], depth=1) == 0
    assert pass_launches([1], depth=1) == 1
    assert pass_launches([1] * 110, depth=1) == 1
    assert pass_launches([1] * 111, depth=1) == 2
    assert pass_launches([1] * 96, depth=1, scalars=True) == 1
    assert pass_launches([1] * 97, depth=1, scalars=True) == 2
    full = CHUNK_ELEMENTS * MAX_BLOCKS
    assert pass_launches([full], depth=1) == 1
    assert pass_launches([full + 1], depth=1) == 2
    assert pass_launches([full - 1, CHUNK_ELEMENTS], depth=1) == 2


def by_the_block(sizes, depth):
    """`multi_tensor_apply` of ATen, a block at a time."""
    launches = tensors = blocks = 0
    sizes = [s for s in sizes if s]
    for t, size in enumerate(sizes):
        tensors += 1
        chunks = -(-size // CHUNK_ELEMENTS)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if (tensors == MAX_TENSORS[depth] and last) or blocks == MAX_BLOCKS:
                launches, blocks, tensors = launches + 1, 0, 0 if last else 1
            elif t == len(sizes) - 1 and last:
                launches += 1
    return launches


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400).map(lambda n: n * 60_000), max_size=150),
    depth=st.sampled_from(sorted(MAX_TENSORS)),
)
def test_launches_agree_with_a_walk_over_blocks(sizes, depth):
    assert pass_launches(sizes, depth=depth) == by_the_block(sizes, depth)


def resnet_50_sizes():
    sizes, channels = [64 * 3 * 49, 64, 64], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [channels * width, width, width, 9 * width * width, width, width]
            sizes += [4 * width * width, 4 * width, 4 * width]
            if block == 0:
                sizes += [4 * channels * width, 4 * width, 4 * width]
            channels = 4 * width
    return [*sizes, 2048 * 1000, 1000]


def test_launches_as_recorded():
    # recorded ResNet-50 steps show 3 kernels for each `_foreach_mul_` and each `_foreach_add_`
    sizes = resnet_50_sizes()
    assert (len(sizes), sum(sizes)) == (161, 25_557_032)
    assert pass_launches(sizes, depth=1) == 3
    assert pass_launches(sizes, depth=2) == 3


def test_launches_of_a_step():
    # 1,001,000 elements in two tensors fit one launch a pass
    assert step_launches(ADAMW, (1_000_000, 1_000)) == 8
    assert even_sizes(10, 3) == (4, 3, 3)
    assert even_sizes(10, 0) == ()


def test_calls_carry_their_options():
    assert optimizers.step_cost("predictor.sgd", {"momentum": 0.9}) is SGD_MOMENTUM
    looks_ahead = {"momentum": 0.9, "nesterov": True}
    assert optimizers.step_cost("predictor.sgd", looks_ahead) is SGD_NESTEROV
    assert optimizers.step_cost("predictor.sgd", {"momentum": 0}) is SGD
    assert optimizers.step_cost("predictor.adamw", {"fused": True}) is ADAMW_FUSED
    assert optimizers.step_cost("predictor.adamw", {"kind": "Adam"}) is optimizers.ADAM
