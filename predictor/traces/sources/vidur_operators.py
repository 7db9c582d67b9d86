"""Operators of vidur's layer profiles: which kernel each is, and its shape on one worker.

Tensor parallelism (degree `tp`) cuts heads and the MLP's inner width; norms, residual sums and the
embedding work on whole rows. T tokens, hidden size E, head size D = E / heads, inner width F:

| operator | op | shape |
|---|---|---|
| emb | `embedding` | T rows of E |
| input_layernorm, post_attention_layernorm | `rms_norm`, without gated MLP `layer_norm` | T x E |
| attn_pre_proj | `matmul` | T x E times E x (heads + 2 kv_heads) D / tp |
| attn_rope | `pointwise` | T (heads + kv_heads) D / tp elements, in place |
| attn_post_proj | `matmul` | T x (heads D / tp) times that x E |
| mlp_up_proj | `matmul` | T x E times E x (2 with a gate) F / tp |
| mlp_act | `exp` (SiLU times the gate), else `gelu` | T F / tp elements |
| mlp_down_proj | `matmul` | T x (F / tp) times that x E |
| add | `add` | T E elements; two sums in one where attention and MLP run side by side |

Models without a gate (phi-2) have biases: `linear` for `matmul`. The columns do not tell the kind
of norm or bias: they follow `use_gated_mlp`, as in the configurations the profiler was run with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Sizes: TypeAlias = Mapping[str, Any]
"""Columns of `SIZES` as arrays, `gates` and `sums` as numbers."""
Dims: TypeAlias = Mapping[str, Any]

SIZES: tuple[str, ...] = (
    "num_tokens", "n_embd", "n_head", "n_kv_head", "n_expanded_embd", "num_tensor_parallel_workers",
)  # fmt: skip
"""Columns that give the shapes."""
SECOND_NORM = "post_attention_layernorm"
"""Missing where attention and MLP run side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a layer."""

    gated: str
    """Op in models with a gated MLP."""
    plain: str
    """Op in the others."""
    dims: Callable[[Sizes], Dims]
    """From the sizes and `gates` (2 with a gate, else 1) and `sums` (residual sums in one)."""


def divides(s: Sizes) -> NDArray[np.bool_]:
    """Whether heads, key-value heads and inner width are whole on every worker."""
    tp = s["num_tensor_parallel_workers"]
    cut = [s[name] % tp == 0 for name in ("n_head", "n_kv_head", "n_expanded_embd")]
    return np.asarray(np.logical_and.reduce([*cut, s["n_embd"] % s["n_head"] == 0]))


def _heads(s: Sizes, query: int, key: int) -> Any:
    """Width of so many query and key-value projections on one worker."""
    heads = query * s["n_head"] + key * s["n_kv_head"]
    return heads * (s["n_embd"] // s["n_head"]) // s["num_tensor_parallel_workers"]


def _inner(s: Sizes) -> Any:
    return s["n_expanded_embd"] // s["num_tensor_parallel_workers"]


def _product(s: Sizes, n: Any, k: Any) -> Dims:
    return {"batch": 1, "m": s["num_tokens"], "n": n, "k": k}


def _rows(s: Sizes) -> Dims:
    return {"rows": s["num_tokens"], "cols": s["n_embd"]}


def _vector(s: Sizes, width: Any, inputs: Any, outputs: Any = 1) -> Dims:
    return {"numel": s["num_tokens"] * width, "inputs": inputs, "outputs": outputs}


def _matrix(dims: Callable[[Sizes], Dims]) -> Operator:
    return Operator(gated="matmul", plain="linear", dims=dims)


_NORM = Operator(gated="rms_norm", plain="layer_norm", dims=_rows)

OPERATORS: Mapping[str, Operator] = {
    "emb": Operator(gated="embedding", plain="embedding", dims=_rows),
    "input_layernorm": _NORM,
    "attn_pre_proj": _matrix(lambda s: _product(s, _heads(s, 1, 2), s["n_embd"])),
    "attn_rope": Operator(
        gated="pointwise", plain="pointwise", dims=lambda s: _vector(s, _heads(s, 1, 1), 1)
    ),
    "attn_post_proj": _matrix(lambda s: _product(s, s["n_embd"], _heads(s, 1, 0))),
    SECOND_NORM: _NORM,
    "mlp_up_proj": _matrix(lambda s: _product(s, s["gates"] * _inner(s), s["n_embd"])),
    "mlp_act": Operator(
        gated="exp", plain="gelu", dims=lambda s: _vector(s, _inner(s), s["gates"])
    ),
    "mlp_down_proj": _matrix(lambda s: _product(s, s["n_embd"], _inner(s))),
    "add": Operator(
        gated="add", plain="add",
        dims=lambda s: _vector(s, s["n_embd"], 2 * s["sums"], s["sums"]),
    ),
}  # fmt: skip
"""By the name in the columns `time_stats.NAME.median`."""
