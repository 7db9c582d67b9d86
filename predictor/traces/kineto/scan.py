"""A JSON object read as a stream: small members whole, one long array element by element.

A trace of gigabytes is one object with one array of events. The standard library's parser reads
each element from the text at hand; more text is taken when an element is not complete. What
profilers are known to write wrongly is mended element by element and counted: bare `inf`, `nan` and
`N/A`, stray commas, backslashes that escape nothing, control characters in strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from predictor.errors import DataError

LONGEST_CHARS = 1 << 26
"""Characters of the longest single value that is taken: one event is some hundred."""
_PIECE_CHARS = 1 << 20
_SHOWN = 120
_REMEDY = "record the trace again"

_SPACE = re.compile(r"[\s,]*")
_BLANK = re.compile(r"\s*")
_AFTER_VALUE = frozenset(" \t\r\n,]}")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")', re.DOTALL)
_NO_NUMBER = re.compile(r"(?<![\w.])[+-]?(?:nan(?:\(\w*\))?|inf(?:inity)?|N/A)(?![\w.])", re.I)
_STRAY_COMMA = re.compile(r",(?=\s*(?:,|[}\]]))")
_NO_ESCAPE = re.compile(r'\\(?:(?=u(?![0-9a-fA-F]{4}))|(?![\\"/bfnrtu]))')


def _absent(_name: str) -> None:
    return None


class JsonStream:
    """Text of one JSON document, scanned forward.

    Numbers with a fraction stay text (`"12.5"`), so that times lose no digit; NaN and infinity are
    None.

    Args:
        pieces: the document's text.
        name: how messages call it.
    """

    def __init__(self, pieces: Iterator[str], name: str) -> None:
        self.name = name
        self.mended = 0
        """Elements that were no JSON as written."""
        self._pieces = pieces
        self._text = ""
        self._at = 0
        self._passed = 0
        self._ended = False
        decoder = json.JSONDecoder(strict=False, parse_float=str, parse_constant=_absent)
        self._scan = decoder.raw_decode

    def members(self, long: str) -> Iterator[tuple[str, Any]]:
        """Keys and values of the top-level object; the array under `long` comes as its elements.

        A document that is an array is taken as that array alone.

        Args:
            long: key of the array to read element by element: for each batch of elements a pair
                of the key and their list.

        Raises:
            DataError: no JSON object, cut off, or a value that cannot be read.
        """
        start = self._peek()
        if start == "[":
            yield from ((long, batch) for batch in self._elements())
            return
        if start != "{":
            raise DataError(
                f"{self.name}: no JSON object (it starts with {self._excerpt(24)}); {_REMEDY}"
            )
        self._at += 1
        while (sign := self._peek()) != "}":
            if sign != '"':
                raise self._broken("a key")
            key = self._value()
            if self._peek() != ":":
                raise self._broken(f"a colon after {key!r}")
            self._at += 1
            if key == long and self._peek() == "[":
                yield from ((long, batch) for batch in self._elements())
            else:
                yield str(key), self._value()
        self._at += 1

    def finish(self) -> None:
        """Read to the end of the file, behind the document: its hash is of the whole file.

        Raises:
            DataError: anything but space follows, another document as well, or it is damaged.
        """
        while True:
            found = _BLANK.match(self._text, self._at)
            assert found is not None  # it matches nothing too
            self._at = found.end()
            if self._at < len(self._text):
                raise self._broken("the end of the file")
            if not self._more():
                return

    def _elements(self) -> Iterator[list[Any]]:
        """Elements of the array at hand, in batches; the place is behind it afterwards."""
        self._at += 1
        yield []
        space, scan = _SPACE.match, self._scan
        while True:
            text, at, batch = self._text, self._at, []
            while True:
                at = space(text, at).end()  # type: ignore[union-attr]
                if at >= len(text) or text[at] == "]":
                    break
                try:
                    value, after = scan(text, at)
                except (ValueError, RecursionError):  # `_value` tells which
                    break
                if not _closed(text, after):
                    break
                batch.append(value)
                at = after
            self._at = at
            if not batch:
                if self._peek() == "]":
                    self._at += 1
                    return
                batch = [self._value()]
            yield batch

    def _value(self) -> Any:
        """The complete value at hand."""
        while True:
            self._peek()
            text, at = self._text, self._at
            try:
                value, after = self._scan(text, at)
            except json.JSONDecodeError:
                end = _end_of(text, at)
            except (ValueError, RecursionError) as error:
                raise self._unreadable(error) from error
            else:
                if _closed(text, after):
                    self._at = after
                    return value
                end = None
            if end is not None:
                self._at = end
                return self._mended(text[at:end], at)
            if len(text) - at > LONGEST_CHARS:
                raise self._broken("the end of a value")
            if not self._more():
                raise self._cut_off()

    def _mended(self, broken: str, at: int) -> Any:
        """A value that is no JSON as written, by the known faults of writers."""
        parts = _STRING.split(broken)
        for i, part in enumerate(parts):
            if i % 2:
                parts[i] = _NO_ESCAPE.sub(r"\\\\", part)
            else:
                parts[i] = _STRAY_COMMA.sub("", _NO_NUMBER.sub("null", part))
        try:
            value, end = self._scan("".join(parts), 0)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{self.name}: no JSON near character {self._passed + at:,} ({error.msg}: "
                f"{broken[:_SHOWN]!r}); {_REMEDY}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise self._unreadable(error) from error
        assert end > 0
        self.mended += 1
        return value

    def _peek(self) -> str:
        """The next character that is neither space nor comma.

        Raises:
            DataError: there is none.
        """
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None  # it matches nothing too
            self._at = found.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise self._cut_off()

    def _more(self) -> bool:
        """Take more text, as much as is at hand again, and drop what was passed."""
        if self._ended:
            return False
        kept = self._text[self._at :]
        found, size, wanted = [kept], 0, max(_PIECE_CHARS, len(kept))
        for piece in self._pieces:
            found.append(piece)
            size += len(piece)
            if size >= wanted:
                break
        else:
            self._ended = True
        self._passed += self._at
        self._text, self._at = "".join(found), 0
        return size > 0

    def _excerpt(self, length: int = _SHOWN) -> str:
        return repr(self._text[self._at : self._at + length])

    def _broken(self, expected: str) -> DataError:
        return DataError(
            f"{self.name}: no JSON near character {self._passed + self._at:,} (expected "
            f"{expected}, found {self._excerpt()}); {_REMEDY}"
        )

    def _unreadable(self, error: Exception) -> DataError:
        """A number of thousands of digits, or thousands of brackets in each other."""
        return DataError(
            f"{self.name}: a value near character {self._passed + self._at:,} cannot be read "
            f"({str(error).partition(';')[0]}); {_REMEDY}"
        )

    def _cut_off(self) -> DataError:
        return DataError(
            f"{self.name}: cut off after {self._passed + len(self._text):,} characters: the "
            f"profiler did not finish writing it, and sums over a part would be wrong; {_REMEDY}"
        )


def _closed(text: str, end: int) -> bool:
    """Whether a value that ends there is whole: a number may go on where the text ends."""
    return text[end - 1] in '}]"' or text[end : end + 1] in _AFTER_VALUE


def _end_of(text: str, at: int) -> int | None:
    """Where the object or array at `at` closes, by brackets outside of strings; None if not yet."""
    if text[at] not in "{[":
        found = re.compile(r"[^\s,\]}]+(?=[\s,\]}])").match(text, at)
        return None if found is None else found.end()
    depth = 0
    for token in _TOKENS.finditer(text, at):
        sign = token[0][0]
        if sign in "{[":
            depth += 1
        elif sign in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return None
