"""Named splits by group: which devices train, develop and test. Never random rows.

An unseen device takes its near-twins with it (`predictor.hardware.twins`), in every source. One
split is exempt: `neusight-protocol` is that paper's own, where the A100 80 GB is unseen but its
40 GB twin is seen; read the L4 beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from predictor.errors import RecipeError
from predictor.hardware.twins import twins

PROTOCOL_TRAIN: tuple[str, ...] = (
    "nvidia-tesla-p4", "nvidia-p100-pcie-16gb", "nvidia-v100-pcie-32gb", "nvidia-t4",
    "nvidia-a100-pcie-40gb",
)  # fmt: skip
PROTOCOL_TEST: tuple[str, ...] = ("nvidia-a100-pcie-80gb", "nvidia-l4")
BACKWARD_FACTOR_DEVICES: tuple[str, ...] = ("nvidia-v100-pcie-32gb", "amd-mi100", "amd-mi210")
"""Devices whose in-step backward rows may fit backward factors in the protocol."""

SPLITS: tuple[str, ...] = ("all", "neusight-protocol", "unseen-<device id>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Devices by part. A device in no part is not used."""

    name: str
    train: frozenset[str]
    test: frozenset[str]
    backward_factors: frozenset[str]
    """Devices whose backward-to-forward ratios may be used, beyond the training devices."""

    def part(self, device: str) -> str:
        """`train`, `test` or `unused`."""
        if device in self.train:
            return "train"
        return "test" if device in self.test else "unused"


def device_split(name: str, devices: Iterable[str]) -> Split:
    """The split `name` over the devices present in the data.

    Raises:
        RecipeError: unknown name, or a part that would be empty where it must not be.
    """
    present = frozenset(devices)
    if name == "all":
        return Split(name=name, train=present, test=frozenset(), backward_factors=present)
    if name == "neusight-protocol":
        return Split(
            name=name,
            train=present & frozenset(PROTOCOL_TRAIN),
            test=present & frozenset(PROTOCOL_TEST),
            backward_factors=present & frozenset(BACKWARD_FACTOR_DEVICES),
        )
    if name.startswith("unseen-"):
        device = name.removeprefix("unseen-")
        return hold_out(device, present, name=name)
    raise RecipeError(f"unknown split {name!r}; known: {', '.join(SPLITS)}")


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
