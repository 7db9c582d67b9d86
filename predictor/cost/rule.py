"""`Rule`: what one op of the vocabulary computes and moves, as arithmetic on its dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Number: TypeAlias = Any
"""An `int` or a `float64` array of rows: rules are plain arithmetic and take either."""
Dims: TypeAlias = Mapping[str, Number]
Formula: TypeAlias = Callable[[Dims], Number]

INDEX_BYTES = 8
"""Indices are int64 in PyTorch."""
STAT_BYTES = 4
"""Saved statistics (mean, rstd, log-sum-exp) are fp32."""


def nothing(d: Dims) -> Number:
    """Zero, in the shape of the dimensions."""
    return 0 * next(iter(d.values()))


def smaller(a: Number, b: Number) -> Number:
    """Minimum that keeps Python integers exact."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return min(a, b)


def given_or(d: Dims, name: str, default: Number) -> Number:
    """An optional dimension where it is given (1 or more), else `default`."""
    value = d.get(name, -1)
    if isinstance(value, np.ndarray) or isinstance(default, np.ndarray):
        return np.where(np.asarray(value) >= 1, value, default)
    return value if value >= 1 else default


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Cost of one op; a formula takes the dimensions that `OPS[op].dims` names.

    Bytes are compulsory traffic: every distinct operand is read once, every result written once.
    """

    flops: Formula
    """Arithmetic that is needed, 2 a multiply-add: what bounds the time from below."""
    reads: Formula
    """Elements of the kernel's dtype read."""
    writes: Formula
    """Elements of the kernel's dtype written."""
    stored: Formula = nothing
    """Of `reads`: elements of weights or of a key-value cache, which may be kept narrower."""
    matmul_flops: Formula = nothing
    """FLOPs by the published dense convention; zero outside matrix products, convolution,
    attention and recurrent layers."""
    other_read_bytes: Formula = nothing
    """Bytes read in another dtype than the kernel's: indices, masks, statistics."""
    other_write_bytes: Formula = nothing
