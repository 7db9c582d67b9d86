"""Rules of ops that stream memory: elementwise, reductions, norms, gathers and copies.

Their FLOPs rarely matter; they are counted an element from the textbook formula of each op (a
transcendental counts 10), so that the totals are of the right order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor.cost.rule import INDEX_BYTES, STAT_BYTES, Dims, Formula, Number, Rule, nothing

FLOPS_PER_ELEMENT: Mapping[str, int] = {
    "add": 1, "mul": 1, "div": 1, "pow": 10, "relu": 1, "gelu": 10, "tanh": 10, "exp": 10,
    "where": 1, "dropout": 2, "pointwise": 1, "fill": 0, "random": 10,
    "add_backward": 0, "mul_backward": 2, "div_backward": 3, "pow_backward": 12,
    "relu_backward": 1, "gelu_backward": 20, "tanh_backward": 3, "where_backward": 2,
    "dropout_backward": 2, "copy": 0, "transpose": 0, "cast": 0,
}  # fmt: skip
"""Arithmetic of one output element."""

FLOPS_PER_CELL: Mapping[str, int] = {
    "softmax": 13, "softmax_backward": 4, "cross_entropy": 14, "cross_entropy_backward": 5,
    "layer_norm": 8, "layer_norm_backward": 14, "rms_norm": 5, "rms_norm_backward": 11,
    "group_norm": 8, "group_norm_backward": 14, "batch_norm": 8, "batch_norm_backward": 14,
    "reduction": 1, "scan": 1, "pool": 1, "pool_backward": 1,
    "embedding": 0, "embedding_backward": 1, "gather": 0, "scatter": 1, "quantize": 2,
}  # fmt: skip
"""Arithmetic of one of the rows * cols cells that the op reads."""


def _pointwise(op: str) -> Rule:
    """`inputs` tensors in, `outputs` tensors out, all of numel elements."""
    work = FLOPS_PER_ELEMENT[op]
    return Rule(
        flops=lambda d: work * d["numel"],
        reads=lambda d: d["inputs"] * d["numel"],
        writes=lambda d: d["outputs"] * d["numel"],
    )


def _masked(op: str) -> Rule:
    """One operand is a mask of one byte an element: an output of `dropout`, else an input."""
    work = FLOPS_PER_ELEMENT[op]
    if op == "dropout":
        return Rule(
            flops=lambda d: work * d["numel"],
            reads=lambda d: d["inputs"] * d["numel"],
            writes=lambda d: d["numel"],
            other_write_bytes=lambda d: (d["outputs"] - 1) * d["numel"],
        )
    return Rule(
        flops=lambda d: work * d["numel"],
        reads=lambda d: (d["inputs"] - 1) * d["numel"],
        writes=lambda d: d["outputs"] * d["numel"],
        other_read_bytes=lambda d: d["numel"],
    )


def _cells(d: Dims) -> Number:
    return d["rows"] * d["cols"]


def _rows_rule(
    op: str,
    reads: Formula,
    writes: Formula,
    *,
    other_read_bytes: Formula = nothing,
    other_write_bytes: Formula = nothing,
) -> Rule:
    work = FLOPS_PER_CELL[op]
    return Rule(
        flops=lambda d: work * d["rows"] * d["cols"],
        reads=reads,
        writes=writes,
        other_read_bytes=other_read_bytes,
        other_write_bytes=other_write_bytes,
    )


def sort_flops(d: Dims) -> Number:
    """Comparisons of a merge sort: rows * cols * log2(cols)."""
    return _cells(d) * np.ceil(np.log2(np.maximum(d["cols"], 2)))


def fft_flops(d: Dims) -> Number:
    """Radix-2 transform of length cols: 5 * cols * log2(cols) a row (Cooley and Tukey)."""
    return 5 * _cells(d) * np.log2(np.maximum(d["cols"], 2))


def _row_indices(d: Dims) -> Number:
    return INDEX_BYTES * d["rows"]


def _two_row_stats(d: Dims) -> Number:
    return 2 * STAT_BYTES * d["rows"]


def _affine_norm(op: str) -> tuple[Rule, Rule]:
    """Forward and backward of a norm over rows with a weight and a bias of `cols` elements."""
    forward = _rows_rule(
        op,
        lambda d: _cells(d) + 2 * d["cols"],
        _cells,
        other_write_bytes=_two_row_stats,
    )
    backward = _rows_rule(
        f"{op}_backward",
        lambda d: 2 * _cells(d) + d["cols"],
        lambda d: _cells(d) + 2 * d["cols"],
        other_read_bytes=_two_row_stats,
    )
    return forward, backward


def _channel_norm(op: str) -> tuple[Rule, Rule]:
    """Forward and backward of a norm whose rows are channels (or groups of them).

    Two affine parameters and two fp32 statistics a row.
    """
    forward = _rows_rule(
        op, lambda d: _cells(d) + 2 * d["rows"], _cells, other_write_bytes=_two_row_stats
    )
    backward = _rows_rule(
        f"{op}_backward",
        lambda d: 2 * _cells(d) + d["rows"],
        lambda d: _cells(d) + 2 * d["rows"],
        other_read_bytes=_two_row_stats,
    )
    return forward, backward


_LAYER_NORM, _LAYER_NORM_BACKWARD = _affine_norm("layer_norm")
_GROUP_NORM, _GROUP_NORM_BACKWARD = _channel_norm("group_norm")
_BATCH_NORM, _BATCH_NORM_BACKWARD = _channel_norm("batch_norm")
_MASKED = ("dropout", "dropout_backward", "where")

STREAMING_RULES: Mapping[str, Rule] = {
    **{op: _masked(op) if op in _MASKED else _pointwise(op) for op in FLOPS_PER_ELEMENT},
    "softmax": _rows_rule("softmax", _cells, _cells),
    "softmax_backward": _rows_rule("softmax_backward", lambda d: 2 * _cells(d), _cells),
    "cross_entropy": _rows_rule(
        "cross_entropy", _cells, lambda d: _cells(d) + 1, other_read_bytes=_row_indices
    ),
    "cross_entropy_backward": _rows_rule(
        "cross_entropy_backward",
        lambda d: 2 * _cells(d),
        lambda d: 2 * _cells(d),
        other_read_bytes=_row_indices,
    ),
    "layer_norm": _LAYER_NORM,
    "layer_norm_backward": _LAYER_NORM_BACKWARD,
    "rms_norm": _rows_rule(
        "rms_norm",
        lambda d: _cells(d) + d["cols"],
        _cells,
        other_write_bytes=lambda d: STAT_BYTES * d["rows"],
    ),
    "rms_norm_backward": _rows_rule(
        "rms_norm_backward",
        lambda d: 2 * _cells(d) + d["cols"],
        lambda d: _cells(d) + d["cols"],
        other_read_bytes=lambda d: STAT_BYTES * d["rows"],
    ),
    "group_norm": _GROUP_NORM,
    "group_norm_backward": _GROUP_NORM_BACKWARD,
    "batch_norm": _BATCH_NORM,
    "batch_norm_backward": _BATCH_NORM_BACKWARD,
    "reduction": _rows_rule("reduction", _cells, lambda d: d["rows"]),
    "scan": _rows_rule("scan", _cells, _cells),
    "sort": Rule(
        flops=sort_flops,
        reads=_cells,
        writes=_cells,
        other_write_bytes=lambda d: INDEX_BYTES * _cells(d),
    ),
    "pool": _rows_rule("pool", _cells, lambda d: d["rows"]),
    "pool_backward": _rows_rule("pool_backward", lambda d: d["rows"], _cells),
    "embedding": _rows_rule("embedding", _cells, _cells, other_read_bytes=_row_indices),
    "embedding_backward": _rows_rule(
        "embedding_backward", _cells, _cells, other_read_bytes=_row_indices
    ),
    "gather": _rows_rule("gather", _cells, _cells, other_read_bytes=_row_indices),
    "scatter": _rows_rule("scatter", _cells, _cells, other_read_bytes=_row_indices),
    "quantize": _rows_rule("quantize", _cells, _cells),
    "transfer": Rule(flops=nothing, reads=lambda d: d["numel"], writes=lambda d: d["numel"]),
    "fft": Rule(flops=fft_flops, reads=_cells, writes=_cells),
    "opaque": Rule(
        flops=lambda d: d["numel"], reads=lambda d: d["numel"], writes=lambda d: d["numel"]
    ),
}
"""One row an op. `pool` and `pool_backward` assume windows that do not overlap; gathers move the
rows asked for, not the table; a dense embedding gradient's zero fill is a `fill` of its own."""
