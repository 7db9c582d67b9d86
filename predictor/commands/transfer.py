"""`predictor transfer-report`: errors on devices never seen, after few measurements."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from predictor.commands import options
from predictor.commands.data import check_exists, check_recipe, check_train_extra, overrides_of
from predictor.commands.output import check_files, check_folder, say
from predictor.commands.progress import row_progress
from predictor.errors import MissingExtraError, RecipeError


def transfer_report(
    data: options.Data,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the report; goes on with it.")
    ] = Path("runs/transfer"),
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Take the device folds of a run of `predictor train`."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="Train the device folds of this recipe instead."),
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|DIR", help="Take a checkpoint, on devices it never saw; repeatable."
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this suite (docs/transfer.md); repeatable."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Hold out only this device; repeatable."),
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", min=1, help="Random draws a budget.")] = 20,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the Markdown page here as well.")
    ] = None,
    set_: options.Set = None,
) -> None:
    """Zero to few measurements on each device held out in turn: table, figure and JSON.

    Without --run and --checkpoint, small networks are trained first, each without a part of the
    devices. The same command goes on where it was stopped.
    """
    overrides = overrides_of(set_ or [])
    if run is not None and (recipe is not None or overrides):
        raise RecipeError("--recipe and --set train networks; --run brings its own: give one")
    if recipe is not None:
        check_recipe(recipe)
    check_files(page=page)
    check_folder("--out", out)
    check_exists([*data, *([run] if run is not None else [])])
    check_train_extra("transfer-report", ("lightning", "sklearn"))
    if find_spec("plotly") is None:
        raise MissingExtraError(
            "`predictor transfer-report` needs plotly, which the `report` extra brings: "
            "pip install -c constraints.txt -e '.[train,report]'"
        )
    from predictor.fit.transfer import FIGURE, PAGE, VALUES
    from predictor.fit.transfer import transfer_report as report_of
    from predictor.fit.transfer_curves import Plan

    with row_progress("reading", None) as read:
        found = report_of(
            data, out, run=run, recipe=recipe, checkpoints=checkpoint or (), suites=suite or (),
            devices=device or (), overrides=overrides, plan=Plan(draws=draws), read=read,
            progress=sys.stderr.isatty(),
        )  # fmt: skip
    found.write(out, page)
    say(f"wrote {out / PAGE}, {VALUES} and {FIGURE}{'' if page is None else f', {page}'}")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("transfer-report")(transfer_report)
