"""Named models, written out here so that no model library is needed, built without weights.

Each is faithful to its published architecture (parameter counts are tested) and makes the same
framework calls as the implementation that people run.
"""

from __future__ import annotations

from predictor.zoo.catalog import ZOO, build, names
from predictor.zoo.entry import Entry, Program

__all__ = ["ZOO", "Entry", "Program", "build", "names"]
