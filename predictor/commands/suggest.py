"""`predictor measure --suggest`: a plan for a device at hand or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from predictor.commands.output import note, prints_aside, say
from predictor.commands.suggest_text import plan_text

if TYPE_CHECKING:
    from predictor.hardware.device import Device
    from predictor.traces.measure.plan import Plan


def suggested(
    targets: Sequence[str],
    sizes: Mapping[str, Any],
    out: Path,
    *,
    device: str,
    name: str | None,
    threads: int | None,
    tf32: bool,
    checkpoint: str | None,
    most: int,
    minutes: float | None,
) -> None:
    """Write a plan for a device: the one at hand (`cpu`, `cuda`) or any of the catalogue."""
    from predictor.hardware.catalogue import resolve_device
    from predictor.traces.measure.place import beside_rows, place_at

    if device in ("cpu", "cuda"):
        place = place_at(
            lambda _: beside_rows(out), "cuda" if device == "cuda" else "cpu", name=name,
            threads=threads, tf32=tf32,
        )  # fmt: skip
        place.write()
        found = place.device.device
    elif name is not None:
        raise typer.BadParameter("--as names the device at hand: with --device cpu or cuda")
    else:
        found = resolve_device(device)
    plan = _plan(targets, sizes, found, checkpoint=checkpoint, most=most, minutes=minutes)
    plan.write(out)
    say(plan_text(plan))
    note(f"wrote {out}; measure it with `predictor measure --plan {out} --out rows.parquet`")


def suggested_here(
    targets: Sequence[str],
    sizes: Mapping[str, Any],
    out: Path,
    device: Device,
    *,
    checkpoint: str | None,
    most: int,
    minutes: float | None,
) -> Plan:
    """The plan for the device at hand, written beside the rows to be measured."""
    plan = _plan(targets, sizes, device, checkpoint=checkpoint, most=most, minutes=minutes)
    path = out.with_name(f"{out.stem}.plan.json")
    plan.write(path)
    say(plan_text(plan))
    note(f"wrote {path}; measuring it")
    return plan


def _plan(
    targets: Sequence[str],
    sizes: Mapping[str, Any],
    device: Device,
    *,
    checkpoint: str | None,
    most: int,
    minutes: float | None,
) -> Plan:
    import torch

    from predictor.checkpoint import default_checkpoint, load_release
    from predictor.fit.measurable import wanted
    from predictor.fit.pool import Context
    from predictor.fit.suggestion import SECONDS, suggest
    from predictor.hardware.catalogue import adopt_device
    from predictor.nn.latency import load_predictor

    adopt_device(device)
    context = Context(
        base=load_predictor(load_release(checkpoint or default_checkpoint([device.kind]))),
        device=device,
        framework_version=torch.__version__.partition("+")[0],
    )  # fmt: skip
    with prints_aside():
        programs = [wanted(target, **sizes) for target in targets]
        return suggest(
            programs, context, most=most, seconds=SECONDS if minutes is None else 60.0 * minutes
        )
