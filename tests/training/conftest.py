"""The modules of the accuracy report, as the scripts import each other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

TRAINING = Path(__file__).parents[2] / "training"
MODULES = ("suites", "calibration", "causes", "cells", "tables", "figures", "held_out", "report")


@pytest.fixture(scope="module")
def accuracy() -> Iterator[SimpleNamespace]:
    """The modules of the script, by their names without `accuracy_`."""
    before = set(sys.modules)
    sys.path.insert(0, str(TRAINING))
    try:
        yield SimpleNamespace(**{m: importlib.import_module(f"accuracy_{m}") for m in MODULES})
    finally:
        sys.path.remove(str(TRAINING))
        for name in {m for m in sys.modules if m.startswith("accuracy_")} - before:
            sys.modules.pop(name, None)
