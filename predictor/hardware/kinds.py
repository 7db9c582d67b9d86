"""Kinds of devices by their ids: what a checkpoint has learned from, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from predictor.hardware.catalogue import adopted_devices, load_catalogue

KIND_NAMES: Mapping[str, str] = {"cpu": "CPUs", "gpu": "GPUs", "npu": "NPUs", "tpu": "TPUs"}
"""Plural of each kind, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKinds:
    """Kinds of some devices."""

    known: frozenset[str]
    """Kinds of those that the catalogue, or a device file read with rows, describes."""
    undescribed: tuple[str, ...]
    """Ids of the others: their kind is not known here."""

    @property
    def text(self) -> str:
        """The kinds, then the devices whose kind is not known, as a list in a sentence."""
        words = [KIND_NAMES[kind] for kind in KIND_NAMES if kind in self.known]
        return and_list([*words, *self.undescribed]) or "no device"


def kinds_of(ids: Iterable[str]) -> DeviceKinds:
    """Kinds of devices by id, as the catalogue and the device files read so far tell them."""
    described = {**load_catalogue(), **adopted_devices()}
    wanted = sorted(set(ids))
    return DeviceKinds(
        known=frozenset(described[i].kind for i in wanted if i in described),
        undescribed=tuple(i for i in wanted if i not in described),
    )


def and_list(words: Collection[str]) -> str:
    """Words as a sentence lists them; empty without any."""
    *most, last = words or [""]
    return f"{', '.join(most)} and {last}" if most else last
