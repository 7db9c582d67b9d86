"""Kernels of fused groups: op, dimensions, work and traffic of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from predictor.capture.stablehlo.mosaic import STATED_BYTES, STATED_FLOPS
from predictor.cost.hlo import TRANSCENDENTAL, numbers, short
from predictor.cost.rules import MATRIX_CLASSES, RULES, flop_factor
from predictor.cost.streaming import FLOPS_PER_ELEMENT
from predictor.errors import CostRuleError
from predictor.graph.ir import Kernel, OpNode
from predictor.graph.ops import OPS
from predictor.lower.draft import arithmetic_dtype
from predictor.lower.xla_backends import Backend
from predictor.lower.xla_custom import custom_kernel, is_query_gradient
from predictor.lower.xla_factoring import factoring
from predictor.lower.xla_groups import Group
from predictor.lower.xla_matrix import conv_dims, dot_dims, padded_flops, passes
from predictor.lower.xla_ops import KERNEL, LOOP
from predictor.lower.xla_program import Hlo
from predictor.lower.xla_sorting import network_flops, passes_over_memory
from predictor.lower.xla_strength import PRODUCT_FLOPS
from predictor.lower.xla_traffic import Traffic, traffic_of

Found = tuple[str, dict[str, int]]
"""Op of the vocabulary and its dimensions."""


def kernel_of(group: Group, backend: Backend, *, allow_opaque: bool) -> Kernel:
    """The kernel of a group.

    Raises:
        CostRuleError: a custom call or operation that no table knows, unless `allow_opaque`.
    """
    traffic = traffic_of(group, backend)
    hero = group.hero
    lead = hero if hero is not None else group.root
    op, dims = _described(group, lead, traffic, allow_opaque=allow_opaque)
    node = lead.node
    dtype = node.inputs[0].dtype if lead.kind in ("dot", "conv") else _dtype(group)
    if op == "matmul" and _has_bias(group, lead):
        op = "linear"
    own = 0.0
    reported = 0.0
    if OPS[op].op_class in MATRIX_CLASSES:
        dtype, times = passes(node, dtype, OPS[op].op_class, backend)
        factor = flop_factor(op, dtype)
        rule = RULES[op]
        own = times * padded_flops(dims, float(factor * rule.flops(dims)), backend)
        if lead.kind != "library" or not is_query_gradient(node):
            reported = float(factor * rule.matmul_flops(dims))
    elif group.root.kind == "library":
        own = float(flop_factor(op, dtype) * RULES[op].flops(dims))
    launches = 1
    if op == "opaque":
        own, launches = factoring(node) or (_stated(node, STATED_FLOPS), 1)
    passes_over = 1.0
    if lead.kind == "library" and short(node.op) == "sort":
        passes_over = passes_over_memory(node, dims, backend)
        if backend.name == "tpu":
            own = network_flops(dims, len(node.inputs))
    reported += sum(
        flops for m in group.members if isinstance(flops := m.node.attrs.get(PRODUCT_FLOPS), float)
    )
    return Kernel(
        op=op,
        phase=node.phase,
        dims=dims,
        dtype=dtype,
        flops=own + _pointwise_flops(group),
        matmul_flops=reported,
        read_bytes=max(
            passes_over * traffic.read_bytes, _stated(node, STATED_BYTES) - traffic.write_bytes
        ),
        write_bytes=passes_over * traffic.write_bytes,
        name=_name(group, lead),
        module=node.module,
        launches=launches,
    )


def _stated(node: OpNode, name: str) -> float:
    """Work or traffic that the author of a Pallas kernel states; 0 without."""
    value = node.attrs.get(name)
    return value if isinstance(value, float) else 0.0


def _described(group: Group, lead: Hlo, traffic: Traffic, *, allow_opaque: bool) -> Found:
    held, dims = lead.node.attrs.get(KERNEL), lead.node.attrs.get("dims")
    if isinstance(held, str) and isinstance(dims, dict) and lead.kind not in LOOP:
        return held, dict(dims)
    if lead.kind == "dot":
        dims = dot_dims(lead.node)
        if dims["k"] == 0:  # a sum of nothing
            return "fill", {"numel": max(1, lead.numel), "inputs": 0, "outputs": 1}
        return ("bmm" if dims["batch"] > 1 else "matmul"), dims
    if lead.kind == "conv":
        return conv_dims(lead.node)
    if lead.kind == "reduce":
        return _rows(group, lead)
    if lead.kind == "library":
        found = _LIBRARY.get(short(lead.node.op))
        if found is not None:
            return found(lead.node)
        known = custom_kernel(lead.node)
        if known is not None:
            return known
        told = STATED_FLOPS in lead.node.attrs or factoring(lead.node) is not None
        if not allow_opaque and not told:
            raise CostRuleError(
                f"no cost rule for {_called(lead.node)}"
                + (f" in {lead.node.module!r}" if lead.node.module else "")
                + ": allow opaque kernels (--allow-opaque, allow_opaque=True), or add it to "
                "predictor/lower/xla_custom.py"
            )
        return "opaque", {"numel": sum(s.numel for s in lead.node.outputs)}
    return _loop(group, traffic)


def _called(node: OpNode) -> str:
    target = node.attrs.get("target")
    return f"custom call {target!r}" if target else repr(node.op)


def _rows(group: Group, reduce: Hlo) -> Found:
    """A reduction; with its rows written again it is what a softmax or a norm is."""
    whole = reduce.node.inputs[0].numel
    rows = max(1, max(s.numel for s in reduce.node.outputs))
    dims = {"rows": rows, "cols": max(1, whole // rows)}
    if group.root.kind != "reduce" and group.root.numel == whole and whole > rows:
        expensive = any(short(m.node.op) == "exponential" for m in group.members)
        return ("softmax" if expensive else "layer_norm"), dims
    return "reduction", dims


_MOVES: Mapping[str, str] = {
    "convert": "cast", "transpose": "transpose", "reverse": "copy", "concatenate": "copy",
    "pad": "copy", "slice": "copy", "dynamic_slice": "copy", "dynamic_update_slice": "copy",
    "broadcast_in_dim": "copy", "copy": "copy", "gather": "gather",
}  # fmt: skip
_SINGLE: Mapping[str, str] = {
    "add": "add", "subtract": "add", "multiply": "mul", "divide": "div", "power": "pow",
    "tanh": "tanh", "select": "where", "compare": "where", "maximum": "relu", "clamp": "relu",
}  # fmt: skip


def _loop(group: Group, traffic: Traffic) -> Found:
    """A loop over the elements of its result: by what it does most."""
    numel = max(1, max(_span(root) for root in group.roots))
    names = [short(m.node.op) for m in group.members if not (m.writes and m.writes[0].free)]
    kinds = {_MOVES.get(name) for name in names}
    inputs = max(traffic.tensors, int(traffic.read_bytes > 0))
    dims = {"numel": numel, "inputs": inputs, "outputs": len(group.roots)}
    if not names or not traffic.read_bytes:
        return "fill", {**dims, "inputs": 0}
    taken = next((m for m in group.members if m.kind == "gather" and 2 * m.numel >= numel), None)
    if taken is not None:
        rows = max(1, min(_rows_taken(taken.node), numel))
        return "gather", {"rows": rows, "cols": max(1, numel // rows)}
    if None not in kinds:
        op = next(o for o in ("transpose", "cast", "copy") if o in kinds)
        return op, dims
    work = [name for name in names if name not in _MOVES]
    if any(name in TRANSCENDENTAL for name in work):
        return "exp", dims
    if len(work) == 1 and work[0] in _SINGLE:
        return _SINGLE[work[0]], dims
    return "pointwise", dims


def _rows_taken(gather: OpNode) -> int:
    """Rows that a gather takes: one for each vector of indices."""
    index = gather.inputs[1]
    place = numbers(gather, "index_vector_dim", (len(index.shape),))[0]
    length = index.shape[place] if place < len(index.shape) else 1
    return index.numel // max(1, length)


def _span(root: Hlo) -> int:
    """Elements that a root writes: the part that an update in place changes."""
    if root.kind == "update" and root.node.attrs.get("in_place"):
        return root.node.inputs[1].numel
    return root.numel


def _pointwise_flops(group: Group) -> float:
    """Steps of everything in the group that is no product, of integers too: 10 a transcendental."""
    total = 0.0
    for member in group.members:
        if member.kind not in ("elementwise", "expensive", "reduce", "fold") or not member.writes:
            continue
        heavy = short(member.node.op) in TRANSCENDENTAL
        numel = member.node.inputs[0].numel if member.kind in ("reduce", "fold") else member.numel
        total += numel * (FLOPS_PER_ELEMENT["exp"] if heavy else 1)
    return total


def _dtype(group: Group) -> str:
    reads = [v.spec for v in group.reads()]
    return arithmetic_dtype(reads, [v.spec for v in group.writes()])


def _has_bias(group: Group, dot: Hlo) -> bool:
    """Whether the epilogue adds a vector."""
    return any(
        short(m.node.op) == "add" and m is not dot for m in group.members
    ) and any(len(v.spec.shape) == 1 for v in group.reads())  # fmt: skip


def _name(group: Group, lead: Hlo) -> str:
    """What the user reads: the operation, and how many it was fused with."""
    more = sum(1 for m in group.members if not (m.writes and m.writes[0].free)) - 1
    target = lead.node.attrs.get("target")
    name = f"xla.{target or short(lead.node.op)}"
    return f"{name}+{more}" if more > 0 else name


def _numel(node: OpNode) -> int:
    return max(1, max((s.numel for s in (*node.outputs, *node.inputs)), default=1))


def _sort(node: OpNode) -> Found:
    whole = node.inputs[0]
    axis = numbers(node, "dimension", (len(whole.shape) - 1,))[0] if whole.shape else 0
    cols = whole.shape[axis] if whole.shape else 1
    return "sort", {"rows": max(1, whole.numel // max(1, cols)), "cols": max(1, cols)}


def _window(node: OpNode) -> Found:
    """Pooling; a window as long as its axis is a running sum."""
    window = numbers(node, "window_dimensions")
    shape = node.inputs[0].shape
    long = [w for w, s in zip(window, shape, strict=False) if w > 1 and w == s]
    if long and node.outputs[0].shape == shape:
        return "scan", {"rows": max(1, node.inputs[0].numel // long[0]), "cols": long[0]}
    return "pool", {"rows": max(1, node.outputs[0].numel), "cols": max(1, math.prod(window))}


def _scatter(node: OpNode) -> Found:
    updates, index = node.inputs[-1], node.inputs[1]
    rows = max(1, min(index.numel, updates.numel))
    return "scatter", {"rows": rows, "cols": max(1, updates.numel // rows)}


def _random(node: OpNode) -> Found:
    numel = sum(s.numel for s in node.outputs)
    return "random", {"numel": max(1, numel), "inputs": 0, "outputs": 1}


def _fft(node: OpNode) -> Found:
    cols = max(1, math.prod(numbers(node, "length", (1,))))
    return "fft", {"rows": max(1, _numel(node) // cols), "cols": cols}


def _collective(op: str) -> Callable[[OpNode], Found]:
    def found(node: OpNode) -> Found:
        groups = numbers(node, "replica_groups")
        ranks = groups[-1] if groups else 2
        return op, {"numel": _numel(node), "ranks": max(1, ranks)}

    return found


_LIBRARY: Mapping[str, Callable[[OpNode], Found]] = {
    "sort": _sort,
    "top_k": _sort,
    "reduce_window": _window,
    "select_and_scatter": lambda node: (
        "pool_backward",
        {"rows": max(1, node.inputs[1].numel),
         "cols": max(1, math.prod(numbers(node, "window_dimensions", (1,))))},
    ),
    "scatter": _scatter,
    "rng": _random,
    "rng_uniform": _random,
    "rng_bit_generator": _random,
    "fft": _fft,
    "all_reduce": _collective("all_reduce"),
    "all_gather": _collective("all_gather"),
    "reduce_scatter": _collective("reduce_scatter"),
    "all_to_all": _collective("all_to_all"),
    "collective_permute": _collective("send_recv"),
    "collective_broadcast": _collective("collective"),
    "send": lambda node: ("transfer", {"numel": _numel(node)}),
    "recv": lambda node: ("transfer", {"numel": _numel(node)}),
    "infeed": lambda node: ("transfer", {"numel": _numel(node)}),
    "outfeed": lambda node: ("transfer", {"numel": _numel(node)}),
}  # fmt: skip
"""Operations that are kernels of their own."""
