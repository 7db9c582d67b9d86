"""Sparse operands: products counted by stored values, and sparse embedding gradients.

Sparse tensors stay real (their structure is data), only their dense partners are meta tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from predictor.capture.composite import apply
from predictor.capture.recorder import Recorder
from predictor.errors import CaptureError


def is_sparse(value: object) -> bool:
    """Whether a value is a sparse tensor of any layout."""
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def cast(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A sparse matrix in another dtype; on the meta device `.to` would lose its values."""
    if matrix.layout is torch.sparse_coo or not matrix.is_meta:
        return matrix.to(dtype)
    by_row = matrix.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = matrix.crow_indices() if by_row else matrix.ccol_indices()
    inner = matrix.col_indices() if by_row else matrix.row_indices()
    return torch.sparse_compressed_tensor(
        outer,
        inner,
        matrix.values().to(dtype),
        matrix.shape,
        layout=matrix.layout,
        check_invariants=False,
    )


def product(recorder: Recorder, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`a @ b` where one of them is sparse and two-dimensional.

    Raises:
        CaptureError: both are sparse, or the sparse one needs a gradient.
    """
    if is_sparse(a) and is_sparse(b):
        raise CaptureError(
            "a product of two sparse tensors has a size that depends on values: "
            "keep one of them dense"
        )
    matrix = a if is_sparse(a) else b
    if matrix.requires_grad:
        raise CaptureError(
            f"the gradient of a sparse tensor of shape {tuple(matrix.shape)} is not captured: "
            "detach it, or gather and scatter with dense values"
        )
    return apply(_SparseProduct, recorder, a, b)  # type: ignore[no-any-return]


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorder: Recorder, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = _record(recorder, a, b)
        ctx.recorder, ctx.sparse_first = recorder, is_sparse(a)
        ctx.operands = (a, None) if is_sparse(a) else (None, b)
        ctx.shapes = (a.shape, b.shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        grad = grads[0]
        if ctx.sparse_first:
            return None, None, _record(ctx.recorder, ctx.operands[0], grad, transpose=True)
        return None, _record(ctx.recorder, grad, ctx.operands[1], transpose=True), None


def _record(
    recorder: Recorder, a: torch.Tensor, b: torch.Tensor, *, transpose: bool = False
) -> torch.Tensor:
    """Record one product; `transpose` turns the sparse operand over (the backward)."""
    first = is_sparse(a)
    matrix, dense = (a, b) if first else (b, a)
    if matrix.dim() != 2 or dense.dim() not in (1, 2):
        raise CaptureError(
            f"sparse products are captured for matrices, not for {tuple(a.shape)} @ "
            f"{tuple(b.shape)}"
        )
    rows, cols = matrix.shape[::-1] if transpose else matrix.shape
    inner, outer = (cols, rows) if first else (rows, cols)
    free = (dense.shape[1:] if first else dense.shape[:-1]) if dense.dim() == 2 else ()
    have = dense.shape[0] if first else dense.shape[-1]
    if have != inner:
        raise RuntimeError(
            f"sparse product of shapes {tuple(a.shape)} and {tuple(b.shape)} does not fit"
        )
    shape = (outer, *free) if first else (*free, outer)
    count = free[0] if free else 1
    with recorder.pause():
        out = dense.new_empty(shape) if dense.is_meta else _meta(dense, shape)
        attrs: dict[str, object] = {
            "m": outer if first else count,
            "n": count if first else outer,
            "k": inner,
            "nnz": stored_values(matrix),
        }
    recorder.record("predictor.sparse_mm", [matrix, dense], [out], attrs)
    return out


def _meta(dense: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=dense.dtype, device="meta")


def stored_values(matrix: torch.Tensor) -> int:
    """Number of stored values."""
    if matrix.layout is torch.sparse_coo:
        return int(matrix._nnz())
    return int(matrix.values().numel())


class _SparseEmbedding(torch.autograd.Function):
    """`embedding` or `embedding_bag` with `sparse=True`: the gradient holds the rows looked up."""

    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        weight: torch.Tensor,
        call: Any,
        indices: torch.Tensor,
        rest: tuple[Any, ...],
        owner: torch.Tensor,
    ) -> Any:
        result = call(weight, indices, *rest)
        ctx.recorder, ctx.indices, ctx.owner = recorder, indices, owner
        if isinstance(result, torch.Tensor):
            ctx.bag = False
            return result
        ctx.bag = True
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*result[1:])
        ctx.save_for_backward(result[1])
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        recorder: Recorder = ctx.recorder
        grad, indices = grads[0], ctx.indices
        if ctx.bag:  # every looked-up row takes its bag's gradient
            grad = grad.index_select(0, ctx.saved_tensors[0])
        values = grad.reshape(-1, grad.shape[-1])
        attrs: dict[str, object] = {"sparse": True, "nnz": values.shape[0]}
        recorder.record("aten.embedding_sparse_backward", [values, indices], [values], attrs)
        recorder.add_sparse_gradient(ctx.owner, values)
        return None, None, None, None, None, None


def sparse_embedding(
    recorder: Recorder,
    call: Any,
    weight: torch.Tensor,
    indices: torch.Tensor,
    rest: tuple[Any, ...],
) -> Any:
    """Run `call(weight, indices, *rest)` so that its gradient is sparse."""
    return apply(_SparseEmbedding, recorder, weight, call, indices, rest, weight)
