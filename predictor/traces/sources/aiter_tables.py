"""Tables of aiter: which kernel a row is, in which number format, and its shape.

| table | op | shape |
|---|---|---|
| `*gemm*` | `matmul`; `bmm` where batched; `linear` with a bias | M x K times K x N, K contracted |
| `*fmoe*` | `moe`, both stages | tokens x model_dim through topk of the experts, width inter_dim |
| `*chunk_gdn_h*` | `delta_rule` (`state_pass`) | H heads, Hg key heads, N sequences, state K x V |

Results of a product are bf16 whatever its format. Experts are drawn at random when tuning, so the
number that some token meets is E (1 - (1 - topk / E)^tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.traces.cells import Cells, kernel_rows
from predictor.traces.schema import empty_table

if TYPE_CHECKING:
    import pandas as pd

RESULT_BYTES = 2
DTYPES: Mapping[str, str] = {
    "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.int8": "int8",
    "torch.float8_e4m3fnuz": "fp8", "torch.float8_e4m3fn": "fp8",
    "torch.float4_e2m1fn_x2": "fp4",
}  # fmt: skip
"""Our dtypes by PyTorch's names."""
FORMATS: tuple[tuple[str, str, str], ...] = (
    ("a4w4", "fp4", "mxfp4"), ("a8w8_blockscale", "fp8", "fp8_block"), ("a8w8", "int8", "w8a8"),
    ("bf16", "bf16", ""),
)  # fmt: skip
"""Kind of product in a file's name (the first that fits): dtype where no column says it, scheme."""
MOE_SCHEMES: Mapping[str, str] = {
    "QuantType.No": "", "QuantType.per_Token": "w8a8", "QuantType.per_Tensor": "w8a8_tensor",
    "QuantType.per_1x128": "fp8_block", "QuantType.per_128x128": "fp8_block",
    "QuantType.per_1x32": "mxfp4",
}  # fmt: skip
"""Schemes by `q_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How one kind of table is read."""

    sizes: tuple[str, ...]
    """Columns of whole, positive sizes."""
    flops: Callable[[Mapping[str, Any]], Any] | None
    """FLOPs by the publisher's count, which `tflops` is made of; None where it is not published."""
    rows: Callable[[Cells, Mapping[str, Any]], pd.DataFrame]
    """Kernel rows from cells with sizes that passed, and the columns that every kind has."""
    context: str = "device"


def _split(cells: Cells, column: str) -> list[tuple[str, Cells]]:
    """Rows by the value of a text column."""
    return [
        (str(value), Cells(rows=rows, file=cells.file, out=cells.out))
        for value, rows in cells.rows.groupby(column, sort=False)
    ]


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(frames, ignore_index=True) if frames else empty_table("kernels")


def _own(cells: Cells, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of `Cells` that the schema takes as they are."""
    return {c: cells.rows[name].to_numpy() for c, name in columns.items()}


def product_format(cells: Cells) -> None:
    """Set `our_dtype` and `scheme`; refuse rows of an unknown dtype."""
    import pandas as pd

    kind = cells.rows["kind"].astype(str)
    dtype = pd.Series("", index=kind.index, dtype=object)
    scheme = dtype.copy()
    for name, plain, quantised in reversed(FORMATS):
        here = kind.str.contains(name, regex=False)
        dtype[here], scheme[here] = plain, quantised
    for column in ("dtype", "q_dtype_w"):
        if column in cells.rows.columns:
            named = cells.rows[column].where(cells.rows[column].notna(), "").astype(str)
            dtype = dtype.where(named == "", named.map(DTYPES).fillna(""))
    cells.rows = cells.rows.assign(our_dtype=dtype, scheme=scheme)
    cells.keep(cells.rows["our_dtype"] != "", "kind", "unknown_dtype")


def _product_rows(cells: Cells, columns: Mapping[str, Any]) -> pd.DataFrame:
    product_format(cells)
    batch = cells.number("B")
    op = np.where(np.isfinite(batch), "bmm", np.where(cells.number("bias") > 0, "linear", "matmul"))
    if "bias" in cells.rows.columns and cells.rows["bias"].dtype.kind not in "bif":
        op = np.where(cells.rows["bias"].astype(str) == "True", "linear", op)
    cells.rows = cells.rows.assign(op=op, batch=np.where(np.isfinite(batch), batch, 1))
    frames = []
    for name, of_op in _split(cells, "op"):
        for dtype, some in _split(of_op, "our_dtype"):
            dims = {d: some.whole(c) for d, c in
                    (("batch", "batch"), ("m", "M"), ("n", "N"), ("k", "K"))}  # fmt: skip
            values = _own(some, {**columns, "scheme": "scheme"})
            frames.append(kernel_rows(name, dims, dtype, values, output_bytes=RESULT_BYTES))
    return _joined(frames)


def product_flops(c: Mapping[str, Any]) -> Any:
    """2 a multiply-add."""
    return 2 * np.where(np.isfinite(c["B"]), c["B"], 1) * c["M"] * c["N"] * c["K"]


def moe_flops(c: Mapping[str, Any]) -> Any:
    """Up (and gate) and down projections of every token for each of its experts."""
    matrices = 2 + (c["use_g1u1"] > 0)
    return 2 * matrices * c["token"] * c["topk"] * c["model_dim"] * c["inter_dim"]


def active_experts(experts: Any, topk: Any, tokens: Any) -> Any:
    """Experts that some token meets, on average over random choices, at least one."""
    idle = np.maximum(1.0 - topk / experts, 0.0) ** tokens
    return np.maximum(np.rint(experts * (1.0 - idle)), 1).astype(np.int64)


def _moe_rows(cells: Cells, columns: Mapping[str, Any]) -> pd.DataFrame:
    names = cells.rows["q_dtype_a"].astype(str)
    same = (names == cells.rows["q_dtype_w"].astype(str)) & names.isin(list(DTYPES))
    cells.keep(same, "q_dtype_w", "unknown_dtype")
    cells.keep(cells.rows["q_type"].isin(list(MOE_SCHEMES)), "q_type", "unknown_scheme")
    cells.rows = cells.rows.assign(
        scheme=cells.rows["q_type"].map(MOE_SCHEMES), our_dtype=cells.rows["q_dtype_a"].map(DTYPES)
    )
    frames = []
    for dtype, some in _split(cells, "our_dtype"):
        tokens, topk, experts = some.whole("token"), some.whole("topk"), some.whole("expert")
        inner = some.whole("inter_dim")
        dims = {
            "tokens": tokens, "groups": experts, "m": tokens * topk, "n": inner,
            "k": some.whole("model_dim"), "gates": np.where(some.number("use_g1u1") > 0, 2, 1),
            "active": active_experts(experts, topk, tokens), "topk": topk, "experts": experts,
            "inter_size": inner,
        }  # fmt: skip
        values = _own(some, {**columns, "scheme": "scheme"})
        frames.append(kernel_rows("moe", dims, dtype, values, output_bytes=RESULT_BYTES))
    return _joined(frames)


def _state_rows(cells: Cells, columns: Mapping[str, Any]) -> pd.DataFrame:
    """The pass over the state alone: two of the rule's three products, and a state a chunk kept."""
    known = cells.rows["dtype"].astype(str).isin(list(DTYPES))
    cells.keep(known, "dtype", "unknown_dtype")
    frames = []
    for name, some in _split(cells, "dtype"):
        sequences, tokens = some.whole("N"), some.whole("T_flat")
        heads, keys = some.whole("H"), some.whole("Hg")
        k, v = some.whole("K"), some.whole("V")
        state = heads * k * v
        kept = np.where(some.rows["snapshot_bf16"].astype(str) == "True", 2, 4)
        values = _own(some, columns) | {
            "flops": 4.0 * tokens * state,
            "read_bytes": tokens * (2.0 * (keys * k + heads * (k + v)) + 4.0 * heads)
            + 4.0 * sequences * state,
            "write_bytes": 2.0 * tokens * heads * v + some.number("total_chunks") * state * kept,
        }  # fmt: skip
        dims = {
            "batch": sequences, "heads": heads, "kv_heads": keys,
            "q_len": np.maximum(tokens // sequences, 1), "head_dim": k, "v_head_dim": v,
        }  # fmt: skip
        frames.append(kernel_rows("delta_rule", dims, DTYPES[name], values))
    return _joined(frames)


PRODUCT = Table(sizes=("M", "N", "K"), flops=product_flops, rows=_product_rows)
MOE = Table(
    sizes=("token", "model_dim", "inter_dim", "expert", "topk"), flops=moe_flops, rows=_moe_rows
)
STATE = Table(
    sizes=("T_flat", "N", "H", "Hg", "K", "V", "total_chunks"), flops=None, rows=_state_rows,
    context="isolated",
)  # fmt: skip
TABLES: tuple[Table, ...] = (MOE, STATE, PRODUCT)
"""Kinds of table, told by their size columns; the first that fits."""
