"""A user's own device: a TOML file with the fields of `Device`, checked before anything uses it.

The format is documented in docs/devices.md.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from predictor.errors import DeviceFileError, UnknownDeviceError
from predictor.hardware.catalogue import (
    adopt_device,
    device_from_row,
    load_catalogue,
    resolve_device,
)
from predictor.hardware.consistency import contradictions
from predictor.hardware.device import Device
from predictor.hardware.fields import DTYPE_TOKENS, FIELDS, PEAK_FIELDS, unit_hint

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

REQUIRED = ("id", "vendor", "kind", "units", "memory_bw_gbps")
"""What a file without `base` must give, and at least one peak."""

_OWN = ("id", "name", "confidence", "notes")
"""What a file never takes over from its `base`."""

_LARGEST_BYTES = 1_000_000
_KEYS = ("base", "unknown", *FIELDS)


def load_device_file(path: Path) -> Device:
    """Read a device file.

    Raises:
        DeviceFileError: The file cannot be read, has an unknown key, lacks a required field, or
            holds a value outside its range; the message names file, field, value and range.
    """
    row = _validated(path, _parsed(path))
    base_name, unknown = row.pop("base", None), row.pop("unknown", ())
    if row["id"] in load_catalogue():
        raise DeviceFileError(f"{path}: id = {row['id']!r} is a catalogue id; choose another")
    inherited: dict[str, Any] = {}
    if base_name is not None:
        base = _base(path, base_name)
        inherited = {name: getattr(base, name) for name in FIELDS if name not in _OWN}
    merged = {name: value for name, value in {**inherited, **row}.items() if value is not None}
    merged = {name: value for name, value in merged.items() if name not in unknown}
    _require(path, merged, inherited=base_name is not None)
    device = device_from_row(merged.pop("id"), merged)
    if problems := contradictions(device, given=frozenset(row), inherited=base_name is not None):
        raise DeviceFileError(f"{path}: {'; '.join(problems)}")
    return device


def adopt_device_file(path: Path) -> Device:
    """Read a device file that comes with rows, so that they may call the device by its id.

    Raises:
        DeviceFileError: as `load_device_file`, or another device has the id.
    """
    device = load_device_file(path)
    adopt_device(device, file=path)
    return device


def described_in(folder: Path, device_id: str) -> Path | None:
    """The first device file of a folder that describes the device; None where none does.

    Raises:
        DeviceFileError: as `load_device_file`.
    """
    files = sorted(folder.glob("*.device.toml"))
    return next((path for path in files if load_device_file(path).id == device_id), None)


def device_file_text(device: Device) -> str:
    """A device as its file: read again it is the same."""
    lines = []
    for name in ("id", *(n for n in FIELDS if n != "id")):
        value = getattr(device, name)
        if value is None or value == () or (name == "scope" and value == "device"):
            continue
        if isinstance(value, tuple):
            value = list(value)
        if isinstance(value, float) and FIELDS[name].whole:
            value = int(value)
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _parsed(path: Path) -> Mapping[str, object]:
    if path.suffix.lower() != ".toml":
        raise DeviceFileError(f"{path}: the name of a device file ends in .toml")
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise DeviceFileError(f"{path}: larger than {_LARGEST_BYTES} bytes: no device file")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeviceFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # bad TOML, bad UTF-8, numbers beyond any size
        raise DeviceFileError(f"{path}: not a TOML file: {error}") from error


def _validated(path: Path, raw: Mapping[str, object]) -> dict[str, Any]:
    from pydantic import ValidationError

    try:
        model = _model().model_validate(dict(raw))
    except ValidationError as error:
        raise DeviceFileError(f"{path}: {'; '.join(_messages(error))}") from error
    return model.model_dump(exclude_unset=True)


@cache
def _model() -> type[BaseModel]:
    from pydantic import BeforeValidator, ConfigDict, Field, create_model

    line = Annotated[str, Field(min_length=1, max_length=1000)]
    clearable = tuple(name for name in FIELDS if name not in ("vendor", "kind", "scope", *_OWN))
    one_of: Any = Literal
    list_of: Any = list
    types: dict[str, Any] = {
        "id": Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=100)],
        "base": line,
        "unknown": list_of[one_of[clearable]],
        "kind": Literal["gpu", "tpu", "cpu", "npu"],
        "scope": Literal["device", "die"],
        "confidence": Literal["high", "medium", "low"],
        "unsupported_dtypes": list_of[one_of[DTYPE_TOKENS]],
    }
    for name, spec in FIELDS.items():
        number = Field(ge=spec.low, le=spec.high, allow_inf_nan=False)
        if spec.whole:
            types[name] = Annotated[int, BeforeValidator(_whole), Field(ge=spec.low, le=spec.high)]
        elif spec.numeric:
            types[name] = Annotated[float, number]
        else:
            types.setdefault(name, line)
    definitions: dict[str, Any] = {
        name: (kind, ... if name == "id" else None) for name, kind in types.items()
    }
    config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)
    return create_model("DeviceFile", __config__=config, **definitions)


def _whole(value: object) -> object:
    """A whole number that is written with a point (`units = 2.0`) as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _messages(error: ValidationError) -> list[str]:
    found: list[str] = []
    for item in error.errors():
        field = str(item["loc"][0])
        value: object = item["input"]
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(field, _KEYS, n=1, cutoff=0.0)
            found.append(f"unknown key {field!r}; nearest: {near[0]}")
        elif item["type"] == "missing":
            found.append(f"missing required field {field!r}")
        elif field in FIELDS and FIELDS[field].numeric:
            found.append(_number_message(field, value))
        else:
            found.append(f"{field} = {_short(value)}: {item['msg']}")
    return found


def _number_message(field: str, value: object) -> str:
    spec = FIELDS[field]
    kind = "a whole number" if spec.whole else "a number"
    unit = f" {spec.unit}" if spec.unit else ""
    message = f"{field} = {_short(value)}: must be {kind} from {spec.low:g} to {spec.high:g}{unit}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            hint = unit_hint(field, float(value))
        except OverflowError:
            hint = None
        return f"{message} ({hint})" if hint else message
    return message


def _short(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number beyond any size"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _base(path: Path, name: str) -> Device:
    if name.lower().endswith(".toml"):
        raise DeviceFileError(f"{path}: base = {name!r}: must be a catalogue device, not a file")
    try:
        return resolve_device(name)
    except UnknownDeviceError as error:
        raise DeviceFileError(f"{path}: base = {name!r}: {error}") from error


def _require(path: Path, row: Mapping[str, object], *, inherited: bool) -> None:
    missing = [] if inherited else [name for name in REQUIRED if name not in row]
    if missing:
        raise DeviceFileError(
            f"{path}: missing required field {', '.join(missing)}; give it, or inherit a "
            'catalogue row with base = "ID"'
        )
    if not row.keys() & set(PEAK_FIELDS):
        raise DeviceFileError(f"{path}: no peak rate: give one of {', '.join(PEAK_FIELDS)}")
