"""Forward and backward transfer from errors of trainings on sets of devices.

With E_own the error of a device in a model of its rows alone, E_now that of the model trained when
the device came (on it and all before it), E_all that of the model of all devices:

    FTE = log(E_own / E_now)    BTE = log(E_now / E_all)    TE = FTE + BTE = log(E_own / E_all)

(Vogelstein et al., arXiv 2004.12908). Above 0: other devices help.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ORDERS: tuple[str, ...] = ("release", "reversed", "random")
ONE, PARTS = "one model", "device parts"
LONGER = {ONE: "one model, longer", PARTS: "device parts, longer"}
FEW, PHYSICS = "ten rows", "no training"
"""Names of trainings: with and without device parts; on ten rows of one device; the prior alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of all finished trainings of a stream, in percent."""

    name: str
    facts: Mapping[str, Any]
    of: Mapping[tuple[str, frozenset[str], int], Mapping[str, Any]]
    """By variant, devices and seed: device, target, what."""

    @property
    def devices(self) -> tuple[str, ...]:
        """By release."""
        return tuple(self.facts["devices"])

    @property
    def orders(self) -> dict[str, tuple[str, ...]]:
        """Orders of the devices by name."""
        return {name: tuple(self.facts["orders"][name]) for name in ORDERS}

    def targets(self) -> tuple[str, ...]:
        """What is judged, of any device."""
        rows = self.facts["rows"]
        return tuple(t for t in ("kernel", "step") if any(t in rows[d] for d in self.devices))

    def judged(self, target: str) -> tuple[str, ...]:
        """Devices with rows that judge a target."""
        return tuple(d for d in self.devices if target in self.facts["rows"][d])

    def error(
        self, variant: str, devices: Sequence[str] | frozenset[str], device: str, target: str,
        what: str = "zero", seed: int = 0,
    ) -> float:  # fmt: skip
        """Mean absolute percentage error; NaN where it was not measured.

        Args:
            variant: how it was trained; a set of one device is `one model`, whatever the name.
            devices: that were trained on.
            device: that is judged.
            target: `kernel` or `step`.
            what: `zero` as trained, `ten` and `all` with an adapter on so many rows.
            seed: of the training.
        """
        trained = frozenset(devices)
        key = (ONE if len(trained) == 1 and variant != FEW else variant, trained, seed)
        found = self.of.get(key, {}).get(device, {}).get(target, {}).get(what)
        return float("nan") if found is None else float(np.mean(found))

    def own(self, device: str, target: str, seed: int = 0) -> float:
        """Error of the model of the device's rows alone."""
        return self.error(ONE, (device,), device, target, seed=seed)

    def few(self, device: str, target: str) -> float:
        """Error of a network of ten rows of the device."""
        return self.error(FEW, (device,), device, target, "ten")

    def physics(self, device: str, target: str, what: str = "zero") -> float:
        """Error of the prior that no training touched."""
        return self.error(PHYSICS, (), device, target, what)


def load_errors(folder: Path) -> Errors:
    """What the trainings of a stream left in its folder."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        found[run["variant"], frozenset(run["devices"]), int(run["seed"])] = run["errors"]
    facts = json.loads((folder / "facts.txt").read_text(encoding="utf-8"))
    return Errors(name=folder.name, facts=facts, of=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Transfer of one device in one order, natural logs of ratios of errors."""

    order: str
    device: str
    position: int
    """Devices before it."""
    forward: float
    backward: float
    unseen: float
    """Log of the prior's error over that before the device came, at no rows."""
    unseen_ten: float
    """Log of the error of the best model of its ten rows alone over that with an adapter on them
    before the device came."""

    @property
    def total(self) -> float:
        """Of all devices over its own alone; the same in every order."""
        return self.forward + self.backward


def efficiencies(errors: Errors, variant: str, target: str) -> list[Efficiency]:
    """Transfer of every device that is judged, order by order."""
    out = []
    for name, order in errors.orders.items():
        for i, device in enumerate(order):
            if device not in errors.judged(target):
                continue
            now = errors.error(variant, order[: i + 1], device, target)
            every = errors.error(variant, order, device, target)
            before = [
                errors.error(variant, order[:i], device, target, what) if i else float("nan")
                for what in ("zero", "ten")
            ]
            alone = np.array([
                errors.few(device, target), errors.physics(device, target, "ten"),
            ])  # fmt: skip
            least = float(np.nanmin(alone)) if np.isfinite(alone).any() else float("nan")
            out.append(
                Efficiency(
                    order=name, device=device, position=i,
                    forward=float(np.log(errors.own(device, target) / now)),
                    backward=float(np.log(now / every)),
                    unseen=float(np.log(errors.physics(device, target) / before[0])),
                    unseen_ten=float(np.log(least / before[1])),
                )
            )  # fmt: skip
    return out


def noise(errors: Errors, variant: str, target: str) -> float:
    """Median over devices of |log| of the ratio of TE's two errors between two seeds."""
    moved = []
    for device in errors.judged(target):
        each = [
            np.log(errors.own(device, target, seed))
            - np.log(errors.error(variant, errors.devices, device, target, seed=seed))
            for seed in (0, 1)
        ]
        moved.append(abs(each[0] - each[1]))
    return float(np.nanmedian(moved)) if np.isfinite(moved).any() else float("nan")


def frozen(errors: Errors, order: Sequence[str], device: str, target: str) -> float:
    """Error of a device with an adapter on all its rows, the trunk of the first half frozen."""
    half = len(order) // 2
    what = "zero" if order.index(device) < half else "all"
    return errors.error(PARTS, order[:half], device, target, what)
