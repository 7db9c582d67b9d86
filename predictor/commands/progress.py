"""Progress of long reading on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from predictor.commands.output import note

LINE_SECONDS = 10.0
"""Between two lines, where no bar can be drawn."""


@contextmanager
def row_progress(
    what: str, total: int | None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Shows how many rows are done; call the value with the number so far.

    Args:
        what: what is done to them, as `reading`.
        total: rows in all; None where that is not known.
        clock: seconds.
    """
    if not sys.stderr.isatty():
        yield _lines(what, total, clock)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(what), BarColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=total)
        with _logs_above_the_bar():
            yield lambda rows: bar.update(task, completed=rows)


def _lines(what: str, total: int | None, clock: Callable[[], float]) -> Callable[[int], None]:
    last = clock()
    whole = "" if total is None else f" of {total:,}"

    def progress(rows: int) -> None:
        nonlocal last
        if clock() - last >= LINE_SECONDS:
            last = clock()
            note(f"{what}: {rows:,}{whole} rows")

    return progress


@contextmanager
def _logs_above_the_bar() -> Iterator[None]:
    """What the library logs meanwhile goes through the bar's own standard error."""
    plain = [h for h in logging.getLogger("predictor").handlers if type(h) is logging.StreamHandler]
    before = [handler.stream for handler in plain]
    for handler in plain:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler, stream in zip(plain, before, strict=True):
            handler.setStream(stream)
