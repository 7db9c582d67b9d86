"""Recipes: one TOML file to a frozen, strict configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from predictor.errors import RecipeError
from predictor.features.columns import COLUMNS
from predictor.fit.search_space import Space, check_space
from predictor.graph.ops import OPS

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ReleaseName = Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$")]


KernelColumn = Literal[
    "device", "op", "dtype", "scheme", "framework", "framework_version", "library", "execution",
]  # fmt: skip
"""Columns of kernel rows that a recipe may choose rows by."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, field: ValidationInfo) -> object:
        """Refuse `epochs = true`, which would pass for 1."""
        assert field.field_name is not None
        if isinstance(value, bool) and cls.model_fields[field.field_name].annotation is not bool:
            raise ValueError("true and false are for switches, not here")
        return value


LEAST_BINS = 256
"""Two for each feature column, and some room."""


class NetworkRecipe(_Strict):
    """Sizes of `predictor.nn.latency_net.LatencyNet`."""

    hidden: Annotated[int, Field(ge=4, le=1024)] = 96
    depth: Annotated[int, Field(ge=1, le=8)] = 2
    token_width: Annotated[int, Field(ge=1, le=64)] = 8
    message_layers: Annotated[int, Field(ge=0, le=8)] = 2
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    members: Annotated[int, Field(ge=1, le=16)] = 1
    """Networks trained from different seeds; their log ratios are averaged."""
    bins: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Places for bins of all columns; 0 leaves the bins out, a few hundred are needed else."""
    tiled_prior: bool = False
    """Whether the ratio starts from the tile model's."""
    unread: tuple[str, ...] = ()
    """Feature columns that the network does not read."""
    streamed_prior: bool = False
    """Whether the ratio of streaming kernels starts from what the cache leaves of their traffic."""
    class_encoders: bool = False
    """Whether products, experts, attention, convolutions and the rest have layers of their own."""
    hide_context: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the kernel rows of a batch whose library and quantisation are hidden."""
    device_jitter: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Spread of the shifts of each device's columns in training, drawn anew for every batch; where
    some rows are shown as of an unknown device (`hide_device`), of those alone."""
    device_heads: bool = False
    """Whether a known device reads the hidden states with weights of its own as well."""
    hide_device: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the kernel rows of a batch that are shown as of an unknown device."""
    correction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Largest |log| of a learned factor on the time of whole steps; 0 leaves it out."""
    ratio_limit: Annotated[float, Field(ge=0.1, le=10)] = 3.0
    """Largest log of time over its prior that the network may claim."""

    @field_validator("unread")
    @classmethod
    def _columns(cls, unread: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse names of no column."""
        unknown = [name for name in unread if name not in COLUMNS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no feature column")
        return unread

    @field_validator("bins")
    @classmethod
    def _enough(cls, bins: int) -> int:
        """Refuse fewer bins than every column could need."""
        if 0 < bins < LEAST_BINS:
            raise ValueError(f"0, or at least {LEAST_BINS}")
        return bins


class OptimizerRecipe(_Strict):
    """AdamW with a one-cycle schedule."""

    epochs: Annotated[int, Field(ge=1, le=1000)] = 6
    batch_size: Annotated[int, Field(ge=16, le=1_000_000)] = 4096
    """Kernel rows a batch."""
    model_batch_size: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Rows of whole models a batch."""
    model_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the rows of whole models that an epoch sees, drawn anew each."""
    learning_rate: Positive = 3e-3
    weight_decay: Weight = 1e-4
    warmup_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    step_every: Annotated[int, Field(ge=1)] = 2
    """Every how many kernel batches the step graphs are seen."""


class LossRecipe(_Strict):
    """Weights of the terms."""

    kernel: Weight = 1.0
    """Kernels measured alone."""
    op: Weight = 0.5
    step: Weight = 0.5
    model: Weight = 1.0
    """Whole models of a graph bank."""
    backward_ratio: Weight = 0.3
    device_effect: Weight = 0.003
    token_bias: Weight = 0.02
    host: Weight = 0.01
    correction: Weight = 0.01
    """Prior at no correction of whole steps."""


class CalibrationRecipe(_Strict):
    """Conformal calibration by grouped cross-validation."""

    level: Annotated[float, Field(gt=0.5, lt=1)] = 0.9
    device_folds: bool = True
    model_folds: bool = True
    most_folds: Annotated[int, Field(ge=0)] = 0
    """Folds of a kind at most: groups are held out several at a time; 0 holds out each alone."""
    epochs: Annotated[int, Field(ge=0, le=1000)] = 0
    """Epochs of a fold's fit, which has one network then; 0 fits as the release is."""


class Recipe(_Strict):
    """Everything that decides a training run, next to the data."""

    name: ReleaseName
    sources: Annotated[tuple[str, ...], Field(min_length=1)] = ("neusight",)
    split: str = "all"
    parts: Annotated[tuple[Literal["train", "development"], ...], Field(min_length=1)] = ("train",)
    """Parts of the split that are trained on. `development` too, once choices are made on it."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    threads: Annotated[int, Field(ge=1, le=256)] = 2
    sample_rows: Annotated[int, Field(ge=0)] = 0
    """Kernel rows that are read of a source that does not fit in memory, at most; 0 leaves it to
    the source."""
    rows_per_group: Annotated[int, Field(ge=0)] = 0
    """Kernel rows of one source, device, op, dtype, scheme, framework that are trained on, at most
    (drawn by a hash of their ids); 0 takes all."""
    models_per_group: Annotated[int, Field(ge=0)] = 0
    """Whole models of one source, device, mode, execution, release, dtype and layout that are
    trained on, at most (drawn likewise); 0 takes all."""
    exclude_flags: tuple[str, ...] = ("throttled", "op_sum_above_step")
    only: dict[KernelColumn, tuple[str, ...]] = {}
    """Values of columns of the kernel rows that train; rows of other values are left out."""
    network: NetworkRecipe = NetworkRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    loss: LossRecipe = LossRecipe()
    calibration: CalibrationRecipe = CalibrationRecipe()
    tune: Space = {}
    """What `predictor tune` may change: `section.name` to a range or to choices. Trains nothing."""

    @field_validator("sources")
    @classmethod
    def _once(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse a source given twice: its rows would count twice."""
        if len(set(sources)) < len(sources):
            raise ValueError("each source once")
        return sources

    @field_validator("only")
    @classmethod
    def _some(
        cls, only: dict[KernelColumn, tuple[str, ...]]
    ) -> dict[KernelColumn, tuple[str, ...]]:
        """Refuse a choice that no row can meet."""
        for column, values in only.items():
            if not values:
                raise ValueError(f"only.{column} names no value: leave it out to take all")
        unknown = [op for op in only.get("op", ()) if op not in OPS]
        if unknown:
            raise ValueError(f"only.op: no op {unknown[0]!r} (docs/ops.md lists them)")
        return only

    @model_validator(mode="after")
    def _searchable(self) -> Recipe:
        check_space(self, self.tune)
        return self

    def resolved(self) -> dict[str, Any]:
        """Every value that decides a training run, as plain values."""
        return self.model_dump(mode="json", exclude={"tune"})


def load_recipe(path: Path, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a recipe; `overrides` are `section.key` to text (as TOML values, or plain strings).

    Raises:
        RecipeError: not TOML, an unknown key, or a value out of range: file, key, allowed.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: not a readable TOML file ({error})") from error
    for key, text in (overrides or {}).items():
        _set(values, key, text, path)
    return recipe_of(values, str(path))


def recipe_of(values: object, where: str) -> Recipe:
    """The recipe that plain values stand for; `where` names their origin in errors.

    Raises:
        RecipeError: an unknown key, or a value out of range.
    """
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(_fields(first["loc"][:-1]))
            raise RecipeError(f"{where}: unknown key {key!r}; known there: {known}") from error
        text = first["msg"].removeprefix("Value error, ")
        if not key:  # of the recipe as a whole: the message says what and where
            raise RecipeError(f"{where}: {text}") from error
        raise RecipeError(f"{where}: {key}: {text} (got {first['input']!r})") from error


def _fields(sections: Sequence[int | str]) -> list[str]:
    """Keys of a section of the recipe."""
    model: type[BaseModel] = Recipe
    for section in sections:
        model = type(model.model_fields[str(section)].default)
    return list(model.model_fields)


def _set(values: dict[str, Any], key: str, text: str, path: Path) -> None:
    *sections, last = key.split(".")
    if not all((*sections, last)):
        raise RecipeError(f"{path}: --set {key}: write the key as section.name, or name")
    node = values
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise RecipeError(f"{path}: --set {key}: {section!r} is a value, not a section")
        node = child
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    node[last] = parsed["value"] if set(parsed) == {"value"} else text
