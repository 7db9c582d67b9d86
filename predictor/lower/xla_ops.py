"""What XLA can do with each operation when it fuses: one table, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from predictor.cost.hlo import ARITHMETIC, TRANSCENDENTAL, short

Kind = Literal[
    "elementwise",
    "expensive",
    "broadcast",
    "generated",
    "transpose",
    "slice",
    "gather",
    "layout",
    "fold",
    "reduce",
    "rows",
    "update",
    "dot",
    "conv",
    "library",
]
"""How an operation takes part in fusion:

* `elementwise`: one step an element; `expensive`: a polynomial or a division an element
* `broadcast`, `transpose`, `layout` (concatenate, pad, reverse): every output element is some input
* `generated`: needs no memory (iota)
* `slice`, `gather`: touch the part of the operand that they give
* `fold`: a few elements into one, as a thread of a loop does it
* `reduce`: many elements into one; `rows`: rows that are reduced and used again
* `update`: writes a part of its first operand
* `dot`, `conv`: matrix units; `library`: a kernel of its own, with nothing fused
"""

_NAMES: Mapping[Kind, str] = {
    "elementwise": " ".join(sorted(ARITHMETIC - {"divide", "remainder"})) + " copy "
    "bitcast_convert clz",
    "expensive": " ".join(sorted(TRANSCENDENTAL)) + " divide remainder",
    "broadcast": "broadcast_in_dim broadcast",
    "generated": "iota partition_id replica_id rng_get_and_update_state",
    "transpose": "transpose",
    "slice": "slice dynamic_slice real_dynamic_slice",
    "gather": "gather torch_index_select",
    "layout": "concatenate pad reverse dynamic_pad",
    "reduce": "reduce",
    "rows": "whole_rows",
    "update": "dynamic_update_slice",
    "dot": "dot_general dot",
    "conv": "convolution",
    "library": "sort reduce_window select_and_scatter scatter custom_call fft rng "
    "rng_bit_generator rng_uniform cholesky triangular_solve top_k all_reduce all_gather "
    "reduce_scatter all_to_all collective_permute collective_broadcast infeed outfeed send recv "
    "batch_norm_training batch_norm_inference batch_norm_grad einsum get_dimension_size "
    "dynamic_reshape uniform_quantize uniform_dequantize library_call",
}
KINDS: Mapping[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Kind of an operation by its name without dialect."""

KERNEL = "kernel"
"""Attribute of an operation that says its op of the vocabulary itself, with `dims`."""
CHEAP: frozenset[Kind] = frozenset(
    {"elementwise", "broadcast", "generated", "transpose", "slice", "layout", "gather", "fold"}
)
"""Kinds that a compiler computes again rather than write and read."""
LOOP: frozenset[Kind] = CHEAP | {"expensive"}
"""Kinds that make one output element from a few input elements."""


def kind_of(op: str) -> Kind | None:
    """Kind of an operation, None when the table has no row for it."""
    return KINDS.get(short(op))
