"""What `predictor devices` shows, as plain data: the list of devices, and one device in full."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from predictor.hardware.catalogue import load_aliases, load_catalogue, resolve_device
from predictor.hardware.device import Device
from predictor.hardware.fields import FIELDS
from predictor.hardware.sources import FieldSource, load_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One line of the list; `None` is unknown."""

    id: str
    name: str | None
    vendor: str
    kind: str
    scope: str
    memory_gib: float | None
    memory_bw_gbps: float | None
    peak_fp32_tflops: float | None
    """Vector rate, or the matrix rate where only that is known."""
    peak_16bit_tflops: float | None
    """bf16, else fp16; dense matrix rate."""
    tdp_w: float | None
    confidence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFact:
    """One field of one device: its value, unit and meaning, and where the value comes from."""

    field: str
    value: str | float | int | tuple[str, ...]
    unit: str | None
    meaning: str
    sources: tuple[FieldSource, ...]
    """Those that agree first; among them, opened before derived before recalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDescription:
    """Everything known about one device."""

    id: str
    aliases: tuple[str, ...]
    predictable: bool
    """False for package rows, which hold totals of several devices."""
    facts: tuple[FieldFact, ...]
    """Known fields, in the order of `Device`."""
    unknown_fields: tuple[str, ...]


def list_devices() -> list[DeviceRow]:
    """One row a catalogue device, in catalogue order."""
    return [_row(device) for device in load_catalogue().values()]


def describe_device(name: str | Device | Path, *, source: str | None = None) -> DeviceDescription:
    """One device with each field's sources; package rows and device files too.

    Raises:
        UnknownDeviceError: No device, or more than one, answers to the name.
        DeviceFileError: The device file cannot be read or breaks a rule.
    """
    device = resolve_device(name, source=source, allow_package=True)
    in_catalogue = load_catalogue().get(device.id) == device
    sources = load_sources().get(device.id, {}) if in_catalogue else {}
    facts: list[FieldFact] = []
    unknown: list[str] = []
    for field, spec in FIELDS.items():
        value = getattr(device, field)
        if value is None or value == ():
            unknown.append(field)
            continue
        best_first = tuple(sorted(sources.get(field, ()), key=_rank))
        facts.append(
            FieldFact(
                field=field,
                value=value,
                unit=spec.unit,
                meaning=spec.meaning,
                sources=best_first,
            )
        )
    return DeviceDescription(
        id=device.id,
        aliases=load_aliases()[device.id] if in_catalogue else (),
        predictable=device.scope != "package",
        facts=tuple(facts),
        unknown_fields=tuple(name for name in unknown if name != "unsupported_dtypes"),
    )


def _rank(source: FieldSource) -> tuple[bool, int, bool]:
    order = ("read", "derived", "memory", "measured").index(source.how_read)
    return (source.note != "", order, "unnamed copy" in source.source_url)


def _row(device: Device) -> DeviceRow:
    fp32, sixteen = device.peak_fp32_tflops, device.peak_bf16_tflops
    return DeviceRow(
        id=device.id,
        name=device.name,
        vendor=device.vendor,
        kind=device.kind,
        scope=device.scope,
        memory_gib=device.memory_gib,
        memory_bw_gbps=device.memory_bw_gbps,
        peak_fp32_tflops=device.peak_fp32_matrix_tflops if fp32 is None else fp32,
        peak_16bit_tflops=device.peak_fp16_tflops if sixteen is None else sixteen,
        tdp_w=device.tdp_w,
        confidence=device.confidence,
    )
