"""`predictor devices`: the catalogue, and one device with the source of every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from predictor.commands.output import show, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from predictor.hardware.describe import DeviceDescription, DeviceRow

_COLUMNS: Mapping[str, str] = {
    "memory_gib": "memory GiB",
    "memory_bw_gbps": "GB/s",
    "peak_fp32_tflops": "fp32 TFLOPS",
    "peak_16bit_tflops": "16-bit TFLOPS",
    "tdp_w": "W",
}


def devices(
    device: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A name, alias or device file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """The catalogue, or one device with its sources.

    A device file (TOML, the fields that `predictor devices ID` prints) goes wherever a name does.
    """
    from predictor.hardware.describe import describe_device, list_devices

    if device is None:
        rows = list_devices()
        if json:
            write_json([asdict(row) for row in rows], "-")
        else:
            show(_list_view(rows))
        return
    description = describe_device(device)
    if json:
        write_json(asdict(description), "-")
    else:
        show(_device_view(description))


def _list_view(rows: list[DeviceRow]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
    table.add_column("id", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("scope", no_wrap=True)
    for row in rows:
        numbers = [_number(getattr(row, field)) for field in _COLUMNS]
        table.add_row(row.id, row.name or "", row.kind, *numbers, row.scope)
    return table


def _device_view(description: DeviceDescription) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold", min_width=16)
    table.add_column("unit", no_wrap=True)
    table.add_column("meaning", overflow="fold", ratio=2)
    table.add_column("source", overflow="fold", ratio=3)
    for fact in description.facts:
        value = ", ".join(fact.value) if isinstance(fact.value, tuple) else _number(fact.value)
        source = fact.sources[0].source_url if fact.sources else ""
        table.add_row(fact.field, value, fact.unit or "", fact.meaning, source)
    lines = [Text(description.id, style="bold")]
    if description.aliases:
        lines.append(Text(f"also: {', '.join(description.aliases)}"))
    if not description.predictable:
        lines.append(Text("totals of a package of several devices: shown, never predicted"))
    unknown = Text(f"unknown: {', '.join(description.unknown_fields)}")
    return Group(*lines, table, unknown)


def _number(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:g}" if isinstance(value, float) else str(value)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("devices")(devices)
