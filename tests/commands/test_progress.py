"""Progress on standard error: lines now and then, or a bar that logs do not tear."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable

import pytest

from predictor.commands.progress import LINE_SECONDS, row_progress


class Terminal(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def to_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Makes standard error a terminal, from within the test: captures change before it."""

    def replaced() -> Terminal:
        stream = Terminal()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replaced


def test_a_line_only_after_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    time = 0.0

    def clock() -> float:
        return time

    with row_progress("importing aiter", 9_000_000, clock=clock) as progress:
        progress(1_000)
        time = LINE_SECONDS - 0.1
        progress(2_000)
        assert capsys.readouterr().err == ""
        time = LINE_SECONDS
        progress(3_000_000)
        progress(3_500_000)
        time = 2 * LINE_SECONDS
        progress(4_000_000)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        f"importing aiter: {rows} of 9,000,000 rows" for rows in ("3,000,000", "4,000,000")
    ]
    assert captured.out == ""


def test_without_a_total_the_lines_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    ticks = iter((0.0, LINE_SECONDS, LINE_SECONDS))
    with row_progress("reading", None, clock=lambda: next(ticks)) as progress:
        progress(5)
    assert capsys.readouterr().err == "reading: 5 rows\n"


@pytest.mark.parametrize("total", [None, 2_000])
def test_a_terminal_has_a_bar(to_terminal: Callable[[], Terminal], total: int | None) -> None:
    terminal = to_terminal()
    with row_progress("reading", total) as progress:
        progress(1_234)
    shown = terminal.getvalue()
    assert "reading" in shown
    assert "1,234 rows" in shown


def test_what_is_logged_stands_on_lines_of_its_own_and_streams_come_back(
    to_terminal: Callable[[], Terminal],
) -> None:
    terminal = to_terminal()
    logger, handler = logging.getLogger("predictor"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        with row_progress("reading", 10) as progress:
            progress(5)
            assert handler.stream is sys.stderr
            assert handler.stream is not terminal  # the bar's own stream
            logger.warning("7 rows dropped")
        assert handler.stream is terminal
        assert sys.stderr is terminal
    finally:
        logger.removeHandler(handler)
    lines = terminal.getvalue().splitlines()
    (line,) = [line for line in lines if "7 rows dropped" in line]
    assert "reading" not in line


def test_an_error_inside_ends_the_bar(to_terminal: Callable[[], Terminal]) -> None:
    terminal = to_terminal()
    with pytest.raises(ValueError, match="bad"), row_progress("reading", 10):
        raise ValueError("bad")
    assert sys.stderr is terminal
