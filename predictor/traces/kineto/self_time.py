"""What ran on a host that was traced alone: each op's own time, without the ops that it called."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.traces.kineto.events import ABSENT, EventTable
from predictor.traces.kineto.op_tree import OpTree, op_tree
from predictor.traces.kineto.trace import Trace


def own_time(tree: OpTree) -> NDArray[np.int64]:
    """(N,) nanoseconds that each op spent itself."""
    own = tree.events["dur_ns"].copy()
    inner = np.flatnonzero(tree.parent != ABSENT)
    np.subtract.at(own, tree.parent[inner], tree.events["dur_ns"][inner])
    return np.asarray(np.maximum(own, 0))


def host_kernels(trace: Trace) -> tuple[EventTable, NDArray[np.int64]]:
    """Ops of the host and the nanoseconds that each spent itself."""
    tree = op_tree(trace.ops)
    return tree.events, own_time(tree)
