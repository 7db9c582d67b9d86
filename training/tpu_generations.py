"""How well TPU generations are predicted from each other, and with a few rows of their own.

    python training/tpu_generations.py training/recipes/tpu-v1.toml --data DIR [--json FILE]

Each generation (a device of the recipe's sources) is left out of a fit in turn. Its rows are then
predicted as those of a device never measured, and once more after `--rows` rows of it went through
the fit of an adapter (`predictor calibrate`): drawn at random `--draws` times, and those that
`predictor measure --suggest` would ask for. The rows that were fitted do not score. Beside it a
roofline of the datasheet with one fitted scale: the median of
the generations seen, and that of the rows drawn. Rows are kernels and whole programs. Seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from predictor.calibrate.posterior import NORMAL_90, apply, fit_adapter, variance_before
from predictor.calibrate.prior import shipped_interval_scale, shipped_prior
from predictor.calibrate.readings import Readings, joined
from predictor.calibrate.suggest import Candidates, choose
from predictor.fit.candidates import fit_model
from predictor.fit.data import devices_of, fit_data, load_data, usable_kernels, usable_models
from predictor.fit.learned_kinds import learned_kinds
from predictor.fit.model_samples import banks_of, batch_of, model_samples
from predictor.fit.readings import kernel_readings, model_readings
from predictor.fit.recipe import Recipe, load_recipe
from predictor.fit.samples import kernel_samples
from predictor.fit.splits import device_split
from predictor.nn.learned import entries_of, with_twins
from predictor.traces.schema import Imported

Floats = NDArray[np.float64]
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """N rows of the generation that was left out."""

    facts: pd.DataFrame
    """`source`, `target` (kernel or step), `op`."""
    readings: Readings
    datasheet_us_N: Floats
    scale: float
    """Median of measured over datasheet roofline on the generations seen."""


def held_out(recipe: Recipe, data: Imported, device: str, kind: str) -> Rows:
    """Rows of a device predicted by a fit on the others."""
    whole = device_split(recipe.split, devices_of(data))
    split = replace(whole, train=whole.train - {device}, development=frozenset({device}))
    fitted = fit_data(data, recipe, split.train, frozenset())
    model = fit_model(kind, recipe, fitted, None, progress=False)
    found = learned_kinds(kind, recipe, data, split, fitted)
    learned = with_twins(entries_of({k[:3] for k in found}))
    parts: list[Readings] = []
    facts: list[pd.DataFrame] = []
    sheet: list[Floats] = []
    kernels = usable_kernels(data, recipe, {device}).reset_index(drop=True)
    if len(kernels):
        samples = kernel_samples(kernels, model.devices)
        parts.append(kernel_readings(model, samples, learned))
        rows = kernels.iloc[samples.row_N]
        facts.append(rows[["row_id", "source", "op"]].assign(target="kernel"))
        sheet.append(samples.datasheet_us_N.numpy().astype(np.float64))
    steps = usable_models(data, {device})
    models = model_samples(steps, banks_of(steps), model.devices, 0) if len(steps) else None
    if models is not None:
        parts.append(model_readings(model, models, learned))
        facts.append(models.rows[["row_id", "source"]].assign(op="", target="step"))
        sheet.append(_step_sheets(models))
    scale = _scale(data, recipe, split.train, model.devices)
    return Rows(
        facts=pd.concat(facts, ignore_index=True), readings=joined(parts),
        datasheet_us_N=np.concatenate(sheet), scale=scale,
    )  # fmt: skip


def _step_sheets(models: Any) -> Floats:
    row_C = batch_of(models, torch.arange(len(models))).row_C
    total = torch.zeros(len(models)).index_add(0, row_C, models.datasheet_us_C * models.count_C)
    return np.asarray(total.numpy().astype(np.float64))


def _scale(data: Imported, recipe: Recipe, devices: frozenset[str], hosts: Sequence[str]) -> float:
    """Median of measured over datasheet roofline, every device with the same weight."""
    ratios, weights = [], []
    for device in sorted(devices):
        kernels = usable_kernels(data, recipe, {device}).reset_index(drop=True)
        steps = usable_models(data, {device})
        own: list[Floats] = []
        if len(kernels):
            samples = kernel_samples(kernels, hosts)
            own.append((samples.measured_us_N / samples.datasheet_us_N).numpy())
        models = model_samples(steps, banks_of(steps), hosts, 0) if len(steps) else None
        if models is not None:
            own.append(models.measured_us_M.numpy() / _step_sheets(models))
        if own:
            ratios.append(np.concatenate(own))
            weights.append(np.full(len(ratios[-1]), 1.0 / len(ratios[-1])))
    value, weight = np.concatenate(ratios), np.concatenate(weights)
    order = np.argsort(value)
    total = np.cumsum(weight[order])
    return float(value[order][np.searchsorted(total, total[-1] / 2)])


def errors(rows: Rows, few: int, draws: int) -> dict[str, Any]:
    """Median absolute errors of a generation: unseen, and after rows of its own."""
    log_N = rows.readings.log_ratio_N
    sheet_N = np.exp(rows.readings.log_measured_N) / rows.datasheet_us_N
    prior, n = shipped_prior(), len(log_N)
    half_N = NORMAL_90 * np.sqrt(variance_before(prior, rows.readings))
    found: dict[str, Any] = {
        "n": n, "zero_shot": _error(log_N), "zero_shot_p90": _error(log_N, 90),
        "prior_coverage": float((np.abs(log_N) <= half_N).mean()),
        "roofline": _error(np.log(sheet_N / rows.scale)),
    }  # fmt: skip
    generator = np.random.default_rng(SEED)
    after, roof, coverage = [], [], []
    for _ in range(draws if n > few + 1 else 0):
        drawn = np.zeros(n, dtype=bool)
        drawn[generator.choice(n, few, replace=False)] = True
        left, variance = _left(rows.readings, drawn)
        after.append(_error(left))
        half = NORMAL_90 * shipped_interval_scale() * np.sqrt(variance)
        coverage.append(float((np.abs(left) <= half).mean()))
        roof.append(_error(np.log(sheet_N[~drawn] / np.median(sheet_N[drawn]))))
    if n > few + 1:
        asked = Candidates(readings=rows.readings, owner_N=np.arange(n), seconds_C=np.ones(n))
        chosen = np.zeros(n, dtype=bool)
        chosen[list(choose(asked, rows.readings, prior, most=few).chosen)] = True
        found[f"suggested_{few}"] = _error(_left(rows.readings, chosen)[0])
    if after:
        found |= {
            f"after_{few}": float(np.mean(after)), f"coverage_{few}": float(np.mean(coverage)),
            f"roofline_{few}": float(np.mean(roof)),
        }  # fmt: skip
    return found


def _left(readings: Readings, fitted_N: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Log ratios and variances of the other rows under an adapter fitted on some."""
    others = readings.take(~fitted_N)
    factor, variance = apply(fit_adapter(readings.take(fitted_N), shipped_prior()), others)
    return others.log_ratio_N - factor, variance


def _error(log_N: Floats, percentile: float = 50) -> float:
    """Absolute error of predictions, as a share of the measured time."""
    return float(np.percentile(np.abs(np.exp(-log_N) - 1.0), percentile))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path, action="append", required=True, metavar="DIR")
    parser.add_argument("--model", default="rates", metavar="KIND")
    parser.add_argument("--rows", type=int, default=5, metavar="N")
    parser.add_argument("--draws", type=int, default=20, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--each", action="store_true", help="every row as well")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recipe = load_recipe(given.recipe)
    data = load_data(recipe, given.data)
    out: dict[str, Any] = {}
    every: list[pd.DataFrame] = []
    for device in sorted(device_split(recipe.split, devices_of(data)).train):
        if not len(usable_kernels(data, recipe, {device})) and not len(
            usable_models(data, {device})
        ):
            continue
        rows = held_out(recipe, data, device, given.model)
        out[device] = {
            **errors(rows, given.rows, given.draws),
            "sources": {str(s): int(n) for s, n in rows.facts["source"].value_counts().items()},
        }
        every.append(
            rows.facts.assign(
                device=device, measured_us=np.exp(rows.readings.log_measured_N),
                predicted_us=np.exp(rows.readings.log_predicted_N),
            )
        )  # fmt: skip
    whole = pd.concat(every, ignore_index=True)
    ape = (whole["predicted_us"] / whole["measured_us"] - 1).abs()
    sys.stdout.write(
        pd.DataFrame(out).drop("sources").T.astype(float).to_string(float_format="{:.3f}".format)
    )
    mean = np.mean([v["zero_shot"] for v in out.values()])
    sys.stdout.write(
        f"\nall rows: n {len(whole)}, median {ape.median():.3f}; generations' mean {mean:.3f}\n"
    )
    if given.each:
        shown = whole.assign(ratio=whole["predicted_us"] / whole["measured_us"])
        sys.stdout.write(shown.to_string(float_format="{:.3f}".format) + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(out, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
