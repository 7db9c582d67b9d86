"""The plan file: which programs and kernels to measure on a device, and what each may take.

`predictor measure --suggest` writes it, `predictor measure --plan` carries it out. JSON:

| key | holds |
|---|---|
| `version` | of this layout |
| `device` | id of the device |
| `checkpoint` | whose uncertainty the measurements are to shrink |
| `for` | the programs to be predicted: `target`, `predicted_us`, and how far the 90% interval is
  expected to reach to either side, as a factor, before and after (`factor_before`, …) |
| `measure` | in the order of worth: a whole step (`program`, `mode`, `dtype`, `batch`, `seq`,
  `optimizer`), or a kernel alone (`kind`, `dtype`, `cache`, `sizes`); each with its `seconds`, and
  the `factor` expected once it is measured |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from predictor.atomic import write_text
from predictor.errors import DataError
from predictor.traces.measure.grid import CACHES, Point
from predictor.traces.measure.kinds import kind_of

VERSION = 1
_MODES = ("infer", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProgram:
    """A whole step to measure, with the kernels inside."""

    target: str
    """As `predictor measure` takes it."""
    mode: Literal["infer", "train"] = "infer"
    dtype: str = "fp32"
    batch: int | None = None
    seq: int | None = None
    optimizer: str | None = None

    @property
    def key(self) -> str:
        """What tells it from others."""
        sizes = (
            f"{name}={size}" for name, size in (("batch", self.batch), ("seq", self.seq)) if size
        )
        words = (self.target, self.mode, self.dtype, self.optimizer or "", *sizes)
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One measurement."""

    what: PlannedProgram | Point
    seconds: float
    """How long it is expected to take."""
    factor: float
    """Expected half of the 90% interval of the programs to be predicted, as a factor, after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFor:
    """A program to be predicted."""

    target: str
    predicted_us: float
    factor_before: float
    """Upper end of the 90% interval over the prediction, as expected before anything is measured.
    """
    factor_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure on a device, and why."""

    device: str
    checkpoint: str
    targets: tuple[PlannedFor, ...]
    measurements: tuple[Planned, ...]

    @property
    def seconds(self) -> float:
        """How long all are expected to take."""
        return sum(planned.seconds for planned in self.measurements)

    @property
    def programs(self) -> tuple[PlannedProgram, ...]:
        """Whole steps, in order."""
        return tuple(p.what for p in self.measurements if isinstance(p.what, PlannedProgram))

    @property
    def points(self) -> tuple[Point, ...]:
        """Kernels alone, in order."""
        return tuple(p.what for p in self.measurements if isinstance(p.what, Point))

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_text(path, json.dumps(self._document(), indent=1, allow_nan=False) + "\n")

    def _document(self) -> dict[str, Any]:
        return {
            "version": VERSION, "device": self.device, "checkpoint": self.checkpoint,
            "for": [
                {"target": t.target, "predicted_us": t.predicted_us,
                 "factor_before": t.factor_before, "factor_after": t.factor_after}
                for t in self.targets
            ],
            "measure": [
                {**_entry(p.what), "seconds": round(p.seconds, 3), "factor": round(p.factor, 4)}
                for p in self.measurements
            ],
        }  # fmt: skip


def _entry(what: PlannedProgram | Point) -> dict[str, Any]:
    if isinstance(what, Point):
        return {"kind": what.kind, "dtype": what.dtype, "cache": CACHES[what.cold],
                "sizes": dict(what.sizes)}  # fmt: skip
    return {"program": what.target, "mode": what.mode, "dtype": what.dtype, "batch": what.batch,
            "seq": what.seq, "optimizer": what.optimizer}  # fmt: skip


def read_plan(path: Path) -> Plan:
    """A plan file.

    Raises:
        DataError: it cannot be read, is of another version, or holds what cannot be measured.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"plan {path}: cannot be read ({error})") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise DataError(
            f"plan {path}: no plan of version {VERSION}; `predictor measure --suggest N --for "
            "TARGET --out plan.json` writes one"
        )
    at = _Reader(path)
    measurements = at.listed(document, "measure")
    if not measurements:
        raise DataError(f"plan {path}: nothing to measure in it")
    return Plan(
        device=at.text(document, "device"), checkpoint=at.text(document, "checkpoint"),
        targets=tuple(
            PlannedFor(
                target=at.text(t, "target"),
                **{n: at.number(t, n) for n in ("predicted_us", "factor_before", "factor_after")},
            )
            for t in at.listed(document, "for")
        ),
        measurements=tuple(
            Planned(what=at.what(m), seconds=at.number(m, "seconds"), factor=at.number(m, "factor"))
            for m in measurements
        ),
    )  # fmt: skip


class _Reader:
    """Values of a plan by name, refused where they are of another kind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def what(self, entry: Mapping[str, Any]) -> PlannedProgram | Point:
        """A step or a kernel."""
        if "kind" in entry:
            return self._point(entry)
        mode: Any = self.text(entry, "mode")
        if mode not in _MODES:
            raise DataError(f"plan {self.path}: mode {mode!r}; one of: {', '.join(_MODES)}")
        return PlannedProgram(
            target=self.text(entry, "program"), mode=mode, dtype=self.text(entry, "dtype"),
            batch=self._size(entry, "batch"), seq=self._size(entry, "seq"),
            optimizer=None if entry.get("optimizer") is None else self.text(entry, "optimizer"),
        )  # fmt: skip

    def _point(self, entry: Mapping[str, Any]) -> Point:
        kind, dtype, cache = (self.text(entry, name) for name in ("kind", "dtype", "cache"))
        sizes = entry.get("sizes")
        whole = isinstance(sizes, dict) and all(type(v) is int and v >= 0 for v in sizes.values())
        if not whole or cache not in CACHES:
            raise DataError(
                f"plan {self.path}: kernel {kind!r} with sizes {sizes!r}, cache {cache!r}; sizes "
                f"are whole numbers by name, and the cache {' or '.join(CACHES)}"
            )
        assert isinstance(sizes, dict)
        try:
            kind_of(kind).check(sizes, dtype)
        except DataError as error:
            raise DataError(f"plan {self.path}: {error}") from error
        return Point(kind=kind, dtype=dtype, sizes=sizes, cold=cache == "cold")

    def text(self, entry: Mapping[str, Any], name: str) -> str:
        """A text that is not empty."""
        return str(self._value(entry, name, lambda v: isinstance(v, str) and v != ""))

    def number(self, entry: Mapping[str, Any], name: str) -> float:
        """A number from 0."""
        return float(self._value(entry, name, lambda v: type(v) in (int, float) and v >= 0))

    def listed(self, entry: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        """A list of tables."""
        found: list[Mapping[str, Any]] = self._value(
            entry, name, lambda v: isinstance(v, list) and all(isinstance(i, dict) for i in v)
        )
        return found

    def _size(self, entry: Mapping[str, Any], name: str) -> int | None:
        if entry.get(name) is None:
            return None
        return int(self._value(entry, name, lambda v: type(v) is int and v >= 1))

    def _value(self, entry: Mapping[str, Any], name: str, sound: Callable[[Any], bool]) -> Any:
        value = entry.get(name)
        if not sound(value):
            raise DataError(
                f"plan {self.path}: {name} = {value!r:.80}: missing, or of another kind"
            )
        return value
