"""Add devices over time: what seen devices do for new ones, and new ones for those seen before.

    python training/device_orders.py --data DIR --out docs/device-orders.md --runs runs/orders

Devices of a source come in three orders: by release, reversed, and at random. At every stage a
network is trained on all devices so far and judged on all, seen or not, on shapes and models that
no device trained on; unseen ones at 0 rows, with an adapter on 10 rows, and on all their rows. A
set of devices is trained once, whichever orders reach it. Finished trainings are kept in --runs, so
that an interrupted command goes on, and the page is written from all that are there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from device_efficiency import FEW, ONE, ORDERS, PHYSICS
from device_orders_figure import write_figure
from device_orders_page import page
from device_streams import STREAMS, Judged, Stream, StreamPlan, drawn, read_stream, readings
from device_variants import FEW_UPDATES, VARIANTS, Variant, trained

from predictor.atomic import write_text
from predictor.calibrate.posterior import apply, fit_adapter
from predictor.calibrate.prior import shipped_prior
from predictor.calibrate.readings import Floats, Readings
from predictor.errors import PredictorError, RecipeError
from predictor.features.columns import columns_hash
from predictor.fit.fitting import net_config
from predictor.fit.recipe import Recipe, load_recipe
from predictor.nn.ensemble import Ensemble
from predictor.nn.latency_net import LatencyNet
from predictor.nn.tokens import trunk_tokens

RECIPE = Path(__file__).with_suffix(".toml")
JUDGING_FOLD = 1
K = 10
"""Rows of a new device."""
DRAWS = 3
SEED_OF_ORDER = 7
SEEDS = (0, 1)
"""The second tells what the first's differences are worth: on single devices and on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training of a stream."""

    variant: str
    devices: frozenset[str]
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its file."""
        devices = "+".join(sorted(self.devices)) or "none"
        return f"{self.variant.replace(',', '').replace(' ', '-')}@{self.seed}@{devices}"


def orders(devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The three orders; `devices` come by release."""
    at_random = np.random.default_rng(SEED_OF_ORDER).permutation(len(devices))
    found = (tuple(devices), tuple(devices[::-1]), tuple(devices[i] for i in at_random))
    return dict(zip(ORDERS, found, strict=True))


def variants_of(asked: StreamPlan) -> list[Variant]:
    """The ways to train that differ on a stream."""
    return [v for v in VARIANTS if not (v.weights and asked.balanced)]


def plan(devices: Sequence[str], variants: Sequence[Variant] = VARIANTS) -> list[Run]:
    """Every training of a stream, each once.

    A set of one device is trained as one model: there is nothing to part. Variants of `device
    parts` are trained on half of the devices and on all, in the order of release.
    """
    whole = frozenset(devices)
    runs = [Run(variant=PHYSICS, devices=frozenset())]
    runs += [Run(variant=ONE, devices=frozenset({d})) for d in devices]
    by_order = orders(devices)
    along = [v for v in variants if v.every_order]
    for variant in along:
        for order in by_order.values():
            sizes = range(2, len(order) + 1)
            runs += [Run(variant=variant.name, devices=frozenset(order[:i])) for i in sizes]
    runs += [Run(variant=FEW, devices=frozenset({d})) for d in devices]
    for seed in SEEDS[1:]:
        runs += [Run(variant=ONE, devices=frozenset({d}), seed=seed) for d in devices]
        runs += [Run(variant=v.name, devices=whole, seed=seed) for v in along]
    for i in (len(devices), len(devices) // 2):
        rest = [v for v in variants if not v.every_order]
        runs += [Run(variant=v.name, devices=frozenset(devices[:i])) for v in rest]
    return list(dict.fromkeys(runs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, action="append", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--runs", required=True, type=Path, help="finished trainings")
    parser.add_argument("--stream", action="append", choices=tuple(STREAMS), default=[])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(arguments)
    settings = dict(text.split("=", 1) for text in args.set)
    try:
        for name in args.stream or STREAMS:
            _stream(name, args.data, args.runs / name, settings)
        write_text(args.out, page(args.runs))
        write_figure(args.runs, args.out.parent / "figures" / f"{args.out.stem}.svg")
    except PredictorError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _stream(name: str, folders: Sequence[Path], runs: Path, settings: Mapping[str, str]) -> None:
    """The missing trainings of a stream."""
    asked = STREAMS[name]
    given = {"sources": json.dumps([asked.source]), **asked.settings, **settings}
    recipe = load_recipe(RECIPE, given)
    stream = read_stream(asked, recipe, folders, JUDGING_FOLD)
    facts = {
        "recipe": recipe.resolved(), "updates": asked.updates, "features": columns_hash(),
        "devices": list(stream.devices), "orders": orders(stream.devices), "rows": stream.facts(),
    }  # fmt: skip
    _claim(runs, facts)
    for run in plan(stream.devices, variants_of(asked)):
        path = runs / f"{run.name}.json"
        if path.is_file():
            continue
        start = time.monotonic()
        errors = _errors(stream, run, given)
        found = {
            "variant": run.variant, "devices": sorted(run.devices), "seed": run.seed,
            "seconds": round(time.monotonic() - start, 1), "errors": errors,
        }  # fmt: skip
        write_text(path, json.dumps(found, indent=1))
        sys.stdout.write(f"{name}: {run.name} {found['seconds']} s\n")
        sys.stdout.flush()


def _claim(runs: Path, facts: Mapping[str, Any]) -> None:
    """Write what the trainings of a folder depend on, or refuse a folder of others.

    Raises:
        RecipeError: names what differs.
    """
    path, text = runs / "facts.txt", json.dumps(facts, indent=1, sort_keys=True)
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        for key, value in json.loads(text).items():
            if before.get(key) != value and key != "orders":  # trainings are of sets
                raise RecipeError(
                    f"{runs}: its trainings are of other {key}: name another folder with --runs, "
                    "or remove it to train them again"
                )
    write_text(path, text)


def _errors(stream: Stream, run: Run, given: Mapping[str, str]) -> dict[str, Any]:
    """By device and target: the errors of one training."""
    if run.variant == FEW:
        (device,) = run.devices
        return {device: _few(stream, device, load_recipe(RECIPE, given))}
    if run.variant == PHYSICS:
        networks = untrained(stream.recipe)
    else:
        variant = next(v for v in VARIANTS if v.name == run.variant)
        recipe = load_recipe(RECIPE, {**given, **variant.overrides, "seed": str(run.seed)})
        data = stream.fit_data(run.devices)
        networks = trained(recipe, data, variant, stream.plan.updates)
    return {
        device: {
            target: _judge(stream, networks, device, target, judged, seen=device in run.devices)
            for target, judged in targets.items()
        }
        for device, targets in stream.judged.items()
    }


def untrained(recipe: Recipe) -> Ensemble:
    """The prior of the recipe's network: what physics alone says."""
    net = LatencyNet(net_config(recipe, 0), trunk_tokens()).eval()
    return Ensemble(members=(net,), devices=())


def _judge(
    stream: Stream, networks: Ensemble, device: str, target: str, judged: Judged, *, seen: bool
) -> dict[str, Any]:
    """Errors without rows (of a seen device: as trained); of unseen ones with an adapter as well.

    `ten`: one figure a draw; `all`: on all rows that would train.
    """
    asked = readings(networks, judged.held, device)
    found: dict[str, Any] = {"n": len(asked), "zero": ape(asked)}
    rows = judged.evidence()
    if seen or judged.known is None:
        return found
    known = readings(networks, judged.known, device)
    found["ten"] = [
        _adapted(known.take(drawn(stream.plan.name, device, target, rows, K, i)), asked)
        for i in range(DRAWS)
    ]
    return {**found, "rows": rows, "all": _adapted(known, asked)}


def _adapted(known: Readings, asked: Readings) -> float:
    factor_N, _ = apply(fit_adapter(known, shipped_prior()), asked)
    return ape(asked, factor_N)


def _few(stream: Stream, device: str, recipe: Recipe) -> dict[str, Any]:
    """Networks trained on ten rows of one device; of ops inside published steps there are none."""
    found = {}
    for target, judged in stream.judged[device].items():
        draws = list(_of_draws(stream, device, target, judged, recipe))
        if draws:
            found[target] = {"n": 0, "ten": draws}
    return found


def _of_draws(
    stream: Stream, device: str, target: str, judged: Judged, recipe: Recipe
) -> Iterator[float]:
    for i in range(DRAWS):
        at = drawn(stream.plan.name, device, target, judged.evidence(), K, i)
        data = stream.few(device, target, at)
        if data is not None:
            networks = trained(recipe, data, VARIANTS[0], FEW_UPDATES)
            yield ape(readings(networks, judged.held, device))


def ape(found: Readings, factor_N: Floats | float = 0.0) -> float:
    """Mean absolute percentage error of readings whose predictions get a factor (in log)."""
    off_N = found.log_predicted_N + factor_N - found.log_measured_N
    return float(100.0 * np.abs(np.expm1(off_N)).mean())


if __name__ == "__main__":
    sys.exit(main())
