"""What surrounds a measurement: clock, temperature, power limit, and who else is computing."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PROC, SYS = Path("/proc"), Path("/sys/class")
WINDOW_SECONDS = 0.4
"""Shortest time over which load is told: the kernel counts it in ticks of 10 ms."""
OTHER_SHARE = 0.05
"""Share of the cores that others may keep busy, over a window, before a row is flagged."""
STOLEN = 0.02
"""Share of the time that the hypervisor may take from the processors."""
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_SMI = ("clocks.sm", "temperature.gpu", "power.limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """State of the device; NaN where it cannot be read."""

    clock_mhz: float = math.nan
    temperature_c: float = math.nan
    power_limit_w: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who computed on the processors that this process may use, over one window."""

    seconds: float
    other_share: float
    """Share of the cores kept busy by other processes."""
    stolen: float
    """Share of the time that the hypervisor gave to others."""

    @property
    def disturbed(self) -> bool:
        """Whether a time measured in the window may be another's."""
        return self.other_share > OTHER_SHARE or self.stolen > STOLEN


class LoadWatch:
    """Tells the load of the time since it was last asked."""

    def __init__(self) -> None:
        self._last = self._counters()

    @property
    def readable(self) -> bool:
        """Whether the system tells its load at all (Linux does)."""
        return self._last[1] is not None

    def seconds(self) -> float:
        """Time since the window began."""
        return time.perf_counter() - self._last[0]

    def look(self) -> Load | None:
        """The load since the last look, and a new window; None where it cannot be read."""
        before, now = self._last, self._counters()
        self._last = now
        if before[1] is None or now[1] is None:
            return None
        seconds = max(1e-3, now[0] - before[0])
        busy = (now[1][0] - before[1][0]) / _TICKS - (now[2] - before[2])
        stolen = (now[1][1] - before[1][1]) / _TICKS
        cores = len(_own_processors())
        return Load(
            seconds=seconds,
            other_share=max(0.0, busy / seconds / cores),
            stolen=stolen / seconds / cores,
        )

    def _counters(self) -> tuple[float, tuple[int, int] | None, float]:
        return time.perf_counter(), _ticks(), time.process_time()


def readings(device: str) -> Readings:
    """State of a device.

    Args:
        device: `cpu` or `cuda`.
    """
    return _gpu() if device == "cuda" else _processor()


def _ticks() -> tuple[int, int] | None:
    """Ticks that this process's processors were busy, and stolen."""
    try:
        lines = (PROC / "stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    own = {f"cpu{n}" for n in _own_processors()}
    busy = stolen = 0
    for line in lines:
        name, *fields = line.split()
        if name in own:
            user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
            busy += user + nice + system + irq + softirq
            stolen += steal
    return busy, stolen


def _own_processors() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _processor() -> Readings:
    clocks = [
        float(line.partition(":")[2])
        for line in _lines(PROC / "cpuinfo")
        if line.startswith("cpu MHz")
    ]
    zones = [_number(p / "temp") for p in sorted(SYS.glob("thermal/thermal_zone*"))]
    known = [z / 1e3 for z in zones if math.isfinite(z)]
    limits = SYS / "powercap" / "intel-rapl:0" / "constraint_0_power_limit_uw"
    return Readings(
        clock_mhz=sum(clocks) / len(clocks) if clocks else math.nan,
        temperature_c=max(known, default=math.nan),
        power_limit_w=_number(limits) / 1e6,
    )


def _gpu() -> Readings:
    """The first GPU that the driver's own tool tells of."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Readings()
    command = [tool, f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return Readings()
    cells = (out.stdout.splitlines() or [""])[0].split(",")
    clock, temperature, limit = (_float(c) for c in (*cells, "", "", "")[:3])
    return Readings(clock_mhz=clock, temperature_c=temperature, power_limit_w=limit)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> float:
    return _float(next(iter(_lines(path)), ""))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
