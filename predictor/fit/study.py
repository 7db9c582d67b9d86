"""What a search found: its trials as a table, and the best one as a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.atomic import replacing_file, write_text
from predictor.fit.recipe import Recipe
from predictor.fit.search_space import Dimension, Value, own_settings, with_settings
from predictor.fit.validation import TARGETS

if TYPE_CHECKING:
    import optuna
    import pandas as pd
    from rich.console import RenderableType

BEST, TRIALS = "best.toml", "trials.csv"
SHOWN = 10
"""Trials in the table on a terminal."""
_STATES: Mapping[str, str] = {"COMPLETE": "finished", "PRUNED": "pruned"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial that ended."""

    number: int
    state: str
    """`finished` or `pruned`."""
    error: float | None
    """Over the development groups, a fraction; of a pruned trial where it was cut short."""
    targets: Mapping[str, float]
    """The same by `step`, `op` and `kernel`."""
    seconds: float
    settings: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Trials of a search, best first; pruned ones last."""

    recipe: Recipe
    rows: tuple[TrialRow, ...]
    own: Mapping[str, Value]
    """The recipe's own values of what was searched."""

    @property
    def finished(self) -> tuple[TrialRow, ...]:
        """Trials that were not cut short."""
        return tuple(row for row in self.rows if row.state == "finished")

    @property
    def best(self) -> TrialRow | None:
        """The trial with the smallest error."""
        return self.finished[0] if self.finished else None

    @property
    def as_given(self) -> TrialRow | None:
        """The trial that has the recipe's own settings."""
        return next((row for row in self.finished if row.settings == self.own), None)

    def best_recipe(self) -> Recipe | None:
        """The recipe with the best trial's settings, under a name of its own."""
        if self.best is None:
            return None
        tuned = with_settings(self.recipe, self.best.settings)
        return tuned.model_copy(update={"name": f"{self.recipe.name}-tuned", "tune": {}})

    def table(self) -> pd.DataFrame:
        """Every trial that ended, a column a setting."""
        import pandas as pd

        return pd.DataFrame([
            {
                "trial": row.number, "state": row.state, "error": row.error, **row.targets,
                "seconds": round(row.seconds, 1), **row.settings,
            }
            for row in sorted(self.rows, key=lambda row: row.number)
        ])  # fmt: skip

    def view(self) -> RenderableType:
        """The best trials, and the recipe's own settings among them, for a terminal."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        targets = [t for t in TARGETS if any(t in row.targets for row in self.finished)]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("trial", "error", *(targets if len(targets) > 1 else ()), "seconds"):
            table.add_column(name, justify="right")
        for key in self.own:
            table.add_column(key.partition(".")[2])
        for row in self._shown():
            own = "*" if row.settings == self.own else ""
            table.add_row(
                f"{row.number}{own}", _percent(row.error),
                *([_percent(row.targets.get(t)) for t in targets] if len(targets) > 1 else []),
                f"{row.seconds:.0f}", *(_short(row.settings[key]) for key in self.own),
            )  # fmt: skip
        pruned = len(self.rows) - len(self.finished)
        title = (
            f"{self.recipe.name}, split {self.recipe.split}: {len(self.finished)} finished trials, "
            f"{pruned} pruned; by how many percent a time of the development groups is off"
        )
        legend = Text(
            "error: on geometric average, over targets and groups. *: the recipe's own settings"
        )
        return Group(Text(title, style="bold"), table, legend)

    def _shown(self) -> list[TrialRow]:
        rows = list(self.finished[:SHOWN])
        if self.as_given is not None and self.as_given not in rows:
            rows.append(self.as_given)
        return rows

    def to_toml(self) -> str | None:
        """The best trial as a recipe file."""
        recipe, best, given = self.best_recipe(), self.best, self.as_given
        if recipe is None or best is None:
            return None
        own = "" if given is None else f"; the recipe's own settings {_percent(given.error)}%"
        comment = (
            f"# {self.recipe.name} searched: trial {best.number} of {len(self.rows)}, "
            f"{_percent(best.error)}% on the development groups{own}."
        )
        return "\n".join([comment, *toml_lines(recipe.resolved()), ""])


def study_of(search: optuna.Study, recipe: Recipe, space: Mapping[str, Dimension]) -> Study:
    """The trials of a search that ended."""
    rows = []
    for trial in search.get_trials(deepcopy=False):
        if trial.state.name not in _STATES or trial.duration is None:
            continue
        value = trial.value
        if value is None and trial.intermediate_values:
            value = trial.intermediate_values[max(trial.intermediate_values)]
        rows.append(
            TrialRow(
                number=trial.number, state=_STATES[trial.state.name], error=value,
                targets={t: trial.user_attrs[t] for t in TARGETS if t in trial.user_attrs},
                seconds=trial.duration.total_seconds(),
                settings={key: trial.params[key] for key in space},
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (row.state, row.error if row.error is not None else 0.0, row.number))
    return Study(recipe=recipe, rows=tuple(rows), own=own_settings(recipe, space))


def write_study(folder: Path, study: Study) -> None:
    """Write `trials.csv` and, where a trial finished, `best.toml`."""
    with replacing_file(folder / TRIALS) as fresh:
        study.table().to_csv(fresh, index=False)
    text = study.to_toml()
    if text is not None:
        write_text(folder / BEST, text)


def toml_lines(values: Mapping[str, Any]) -> list[str]:
    """Plain values as TOML: numbers, texts and lists first, then a section a mapping."""
    lines = [f"{key} = {_toml(v)}" for key, v in values.items() if not isinstance(v, Mapping)]
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *toml_lines(value)]
    return lines


def _toml(value: object) -> str:
    """JSON's texts, finite numbers, booleans and lists of them are TOML's too."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _short(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
