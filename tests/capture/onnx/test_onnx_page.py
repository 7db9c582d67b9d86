"""`docs/onnx.md` lists the operators that have rules, and the bounds of reading."""

import re
from pathlib import Path

from predictor.capture.onnx.rules.contrib import CONTRIB
from predictor.capture.onnx.rules.control import MOST_TRIPS
from predictor.capture.onnx.tape import MOST_AXES, MOST_BYTES
from predictor.capture.onnx.values import KNOWN_LIMIT
from predictor.capture.onnx.walk import DEEPEST, MOST_OPERATORS

PAGE = (Path(__file__).parents[3] / "docs/onnx.md").read_text(encoding="utf-8")


def test_contrib_operators_are_listed():
    listed = PAGE[PAGE.index("Of `com.microsoft`:") : PAGE.index("## What is assumed")]
    assert set(re.findall(r"`(\w+)`", listed)) == {op for _, op in CONTRIB}


def test_bounds_are_those_of_the_code():
    assert f"{KNOWN_LIMIT:,}\nelements" in PAGE or f"{KNOWN_LIMIT:,} elements" in PAGE
    assert f"({MOST_TRIPS:,} trips at most)" in PAGE
    assert f"{MOST_AXES} axes" in PAGE
    assert MOST_BYTES == 2**50
    assert f"{MOST_OPERATORS:,} operators" in PAGE
    assert f"{DEEPEST} levels" in PAGE
