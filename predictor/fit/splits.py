"""Named splits by group: which rows train, develop and test. Never random rows.

An unseen device takes its near-twins with it (`predictor.hardware.twins`), in every source. One
split is exempt: `neusight-protocol` is that paper's own, where the A100 80 GB is unseen but its
40 GB twin is seen; read the L4 beside it. Splits by device develop by leaving one group of twins
out of the training devices at a time; the others have a development part (`splits.toml`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import RecipeError
from predictor.fit.shape_groups import LEFT_OUT, family_groups, shape_groups
from predictor.hardware.twins import twins

if TYPE_CHECKING:
    import pandas as pd

PROTOCOL_TRAIN: tuple[str, ...] = (
    "nvidia-tesla-p4", "nvidia-p100-pcie-16gb", "nvidia-v100-pcie-32gb", "nvidia-t4",
    "nvidia-a100-pcie-40gb",
)  # fmt: skip
PROTOCOL_TEST: tuple[str, ...] = ("nvidia-a100-pcie-80gb", "nvidia-l4")
BACKWARD_FACTOR_DEVICES: tuple[str, ...] = ("nvidia-v100-pcie-32gb", "amd-mi100", "amd-mi210")
"""Devices whose in-step backward rows may fit backward factors in the protocol."""

PARTS: tuple[str, ...] = ("train", "development", "test", "unused")
SPLITS: tuple[str, ...] = (
    "all", "neusight-protocol", "unseen-<device id>", "timm-families",
    "timm-families-unseen-<device id>", "unseen-nk", "unseen-attention-shape", "unseen-moe-shape",
    "unseen-source-<name>",
)  # fmt: skip
_FAMILIES = "timm-families"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """Which groups of one kind test and develop; all others train."""

    by: str
    """`family`, a kind of `SHAPES`, or `source`."""
    test: tuple[int | str, ...]
    development: tuple[int | str, ...] = ()
    modulus: int = 1

    def parts(self, rows: pd.DataFrame, table: str) -> NDArray[np.str_]:
        """Part of every row by this rule alone."""
        out = np.full(len(rows), "train", dtype="<U11")
        if self.by == "source":
            out[rows["source"].isin(self.test).to_numpy()] = "test"
            return out
        if (self.by == "family") != (table == "steps"):
            return out
        groups = (
            family_groups(rows) if self.by == "family"
            else shape_groups(rows, self.by, self.modulus)
        )  # fmt: skip
        out[np.isin(groups, self.development)] = "development"
        out[np.isin(groups, self.test)] = "test"
        out[groups == LEFT_OUT] = "unused"
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Devices by part, and rules by other groups. A device in no part is not used."""

    name: str
    train: frozenset[str]
    test: frozenset[str]
    """Unseen devices; empty where the split is not by device."""
    backward_factors: frozenset[str]
    """Devices whose backward-to-forward ratios may be used, beyond the training devices."""
    rules: tuple[GroupRule, ...] = ()

    def part(self, device: str) -> str:
        """`train`, `test` or `unused`, by device alone."""
        if device in self.train:
            return "train"
        return "test" if device in self.test else "unused"

    def parts(self, rows: pd.DataFrame, table: str) -> NDArray[np.str_]:
        """Part of every row: where all rules say so.

        A row tests when every rule that holds something out says test, trains when all say train;
        it develops when some rule says so and no other speaks against it. What some rules train
        and others test is in no part.

        Args:
            rows: kernel or step rows.
            table: `kernels` or `steps`.
        """
        each = [rule.parts(rows, table) for rule in self.rules]
        by_device = rows["device"].map({d: self.part(d) for d in rows["device"].unique()})
        if self.test or not each:
            each.append(by_device.to_numpy(dtype="<U11"))
        else:
            each = [np.where(by_device == "unused", "unused", labels) for labels in each]
        same = np.logical_and.reduce([labels == each[0] for labels in each])
        mild = np.logical_and.reduce([np.isin(x, ("train", "development")) for x in each])
        mixed = np.where(mild, "development", "unused")
        return np.asarray(np.where(same, each[0], mixed))


def device_split(name: str, devices: Iterable[str]) -> Split:
    """The split `name` over the devices present in the data.

    Raises:
        RecipeError: unknown name, or a part that would be empty where it must not be.
    """
    present = frozenset(devices)
    whole = Split(name=name, train=present, test=frozenset(), backward_factors=present)
    rules = _stored_rules()
    if name == "all":
        return whole
    if name in rules:
        return replace(whole, rules=(rules[name],))
    if name == "neusight-protocol":
        return Split(
            name=name,
            train=present & frozenset(PROTOCOL_TRAIN),
            test=present & frozenset(PROTOCOL_TEST),
            backward_factors=present & frozenset(BACKWARD_FACTOR_DEVICES),
        )
    if name.startswith("unseen-source-"):
        rule = GroupRule(by="source", test=(name.removeprefix("unseen-source-"),))
        return replace(whole, rules=(rule,))
    if name.startswith(f"{_FAMILIES}-unseen-"):
        device = name.removeprefix(f"{_FAMILIES}-unseen-")
        return replace(hold_out(device, present, name=name), rules=(rules[_FAMILIES],))
    if name.startswith("unseen-"):
        device = name.removeprefix("unseen-")
        return hold_out(device, present, name=name)
    raise RecipeError(f"unknown split {name!r}; known: {', '.join(SPLITS)}")


@cache
def _stored_rules() -> Mapping[str, GroupRule]:
    text = (resources.files("predictor.fit") / "splits.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return {
        name: GroupRule(
            by=table["by"], test=tuple(table["test"]), development=tuple(table["development"]),
            modulus=table.get("modulus", 1),
        )
        for name, table in tables.items()
    }  # fmt: skip


def hold_out(device: str, devices: Iterable[str], *, name: str | None = None) -> Split:
    """All devices but `device` and its twins train; `device` tests.

    Raises:
        RecipeError: the device has no rows.
    """
    present = frozenset(devices)
    if device not in present:
        raise RecipeError(
            f"split {name or device!r}: no rows of device {device!r}; present: "
            f"{', '.join(sorted(present))}"
        )
    train = present - twins(device) - {device}
    return Split(
        name=name or f"unseen-{device}", train=train, test=frozenset({device}),
        backward_factors=train,
    )  # fmt: skip


def device_groups(devices: Iterable[str]) -> list[tuple[str, ...]]:
    """Devices grouped with their twins: the units of device cross-validation."""
    left, groups = sorted(set(devices)), []
    while left:
        group = tuple(d for d in left if d == left[0] or d in twins(left[0]))
        groups.append(group)
        left = [d for d in left if d not in group]
    return groups
