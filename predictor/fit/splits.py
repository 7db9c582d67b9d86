"""Named splits by group: which rows train, develop and test. Never random rows.

The splits stand in `splits.toml`, `docs/splits.md` tells them. An unseen device takes its
near-twins with it (`predictor.hardware.twins`), in every source. One split is exempt:
`neusight-protocol` is that paper's own, where the A100 80 GB is unseen but its 40 GB twin is seen;
read the L4 beside it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import RecipeError
from predictor.fit.shape_groups import (
    LEFT_OUT,
    SHAPE_DIMS,
    family_groups,
    own_family_groups,
    shape_groups,
)
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.twins import twins
from predictor.traces.sources.registry import SOURCES

if TYPE_CHECKING:
    import pandas as pd

# N rows

PARTS: tuple[str, ...] = ("train", "development", "test", "unused")
_TRAIN, _DEVELOPMENT, _TEST, _UNUSED = range(len(PARTS))
_DEVELOP = "/develop-"

Codes = NDArray[np.int8]
"""(N,) index into `PARTS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """Which groups of one kind test and develop; all others train."""

    by: str
    """`family`, `own_family`, `source`, or a kind of `SHAPE_DIMS`."""
    test: tuple[int | str, ...]
    development: tuple[int | str, ...] = ()
    modulus: int = 1
    """Number of groups that shapes are hashed to."""

    def codes(self, rows: pd.DataFrame, table: str) -> Codes:
        """Part of every row by this rule alone."""
        out = np.full(len(rows), _TRAIN, dtype=np.int8)
        if self.by == "source":
            out[rows["source"].isin(self.development).to_numpy()] = _DEVELOPMENT
            out[rows["source"].isin(self.test).to_numpy()] = _TEST
            return out
        if self.by in SHAPE_DIMS and table == "steps":
            return np.full(len(rows), _UNUSED, dtype=np.int8)
        if self.by == "family" and table == "kernels":
            return out
        if self.by == "family":
            groups = family_groups(rows)
        elif self.by == "own_family":
            groups = own_family_groups(rows)
        else:
            groups = shape_groups(rows, self.by, self.modulus)
        out[np.isin(groups, self.development)] = _DEVELOPMENT
        out[np.isin(groups, self.test)] = _TEST
        out[groups == LEFT_OUT] = _UNUSED
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Devices by part, and rules by other groups. A device in no part is not used."""

    name: str
    train: frozenset[str]
    test: frozenset[str]
    """Unseen devices that have rows."""
    backward_factors: frozenset[str]
    """Devices whose backward-to-forward ratios may be used, beyond the training devices."""
    development: frozenset[str] = frozenset()
    """Devices held out of training to choose by; see `developments`."""
    rules: tuple[GroupRule, ...] = ()
    """Rules by other groups than devices."""
    by_device: bool = False
    """Whether devices are held out for the test: a row must then be of one to test."""

    def part(self, device: str) -> str:
        """Part of a device by itself."""
        for part in ("train", "development", "test"):
            if device in getattr(self, part):
                return part
        return "unused"

    def parts(self, rows: pd.DataFrame, table: str) -> NDArray[np.str_]:
        """(N,) part of every row, a name of `PARTS`.

        A row trains when all rules and its device do, and tests when all that hold something out
        do. It develops when some do and the others train. What one trains and another tests is in
        no part.

        Args:
            rows: kernel or step rows.
            table: `kernels` or `steps`.
        """
        each = [rule.codes(rows, table) for rule in self.rules]
        device = self._device_codes(rows)
        if self.by_device or not self.rules:
            each.append(device)
        else:
            held = np.where(device == _DEVELOPMENT, _DEVELOPMENT, _UNUSED)
            each = [
                np.where(device == _TRAIN, codes, np.where(codes <= _DEVELOPMENT, held, _UNUSED))
                for codes in each
            ]
        same = np.logical_and.reduce([codes == each[0] for codes in each])
        mild = np.logical_and.reduce([codes <= _DEVELOPMENT for codes in each])
        return np.array(PARTS)[np.where(same, each[0], np.where(mild, _DEVELOPMENT, _UNUSED))]

    def _device_codes(self, rows: pd.DataFrame) -> Codes:
        import pandas as pd

        code, names = pd.factorize(rows["device"])
        parts = [PARTS.index(self.part(name)) for name in names]
        return np.array(parts, dtype=np.int8)[code]

    def developments(self) -> tuple[Split, ...]:
        """Splits to choose by, all of which have a development part.

        This one; where it has none itself, one for each group of twins that trains, without it.
        """
        if self.development or any(rule.development for rule in self.rules):
            return (self,)
        return tuple(self.without(group[0]) for group in device_groups(self.train))

    def without(self, device: str) -> Split:
        """The split whose development part is a training device and its twins.

        Raises:
            RecipeError: the device does not train.
        """
        if device not in self.train:
            raise RecipeError(
                f"split {self.name!r} does not train on {device!r} and cannot leave it out; it "
                f"trains on {', '.join(sorted(self.train)) or 'nothing'}"
            )
        held = self.train & (twins(device) | {device})
        return replace(
            self, name=f"{self.name}{_DEVELOP}{device}", train=self.train - held,
            backward_factors=self.backward_factors - held, development=held,
        )  # fmt: skip


def device_split(name: str, devices: Iterable[str], *, partial: bool = False) -> Split:
    """The split `name` over the devices present in the data.

    `NAME/develop-DEVICE` is the split `NAME` that develops on a training device and its twins.

    Args:
        name: a split of `splits.toml`.
        devices: devices with rows.
        partial: whether the data may lack the unseen device.

    Raises:
        RecipeError: unknown name, or no rows of the unseen device.
    """
    present = frozenset(devices)
    base, develop, held = name.partition(_DEVELOP)
    table, asked = _find(base)
    by_device = table.get("device")
    rules = tuple(_rule(by, t, asked) for by, t in table.items() if by != "device")
    split = Split(name=base, train=present, test=frozenset(), backward_factors=present, rules=rules)
    if by_device is not None:
        split = _hold_out(split, by_device, asked, partial)
    return split.without(held) if develop else split


def check_split(name: str) -> None:
    """Refuse the name of no split, before any data is read.

    Raises:
        RecipeError: unknown name. Whether the data hold an unseen device, `device_split` tells.
    """
    _find(name.partition(_DEVELOP)[0])


def split_names() -> tuple[str, ...]:
    """Names of all splits, with `<device>` and `<source>` where one is asked for."""
    return tuple(_tables())


def _find(name: str) -> tuple[Mapping[str, Any], str]:
    """Table of a split, and the device or source that it is asked for."""
    tables = _tables()
    if name in tables:
        return tables[name], ""
    patterns = sorted((n for n in tables if "<" in n), key=len, reverse=True)
    for pattern in patterns:
        head = pattern.partition("<")[0]
        asked = name.removeprefix(head)
        if name.startswith(head):
            if "<source>" in pattern and asked not in SOURCES:
                raise RecipeError(
                    f"split {name!r}: no source {asked!r}; known: {', '.join(SOURCES)}"
                )
            return tables[pattern], asked
    raise RecipeError(f"unknown split {name!r}; known: {', '.join(tables)}")


def _rule(by: str, table: Mapping[str, Any], asked: str) -> GroupRule:
    test = _asked_for(table["test"], asked)
    development = tuple(g for g in table["development"] if g not in test)
    return GroupRule(
        by=by, test=test, modulus=table.get("modulus", 1),
        development=development[:1] if by == "source" else development,
    )  # fmt: skip


def _hold_out(split: Split, table: Mapping[str, Any], asked: str, partial: bool) -> Split:
    """`split` with devices held out."""
    present, test = split.train, frozenset(map(str, _asked_for(table["test"], asked)))
    lacking = "<device>" in table["test"] and asked not in present
    if lacking and not (partial and asked in load_catalogue()):
        raise RecipeError(
            f"split {split.name!r}: no rows of device {asked!r}; present: "
            f"{', '.join(sorted(present))}"
        )
    unseen = frozenset().union(*(twins(d) | {d} for d in test))
    train = present & frozenset(table["train"]) if "train" in table else present - unseen
    factors = present & frozenset(table.get("backward_factors", ())) if "train" in table else train
    return replace(
        split, train=train, test=present & test, backward_factors=factors, by_device=True
    )  # fmt: skip


def _asked_for(groups: Sequence[int | str], asked: str) -> tuple[int | str, ...]:
    return tuple(asked if str(group).startswith("<") else group for group in groups)


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files("predictor.fit") / "splits.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def device_groups(devices: Iterable[str]) -> list[tuple[str, ...]]:
    """Devices grouped with their twins: the units of device cross-validation."""
    left, groups = sorted(set(devices)), []
    while left:
        group = tuple(d for d in left if d == left[0] or d in twins(left[0]))
        groups.append(group)
        left = [d for d in left if d not in group]
    return groups
