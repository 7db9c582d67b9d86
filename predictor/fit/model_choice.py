"""Which kind of model these data carry: all kinds compared on groups that none has seen.

Few rows of one device hold a few numbers, some hundreds hold boosted trees, many hold a network. No
rule of thumb decides: each kind is fitted on the same rows and judged on the same groups held out
(`predictor.fit.validation`). Where two are as good, the simpler one is taken.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from predictor.errors import DataError
from predictor.fit.candidates import KINDS, fit_model
from predictor.fit.metrics import typical_factor
from predictor.fit.recipe import Recipe
from predictor.fit.splits import Split
from predictor.fit.validation import (
    TARGETS,
    DevelopmentFold,
    development_folds,
    errors_by_target,
    held_rows,
    overall,
)
from predictor.nn.latency_net import LatencyNet
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

logger = logging.getLogger(__name__)

AS_GOOD = 1.02
"""An error up to this much larger is as good: the simpler kind wins."""
ALL = "all"
"""Group of an op class: over all folds."""


class _OverBudget(Exception):
    """A comparison would take longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows held out together, and how far off each kind is there."""

    fold: str
    """Group of devices, families or shapes that was held out; `all` for an op class."""
    target: str
    op_class: str
    """Of kernels; empty for a target as a whole."""
    n: int
    errors: Mapping[str, float]
    """By kind (`predictor.fit.metrics.typical_factor`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The winner, and the comparison behind it."""

    winner: str
    errors: Mapping[str, float]
    """Over groups and targets, by kind."""
    left_out: Mapping[str, str]
    """Kinds that were not judged, and why."""
    rows: int
    """Rows that judged."""
    groups: tuple[Group, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def view(self) -> RenderableType:
        """Errors by group, for a terminal."""
        from rich import box
        from rich.console import Group as Lines
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("held out", "target", "op class"):
            table.add_column(name)
        for name in ("n", *self.errors):
            table.add_column(name, justify="right")
        for group in self.groups:
            table.add_row(
                group.fold, group.target, group.op_class or ALL, f"{group.n:,}",
                *(_percent(group.errors[kind]) for kind in self.errors),
            )  # fmt: skip
        table.add_section()
        table.add_row(
            "mean", "", "", f"{self.rows:,}", *(_percent(e) for e in self.errors.values())
        )
        return Lines(
            Text("by how many percent a time is off, on groups held out", style="bold"), table,
            *(Text(f"{kind} left out: {why}") for kind, why in self.left_out.items()),
            Text(f"chosen: {self.winner}"),
        )  # fmt: skip


def choice_of(values: Mapping[str, Any]) -> ModelChoice:
    """What `ModelChoice.to_json` wrote."""
    return ModelChoice(**{**values, "groups": tuple(Group(**g) for g in values["groups"])})


def choose_model(
    recipe: Recipe, data: Imported, split: Split, *, minutes: float | None = None
) -> ModelChoice:
    """Fit and judge every kind, the simplest first.

    Args:
        recipe: settings of the network; what is excluded from all kinds.
        data: all rows of the recipe's sources.
        split: the recipe's; its test part takes no part.
        minutes: for the whole comparison; a kind that would take longer is left out.

    Raises:
        DataError: nothing to hold out, or no kind could be judged.
    """
    folds = development_folds(data, recipe, split)
    fitted = [fold.fit_data(recipe) for fold in folds]
    held = [fold.held_samples(recipe, f.hosts) for fold, f in zip(folds, fitted, strict=True)]
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    found: dict[str, list[pd.DataFrame]] = {}
    left_out: dict[str, str] = {}
    for kind in KINDS:
        start = time.monotonic()
        parts = []
        try:
            for i, samples in enumerate(held):
                if kind == "network":
                    model = fit_model(
                        kind, recipe, fitted[i], None, progress=False,
                        after_epoch=_Watch(recipe, end, len(held) - i),
                    )  # fmt: skip
                else:
                    model = fit_model(kind, recipe, fitted[i], None, progress=False)
                parts.append(held_rows(model, samples))
                if time.monotonic() > end and i + 1 < len(held):
                    raise _OverBudget("the time was up")
        except (DataError, _OverBudget) as error:
            left_out[kind] = str(error)
            logger.info("%s left out: %s", kind, error)
            continue
        found[kind] = parts
        logger.info(
            "%s: %.1f%% in %.0f s", kind, 100 * _error(parts), time.monotonic() - start
        )  # fmt: skip
    if not found:
        why = "; ".join(f"{kind}: {text}" for kind, text in left_out.items())
        raise DataError(f"no kind of model could be judged ({why}); name one with --model")
    return _choice(folds, found, left_out)


class _Watch:
    """Ends a fit whose folds would take longer than what is left."""

    def __init__(self, recipe: Recipe, end: float, folds: int) -> None:
        self.epochs, self.end, self.folds = recipe.optimizer.epochs, end, folds
        self.start = time.monotonic()

    def __call__(self, epoch: int, nets: Sequence[LatencyNet]) -> None:
        now = time.monotonic()
        fold = (now - self.start) / epoch * self.epochs
        needed = fold * self.folds - (now - self.start)
        if now + needed > self.end:
            raise _OverBudget(
                f"its {self.folds} folds take about {fold * self.folds / 60:.1f} minutes, more "
                "than are left"
            )


def _error(parts: Sequence[pd.DataFrame]) -> float:
    return overall([errors_by_target(rows) for rows in parts])


def _choice(
    folds: Sequence[DevelopmentFold],
    found: Mapping[str, Sequence[pd.DataFrame]],
    left_out: Mapping[str, str],
) -> ModelChoice:
    errors = {kind: _error(parts) for kind, parts in found.items()}
    best = min(errors.values())
    groups = [group for i, fold in enumerate(folds) for group in _groups(fold.name, i, found)]
    some = next(iter(found.values()))
    return ModelChoice(
        winner=next(kind for kind, error in errors.items() if error <= AS_GOOD * best),
        errors=errors, left_out=left_out, rows=sum(len(rows) for rows in some),
        groups=(*groups, *_classes(found)),
    )  # fmt: skip


def _groups(fold: str, i: int, found: Mapping[str, Sequence[pd.DataFrame]]) -> list[Group]:
    """One group a target of a fold."""
    by_kind = {kind: parts[i] for kind, parts in found.items()}
    return [g for target in TARGETS if (g := _group(fold, target, "", by_kind)) is not None]


def _classes(found: Mapping[str, Sequence[pd.DataFrame]]) -> list[Group]:
    """One group an op class of kernels, over all folds."""
    import pandas as pd

    by_kind = {kind: pd.concat(parts, ignore_index=True) for kind, parts in found.items()}
    names = sorted(next(iter(by_kind.values()))["op_class"].dropna().unique())
    groups = [_group(ALL, "kernel", str(name), by_kind) for name in names]
    return [group for group in groups if group is not None]


def _group(
    fold: str, target: str, op_class: str, by_kind: Mapping[str, pd.DataFrame]
) -> Group | None:
    errors, n = {}, 0
    for kind, rows in by_kind.items():
        chosen = rows[rows["target"] == target]
        chosen = chosen[chosen["op_class"] == op_class] if op_class else chosen
        n = len(chosen)
        if n:
            errors[kind] = typical_factor(chosen["predicted_us"], chosen["measured_us"])
    return Group(fold=fold, target=target, op_class=op_class, n=n, errors=errors) if n else None


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
