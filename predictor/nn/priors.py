"""What is assumed where nothing was measured: efficiencies, spreads and host times.

Kernels whose class or dtype no training row covers are labelled `roofline`: sustained roofline over
the efficiency below, with the spread below as interval. Assumptions, wide on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

EFFICIENCY: Mapping[str, float] = {
    "matmul": 0.75, "conv": 0.6, "attention": 0.5, "grouped_matmul": 0.5, "recurrent": 0.4,
    "elementwise": 0.95, "reduction": 0.7, "softmax": 0.75, "norm": 0.75, "gather": 0.6,
    "copy": 0.85, "optimizer": 0.9, "collective": 0.7, "transfer": 0.8, "opaque": 0.5,
}  # fmt: skip
"""Share of the sustained roofline by op class."""

SPREAD: Mapping[str, tuple[float, float]] = {
    "elementwise": (0.8, 1.4), "copy": (0.8, 1.6), "optimizer": (0.8, 1.4),
    "opaque": (0.2, 5.0), "recurrent": (0.4, 3.0),
}  # fmt: skip
"""(lower, upper) factors of the 90% interval of an unlearned kernel by op class."""
SPREAD_DEFAULT: tuple[float, float] = (0.55, 1.9)
FOREIGN_FACTOR = 3.0
"""Either way that an interval reaches at least on a kind of device that no row is of.

The shipped networks' own intervals of elementwise kernels on processors that they have not seen
reach e to the 1.09, with other processors in training. A kind with none is not known better.
"""
SPREAD_OF_KIND: Mapping[str, tuple[float, float]] = {"tpu": (0.4, 2.5)}
"""At least as wide on a kind of device: kernels of classes that no TPU row covers lie up to a
factor of 2.5 off where a generation is left out (docs/jax.md)."""

HOST_LAUNCH_US = 9.0
HOST_CALL_US = 3.0
"""Time of the Python host to issue a launching call, and a call that launches nothing (a view).

From the in-step timings of NeuSight's label files: over an empty call, calls with a minimal kernel
read 8 to 13 us (of which 2 to 3 are the kernel) and views 1 to 5 us, by host.
"""
HOST_SPREAD: tuple[float, float] = (0.5, 2.0)
"""(lower, upper) factors of the host's assumed time: hosts of the label files differ by about 2."""
HOST_BACKWARD_SHARE = 0.6
"""Backward and optimizer calls are issued by C++, without the interpreter between them."""
XLA_LAUNCH_US = 7.5
"""Time of XLA's runtime from one launch on a GPU to the next under a profiler, which keeps kernels
out of CUDA graphs: programs of one, two and three tiny kernels span 2.0, 10.1 and 16.9 us on the
A100 of `enzyme`. Without a profiler programs of five kernels and more are launched as one graph."""
