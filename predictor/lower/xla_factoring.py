"""Work of matrix factorisations and triangular solves: the calls of linear algebra libraries.

Counts of multiplications and additions as in Golub and Van Loan, "Matrix Computations" (4th ed.):
sections 4.2 (Cholesky), 3.1 and 3.2 (triangular solves, LU), 5.2 (QR), 8.3 and 8.6 (symmetric
eigenvalues, SVD), 7.5 (eigenvalues). Panels of columns follow one another, each in a few kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from predictor.graph.ir import OpNode

PANEL = 32
"""Columns that are factored together."""
KERNELS_A_PANEL = 3
"""The panel itself, the solve beside it, the update of what is left."""

_Count = Callable[[int, int], float]
"""FLOPs of one m x n matrix."""


def _lu(m: int, n: int) -> float:
    m, n = max(m, n), min(m, n)
    return n * n * (m - n / 3)


_COUNTS: Sequence[tuple[str, _Count]] = (
    (r"potrf|cholesky", lambda m, n: n**3 / 3),
    (r"getrf|ludecomposition", _lu),
    (r"geqrf|orgqr|ungqr|householder|(^|\.)qr$", lambda m, n: 2 * _lu(m, n)),
    (r"syevd|syevj|heevd|(^|\.)eigh$", lambda m, n: 9 * n**3),
    (r"gesvd", lambda m, n: 4 * m * m * n + 8 * m * n * n + 9 * n**3),
    (r"hybrid_eig|geev", lambda m, n: 25 * n**3),
)
"""(pattern of a call's target or an operation's name, FLOPs of a matrix)."""


def factoring(node: OpNode) -> tuple[float, int] | None:
    """FLOPs and kernels of a factorisation or triangular solve; None of anything else.

    Args:
        node: the operation; matrices are the last two axes of its operands.
    """
    name = str(node.attrs.get("target") or node.op).lower()
    matrices = [s.shape for s in node.inputs if len(s.shape) >= 2]
    if not matrices:
        return None
    *batch, m, n = matrices[0]
    times = math.prod(batch)
    if name.endswith("triangular_solve"):
        sides = [math.prod(shape) for shape in matrices]
        return float(sides[-1] * n), _kernels(n)
    for pattern, count in _COUNTS:
        if re.search(pattern, name):
            return times * float(count(m, n)), _kernels(min(m, n))
    return None


def _kernels(columns: int) -> int:
    return KERNELS_A_PANEL * max(1, math.ceil(columns / PANEL))
