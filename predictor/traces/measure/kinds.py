"""Kinds of cases by name: what a grid can ask for, and the sizes that each kind takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from predictor.errors import DataError
from predictor.traces.measure.cases import Case, Operand

Sizes: TypeAlias = Mapping[str, int]
Build: TypeAlias = Callable[[Sizes, str], Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One line of the table of kinds."""

    name: str
    sizes: Mapping[str, int | None]
    """Names of its sizes with their defaults; None must be given."""
    dtypes: tuple[str, ...]
    build: Build
    devices: tuple[str, ...] = ("cpu", "cuda")

    def check(self, sizes: Sizes, dtype: str) -> None:
        """Refuse sizes and dtypes that the kind has not, and sizes that it lacks.

        Raises:
            DataError: a size or the dtype is not one of the kind's, or a size is missing.
        """
        unknown = sorted(set(sizes) - set(self.sizes))
        if unknown:
            raise DataError(
                f"kind {self.name!r} has no size {unknown[0]!r}; it has {', '.join(self.sizes)}"
            )
        missing = [n for n, default in self.sizes.items() if default is None and n not in sizes]
        if missing:
            raise DataError(f"kind {self.name!r} needs size {missing[0]!r}")
        if dtype not in self.dtypes:
            raise DataError(
                f"kind {self.name!r} does not run in {dtype!r}; in {', '.join(self.dtypes)}"
            )

    def case(self, sizes: Sizes, dtype: str, device: str = "cpu") -> Case:
        """The case of some sizes on `cpu` or `cuda`.

        Raises:
            DataError: as `check`.
        """
        self.check(sizes, dtype)
        defaults = {n: d for n, d in self.sizes.items() if d is not None}
        return self.build({**defaults, **sizes, ON_CUDA: int(device == "cuda")}, dtype)


ON_CUDA = "on_cuda"
"""What a builder finds among the sizes: 1 where the case will run on a CUDA device."""
FLOATS = ("fp32", "bf16", "fp16")
_KINDS: dict[str, Kind] = {}


def kind(
    name: str,
    sizes: Mapping[str, int | None],
    *,
    dtypes: tuple[str, ...] = FLOATS,
    devices: tuple[str, ...] = ("cpu", "cuda"),
) -> Callable[[Build], Build]:
    """Put a builder into the table.

    Args:
        name: what a grid calls it.
        sizes: names of its sizes with their defaults; None where there is none.
        dtypes: in which it runs.
        devices: on which it runs.
    """

    def register(build: Build) -> Build:
        assert name not in _KINDS, name
        _KINDS[name] = Kind(name=name, sizes=sizes, dtypes=dtypes, build=build, devices=devices)
        return build

    return register


def kinds() -> Mapping[str, Kind]:
    """All kinds by name."""
    from predictor.traces.measure import (  # noqa: F401 - each fills the table
        kinds_matrix,
        kinds_movement,
        kinds_norm,
        kinds_streaming,
    )

    return _KINDS


def kind_of(name: str) -> Kind:
    """The kind of a name.

    Raises:
        DataError: there is none.
    """
    known = kinds()
    if name not in known:
        raise DataError(f"no kind of kernel {name!r}; known: {', '.join(known)}")
    return known[name]


def statistic_dtype(s: Sizes, dtype: str) -> str:
    """Dtype of the mean and variance that a norm keeps: CUDA keeps them in fp32."""
    return "fp32" if s[ON_CUDA] else dtype


def tensor(dtype: str, *shape: int) -> Operand:
    """A dense operand of normal numbers."""
    return Operand(shape=shape, dtype=dtype)
