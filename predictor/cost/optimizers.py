"""Optimizer steps as CUDA runs them: passes of multi-tensor kernels, their traffic and launches.

Passes are those of the foreach implementations that `torch.optim` picks by default on CUDA
(`_multi_tensor_adamw`, `_multi_tensor_sgd`); the split of a pass into launches follows
`ATen/native/cuda/MultiTensorApply.cuh`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from predictor.cost.rule import Rule
from predictor.graph.ir import OpGraph

CHUNK_ELEMENTS = 65536
"""`kChunkSize`: elements of one block."""
MAX_BLOCKS = 320
"""`depth_to_max_blocks` where kernel arguments are limited to 4 KB (CUDA before 13, ROCm)."""
MAX_TENSORS: Mapping[int, int] = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""`depth_to_max_tensors`, by number of tensor lists."""
MAX_TENSORS_SCALARS: Mapping[int, int] = {1: 96, 2: 64, 3: 48, 4: 36, 5: 30}
"""`depth_to_max_tensors_scalarlist`: one scalar a tensor travels along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One multi-tensor operation over all parameters."""

    name: str
    reads: int
    """Distinct tensors read an element."""
    writes: int
    flops: int
    depth: int
    """Tensor lists passed to the kernel."""
    scalars: bool = False
    """One scalar a tensor (`scalarlist` overload)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """What one implementation of an optimizer costs an element of the parameters."""

    passes: tuple[Pass, ...]
    states: int
    """Persistent state tensors of the parameter's shape and dtype."""
    step_bytes: int
    """Bytes of the fp32 step counter a tensor."""
    temporaries: int
    """Tensors of the parameter's shape that live during the step only."""
    host_calls_per_tensor: int
    """Step counters live on the host: one add, and one read for each bias correction."""

    @property
    def reads(self) -> int:
        """Elements read for each parameter element, all passes together."""
        return sum(p.reads for p in self.passes)

    @property
    def writes(self) -> int:
        """Elements written for each parameter element, all passes together."""
        return sum(p.writes for p in self.passes)

    @property
    def flops(self) -> int:
        """FLOPs for each parameter element."""
        return sum(p.flops for p in self.passes)


_DECAY = Pass(name="mul_(param, 1 - lr*wd)", reads=1, writes=1, flops=1, depth=1)
_L2 = Pass(name="add(grad, param, wd)", reads=2, writes=1, flops=2, depth=3)
_ADAM = (
    Pass(name="lerp_(exp_avg, grad)", reads=2, writes=1, flops=3, depth=2),
    Pass(name="mul_(exp_avg_sq, beta2)", reads=1, writes=1, flops=1, depth=1),
    Pass(name="addcmul_(exp_avg_sq, grad, grad)", reads=2, writes=1, flops=3, depth=3),
    Pass(name="sqrt(exp_avg_sq)", reads=1, writes=1, flops=1, depth=2),
    Pass(name="div_(denom, bias)", reads=1, writes=1, flops=1, depth=1, scalars=True),
    Pass(name="add_(denom, eps)", reads=1, writes=1, flops=1, depth=1),
    Pass(name="addcdiv_(param, exp_avg, denom)", reads=3, writes=1, flops=3, depth=3, scalars=True),
)
_SGD_UPDATE = Pass(name="add_(param, grad, -lr)", reads=2, writes=1, flops=2, depth=2)
_MOMENTUM = (
    Pass(name="mul_(buf, momentum)", reads=1, writes=1, flops=1, depth=1),
    Pass(name="add_(buf, grad)", reads=2, writes=1, flops=2, depth=2),
)

ADAMW = OptimizerCost(
    passes=(_DECAY, *_ADAM), states=2, step_bytes=4, temporaries=1, host_calls_per_tensor=3
)
ADAM = OptimizerCost(passes=_ADAM, states=2, step_bytes=4, temporaries=1, host_calls_per_tensor=3)
ADAMW_FUSED = OptimizerCost(
    passes=(Pass(name="fused_adamw", reads=4, writes=3, flops=15, depth=4),),
    states=2,
    step_bytes=4,
    temporaries=0,
    host_calls_per_tensor=0,
)
SGD = OptimizerCost(
    passes=(_SGD_UPDATE,), states=0, step_bytes=0, temporaries=0, host_calls_per_tensor=0
)
SGD_MOMENTUM = OptimizerCost(
    passes=(*_MOMENTUM, _SGD_UPDATE),
    states=1,
    step_bytes=0,
    temporaries=0,
    host_calls_per_tensor=0,
)
SGD_NESTEROV = OptimizerCost(
    passes=(
        *_MOMENTUM,
        Pass(name="add_(grad, buf, momentum)", reads=2, writes=1, flops=2, depth=2),
        _SGD_UPDATE,
    ),
    states=1,
    step_bytes=0,
    temporaries=0,
    host_calls_per_tensor=0,
)


def optimizer_cost(
    op: str,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    fused: bool = False,
    nesterov: bool = False,
) -> OptimizerCost:
    """The passes of an optimizer op of the vocabulary.

    Args:
        op: `adamw`, `sgd` or `optimizer_other` (costed as Adam with L2 decay: a stand-in for
            optimizers with two states).
        momentum: SGD's; 0 keeps no state.
        weight_decay: SGD's L2 term; AdamW always decays.
        fused: one kernel does all passes (`fused=True` of `torch.optim`).
        nesterov: SGD looks ahead along its momentum.
    """
    if op == "adamw":
        return ADAMW_FUSED if fused else ADAMW
    with_momentum = SGD_NESTEROV if nesterov else SGD_MOMENTUM
    base = ADAM if op != "sgd" else with_momentum if momentum else SGD
    if not weight_decay:
        return base
    return OptimizerCost(
        passes=(_L2, *base.passes),
        states=base.states,
        step_bytes=base.step_bytes,
        temporaries=max(base.temporaries, 1),
        host_calls_per_tensor=base.host_calls_per_tensor,
    )


OPTIMIZER_CALLS: Mapping[str, str] = {
    "predictor.adamw": "adamw",
    "predictor.sgd": "sgd",
    "predictor.optimizer_other": "optimizer_other",
}
"""Composite calls of a captured step, and their op of the vocabulary."""


def step_cost(call: str, attrs: Mapping[str, object]) -> OptimizerCost:
    """The passes behind a composite optimizer call, by its attributes (`momentum`, `fused`, …).

    Adam proper (`kind`) has AdamW's passes without the decay.
    """

    def number(name: str) -> float:
        value = attrs.get(name, 0.0)
        return float(value) if isinstance(value, (int, float)) else 0.0

    if attrs.get("kind") == "Adam" and not attrs.get("fused"):
        return ADAM
    return optimizer_cost(
        OPTIMIZER_CALLS[call],
        momentum=number("momentum"),
        weight_decay=number("weight_decay"),
        fused=bool(attrs.get("fused", False)),
        nesterov=bool(attrs.get("nesterov", False)),
    )


def captured_state_bytes(graph: OpGraph) -> int | None:
    """Persistent state of the captured optimizer steps, None when there are none.

    Linear(1000, 1000) under AdamW: 2 * 4,004,000 + 2 * 4 = 8,008,008 bytes in fp32; states
    follow the parameters' dtype (no fp32 master weights).
    """
    total = None
    for node in graph.nodes:
        if node.op not in OPTIMIZER_CALLS:
            continue
        known = node.attrs.get("state_bytes")
        if not isinstance(known, int):
            cost = step_cost(node.op, node.attrs)
            held = sum(spec.storage_bytes for spec in node.inputs)
            known = cost.states * held + cost.step_bytes * len(node.inputs)
        total = (total or 0) + known
    return total


def pass_launches(sizes: Iterable[int], *, depth: int, scalars: bool = False) -> int:
    """Kernels that one multi-tensor operation launches over tensors of the given sizes.

    A launch is full at `MAX_BLOCKS` chunks or at the tensor limit of its depth; a tensor cut by a
    full launch goes on in the next one.
    """
    limit = (MAX_TENSORS_SCALARS if scalars else MAX_TENSORS)[depth]
    launches = blocks = tensors = 0
    for size in sizes:
        chunks = -(-size // CHUNK_ELEMENTS)
        if chunks == 0:
            continue
        tensors += 1
        full, rest = divmod(blocks + chunks, MAX_BLOCKS)
        if full:
            launches += full
            blocks, tensors = rest, 1 if rest else 0
        else:
            blocks = rest
        if blocks and tensors == limit:
            launches += 1
            blocks = tensors = 0
    return launches + (1 if blocks else 0)


def step_launches(cost: OptimizerCost, sizes: Iterable[int]) -> int:
    """Kernels that a whole optimizer step launches over parameters of the given sizes."""
    sizes = tuple(sizes)
    return sum(pass_launches(sizes, depth=p.depth, scalars=p.scalars) for p in cost.passes)


def even_sizes(numel: int, tensors: int) -> tuple[int, ...]:
    """Sizes of equal tensors, where only their number and sum are known."""
    if tensors < 1:
        return ()
    share, rest = divmod(numel, tensors)
    return tuple(share + (1 if i < rest else 0) for i in range(tensors))


def _optimizer_rule(cost: OptimizerCost) -> Rule:
    reads, writes, flops = cost.reads, cost.writes, cost.flops
    return Rule(
        flops=lambda d: flops * d["numel"],
        reads=lambda d: reads * d["numel"],
        writes=lambda d: writes * d["numel"],
    )


OPTIMIZER_RULES: Mapping[str, Rule] = {
    "adamw": _optimizer_rule(ADAMW),
    "sgd": _optimizer_rule(SGD),
    "optimizer_other": _optimizer_rule(ADAM),
}
"""Rules by dimensions alone: default flags, SGD without momentum."""
