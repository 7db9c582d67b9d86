"""Where each number of the catalogue comes from; read only when asked for."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSource:
    """One place that was consulted for one field."""

    value: str
    """The source's own value, which may differ from the catalogue's."""
    source_url: str
    how_read: str
    """`read` (opened), `derived` (arithmetic), `memory` (recalled) or `measured` (evidence)."""
    note: str
    """Empty when it agrees with the catalogue within 2%; `differs, not used` when it does not."""


@cache
def load_sources() -> Mapping[str, Mapping[str, tuple[FieldSource, ...]]]:
    """All sources by device id and field (cached)."""
    text = files("predictor.hardware").joinpath("catalogue_sources.csv").read_text(encoding="utf-8")
    found: dict[str, dict[str, tuple[FieldSource, ...]]] = {}
    for row in csv.DictReader(text.splitlines()):
        by_field = found.setdefault(row["device"], {})
        source = FieldSource(
            value=row["value"],
            source_url=row["source_url"],
            how_read=row["how_read"],
            note=row["note"],
        )
        by_field[row["field"]] = (*by_field.get(row["field"], ()), source)
    return MappingProxyType(found)
