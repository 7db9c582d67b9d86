"""Reductions in two passes: how often TorchInductor cuts one that would leave a GPU idle.

`reduction_split_factor` of torch/_inductor/choices.py and `Reduction.num_splits` of ir.py, as a
function of sizes and of the number of processors.
"""

from __future__ import annotations

THREADS = 2048
"""Of a processor."""
LEAST, MOST = 32, 512
"""Elements of a thread."""
WARPS_THREADS = 256
OUTER_ROWS, OUTER_BLOCK = 4, 128
"""Rows of a thread and columns of a block where columns are summed."""
NO_SPLIT = 8192


def splits(numel: int, rnumel: int, processors: int, *, inner: bool) -> int:
    """Parts that a reduction is cut into, 1 for none.

    Args:
        numel: results.
        rnumel: elements of each.
        processors: of the device.
        inner: whether neighbours in memory are added up, not columns.
    """
    if numel == 1:
        return max(1, _inner(numel, rnumel, processors))
    if rnumel <= LEAST or numel >= processors * 64:
        return 1
    return max(1, (_inner if inner else _outer)(numel, rnumel, processors))


def _inner(numel: int, rnumel: int, processors: int) -> int:
    if numel >= 2 * processors or rnumel <= NO_SPLIT:
        return 1
    blocks = -(-(processors * THREADS // (2 * WARPS_THREADS)) // numel)
    size = _size(numel, rnumel, processors, WARPS_THREADS * blocks, slack=30)
    return -(-rnumel // (size * WARPS_THREADS))


def _outer(numel: int, rnumel: int, processors: int) -> int:
    columns = -(-numel // OUTER_BLOCK)
    blocks = -(-(processors * THREADS // WARPS_THREADS) // columns)
    size = _size(numel, rnumel, processors, OUTER_ROWS * blocks, slack=20)
    return -(-rnumel // (size * OUTER_ROWS))


def _size(numel: int, rnumel: int, processors: int, wide: int, *, slack: int) -> int:
    """Elements of a thread: few on small tensors, even shares on larger ones."""
    threads = processors * THREADS
    if numel * rnumel <= LEAST * threads:
        return LEAST
    if numel * rnumel >= MOST * threads:
        near = _nearest_divisor(rnumel, MOST)
        return near if abs(near - MOST) < 50 else MOST
    wanted = -(-rnumel // wide)
    near = _nearest_divisor(rnumel, wanted)
    return max(near, LEAST) if abs(near - wanted) < slack else wanted


def _nearest_divisor(number: int, wanted: int) -> int:
    low = next((d for d in range(min(wanted, number), 0, -1) if number % d == 0), 1)
    high = next((d for d in range(max(1, wanted), min(number, 2 * wanted) + 1) if number % d == 0),
                low)  # fmt: skip
    return low if wanted - low <= high - wanted else high
