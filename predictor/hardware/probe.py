"""The processor of this machine, and the device file that describes it.

Cores, caches, clocks and instruction sets are read from the system (Linux). Peaks follow from them:
cores x FLOP a clock of the widest vector unit x clock, an upper bound. The memory bandwidth of a
machine is not written anywhere, so who writes the file measures it.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.hardware.catalogue import device_from_row
from predictor.hardware.device import Device
from predictor.hardware.sustained import DRAM_SHARE_OTHER

PROC, CPUS = Path("/proc"), Path("/sys/devices/system/cpu")
TOLD: tuple[str, ...] = (
    "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_bf16", "amx_int8",
    "asimd", "sve", "bf16", "fphp", "asimdhp",
)  # fmt: skip
"""Instruction sets that decide a rate."""
MEASURED, BESIDE_LOAD = "measured while streaming", "beside other load"
"""In the notes of a device: its bandwidth was measured, and what else was computing."""
_VENDORS = {"authenticamd": "amd", "genuineintel": "intel", "0x41": "arm", "0x61": "apple"}
_FLOP_PER_CLOCK: tuple[tuple[str, int], ...] = (
    ("avx512f", 64), ("fma", 32), ("avx2", 16), ("asimd", 16),
)  # fmt: skip
"""fp32 FLOP a clock and core: two fused multiply-add units of the widest vectors."""
_ZEN4_FAMILY = 25
_DOUBLE_PUMPED = 32
"""The same on Zen 4, whose 512-bit operations take two passes."""
_AMX_BF16 = 2048
"""bf16 FLOP a clock and core of the matrix unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What the system says of its processor; None is unknown."""

    name: str
    vendor: str
    family: int | None
    model: int | None
    cores: int
    """Cores that this process may use."""
    clock_mhz: float | None
    clock_boost_mhz: float | None
    instruction_sets: tuple[str, ...]
    """Those of `TOLD`."""
    l1_kib: float | None
    l2_kib: float | None
    """Of one core."""
    l3_kib: float | None
    memory_gib: float | None

    @property
    def device_id(self) -> str:
        """What rows call it: name, family and model where they are told, and cores."""
        words = re.sub(r"\(r\)|\(tm\)|@.*$|\bcpu\b|\bprocessor\b", " ", self.name.lower())
        parts = re.findall(r"[a-z0-9]+", words) or ["cpu"]
        if self.family is not None and self.model is not None:
            parts += [f"family{self.family}", f"model{self.model}"]
        return "-".join((*parts, f"{self.cores}", "cores"))

    @property
    def last_level_cache_bytes(self) -> int | None:
        """Capacity of the last cache before memory."""
        sizes = [s for s in (self.l2_kib, self.l3_kib) if s is not None]
        return int(max(sizes) * 1024) if sizes else None

    @property
    def fp32_flop_per_clock(self) -> int:
        """fp32 FLOP a clock and core, at most."""
        if "avx512f" in self.instruction_sets and self.vendor == "amd":
            return _DOUBLE_PUMPED if self.family == _ZEN4_FAMILY else 64
        return next((n for name, n in _FLOP_PER_CLOCK if name in self.instruction_sets), 8)


def processor() -> Processor:
    """The processor of this machine."""
    facts = _cpuinfo()
    flags = {*facts.get("flags", "").split(), *facts.get("Features", "").split()}
    vendor = facts.get("vendor_id", facts.get("CPU implementer", "")).lower()
    boost = _text(CPUS / "cpu0" / "cpufreq" / "cpuinfo_max_freq")
    caches = _caches()
    return Processor(
        name=facts.get("model name") or platform.processor() or platform.machine(),
        vendor=_VENDORS.get(vendor, vendor or "unknown"),
        family=_whole(facts.get("cpu family")), model=_whole(facts.get("model")),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        clock_mhz=_number(facts.get("cpu MHz")),
        clock_boost_mhz=None if _number(boost) is None else float(boost) / 1e3,
        instruction_sets=tuple(name for name in TOLD if name in flags),
        l1_kib=caches.get(1), l2_kib=caches.get(2), l3_kib=caches.get(3), memory_gib=_memory_gib(),
    )  # fmt: skip


def device_of(
    found: Processor, *, stream_gbps: float | None = None, other_share: float = 0.0
) -> Device:
    """The processor as a device.

    Args:
        found: the processor.
        stream_gbps: measured bandwidth of a streaming kernel, 1e9 bytes/s. The peak that the
            device gets is this over the share of the peak that DDR memory sustains.
        other_share: share of the cores that others kept busy meanwhile; its notes tell it.
    """
    tflops_per_flop = found.cores * (found.clock_mhz or 0.0) * 1e-6
    fp32 = found.fp32_flop_per_clock
    sets = found.instruction_sets
    bf16 = _AMX_BF16 if "amx_bf16" in sets else fp32 * (2 if {"avx512_bf16", "bf16"} & {*sets}
                                                        else 1)  # fmt: skip
    fp16 = fp32 * (2 if {"avx512_fp16", "asimdhp"} & {*sets} else 1)
    row: dict[str, Any] = {
        "vendor": found.vendor, "kind": "cpu", "scope": "device", "name": found.name,
        "architecture": f"family {found.family} model {found.model}"
        if found.family is not None else None,
        "compute_capability": " ".join(sets) or None, "unit_kind": "core", "units": found.cores,
        "fp32_flop_per_clk_unit": fp32, "clock_base_mhz": found.clock_mhz,
        "clock_boost_mhz": found.clock_boost_mhz, "memory_gib": found.memory_gib,
        "memory_bw_gbps": None if stream_gbps is None else round(stream_gbps / DRAM_SHARE_OTHER, 1),
        "l2_mib": None if found.l2_kib is None else found.l2_kib * found.cores / 1024,
        "llc_mib": None if found.l3_kib is None else found.l3_kib / 1024,
        "l1_shared_kib_per_unit": found.l1_kib, "dies_per_package": 1, "confidence": "low",
        "notes": _notes(stream_gbps, other_share),
    }  # fmt: skip
    if tflops_per_flop:
        row |= {
            "peak_fp64_tflops": tflops_per_flop * fp32 / 2, "peak_fp32_tflops": tflops_per_flop
            * fp32, "peak_fp16_tflops": tflops_per_flop * fp16,
            "peak_bf16_tflops": tflops_per_flop * bf16,
        }  # fmt: skip
        row = {k: float(f"{v:.4g}") if k.startswith("peak_") else v for k, v in row.items()}
    return device_from_row(found.device_id, {k: v for k, v in row.items() if v is not None})


def _notes(stream_gbps: float | None, other_share: float) -> str:
    peaks = "Peaks: cores x FLOP a clock of the widest vector unit x clock."
    if stream_gbps is None:
        return peaks
    beside = f", {BESIDE_LOAD} ({other_share:.0%} of the cores)" if other_share > 0 else ""
    return (
        f"{peaks} Bandwidth: {stream_gbps:.1f} GB/s {MEASURED}{beside}, over the "
        f"{DRAM_SHARE_OTHER:g} of the peak that DDR memory sustains."
    )


def _cpuinfo() -> Mapping[str, str]:
    """Facts of the first processor."""
    found: dict[str, str] = {}
    for line in _text(PROC / "cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _caches() -> Mapping[int, float]:
    """KiB of the data or unified cache of each level, as the first core sees them."""
    found: dict[int, float] = {}
    for folder in sorted((CPUS / "cpu0" / "cache").glob("index*")):
        level, size = _whole(_text(folder / "level")), _text(folder / "size")
        kind = _text(folder / "type")
        if level is not None and kind in ("Data", "Unified") and size.endswith("K"):
            found[level] = float(size[:-1])
    return found


def _memory_gib() -> float | None:
    for line in _text(PROC / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / 2**20, 1)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d+(\.\d+)?", text) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
