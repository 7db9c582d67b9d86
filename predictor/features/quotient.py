"""Kernels of a graph that a message-passing network cannot tell apart, evaluated once.

Two kernels with the same features and the same neighbourhood up to `depth` hops get the same
prediction from `depth` layers. Colour refinement (Weisfeiler, Leman 1968) finds them; the classes
form a smaller graph on which mean aggregation gives what it gives on the whole one, because
each class keeps the edges of one of its members.

Legend: N kernels, E edges, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.mixing import GOLDEN, mixed

_SALTS = np.arange(1, 4, dtype=np.uint64) * np.uint64(GOLDEN)
"""Tell a kernel's own colour, its producers' and its consumers' apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotient:
    """Classes of kernels."""

    member: NDArray[np.intp]
    """(C,) one kernel of each class."""
    count: NDArray[np.int64]
    """(C,) kernels in each class."""
    class_of: NDArray[np.intp]
    """(N,) class of each kernel."""
    producers: NDArray[np.int64]
    """(2, P) class of a producer, class of its consumer: the inputs of one member of each class."""
    consumers: NDArray[np.int64]
    """(2, P) class of a consumer, class of its producer."""


def quotient(kind_N: NDArray[np.int64], edge_index_2E: NDArray[np.int64], depth: int) -> Quotient:
    """Classes of kernels of equal kind and equal neighbourhood.

    Args:
        kind_N: what a kernel is: kernels of one kind have the same features.
        edge_index_2E: producer and consumer of each edge.
        depth: hops that count; 0 looks at the kind alone, and keeps no edges.
    """
    own, from_producers, from_consumers = _SALTS
    colour = mixed(kind_N.astype(np.uint64) + own)
    producer, consumer = edge_index_2E
    for _ in range(depth):
        below = np.zeros_like(colour)
        above = np.zeros_like(colour)
        np.add.at(below, consumer, mixed(colour + from_producers)[producer])
        np.add.at(above, producer, mixed(colour + from_consumers)[consumer])
        colour = mixed(colour + mixed(below + from_producers) + mixed(above + from_consumers))
    _, member, class_of, count = np.unique(
        colour, return_index=True, return_inverse=True, return_counts=True
    )
    class_of = class_of.reshape(-1)
    none = np.zeros((2, 0), dtype=np.int64)
    if depth == 0:
        return Quotient(
            member=member, count=count, class_of=class_of, producers=none, consumers=none
        )
    chosen = np.zeros(len(colour), dtype=bool)
    chosen[member] = True
    inward, outward = chosen[consumer], chosen[producer]
    return Quotient(
        member=member,
        count=count,
        class_of=class_of,
        producers=np.stack([class_of[producer[inward]], class_of[consumer[inward]]]),
        consumers=np.stack([class_of[consumer[outward]], class_of[producer[outward]]]),
    )
