"""Commands and flags of the contract that do not work yet: they say what works instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from predictor.errors import NotYetError

INSTEAD: Mapping[str, str] = {
    "--compile": "programs are measured in eager PyTorch; `estimate` and `compare` take --compile",
    "--gpus": "without it the estimate is for one device",
    "--plan": "without it the estimate is for one device",
    "--html": "--json FILE writes every number, and notebooks show an estimate as HTML",
    "--perfetto": "--json FILE writes every kernel group",
    "plan": "`predictor estimate` and `predictor compare` work on one device",
}
"""What to use instead, by command or flag."""

_Rest = Annotated[list[str] | None, typer.Argument(hidden=True)]
_ANY = {"allow_extra_args": True, "ignore_unknown_options": True}
_COMMANDS: Mapping[str, str] = {
    "plan": "rank parallel plans for several devices",
}


def refuse(name: str) -> NotYetError:
    """The error that a flag or command raises until it works."""
    return NotYetError(f"{name} does not work yet; {INSTEAD[name]}")


def refuse_given(**flags: object) -> None:
    """Raise for the first flag that was given (not None, False or empty).

    Raises:
        NotYetError: names the flag and what works instead.
    """
    for name, value in flags.items():
        if value is not None and value is not False and value not in ([], ()):
            raise refuse(f"--{name}")


def register(app: typer.Typer) -> None:
    """Add the commands that do not work yet."""
    for name, text in _COMMANDS.items():
        _add(app, name, text)


def _add(app: typer.Typer, name: str, text: str) -> None:
    def command(_rest: _Rest = None) -> None:
        raise refuse(name)

    app.command(name, help=f"Not yet: {text}.", context_settings=_ANY)(command)
