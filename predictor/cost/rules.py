"""FLOPs and bytes of every op of the vocabulary: one rule an op, for kernels known by dimensions.

A captured kernel takes its FLOPs from here and its bytes from the tensors' storage
(`predictor.lower`); a measured row, of which only the dimensions are known, takes both from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from predictor.cost.attention import ATTENTION_RULES
from predictor.cost.collectives import COLLECTIVE_RULES
from predictor.cost.matrix import MATRIX_RULES
from predictor.cost.optimizers import OPTIMIZER_RULES, even_sizes, optimizer_cost, step_launches
from predictor.cost.rule import Dims, Number, Rule
from predictor.cost.streaming import STREAMING_RULES
from predictor.errors import CostRuleError
from predictor.graph.ir import DTYPE_BYTES
from predictor.graph.ops import OPS

RULES: Mapping[str, Rule] = {
    **MATRIX_RULES, **ATTENTION_RULES, **STREAMING_RULES, **COLLECTIVE_RULES, **OPTIMIZER_RULES,
}  # fmt: skip
"""The rule of every op of `OPS`."""

MATRIX_CLASSES: frozenset[str] = frozenset(
    {"matmul", "grouped_matmul", "conv", "attention", "recurrent"}
)
"""Op classes whose FLOPs are published as a model's FLOPs (`matmul_flops`)."""
INTEGER_DTYPES: frozenset[str] = frozenset({"int64", "int32", "int16", "int8", "uint8", "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a kernel, or of many as arrays."""

    flops: Number
    """Arithmetic needed, FLOP (causal attention: the pairs the mask leaves): use it for time."""
    matmul_flops: Number
    """Dense convention, FLOP, matrix ops only: use it for reporting."""
    read_bytes: Number
    write_bytes: Number


def rule_of(op: str) -> Rule:
    """The rule of an op.

    Raises:
        CostRuleError: no such op in the vocabulary.
    """
    try:
        return RULES[op]
    except KeyError:
        raise CostRuleError(
            f"no cost rule for op {op!r}; known: {', '.join(sorted(RULES))}; "
            "add a row to predictor/graph/ops.py and its rule to predictor/cost"
        ) from None


def _numbers(op: str, dims: Dims) -> dict[str, Number]:
    """The op's dimensions; arrays become float64, so that products cannot overflow."""
    missing = [name for name in OPS[op].dims if name not in dims] if op in OPS else []
    if missing:
        raise CostRuleError(
            f"op {op!r} lacks dimension {missing[0]!r}; it needs {', '.join(OPS[op].dims)}"
        )
    return {
        name: value.astype(np.float64) if isinstance(value, np.ndarray) else value
        for name, value in dims.items()
    }


def flops(op: str, dims: Dims) -> Number:
    """Arithmetic that the kernel needs, FLOP, 2 a multiply-add.

    Causal attention counts the pairs that the mask leaves, and its backward the recomputation:
    this is the number that bounds time. For the published convention see `matmul_flops`.

    Raises:
        CostRuleError: unknown op or missing dimension.
    """
    return rule_of(op).flops(_numbers(op, dims))


def matmul_flops(op: str, dims: Dims) -> Number:
    """FLOPs by the published dense convention; 0 for ops that are not matrix products."""
    return rule_of(op).matmul_flops(_numbers(op, dims))


def read_elements(op: str, dims: Dims) -> Number:
    """Elements of the kernel's dtype that must be read (indices, masks and statistics aside)."""
    return rule_of(op).reads(_numbers(op, dims))


def write_elements(op: str, dims: Dims) -> Number:
    """Elements of the kernel's dtype that must be written."""
    return rule_of(op).writes(_numbers(op, dims))


def flop_factor(op: str, dtype: str) -> int:
    """What a dtype makes of an op's arithmetic count.

    Integers outside matrix products do no floating-point work (0); a complex multiply-add is four
    real ones (4).
    """
    if OPS[op].op_class not in MATRIX_CLASSES:
        return 0 if dtype in INTEGER_DTYPES else 1
    return 4 if dtype.startswith("complex") else 1


def kernel_cost(
    op: str,
    dims: Dims,
    dtype: str,
    *,
    input_bytes: Number | None = None,
    stored_bytes: Number | None = None,
    output_bytes: Number | None = None,
) -> Cost:
    """Cost of a kernel of which only the dimensions are known, or of many as arrays.

    Args:
        op: key of `OPS`.
        dims: integers, or arrays of one length, for every name in `OPS[op].dims`; those of
            `OPS[op].optional` where they are known (-1 elsewhere).
        dtype: key of `DTYPE_BYTES`, the dtype of all operands but indices and masks (for `cast`
            both sides are counted in it).
        input_bytes: bytes of an element read, where it is not `dtype`.
        stored_bytes: the same for weights and key-value caches (scales included), else as
            `dtype`.
        output_bytes: the same for elements written.

    Raises:
        CostRuleError: unknown op or dtype, or missing dimension.
    """
    rule = rule_of(op)
    if dtype not in DTYPE_BYTES:
        raise CostRuleError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}")
    width = DTYPE_BYTES[dtype]
    d = _numbers(op, dims)
    factor = flop_factor(op, dtype)
    stored = rule.stored(d)
    read = (width if input_bytes is None else input_bytes) * (rule.reads(d) - stored)
    read = read + (width if stored_bytes is None else stored_bytes) * stored
    return Cost(
        flops=factor * rule.flops(d),
        matmul_flops=factor * rule.matmul_flops(d),
        read_bytes=read + rule.other_read_bytes(d),
        write_bytes=(width if output_bytes is None else output_bytes) * rule.writes(d)
        + rule.other_write_bytes(d),
    )


MANY_LAUNCHES: frozenset[str] = frozenset({"recurrent", "optimizer"})
"""Op classes of which one call may launch more than once (`launches`)."""


def launches(op: str, dims: Mapping[str, int]) -> int:
    """Dependent launches of one call: steps of a recurrent layer, chunks of an optimizer's passes.

    The optimizer's parameters are taken as equal in size; everything else launches once.
    """
    op_class = OPS[op].op_class
    if op_class == "recurrent":
        return max(1, dims["steps"] * dims["layers"] * dims["directions"])
    if op_class == "optimizer":
        sizes = even_sizes(dims["numel"], dims["tensors"])
        return max(1, step_launches(optimizer_cost(op), sizes))
    return 1
