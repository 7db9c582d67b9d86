"""Boosted trees as arrays: stored in safetensors, evaluated here, never unpickled.

Legend: N kernels, F features (the columns, then the token's number), S nodes of all trees, B trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.features.columns import COLUMNS
from predictor.graph.ops import TOKENS
from predictor.nn.correction import StepKernels, no_terms
from predictor.nn.fitted_roofline import NO_LAUNCH_US

PREFIX = "trees."
LEAF = -1
RATIO_LIMIT = 8.0
"""Largest |log(time / base)| that a release may answer."""
ROWS = 8192
"""Kernels that are evaluated at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeArrays:
    """All nodes of all trees; what a node goes on to is counted in all of them."""

    feature_S: NDArray[np.int32]
    """Input that is compared, `LEAF` at a leaf."""
    threshold_S: NDArray[np.float64]
    """At most this goes left."""
    left_S: NDArray[np.int32]
    right_S: NDArray[np.int32]
    value_S: NDArray[np.float64]
    """What a leaf adds."""
    root_B: NDArray[np.int32]
    start: NDArray[np.float64]
    """(1,) what the sum begins with."""

    def sums(self, x_NF: NDArray[np.float32]) -> NDArray[np.float64]:
        """(N,) sum of the leaves that each row ends in, over all trees."""
        out = np.empty(len(x_NF))
        for begin in range(0, len(x_NF), ROWS):
            part = x_NF[begin : begin + ROWS].astype(np.float64)
            out[begin : begin + ROWS] = sum((self._leaves(part, root) for root in self.root_B),
                                            np.full(len(part), self.start[0]))  # fmt: skip
        return out

    def _leaves(self, x_NF: NDArray[np.float64], root: int) -> NDArray[np.float64]:
        node_N = np.full(len(x_NF), root, dtype=np.int64)
        going = np.flatnonzero(self.feature_S[node_N] != LEAF)
        while len(going):
            node = node_N[going]
            left = x_NF[going, self.feature_S[node]] <= self.threshold_S[node]
            node_N[going] = np.where(left, self.left_S[node], self.right_S[node])
            going = going[self.feature_S[node_N[going]] != LEAF]
        return self.value_S[node_N]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedTrees:
    """log(time / base) by boosted trees on the network's features, by kernel and without edges.

    How a kernel was measured is among the features: with kernels measured alone only, a kernel in a
    step is answered as if alone.
    """

    devices: tuple[str, ...]
    trees: TreeArrays
    columns_F: NDArray[np.int64]
    """Where each column that the trees know stands today."""
    token_number_T: NDArray[np.int64]
    """Number that the trees know each of today's tokens by, -1 for a new one."""

    @property
    def message_layers(self) -> int:
        """Kernels by themselves."""
        return 0

    def log_ratio(
        self,
        x_NF: Tensor,
        token_N: Tensor,
        edge_index_2E: Tensor,
        device_N: Tensor,
        isolated_N: Tensor,
        consumers_2E: Tensor | None = None,
    ) -> Tensor:
        """(N, 3) the same value three times: the width comes from calibration."""
        number = self.token_number_T[token_N.numpy()]
        x = tree_inputs(x_NF.numpy()[:, self.columns_F], number)
        ratio = np.clip(self.trees.sums(x), -RATIO_LIMIT, RATIO_LIMIT)
        return torch.from_numpy(ratio.astype(np.float32))[:, None].expand(-1, 3)

    def device_terms(self, x_NF: Tensor, token_N: Tensor, most: int) -> Tensor:
        """(N, most) zeros: there is nothing that devices share."""
        return torch.zeros(len(x_NF), most)

    def host_us(
        self, op_N: Tensor, scalar_arg_N: Tensor, isolated_N: Tensor, host_N: Tensor
    ) -> Tensor:
        """(N,) nothing: the trees answer what was measured, launch included."""
        return torch.full((len(op_N),), NO_LAUNCH_US)

    def measured_us(self, device_us: Tensor, host_us: Tensor) -> Tensor:
        """The answer of the trees itself."""
        return torch.maximum(device_us, host_us)

    def correction_terms(self, steps: StepKernels) -> Tensor:
        """Nothing: a step is the sum of its kernels."""
        return no_terms(steps)

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of its tensors in a release."""
        return tuple(f"{PREFIX}{f.name}" for f in fields(TreeArrays))

    def tensors(self) -> dict[str, Tensor]:
        """What a release stores."""
        return {
            f"{PREFIX}{f.name}": torch.from_numpy(getattr(self.trees, f.name))
            for f in fields(TreeArrays)
        }


def tree_inputs(x_NF: NDArray[np.float32], token_N: NDArray[np.int64]) -> NDArray[np.float32]:
    """(N, F + 1) what trees compare: the columns, then the token's number."""
    return np.concatenate([x_NF, token_N[:, None].astype(np.float32)], axis=1)


def trees_of(
    tensors: Mapping[str, Tensor],
    devices: tuple[str, ...],
    columns: Sequence[str] = COLUMNS,
    tokens: Sequence[str] = TOKENS,
) -> BoostedTrees:
    """The trees that a release stores.

    Args:
        tensors: all its tensors.
        devices: with measured rows.
        columns: its feature columns, in order; all known to this version.
        tokens: its tokens, in order.

    Raises:
        ValueError: an array is missing, of another size, or leads out of the trees or in a circle.
    """
    found: dict[str, Any] = {}
    for field in fields(TreeArrays):
        name = f"{PREFIX}{field.name}"
        if name not in tensors or tensors[name].dim() != 1:
            raise ValueError(f"tensor {name} is missing or no list of numbers")
        whole = field.name in ("feature_S", "left_S", "right_S", "root_B")
        if tensors[name].is_floating_point() == whole:
            raise ValueError(f"tensor {name} holds {tensors[name].dtype}")
        found[field.name] = tensors[name].numpy().astype(np.int32 if whole else np.float64)
    arrays = TreeArrays(**found)
    _check(arrays, len(columns) + 1)
    number = {token: i for i, token in enumerate(tokens)}
    return BoostedTrees(
        devices=devices, trees=arrays,
        columns_F=np.array([COLUMNS.index(c) for c in columns], dtype=np.int64),
        token_number_T=np.array([number.get(t, -1) for t in TOKENS], dtype=np.int64),
    )  # fmt: skip


def _check(trees: TreeArrays, inputs: int) -> None:
    nodes = len(trees.feature_S)
    for name in ("threshold_S", "left_S", "right_S", "value_S"):
        if len(getattr(trees, name)) != nodes:
            raise ValueError(f"tensor {PREFIX}{name} does not hold a number for every node")
    if len(trees.start) != 1:
        raise ValueError(f"tensor {PREFIX}start is not one number")
    if nodes and not (trees.feature_S.min() >= LEAF and trees.feature_S.max() < inputs):
        raise ValueError(f"tensor {PREFIX}feature_S names an input that the release has not")
    if ((trees.root_B < 0) | (trees.root_B >= nodes)).any():
        raise ValueError(f"tensor {PREFIX}root_B leads out of the trees")
    inner = np.flatnonzero(trees.feature_S != LEAF)
    for name in ("left_S", "right_S"):
        goes = getattr(trees, name)[inner]
        if ((goes <= inner) | (goes >= nodes)).any():  # children stand behind: no circle
            raise ValueError(f"tensor {PREFIX}{name} leads out of the trees or in a circle")
