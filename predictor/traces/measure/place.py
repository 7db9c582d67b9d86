"""Where measured rows go: the device that they name, the file that describes it, their own file.

The command and the training scripts open devices and files here, so that all hold to the same
rules: rows of one file are of one device and one number of threads, and a device that the catalogue
does not know is described beside them, by a file that every reader accepts.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from predictor.atomic import write_text
from predictor.errors import DataError, DeviceFileError
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.device import Device
from predictor.hardware.device_file import described_in, device_file_text, load_device_file
from predictor.hardware.fields import FIELDS
from predictor.hardware.probe import BESIDE_LOAD, MEASURED, Processor, processor
from predictor.traces.files import DEVICE_FILE, ROW_SUFFIXES
from predictor.traces.measure.conditions import readings
from predictor.traces.measure.local import (
    DeviceType,
    LocalDevice,
    catalogue_row,
    local_device,
    measured_processor,
)
from predictor.traces.measure.rows_file import RowsFile
from predictor.version import code_version

_UNIT_HINT = re.compile(r" \(looks like [^)]*\)")
"""What a reader guesses of a number that a person typed: nobody typed these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device at hand, and what stands beside its rows."""

    device: LocalDevice
    file: Path | None = None
    """Device file beside the rows; None where the catalogue knows the device."""
    text: str = ""
    """What the file is to hold, once there are rows; empty where it stays as it is."""
    note: str = ""
    """What is to be said of the memory bandwidth; empty where it was not measured here."""

    def write(self) -> None:
        """Write the device file, if it is to be written."""
        if self.file is not None and self.text:
            write_text(self.file, self.text)


def place_at(
    beside: Callable[[str], Path],
    type_: DeviceType,
    *,
    name: str | Path | None = None,
    threads: int | None = None,
    tf32: bool = False,
) -> Place:
    """The device of this machine, and the device file beside rows of it.

    A processor that a device file of the folder describes keeps that description once there are
    rows; before, a better bandwidth replaces it.

    Args:
        beside: path of the device file, given the device's id.
        type_: `cpu` or `cuda`.
        name: what rows call the device: a catalogue id or a device file; found out when not given.
        threads: of the framework's pool on a CPU; one a core when not given.
        tf32: allow TF32 in fp32 products (CUDA).

    Raises:
        UnknownDeviceError, DataError: as `local_device`, or the bandwidth is too low to be true.
        DeviceFileError: a device file breaks a rule, or the one beside the rows is of another
            device.
    """
    if name is not None:
        return _named(local_device(type_, name=name, threads=threads, tf32=tf32), beside)
    if type_ == "cuda":
        device = local_device(type_, threads=threads, tf32=tf32)
        _check_beside(beside(device.device.id), device.device.id)
        return Place(device=device)
    at_hand = processor()
    known = catalogue_row(at_hand)
    path = beside(at_hand.device_id if known is None else known.id)
    _check_beside(path, at_hand.device_id if known is None else known.id)
    if known is not None:
        return Place(device=local_device(type_, name=known, threads=threads))
    described, text = _described(path, at_hand)
    memory = FIELDS["memory_bw_gbps"].unit
    note = f"memory {described.memory_bw_gbps:g} {memory}" + ("" if text else f" as in {path.name}")
    if BESIDE_LOAD in (described.notes or ""):
        note += ", which was measured beside other load and may be too low"
    return Place(
        device=local_device(type_, name=described, threads=threads), file=path, text=text, note=note
    )


def beside_rows(out: Path) -> Path:
    """Path of the device file that belongs to a file of rows."""
    return out.parent / f"{out.name.partition('.')[0]}{DEVICE_FILE}"


def in_data_set(root: Path) -> Callable[[str], Path]:
    """Path of the device file in a data set: in a folder of the device's name below `root`."""
    return lambda device_id: root / device_id / f"{device_id}{DEVICE_FILE}"


def open_rows(
    path: Path, table: str, place: Place, facts: Mapping[str, Any] | None = None, *, resume: bool
) -> RowsFile:
    """The file of rows; what describes their device is written with the first of them.

    Args:
        path: of the file.
        table: `kernels` or `steps`.
        place: the device.
        facts: what else the file tells of its rows.
        resume: go on with the rows that it holds.

    Raises:
        DataError: it is there already, or is of another device or number of threads. A file that
            does not tell its threads is gone on with.
    """
    device = place.device
    rows = RowsFile(path, table, resume=resume)
    here: dict[str, Any] = {"device": device.device.id, "tf32": device.tf32}
    if device.type == "cpu":
        here["threads"] = device.threads
    others = rows.devices() - {device.device.id}
    before = {"device": min(others), **rows.facts} if others else rows.facts
    for name, value in here.items():
        if before.get(name, value) != value:
            raise DataError(
                f"{path} was measured with {name} {before[name]}, this is {value}: name another "
                "file or folder"
            )
    told = {n: v for n, v in here.items() if n in rows.facts or not rows.rows}
    now = readings(device.type)
    rows.facts |= {
        **(facts or {}), **told, "measured": datetime.now(UTC).date().isoformat(),
        "version": code_version(), "clock_mhz": _known(now.clock_mhz),
        "temperature_c": _known(now.temperature_c), "power_limit_w": _known(now.power_limit_w),
        "resolution_us": device.clock.resolution_us,
    }  # fmt: skip
    rows.before_rows(place.write)
    return rows


def deadline_after(minutes: float | None) -> float | None:
    """`time.monotonic()` some minutes from now; None for no end.

    Raises:
        DataError: the minutes are no positive number.
    """
    if minutes is None:
        return None
    return time.monotonic() + 60.0 * positive("--minutes", minutes)


def positive(flag: str, value: float) -> float:
    """A number that is finite and above zero.

    Raises:
        DataError: it is not.
    """
    if not (math.isfinite(value) and value > 0):
        raise DataError(f"{flag} {value:g}: must be a number above 0")
    return value


def _named(device: LocalDevice, beside: Callable[[str], Path]) -> Place:
    """A device that the user named: a file beside the rows must not say otherwise."""
    if device.device.id in load_catalogue():
        return Place(device=device)
    path = beside(device.device.id)
    if not path.is_file():
        return Place(device=device, file=path, text=checked_text(device.device))
    if load_device_file(path) != device.device:
        raise DeviceFileError(
            f"{path} describes another device than the one given (--as): name another file or "
            "folder for its rows, or give --as this file"
        )
    return Place(device=device, file=path)


def _check_beside(path: Path, device_id: str) -> None:
    if path.is_file() and (found := load_device_file(path).id) != device_id:
        raise DeviceFileError(
            f"{path} describes {found!r}, this machine is {device_id!r}: name another file for its "
            f"rows, or give --as {path} if it is that device"
        )


def _described(path: Path, at_hand: Processor) -> tuple[Device, str]:
    """The processor as the folder describes it, or as measured now; and what is to be written."""
    held = path if path.is_file() else described_in(path.parent, at_hand.device_id)
    device = None if held is None else load_device_file(held)
    if device is not None and (_has_rows(path.parent) or MEASURED not in (device.notes or "")):
        return device, "" if held == path else checked_text(device)
    measured = measured_processor(at_hand)
    if device is not None and (device.memory_bw_gbps or 0.0) >= (measured.memory_bw_gbps or 0.0):
        return device, "" if held == path else checked_text(device)
    return measured, checked_text(measured)


def checked_text(device: Device) -> str:
    """A device as its file, if every reader takes it.

    Raises:
        DataError: its bandwidth is outside what a device file may say.
        DeviceFileError: it breaks another rule of device files.
    """
    low, high = FIELDS["memory_bw_gbps"].low or 0.0, FIELDS["memory_bw_gbps"].high or math.inf
    bandwidth = device.memory_bw_gbps
    if bandwidth is not None and not low <= bandwidth <= high:
        why = " beside other load" if BESIDE_LOAD in (device.notes or "") else ""
        raise DataError(
            f"{device.id}: the memory bandwidth comes out as {bandwidth:g} GB/s{why}, and a device "
            f"file takes {low:g} to {high:,.0f}: measure on a quiet machine, or say what the "
            "device is (--as ID or a device file)"
        )
    text = device_file_text(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{device.id}{DEVICE_FILE}"
        path.write_text(text, encoding="utf-8")
        try:
            load_device_file(path)
        except DeviceFileError as error:
            reason = _UNIT_HINT.sub("", str(error).removeprefix(f"{path}: "))
            raise DeviceFileError(
                f"{device.id}: what the system tells makes no device file ({reason}): say what the "
                "device is (--as ID or a device file)"
            ) from error
    return text


def _has_rows(folder: Path) -> bool:
    """Whether any rows stand in a folder."""
    return folder.is_dir() and any(p.name.endswith(ROW_SUFFIXES) for p in folder.iterdir())


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
