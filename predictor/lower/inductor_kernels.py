"""Fused groups as kernels of the vocabulary: true bytes, and the op that they most resemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.graph.ir import Kernel
from predictor.graph.ops import OPS
from predictor.lower.aten_table import TABLE
from predictor.lower.draft import FLOATING
from predictor.lower.inductor_fusion import Group
from predictor.lower.inductor_loops import ONE, Value
from predictor.lower.streaming_readers import elementwise_dims

ROW_OPS: tuple[str, ...] = (
    "softmax_backward", "softmax", "layer_norm_backward", "layer_norm", "rms_norm_backward",
    "rms_norm", "group_norm_backward", "group_norm",
)  # fmt: skip
"""What a kernel that reduces rows is called, by the first of these calls in it."""
CHANNEL_OPS: tuple[str, ...] = ("batch_norm_backward", "batch_norm")
"""The same of one that reduces along other axes."""
FREE_OPS: frozenset[str] = frozenset({"fill", "copy", "cast", "add", "mul", "where"})
"""What a kernel is not called by where anything else is in it."""


def kernels_of(group: Group, outside: frozenset[int]) -> tuple[Kernel, ...]:
    """The kernels of a group: the library's own, or one.

    Args:
        group: loops of one kernel, or a library call.
        outside: identities of stored values that something else reads, or that are results.
    """
    if group.loops[0].library:
        return group.loops[0].library
    reads = read_bytes(group)
    written = {
        id(value): value for loop in group.loops for value in loop.writes if id(value) in outside
    }
    op = op_of(group)
    values = [*reads_of(group).values(), *written.values()]
    name = f"fused({', '.join(sorted({n for loop in group.loops for n in loop.names}))})"
    last = group.loops[-1]
    return (
        Kernel(
            op=op, phase=last.phase, dims=_dims(op, group, len(reads), max(1, len(written))),
            dtype=_dtype(values), flops=_flops(group),
            read_bytes=sum(reads.values()), name=name, module=last.module,
            write_bytes=sum(
                min(v.bytes, moved) if (moved := _moved(group, v)) else v.bytes
                for v in written.values()
            ),
        ),
    )  # fmt: skip


def reads_of(group: Group) -> dict[int, Value]:
    """Stored tensors that a kernel takes in: scalars are none."""
    inside = group.writes
    return {id(a.value): a.value for a in group.reads if id(a.value) not in inside and a.way != ONE}


def read_bytes(group: Group) -> dict[int, float]:
    """Bytes of each of them: different parts add up, to the whole at most."""
    found: dict[int, dict[tuple[str, int], float]] = {}
    for access, traffic in group.reads.items():
        if id(access.value) not in group.writes:
            found.setdefault(id(access.value), {})[access.way, access.part] = traffic
    values = {id(a.value): a.value for a in group.reads}
    out = {}
    for key, ways in found.items():
        parts = sum(t for (_, part), t in ways.items() if part)
        whole = max((t for (_, part), t in ways.items() if not part), default=0.0)
        out[key] = max(whole, min(parts, values[key].bytes))
    return out


def _flops(group: Group) -> float:
    """Arithmetic of a kernel: what several of its loops compute alike is computed once."""
    found: dict[int, float] = {}
    for loop in group.loops:
        for call, work in loop.work.items():
            found[call] = max(found.get(call, 0.0), work)
    return sum(found.values())


def _moved(group: Group, value: Value) -> float:
    """Bytes that a scatter writes into a larger tensor, 0 for other writes."""
    for loop in group.loops:
        if loop.mutates and value in loop.writes:
            return loop.numel * value.bytes / max(1, value.numel)
    return 0.0


def _dtype(values: Sequence[Value]) -> str:
    """Of the largest floating tensor."""
    floating = [v for v in values if v.dtype in FLOATING]
    if not floating:
        return values[0].dtype if values else "fp32"
    return max(floating, key=lambda v: v.numel).dtype


def op_of(group: Group) -> str:
    """The op of the vocabulary that a fused kernel most resembles."""
    ops = [TABLE[name][0] for loop in group.loops for name in loop.names if name in TABLE]
    if group.reduces:
        known = CHANNEL_OPS if group.axes else ROW_OPS
        return next((op for op in known if op in ops), "reduction")
    if any(loop.mutates for loop in group.loops):
        return "scatter"
    counted: Mapping[str, None] = dict.fromkeys(ops)
    if any(op in counted for op in ("embedding", "gather")):
        return "embedding"
    own = [op for op in counted if OPS[op].op_class in ("elementwise", "copy")]
    telling = [op for op in own if op not in FREE_OPS and OPS[op].op_class != "copy"]
    for token in ("gelu_backward", "transcendental", "dropout"):
        found = next((op for op in telling if OPS[op].token == token), None)
        if found is not None:
            return found
    if len(own) == len(ops) == 1:
        return own[0]
    return telling[0] if len(telling) == 1 and len(counted) == 1 else "pointwise"


def _dims(op: str, group: Group, reads: int, writes: int) -> dict[str, int]:
    if OPS[op].dims[:1] == ("numel",):
        return elementwise_dims(group.numel, reads, writes)
    if op in ("embedding", "scatter"):
        last = max((v.shape[-1] for loop in group.loops for v in loop.writes if v.shape), default=1)
        cols = last if last and group.numel % last == 0 else 1
        return {"rows": max(1, group.numel // cols), "cols": cols}
    return {"rows": group.numel, "cols": group.rnumel}
