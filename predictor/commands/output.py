"""Where commands print: standard output for results, files written whole or not at all."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from predictor.atomic import write_text
from predictor.report.text import MIN_WIDTH, TEXT_WIDTH, plain_text

if TYPE_CHECKING:
    from rich.console import RenderableType

STDOUT = "-"


def show(view: RenderableType, width: int = TEXT_WIDTH) -> None:
    """Print a view: with colour on a terminal, as plain text of at most `width` elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        console.width = max(console.width, MIN_WIDTH)
        console.print(view)
    else:
        say(plain_text(view, width))


def say(text: str) -> None:
    """Print a line of result."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Print a line that is not a result (progress, where a file went)."""
    sys.stderr.write(f"{text}\n")


def prints_aside() -> AbstractContextManager[TextIO]:
    """What the user's program prints meanwhile goes to standard error: results stay pure."""
    return redirect_stdout(sys.stderr)


def check_files(**files: str | Path | None) -> None:
    """Refuse names that no file can have, before any work is done.

    Args:
        files: names by flag; None passes, and `-` for JSON alone: other files are not text.

    Raises:
        typer.BadParameter: it is empty, a folder, or below something that is no folder.
    """
    for flag, file in files.items():
        if file is None or (flag == "json" and file == STDOUT):
            continue
        path, hint = Path(file), f"--{flag}"
        if str(file) == STDOUT:
            raise typer.BadParameter("'-' is for --json: name a file", param_hint=hint)
        if not str(file) or path.is_dir():
            raise typer.BadParameter(f"{str(file)!r} is no file: name a file", param_hint=hint)
        above = next(parent for parent in path.absolute().parents if parent.exists())
        if not above.is_dir():
            raise typer.BadParameter(
                f"{str(file)!r}: {above} is no folder: name a file in a folder", param_hint=hint
            )


def check_folder(flag: str, folder: Path) -> None:
    """Refuse the name of a folder to write that is a file, or below one, before any work is done.

    Raises:
        typer.BadParameter: it is.
    """
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir():
        raise typer.BadParameter(
            f"{str(folder)!r}: {above} is no folder: name another", param_hint=flag
        )


def write_json(value: Mapping[str, object] | Sequence[object], file: str) -> None:
    """Write JSON to a file, or to standard output for `-`; NaN is absent, so `null`."""
    text = json.dumps(_without_nan(value), indent=2, allow_nan=False)
    if file == STDOUT:
        say(text)
    else:
        write_text(Path(file), text + "\n")
        note(f"wrote {file}")


def _without_nan(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(child) for child in value]
    return value
