"""`predictor calibrate`: a device adapter from a few measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predictor.commands import options
from predictor.commands.data import check_exists
from predictor.commands.output import check_folder, note, say


def calibrate(
    device: Annotated[
        str, typer.Option("--device", metavar="ID|FILE", help="Catalogue name or device file.")
    ],
    rows: Annotated[
        list[Path],
        typer.Option(
            "--rows", metavar="FILE", help="Measured rows (.parquet, .csv); may be repeated."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder to write; the user's own when not given."
        ),
    ] = None,
    checkpoint: options.Checkpoint = None,
) -> None:
    """Fit a device's adapter on 1 to 1,000 measured kernels, ops inside steps or whole steps.

    `--adapter DIR` of estimate, compare and evaluate then corrects what is predicted for that
    device, and for no other.
    """
    from predictor.calibrate.adapter import user_place
    from predictor.fit.adapting import fit_from_rows

    check_exists(rows)
    if out is not None:
        check_folder("--out", out)
    adapter = fit_from_rows(device, rows, checkpoint=checkpoint)
    folder = user_place(adapter.device, adapter.checkpoint) if out is None else out
    adapter.save(folder)
    count = {kind: int(adapter.facts[f"rows_{kind}"]) for kind in _KINDS}
    count["kernel"] -= count["device"]
    counts = [
        f"{n:,} {one if n == 1 else several}"
        for kind, (one, several) in _KINDS.items() if (n := count[kind])
    ]  # fmt: skip
    say(f"{adapter.line} ({', '.join(counts)})")
    of = "step_" if adapter.facts["rows_step"] else ""
    if adapter.facts[f"{of}error_after"] > adapter.facts[f"{of}error_before"]:
        note(
            "warning: each row is predicted worse from the others than without them: too few rows, "
            "or rows that do not agree; estimates without --adapter may be closer"
        )
    elif adapter.facts[f"{of}error_after"] > STILL_OFF:
        note(
            "warning: rows are predicted so badly from each other that they may not be what they "
            "say: times mixed up, several machines, or another device"
        )
    note(f"wrote {folder}; use it with --adapter {'auto' if out is None else folder}")


STILL_OFF = 0.6
"""Leave-one-out error from which rows are doubted; those of a device end far below."""
_KINDS = {
    "alone": ("kernel alone", "kernels alone"),
    "device": ("kernel alone, device time", "kernels alone, device time"),
    "kernel": ("kernel inside a step", "kernels inside steps"),
    "step": ("whole step", "whole steps"),
}
"""What rows are, one and several of them."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("calibrate")(calibrate)
