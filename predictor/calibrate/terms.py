"""The terms of a correction: their names, their groups, and what they say of kernels and steps.

Legend: P parts (kernels), T terms.

| group | a term for | says of a kernel |
|---|---|---|
| `all` | everything | 1 |
| `class` | each op class | 1 in the class |
| `token` | each kind of kernel that shares an embedding | 1 of the kind |
| `bound` | each bound (compute, memory, launch) | 1 under the bound |
| `class bound` | both together | 1 where both hold |
| `dtype` | each dtype | 1 in the dtype |
| `class half` | each op class, in 16 bits | 1 where both hold |
| `launch` | time that every launch adds | `LAUNCH_US` a launch / time, at most 1 |
| `size` | how errors grow with time | log10(time / `SIZE_US`), between -2 and 3 |
| `class size` | the same in each op class | the same in the class |
| `head` | how known devices differ (`LatencyNet.device_terms`) | the hidden state along an axis |
| `alone` | kernels measured by themselves | 1 of the reading |
| `class alone` | the same by op class | 1 in the class |
| `host` | the host that issues launches | (of the host's time) |
| `step` | whole steps | 1 of the reading |
| `step by` | training, compiled, channels-last, autocast | 1 of the reading |
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from predictor.graph.ir import HALVES
from predictor.graph.ops import OP_CLASSES, OPS, TOKENS

Singles = NDArray[np.float32]
Names = NDArray[np.str_]
Floats = NDArray[np.float64]
LAUNCH_US = 5.0
SIZE_US = 100.0
HEADS = 24
"""Axes along which a network's hidden states are read."""
BOUNDS: tuple[str, ...] = ("compute", "memory", "launch")
DTYPES: tuple[str, ...] = ("fp32", "fp16", "bf16", "fp8", "int8")
STEP_FACTS: tuple[str, ...] = ("train", "compiled", "nhwc", "amp")

GROUPS: Mapping[str, tuple[str, ...]] = {
    "all": ("all",),
    "class": tuple(f"class {c}" for c in OP_CLASSES),
    "token": tuple(f"token {t}" for t in TOKENS),
    "bound": tuple(f"bound {b}" for b in BOUNDS),
    "class bound": tuple(f"class {c}, bound {b}" for c in OP_CLASSES for b in BOUNDS),
    "dtype": tuple(f"dtype {d}" for d in DTYPES),
    "class half": tuple(f"class {c}, half" for c in OP_CLASSES),
    "launch": ("launch",),
    "size": ("size",),
    "class size": tuple(f"class {c}, size" for c in OP_CLASSES),
    "head": tuple(f"head {i}" for i in range(HEADS)),
    "alone": ("alone",),
    "class alone": tuple(f"class {c}, alone" for c in OP_CLASSES),
    "host": ("host",),
    "step": ("step",),
    "step by": tuple(f"step {fact}" for fact in STEP_FACTS),
}
TERMS: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names)
TERM_GROUP: tuple[str, ...] = tuple(group for group, names in GROUPS.items() for _ in names)
PLACE: Mapping[str, int] = {name: i for i, name in enumerate(TERMS)}
HOST = PLACE["host"]
_FIRST: Mapping[str, int] = {group: PLACE[names[0]] for group, names in GROUPS.items()}
_CLASS_OF_TOKEN = np.array(
    [OP_CLASSES.index(next(o.op_class for o in OPS.values() if o.token == t)) for t in TOKENS]
)


def launch_share(time_us: Floats, launches: Floats) -> Floats:
    """Share of predicted device times that a slower launch adds to: 1 of the shortest kernels."""
    return np.asarray(np.minimum(1.0, LAUNCH_US * launches / time_us))


def log_size(time_us: Floats) -> Floats:
    """Decades of predicted device times above `SIZE_US`."""
    return np.asarray(np.clip(np.log10(time_us / SIZE_US), -2.0, 3.0))


def part_terms(
    *,
    token_P: NDArray[np.int64],
    dtype_P: Names,
    bound_P: NDArray[np.int64],
    launch_P: Floats,
    size_P: Floats,
    head_PH: Floats | Singles,
    alone: bool,
) -> Singles:
    """(P, T) what every term says of kernels.

    Args:
        token_P: index into `TOKENS`.
        dtype_P: of the arithmetic.
        bound_P: index into `BOUNDS`.
        launch_P: `launch_share`.
        size_P: `log_size`.
        head_PH: (P, HEADS) hidden states along the axes.
        alone: whether they were measured by themselves.
    """
    out_PT = np.zeros((len(token_P), len(TERMS)), dtype=np.float32)
    at, op_class = np.arange(len(token_P)), _CLASS_OF_TOKEN[token_P]
    out_PT[:, PLACE["all"]] = 1.0
    out_PT[at, _FIRST["class"] + op_class] = 1.0
    out_PT[at, _FIRST["token"] + token_P] = 1.0
    out_PT[at, _FIRST["bound"] + bound_P] = 1.0
    out_PT[at, _FIRST["class bound"] + op_class * len(BOUNDS) + bound_P] = 1.0
    for i, dtype in enumerate(DTYPES):
        out_PT[:, _FIRST["dtype"] + i] = np.char.startswith(dtype_P.astype(np.str_), dtype)
    out_PT[at, _FIRST["class half"] + op_class] = np.isin(dtype_P, HALVES)
    out_PT[:, PLACE["launch"]] = launch_P
    out_PT[:, PLACE["size"]] = size_P
    out_PT[at, _FIRST["class size"] + op_class] = size_P
    out_PT[:, _FIRST["head"] : _FIRST["head"] + HEADS] = head_PH
    if alone:
        out_PT[:, PLACE["alone"]] = 1.0
        out_PT[at, _FIRST["class alone"] + op_class] = 1.0
    return out_PT


def step_terms(facts: Mapping[str, NDArray[np.bool_]], n: int) -> Singles:
    """(N, T) what every term says of whole steps.

    Args:
        facts: (N,) whether each of `STEP_FACTS` holds; those that are not given hold nowhere.
        n: number of steps.
    """
    out_NT = np.zeros((n, len(TERMS)), dtype=np.float32)
    out_NT[:, PLACE["step"]] = 1.0
    for name, holds_N in facts.items():
        out_NT[:, PLACE[f"step {name}"]] = holds_N
    return out_NT
