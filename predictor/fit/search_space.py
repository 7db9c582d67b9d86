"""Which settings a search may change: the `[tune]` section of a recipe, or a default set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from predictor.errors import RecipeError

if TYPE_CHECKING:
    from optuna.trial import Trial

    from predictor.fit.recipe import Recipe

Number = Annotated[float, Field(allow_inf_nan=False)]
Value = bool | int | float | str
SECTIONS: tuple[str, ...] = ("network", "optimizer", "loss")
"""Sections whose settings a search may change: what decides a fit, not its data."""
CHOICES: Mapping[str, tuple[int, ...]] = {
    "network.hidden": (48, 96, 160),
    "network.depth": (1, 2, 3),
}
"""Sizes that are tried where a recipe has no `[tune]`."""


class Range(BaseModel):
    """Numbers from `low` to `high`; whole ones where the setting is whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: Number
    high: Number
    log: bool = False
    """Whether factors count, not differences: for rates over several decades."""

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log = true needs low above 0, not {self.low:g}")
        return self

    def ends(self) -> tuple[Value, ...]:
        """What must be allowed values of the setting."""
        return (_whole(self.low), _whole(self.high))


def _dimension(value: Any) -> Range | tuple[Value, ...]:
    if isinstance(value, Range):
        return value
    if isinstance(value, Mapping):
        try:
            return Range.model_validate(value)
        except ValidationError as error:
            raise ValueError(_first(error)) from error
    if isinstance(value, list | tuple) and len({repr(v) for v in value}) == len(value) > 1:
        return tuple(value)
    raise ValueError(
        "write { low = 1e-4, high = 1e-2, log = true }, or a list of two different values or more"
    )


Dimension = Annotated[Range | tuple[Value, ...], BeforeValidator(_dimension)]


def _flat(values: Any) -> Any:
    """`network.hidden = …` and `"network.hidden" = …` are the same in TOML files of people."""
    if not isinstance(values, Mapping):
        return values
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in SECTIONS and isinstance(value, Mapping):
            found |= {f"{key}.{name}": child for name, child in value.items()}
        else:
            found[key] = value
    return found


Space = Annotated[dict[str, Dimension], BeforeValidator(_flat)]
"""Ranges and choices by `section.name`."""


def check_space(recipe: Recipe, space: Mapping[str, Dimension]) -> None:
    """Every setting is one of the recipe's, and may take every value at its ends.

    Raises:
        ValueError: an unknown setting, or a value that it cannot have.
    """
    for key, dimension in space.items():
        section, _, name = key.partition(".")
        part = getattr(recipe, section) if section in SECTIONS else None
        if part is None or name not in type(part).model_fields:
            known = ", ".join(
                f"{s}.{n}" for s in SECTIONS for n in type(getattr(recipe, s)).model_fields
            )
            raise ValueError(f"tune: no setting {key!r} to search; known: {known}")
        for value in dimension.ends() if isinstance(dimension, Range) else dimension:
            try:
                type(part).model_validate({**part.model_dump(), name: value})
            except ValidationError as error:
                raise ValueError(f"tune: {key}: {_first(error)} (got {value!r})") from error


def space_of(recipe: Recipe) -> dict[str, Dimension]:
    """The recipe's `[tune]`, or the default set around its own values.

    The recipe's own settings are always among those tried: choices take them in.

    Raises:
        RecipeError: a range of `[tune]` leaves the recipe's own value out.
    """
    found: dict[str, Dimension] = {}
    for key, dimension in (recipe.tune or _default_space(recipe)).items():
        own = setting(recipe, key)
        if isinstance(dimension, Range):
            if not dimension.low <= float(own) <= dimension.high:
                raise RecipeError(
                    f"tune: {key}: the recipe's own {own} is not within {dimension.low:g} to "
                    f"{dimension.high:g}: widen the range, or set the recipe's value inside it"
                )
            found[key] = dimension
        else:
            found[key] = dimension if own in dimension else (own, *dimension)
    return found


def _default_space(recipe: Recipe) -> dict[str, Dimension]:
    o = recipe.optimizer
    found: dict[str, Dimension] = {
        "optimizer.learning_rate": Range(
            low=o.learning_rate / 10, high=o.learning_rate * 4, log=True
        ),
        "optimizer.epochs": tuple(sorted({max(o.epochs // 2, 1), o.epochs, o.epochs * 2})),
        **CHOICES,
    }
    if o.weight_decay > 0:
        found["optimizer.weight_decay"] = Range(
            low=min(o.weight_decay, 1e-5), high=max(o.weight_decay, 0.3), log=True
        )
    return found


def setting(recipe: Recipe, key: str) -> Any:
    """A recipe's own value of `section.name`."""
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)


def own_settings(recipe: Recipe, space: Mapping[str, Dimension]) -> dict[str, Value]:
    """The recipe's own values of what is searched."""
    return {key: setting(recipe, key) for key in space}


def suggest(trial: Trial, recipe: Recipe, space: Mapping[str, Dimension]) -> dict[str, Value]:
    """A value for every setting of the space, chosen by the study's sampler."""
    found: dict[str, Value] = {}
    for key, dimension in space.items():
        if not isinstance(dimension, Range):
            chosen = trial.suggest_categorical(key, list(dimension))
            assert chosen is not None  # optuna allows it, a recipe does not
            found[key] = chosen
        elif isinstance(setting(recipe, key), int):
            low, high = int(dimension.low), int(dimension.high)
            found[key] = trial.suggest_int(key, low, high, log=dimension.log)
        else:
            found[key] = trial.suggest_float(key, dimension.low, dimension.high, log=dimension.log)
    return found


def with_settings(recipe: Recipe, settings: Mapping[str, Value]) -> Recipe:
    """The recipe with other values, by `section.name`; checked like a file."""
    from predictor.fit.recipe import recipe_of

    values = recipe.model_dump()
    for key, value in settings.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    return recipe_of(values, "tune")


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    return f"{place}: {text}" if place and first["type"] != "value_error" else text


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value
