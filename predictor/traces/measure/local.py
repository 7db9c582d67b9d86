"""The device at hand: what rows call it, its clock, its cache, its software."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from predictor.errors import DataError, DeviceFileError, UnknownDeviceError
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Device
from predictor.hardware.probe import Processor, device_of, processor
from predictor.traces.measure.bandwidth import stream_bandwidth
from predictor.traces.measure.timer import Clock, CudaClock, WallClock

DeviceType = Literal["cpu", "cuda"]
LICENCE = "Apache-2.0"
_UNKNOWN_CACHE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """One device of this machine, ready to be measured."""

    type: DeviceType
    device: Device
    clock: Clock
    cache_bytes: int
    """Last-level cache."""
    threads: int
    """Threads of the framework's own pool (CPU)."""
    tf32: bool = False
    """Whether fp32 products may take TF32 (CUDA)."""

    def facts(self) -> Mapping[str, Any]:
        """Columns that all rows of the device share."""
        import torch

        return {
            "device": self.device.id, "framework": "pytorch",
            "framework_version": torch.__version__.partition("+")[0], "execution": "eager",
            "tf32": ("on" if self.tf32 else "off") if self.type == "cuda" else "",
            "licence": LICENCE,
        }  # fmt: skip

    def set_tf32(self, *, usual: bool = False) -> None:
        """Let fp32 work take TF32 or not, as rows of the device say (CUDA).

        Args:
            usual: as PyTorch has it: convolutions may, products may not.
        """
        import torch

        if self.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = self.tf32 and not usual
            torch.backends.cudnn.allow_tf32 = self.tf32 or usual


def local_device(
    type_: DeviceType,
    *,
    name: str | Path | Device | None = None,
    threads: int | None = None,
    tf32: bool = False,
) -> LocalDevice:
    """The device of this machine.

    Args:
        type_: `cpu` or `cuda`.
        name: what rows call it: a catalogue id, a device file or a device; found out when not
            given.
        threads: of the framework's pool on a CPU; one a core when not given.
        tf32: allow TF32 in fp32 products (CUDA).

    Raises:
        DataError: no threads, or more than the machine has.
        UnknownDeviceError: it is not here, or the catalogue does not know it and no name is given.
        DeviceFileError: the device file breaks a rule, or is of another kind of device.
    """
    import torch

    if type_ == "cuda":
        if not torch.cuda.is_available():
            raise UnknownDeviceError("no CUDA device here: measure with --device cpu")
        facts = torch.cuda.get_device_properties(0)
        device = resolve_device(name or facts.name, units=facts.multi_processor_count)
        cache = int(getattr(facts, "L2_cache_size", 0)) or _UNKNOWN_CACHE_BYTES
        clock: Clock = CudaClock()
        count = torch.get_num_threads()
    else:
        at_hand = processor()
        count = at_hand.cores if threads is None else threads
        most = os.cpu_count() or count
        if not 1 <= count <= most:
            raise DataError(f"{count} threads: this machine runs {most} at a time; give 1 to that")
        torch.set_num_threads(count)
        if name is not None:
            device = resolve_device(name)
        else:
            device = catalogue_row(at_hand) or measured_processor(at_hand)
        cache = at_hand.last_level_cache_bytes or _UNKNOWN_CACHE_BYTES
        clock = WallClock()
    if (device.kind == "cpu") != (type_ == "cpu"):
        raise DeviceFileError(f"{device.id} is a {device.kind}, and --device {type_} is measured")
    return LocalDevice(
        type=type_, device=device, clock=clock, cache_bytes=cache, threads=count, tf32=tf32
    )


def catalogue_row(found: Processor) -> Device | None:
    """The catalogue's row of a processor where it knows its rates."""
    try:
        known = resolve_device(found.name, units=found.cores)
    except UnknownDeviceError:
        return None
    rates = (known.memory_bw_gbps, known.peak_fp32_tflops, known.peak_bf16_tflops)
    return None if None in rates else known


def measured_processor(found: Processor) -> Device:
    """A processor as the system tells of it, with the memory bandwidth that is measured now."""
    cache = found.last_level_cache_bytes or _UNKNOWN_CACHE_BYTES
    bandwidth = stream_bandwidth(cache, threads=found.cores)
    return device_of(found, stream_gbps=bandwidth.gbps, other_share=bandwidth.other_share)
