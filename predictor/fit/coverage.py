"""Which kernels of a set of samples a checkpoint has learned, and what is assumed of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.features.columns import NodeFeatures
from predictor.features.table import KernelTable
from predictor.graph.ops import TOKENS
from predictor.hardware.device import Device
from predictor.nn.labels import on_native_path, unlearned_us
from predictor.nn.learned import Entry, Measured, speaks, speaks_on_lanes
from predictor.nn.training_range import outside_range

Outside: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(N,) how far each kernel's features (N, F) lie outside of training for its token (N,)."""


class KernelKind(NamedTuple):
    """What tells kernels apart where it is asked what was learned."""

    token: str
    dtype: str
    device_kind: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Of N kernels: what each is, hardware path, and the time that is assumed without rows."""

    kinds: tuple[KernelKind, ...]
    """Those that occur."""
    kind_N: NDArray[np.int32]
    """Index into `kinds`."""
    native_N: NDArray[np.bool_]
    """Whether the arithmetic takes the path of the dtype itself."""
    assumed_us_N3: Tensor
    """Lower, mid and upper time of a kernel that no row covers."""

    def learned(self, known: Collection[Entry]) -> Tensor:
        """(N,) whether a network that learned the entries `known` speaks for each kernel."""
        yes = [speaks(known, kind.token, kind.dtype, kind.device_kind) for kind in self.kinds]
        lanes = [speaks_on_lanes(known, k.token, k.dtype, k.device) for k in self.kinds]
        return self._of_kinds(yes) & (torch.from_numpy(self.native_N) | self._of_kinds(lanes))

    def measured(self, measured: Measured) -> Tensor:
        """(N,) whether the class of each kernel was measured on its device."""
        return self._of_kinds([measured.here(k.device, k.token, k.dtype) for k in self.kinds])

    def _of_kinds(self, yes: Sequence[bool]) -> Tensor:
        return torch.from_numpy(np.array(yes, dtype=bool)[self.kind_N])


NO_COVERAGE = Coverage(
    kinds=(), kind_N=np.zeros(0, dtype=np.int32), native_N=np.zeros(0, dtype=bool),
    assumed_us_N3=torch.zeros(0, 3),
)  # fmt: skip


def coverage_of(table: KernelTable, features: NodeFeatures, device: Device) -> Coverage:
    """Coverage of the kernels of a table on a device."""
    dtypes, code = np.unique(table.dtype, return_inverse=True)
    keys, of = np.unique(
        features.token.astype(np.int64) * len(dtypes) + code.reshape(-1), return_inverse=True
    )
    kinds = tuple(
        KernelKind(
            TOKENS[int(k) // len(dtypes)], str(dtypes[int(k) % len(dtypes)]), device.kind, device.id
        )
        for k in keys
    )
    roof = features.roofline
    return Coverage(
        kinds=kinds, kind_N=of.reshape(-1).astype(np.int32),
        native_N=on_native_path(table, roof.path),
        assumed_us_N3=torch.from_numpy(
            unlearned_us(table, roof.base_us, kind=device.kind).astype(np.float32)
        ),
    )  # fmt: skip


def outside_of(low_TF: NDArray[np.float32], high_TF: NDArray[np.float32]) -> Outside:
    """`predictor.nn.training_range.outside_range` of features that stand in samples."""

    def outside(x_NF: Tensor, token_N: Tensor) -> Tensor:
        return torch.from_numpy(outside_range(x_NF.numpy(), token_N.numpy(), low_TF, high_TF))

    return outside


def joined(parts: Sequence[Coverage]) -> Coverage:
    """Coverage of all kernels of the parts, in order."""
    kinds = tuple(sorted({kind for part in parts for kind in part.kinds}))
    place = {kind: i for i, kind in enumerate(kinds)}
    codes = [
        np.array([place[k] for k in part.kinds], dtype=np.int32)[part.kind_N] for part in parts
    ]
    return Coverage(
        kinds=kinds, kind_N=np.concatenate(codes),
        native_N=np.concatenate([part.native_N for part in parts]),
        assumed_us_N3=torch.cat([part.assumed_us_N3 for part in parts]),
    )  # fmt: skip
