"""The device catalogue: loading it, and finding the one device that a name means."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from predictor.errors import DeviceFileError, UnknownDeviceError
from predictor.hardware.device import Device
from predictor.hardware.fields import FIELDS
from predictor.hardware.names import PACKAGE_DIES, PRODUCT_NAMES, NameIndex, slice_of

_REMEDY = "see `predictor devices`, or pass a device file (TOML, docs/devices.md)"
_WITH_ROWS = ("datasets/{id}/{id}.device.toml", "{id}.device.toml")
"""Where the file of a device that was measured stands beside its rows, from here or the project."""

_ID = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catalogue:
    devices: Mapping[str, Device]
    aliases: Mapping[str, tuple[str, ...]]
    index: NameIndex


def device_from_row(device_id: str, row: Mapping[str, Any]) -> Device:
    """Make a `Device` of plain TOML values: numbers become floats, lists become tuples."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        spec = FIELDS[name]
        if spec.numeric:
            values[name] = int(value) if spec.whole else float(value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return Device(id=device_id, **values)


@cache
def _load() -> _Catalogue:
    text = files("predictor.hardware").joinpath("catalogue.toml").read_text(encoding="utf-8")
    devices: dict[str, Device] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    for device_id, row in tomllib.loads(text).items():
        aliases[device_id] = tuple(row.pop("aliases", ()))
        devices[device_id] = device_from_row(device_id, row)
    labels = {
        device_id: (
            *filter(None, [device.name]),
            *aliases[device_id],
            *PRODUCT_NAMES.get(device_id, ()),
        )
        for device_id, device in devices.items()
    }
    return _Catalogue(
        devices=MappingProxyType(devices),
        aliases=MappingProxyType(aliases),
        index=NameIndex(labels),
    )


def load_catalogue() -> Mapping[str, Device]:
    """All devices of the catalogue by id, package rows included (read once, then cached)."""
    return _load().devices


_adopted: dict[str, Device] = {}
_adopted_from: dict[str, Path] = {}


def adopt_device(device: Device, *, file: Path | None = None) -> None:
    """Let rows of this process name a device that comes with their data, not in the catalogue.

    Args:
        device: what its id shall mean.
        file: where it is described, for the message when another has its id.

    Raises:
        DeviceFileError: another device has its id.
    """
    held = {**load_catalogue(), **_adopted}.get(device.id)
    if held is not None and held != device:
        first = "the catalogue" if device.id in load_catalogue() else "a device adopted before"
        raise DeviceFileError(
            f"{_adopted_from.get(device.id, first)} and {file or 'another device'} describe "
            f"different devices {device.id!r}: where both are one device measured twice, copy one "
            "file over the other; else give one another `id`, and call it so in its rows"
        )
    if held is not None:
        return
    _adopted[device.id] = device
    if file is not None:
        _adopted_from[device.id] = file


def adopted_devices() -> Mapping[str, Device]:
    """Devices that came with data, by id."""
    return MappingProxyType(_adopted)


def load_aliases() -> Mapping[str, tuple[str, ...]]:
    """Other names of each device by id; `dataset/name` is the name that one data set uses."""
    return _load().aliases


def resolve_device(
    name: str | Device | Path,
    *,
    source: str | None = None,
    units: int | None = None,
    allow_package: bool = False,
) -> Device:
    """Find the one device that `name` means; there is no default.

    Case, spaces, hyphens, trademark signs and brand words (NVIDIA, GeForce, Instinct, …) do not
    matter; anything else does: a name that fits several devices is refused.

    Args:
        name: Catalogue id, a name as a vendor's runtime prints it, an alias, `dataset/name`, the
            path of a device file (ends in `.toml`), or a `Device`, which passes through.
        source: Data set that the name comes from: its own names count first.
        units: Number of units that the runtime reports (SMs, CUs): tells devices that share a
            name apart.
        allow_package: Accept rows that hold totals of several devices. For display and for
            counting only: a prediction is per device.

    Raises:
        UnknownDeviceError: No device, several devices or a package answers to the name.
        DeviceFileError: The device file cannot be read or breaks a rule.
    """
    if isinstance(name, Device):
        return _checked(name, allow_package=allow_package)
    _check_kind(name)
    if isinstance(name, Path) or name.lower().endswith(".toml"):
        from predictor.hardware.device_file import load_device_file

        return load_device_file(Path(name))
    if name in _adopted:
        return _adopted[name]
    catalogue = _load()
    if not name.strip():
        raise UnknownDeviceError(f"the device name is empty; {_REMEDY}")
    scoped = catalogue.index.scoped(name, source)
    if scoped is not None:
        return _checked(catalogue.devices[scoped], allow_package=allow_package)
    match = catalogue.index.find(name)
    ids = match.ids
    if not (match.exact and not match.reason and len(ids) == 1):
        ids = tuple(i for i in ids if units is not None and catalogue.devices[i].units == units)
    if len(ids) == 1:
        return _checked(catalogue.devices[ids[0]], allow_package=allow_package)
    beside = _file_beside_rows(name)
    if beside is not None:
        raise UnknownDeviceError(
            f"no device {name!r} in the catalogue: it is described beside its measured rows, and "
            f"its file is its name: pass {beside}"
        )
    if told := slice_of(name):
        raise UnknownDeviceError(told)
    raise UnknownDeviceError(_explain(name, match.ids, match.reason, catalogue))


def _check_kind(name: object) -> None:
    """Refuse what types would: callers from notebooks pass None."""
    if not isinstance(name, str | Path):
        given = f"a device is given by name or by its file, not as {name!r}"
        raise UnknownDeviceError(f"{given}; {_REMEDY}")


def _file_beside_rows(name: str) -> Path | None:
    """The device file of a device that was measured, where it stands at one of the usual places."""
    if not _ID.fullmatch(name):
        return None
    places = (Path(), Path(__file__).parents[2])
    found = (place / file.format(id=name) for place in places for file in _WITH_ROWS)
    return next((path for path in found if path.is_file()), None)


def _checked(device: Device, *, allow_package: bool) -> Device:
    if device.scope == "package" and not allow_package:
        die = PACKAGE_DIES.get(device.id)
        instead = f"; pass {die}" if die else ""
        raise UnknownDeviceError(
            f"{device.id} holds totals of a package of several devices, and a prediction is for "
            f"one device as the framework sees it{instead}"
        )
    return device


def _explain(name: str, ids: Sequence[str], reason: str, catalogue: _Catalogue) -> str:
    per_device = dict.fromkeys(PACKAGE_DIES.get(i, i) for i in ids)
    shown = _listed(per_device, catalogue)
    if reason:
        return (
            f"{name!r} does not say which device ({reason}): pass an id, of {shown}; or {_REMEDY}"
        )
    if len(per_device) > 1:
        return f"{name!r} does not say which device: pass an id, of {shown}; or {_REMEDY}"
    if per_device:
        return f"no device is called {name!r}; did you mean {shown}? {_REMEDY}"
    near = dict.fromkeys(PACKAGE_DIES.get(i, i) for i in catalogue.index.near(name))
    return f"no device {name!r}; nearest: {_listed(near, catalogue)}; {_REMEDY}"


def _listed(ids: Mapping[str, None], catalogue: _Catalogue) -> str:
    def shown(device_id: str) -> str:
        name = catalogue.devices[device_id].name
        return f"{device_id} ({name})" if name else device_id

    return ", ".join(shown(device_id) for device_id in ids)
