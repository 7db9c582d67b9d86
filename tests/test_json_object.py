"""JSON objects, and what is none."""

from __future__ import annotations

import pytest

from predictor.json_object import json_object


def test_an_object_is_read() -> None:
    assert json_object(b'{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[1]", "expected a JSON object, found list"),
        (b"{", "Expecting"),
        (b"\xff", "can't decode"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_anything_else_is_told(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        json_object(content)
