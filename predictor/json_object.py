"""JSON that must hold one object, for every reader of files; each wraps the words in its error."""

from __future__ import annotations

import json
from typing import Any


def json_object(content: bytes) -> dict[str, Any]:
    """The object that JSON text holds.

    Raises:
        ValueError: it is not JSON, is nested too deep, or holds something else.
    """
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError(f"nested too deep: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value
