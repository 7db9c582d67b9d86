"""What every kind of model answers: times of kernels relative to their roofline.

Legend: N kernels, F features, E edges.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from predictor.nn.correction import StepKernels


class KernelModel(Protocol):
    """Networks, boosted trees or a fitted roofline, read alike."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices with measured rows."""
        ...

    @property
    def message_layers(self) -> int:
        """How far along the graph a kernel's neighbours matter; 0 for kernels by themselves."""
        ...

    def log_ratio(
        self,
        x_NF: Tensor,
        token_N: Tensor,
        edge_index_2E: Tensor,
        device_N: Tensor,
        isolated_N: Tensor,
        consumers_2E: Tensor | None = None,
    ) -> Tensor:
        """(N, 3) lower, mid, upper of log(device time / base time)."""
        ...

    def device_terms(self, x_NF: Tensor, token_N: Tensor, most: int) -> Tensor:
        """(N, most) what the model knows of how devices differ; zeros where it knows nothing."""
        ...

    def host_us(
        self, op_N: Tensor, scalar_arg_N: Tensor, isolated_N: Tensor, host_N: Tensor
    ) -> Tensor:
        """(N,) host launch time that a device timer around one op sees, microseconds."""
        ...

    def measured_us(self, device_us: Tensor, host_us: Tensor) -> Tensor:
        """What a timer around one op reads, broadcast over its arguments."""
        ...

    def correction_terms(self, steps: StepKernels) -> Tensor:
        """(G, S + 1) what each summary adds to the log of a step's time, and a constant."""
        ...
