"""A fitted roofline: by op class one efficiency and one launch time, and nothing else.

Legend: N kernels, C op classes, E edges. For a few dozen rows of one device nothing else holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from predictor.features.table import OP_NAMES
from predictor.graph.ops import OP_CLASSES, OPS, TOKENS
from predictor.nn.correction import StepKernels, no_terms

LOG_RATIO, LAUNCH = "roofline.log_ratio", "roofline.launch_us"
NO_LAUNCH_US = 1e-3
"""Launch that a timer inside a step sees: the step hides it."""
CLASS_OF_OP = torch.tensor([OP_CLASSES.index(OPS[name].op_class) for name in OP_NAMES])
"""Op class of every op."""
CLASS_OF_TOKEN = torch.tensor([
    OP_CLASSES.index(next(OPS[o].op_class for o in OP_NAMES if OPS[o].token == token))
    for token in TOKENS
])  # fmt: skip
"""Op class of every token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRoofline:
    """Device time is the base time by a factor of its op class; alone, a launch comes on top."""

    devices: tuple[str, ...]
    log_ratio_C: Tensor
    """log(device time / base time)."""
    launch_us_C: Tensor
    """What a timer around one kernel reads on top of it, microseconds."""

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
        return self.log_ratio_C[CLASS_OF_TOKEN[token_N]][:, None].expand(-1, 3)

    def device_terms(self, x_NF: Tensor, token_N: Tensor, most: int) -> Tensor:
        """(N, most) zeros: there is nothing that devices share."""
        return torch.zeros(len(x_NF), most)

    def host_us(
        self, op_N: Tensor, scalar_arg_N: Tensor, isolated_N: Tensor, host_N: Tensor
    ) -> Tensor:
        """(N,) launch time, microseconds."""
        launch_N = self.launch_us_C[CLASS_OF_OP[op_N]]
        return torch.where(isolated_N > 0, launch_N, NO_LAUNCH_US).clamp(min=NO_LAUNCH_US)

    def measured_us(self, device_us: Tensor, host_us: Tensor) -> Tensor:
        """Kernel and launch one after the other."""
        return device_us + host_us

    def correction_terms(self, steps: StepKernels) -> Tensor:
        """Nothing: a step is the sum of its kernels."""
        return no_terms(steps)

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of its tensors in a release."""
        return (LOG_RATIO, LAUNCH)

    def tensors(self) -> dict[str, Tensor]:
        """What a release stores."""
        return {LOG_RATIO: self.log_ratio_C, LAUNCH: self.launch_us_C}


def places_of(classes: object) -> Tensor:
    """Where each op class that a release names stands among today's.

    Raises:
        ValueError: no list, or a class that is not known to this version.
    """
    if not isinstance(classes, list) or not set(classes) <= set(OP_CLASSES):
        raise ValueError(f"model.op_classes is {classes!r}; known: {', '.join(OP_CLASSES)}")
    return torch.tensor([OP_CLASSES.index(name) for name in classes], dtype=torch.long)


def roofline_of(
    tensors: Mapping[str, Tensor], devices: tuple[str, ...], classes: object
) -> FittedRoofline:
    """The fitted roofline that a release stores.

    A class that the release did not know keeps the roofline itself; none of its rows was learned.

    Args:
        tensors: all its tensors.
        devices: with measured rows.
        classes: its op classes, in the order of the tensors.

    Raises:
        ValueError: a tensor is missing or of another size than there are op classes, or a class is
            not known to this version.
    """
    at = places_of(classes)
    placed = []
    for name in (LOG_RATIO, LAUNCH):
        shape = tuple(tensors[name].shape) if name in tensors else None
        if shape != (len(at),):
            raise ValueError(f"tensor {name} is not one number for each of the op classes")
        placed.append(torch.zeros(len(OP_CLASSES)).index_copy(0, at, tensors[name].float()))
    return FittedRoofline(devices=devices, log_ratio_C=placed[0], launch_us_C=placed[1])
