"""Several trained networks read as one: the mean of their log quantiles.

Legend: N kernels, F features, E edges, M members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from predictor.hardware.twins import twins
from predictor.nn.correction import StepKernels, no_terms, summaries
from predictor.nn.latency_net import LatencyNet


def effect_index(device: str, known: Sequence[str]) -> int:
    """Index of the device whose learned effect applies: itself, else a twin, else -1."""
    if device in known:
        return known.index(device)
    return next((i for i, other in enumerate(known) if other in twins(device)), -1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run PyTorch on `count` threads, and on as many as before afterwards.

    The order of sums, and so the last bits, depends on the number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Trained members and the devices (with their measuring hosts) that they know."""

    members: tuple[LatencyNet, ...]
    devices: tuple[str, ...]

    @property
    def message_layers(self) -> int:
        """How far along the graph a kernel's neighbours matter."""
        return self.members[0].config.message_layers

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
        given = (x_NF, token_N, edge_index_2E, device_N, isolated_N, consumers_2E)
        with torch.no_grad():
            each = [m(*given) for m in self.members]
        return torch.stack(each).mean(0)

    def device_terms(self, x_NF: Tensor, token_N: Tensor, most: int) -> Tensor:
        """(N, most) `LatencyNet.device_terms` of the members, side by side."""
        each = most // len(self.members)
        with torch.no_grad():
            found = torch.cat([m.device_terms(x_NF, token_N, each) for m in self.members], dim=1)
        return torch.nn.functional.pad(found, (0, most - found.shape[1]))

    def host_us(
        self, op_N: Tensor, scalar_arg_N: Tensor, isolated_N: Tensor, host_N: Tensor
    ) -> Tensor:
        """(N,) host launch time that a timer around one op sees, microseconds."""
        with torch.no_grad():
            each = [m.host_us(op_N, scalar_arg_N, isolated_N, host_N) for m in self.members]
        return torch.exp(torch.log(torch.stack(each)).mean(0))

    def measured_us(self, device_us: Tensor, host_us: Tensor) -> Tensor:
        """What a timer around one op reads, broadcast over its arguments."""
        with torch.no_grad():
            each = [m.measured_us(device_us, host_us) for m in self.members]
        return torch.exp(torch.log(torch.stack(each)).mean(0))

    def correction_terms(self, steps: StepKernels) -> Tensor:
        """(G, S + 1) what each summary adds to the log of a step's time, and a constant."""
        with torch.no_grad():
            own = [m.correction for m in self.members]
            given = None if all(c is None for c in own) else summaries(steps)
            none = no_terms(steps)
            each = [none if c is None or given is None else c.shrunk_terms(given) for c in own]
        return torch.stack(each).mean(0)
