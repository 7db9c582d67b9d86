"""`predictor tune`: a search over a recipe's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predictor.commands import options
from predictor.commands.data import (
    WIDE,
    check_exists,
    check_recipe,
    check_train_extra,
    overrides_of,
)
from predictor.commands.output import say, show


def tune(
    recipe: Annotated[
        Path,
        typer.Argument(metavar="RECIPE", help="Recipe (TOML), with a [tune] section or without."),
    ],
    data: options.Data,
    out: Annotated[Path, typer.Option("--out", metavar="STUDY", help="Folder of the study.")],
    trials: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Trials in the study, earlier calls' included."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", min=0.0, help="Of this call; a trial begun is finished."),
    ] = None,
    set_: options.Set = None,
) -> None:
    """Search a recipe's settings on the development part of its split; writes STUDY/best.toml.

    The same command goes on with the study; several may run at once on one folder.
    """
    overrides = overrides_of(set_ or [])
    check_recipe(recipe)
    check_exists(data)
    check_train_extra("tune", ("lightning", "optuna"))
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from predictor.fit.study import BEST
    from predictor.fit.tune import tune as search

    study = search(recipe, data, out, overrides, trials=trials, minutes=minutes)
    show(study.view(), WIDE)
    if study.best is not None:
        say(
            f"wrote {out / BEST}; train it with `predictor train {out / BEST} --data DIR --out RUN`"
        )


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("tune")(tune)
