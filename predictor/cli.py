"""The command `predictor`: puts the commands together and turns errors into one line."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from predictor.commands import (
    calibrate,
    data,
    data_stats,
    devices,
    estimates,
    later,
    measure,
    transfer,
    tune,
)
from predictor.errors import PredictorError

BAD_INPUT = 2
INTERRUPTED = 130
_DEBUG = "--debug"

app = typer.Typer(
    name="predictor",
    help="Latency of an ML program on an accelerator you do not have.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show tracebacks; goes anywhere.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Latency of an ML program on an accelerator you do not have."""


for family in (
    estimates, devices, data, data_stats, tune, measure, calibrate, transfer, later,
):  # fmt: skip
    family.register(app)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; never returns.

    Args:
        argv: arguments without the program's name, the process's own when not given.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = _DEBUG in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without `µ` shows `?`
            stream.reconfigure(errors="replace")
    sys.exit(_run([a for a in arguments if a != _DEBUG], debug))


def _run(arguments: list[str], debug: bool) -> int:
    """Exit status of one call."""
    if arguments == ["--version"]:
        from predictor.version import code_version

        sys.stdout.write(f"{code_version()}\n")
        return 0
    try:
        with _progress_lines(debug):
            status = app(arguments or ["--help"], prog_name="predictor", standalone_mode=False)
    except (PredictorError, typer.TyperException, OSError) as error:
        if debug:
            raise
        sys.stderr.write(f"error: {_one_line(error)}\n")
        return BAD_INPUT
    if status == INTERRUPTED:
        sys.stderr.write("interrupted\n")
    return status if isinstance(status, int) else 0


@contextmanager
def _progress_lines(debug: bool) -> Iterator[None]:
    """Show what the library logs as plain lines on standard error."""
    logger, handler = logging.getLogger("predictor"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _one_line(error: Exception) -> str:
    """The message without line breaks; usage errors point to the help."""
    text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    line = " ".join(text.split())
    hint = " (see `predictor --help`)" if isinstance(error, typer.TyperException) else ""
    return f"{line}{hint}"


if __name__ == "__main__":
    main()
