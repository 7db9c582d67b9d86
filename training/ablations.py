"""Take a recipe apart: train it with one thing changed at a time, and write what each is worth.

    python training/ablations.py RECIPE... --data DIR --out docs/ablations.md --runs runs/ablations

Every variant is trained on the development folds of its recipe's split (families, shapes or
devices held out; the test part is not looked at) and judged on the rows held out. Rows of a run
are kept, so that an interrupted command goes on, and the page is written from all that are there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ablation_page import errors_of, page
from ablation_variants import Variant, held_of, training_of, variants, varies

from predictor.atomic import replacing_folder, write_text
from predictor.errors import PredictorError, RecipeError
from predictor.fit.candidates import fit_model
from predictor.fit.data import devices_of, load_data
from predictor.fit.fitting import FitData
from predictor.fit.recipe import Recipe, load_recipe
from predictor.fit.scoring import score_kernels, score_models, score_steps
from predictor.fit.splits import device_split
from predictor.fit.validation import (
    DevelopmentFold,
    HeldSamples,
    development_folds,
    shape_folds,
)

if TYPE_CHECKING:
    import pandas as pd

    from predictor.nn.kernel_model import KernelModel

Drawn = dict[tuple[str, frozenset[str], int], tuple[FitData, HeldSamples]]
"""Samples of a fold, its devices, and so many message-passing layers: variants share them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE")
    parser.add_argument("--data", required=True, action="append", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--runs", required=True, type=Path, help="rows of finished runs")
    parser.add_argument("--share", type=float, default=1.0, help="of the step rows, by their ids")
    parser.add_argument("--only", default="", help="variants, by comma; all when not given")
    parser.add_argument("--seeds", type=int, default=1, help="of the recipe, a line each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(arguments)
    settings = dict(text.split("=", 1) for text in args.set)
    try:
        for path in args.recipes:
            wanted = {name.strip() for name in args.only.split(",") if name.strip()}
            runs = args.runs / path.stem
            _run(path, args.data, runs, args.share, wanted, settings, args.seeds)
        write_text(args.out, page(args.runs))
    except PredictorError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _run(
    path: Path, data_dirs: Sequence[Path], runs: Path, share: float, wanted: set[str],
    settings: Mapping[str, str], seeds: int,
) -> None:  # fmt: skip
    """Rows of every variant of a recipe; those that are there are kept."""
    recipe = load_recipe(path, settings)
    data = load_data(recipe, data_dirs)
    split = device_split(recipe.split, devices_of(data))
    folds = [_sampled(fold, share) for fold in development_folds(data, recipe, split)]
    held_out = not any(_shared_devices(fold) for fold in folds)
    by_shape = shape_folds(data, recipe, split) if held_out else ()
    every = variants(
        recipe.network, seeds=seeds, both=bool(len(data.kernels) and len(data.steps)),
        devices_held=bool(by_shape),
    )  # fmt: skip
    drawn: Drawn = {}
    for variant in _wanted(every, wanted):
        place = runs / variant.name.replace(" ", "-")
        changed = load_recipe(path, {**settings, **variant.overrides})
        facts = {
            "variant": variant.name, "share": share, "settings": dict(settings),
            "recipe": changed.resolved(),
        }  # fmt: skip
        if place.is_dir():
            _check_same(place, facts)
            continue
        if variant.without and not varies(
            _drawn(changed, folds[0], drawn)[0], variant.without, recipe.network.unread
        ):
            sys.stdout.write(f"{path.stem}: {variant.name}: left out, its columns never differ\n")
            continue
        judging = [_sampled(fold, share) for fold in by_shape] if variant.shapes else folds
        rows = _concat([_fold_rows(changed, variant, fold, drawn) for fold in judging])
        with replacing_folder(place) as fresh:
            rows.to_parquet(fresh / "rows.parquet")
            write_text(fresh / "facts.json", json.dumps(facts))
        sys.stdout.write(f"{path.stem}: {variant.name}: {errors_of(rows)}\n")
        sys.stdout.flush()


def _shared_devices(fold: DevelopmentFold) -> bool:
    """Whether devices that train judge as well."""
    judging = {*fold.held.kernels["device"], *fold.held.steps["device"]} & fold.held_devices
    return bool(judging & fold.devices)


def _wanted(found: Sequence[Variant], names: set[str]) -> list[Variant]:
    """The variants of those names; all without any.

    Raises:
        RecipeError: a name that no variant has.
    """
    known = [variant.name for variant in found]
    unknown = sorted(names - set(known))
    if unknown:
        raise RecipeError(f"--only: no variant {unknown[0]!r}; known: {', '.join(known)}")
    return [variant for variant in found if not names or variant.name in names]


def _check_same(place: Path, facts: Mapping[str, object]) -> None:
    """Refuse to take the rows of a run for those of another recipe, share or settings.

    Raises:
        RecipeError: names what differs.
    """
    before = json.loads((place / "facts.json").read_text(encoding="utf-8"))
    for key, value in facts.items():
        if key in before and before[key] != value:
            raise RecipeError(
                f"{place}: its rows are of another {key}"
                + (f" ({before[key]!r}, asked is {value!r})" if key != "recipe" else "")
                + ": name another folder with --runs, or remove it to train it again"
            )


def _sampled(fold: DevelopmentFold, share: float) -> DevelopmentFold:
    """A share of the step rows that train; those that judge stay."""
    import pandas as pd

    steps = fold.rows.steps
    place = pd.util.hash_pandas_object(steps["row_id"], index=False).to_numpy() / 2.0**64
    kept = steps[place < share].reset_index(drop=True)
    return replace(fold, rows=replace(fold.rows, steps=kept))


def _fold_rows(
    recipe: Recipe, variant: Variant, fold: DevelopmentFold, drawn: Drawn
) -> pd.DataFrame:
    parts = []
    for part in _of_devices(fold) if variant.single_device else (fold,):
        data, held = _drawn(recipe, part, drawn)
        model = fit_model("network", recipe, training_of(data, variant), None, progress=False)
        parts.append(_rows(model, held_of(held, variant)))
    return _concat(parts).assign(fold=fold.name)


def _drawn(recipe: Recipe, fold: DevelopmentFold, drawn: Drawn) -> tuple[FitData, HeldSamples]:
    """Samples that train and judge in a fold, drawn once."""
    key = (fold.name, fold.devices, recipe.network.message_layers)
    if key not in drawn:
        data = fold.fit_data(recipe)
        drawn[key] = data, fold.held_samples(recipe, data.hosts)
    return drawn[key]


def _of_devices(fold: DevelopmentFold) -> Iterator[DevelopmentFold]:
    """The fold for each device by itself; devices without rows of their own in training go."""
    for device in sorted(fold.devices & fold.held_devices):
        part = replace(
            fold, devices=frozenset({device}), held_devices=frozenset({device}),
            ratio_devices=fold.ratio_devices & {device},
        )  # fmt: skip
        yield part


def _rows(model: KernelModel, held: HeldSamples) -> pd.DataFrame:
    """Every judged time with its device."""
    parts = []
    if held.kernels is not None and len(held.kernels.row_id):
        rows = score_kernels(model, held.kernels)
        devices = held.kernel_rows["device"].to_numpy()[held.kernels.row_N]
        parts.append(rows.assign(device=devices, target="kernel"))
    if held.steps is not None:
        ops, steps = score_steps(model, held.steps)
        parts += [ops.assign(target="op")] if len(ops) else []
        parts.append(steps[steps["phase"] == "total"].assign(target="step"))
    if held.models is not None:
        parts.append(score_models(model, held.models).assign(target="step"))
    columns = ["row_id", "device", "target", "measured_us", "predicted_us"]
    return _concat([part[columns] for part in parts])


def _concat(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)


if __name__ == "__main__":
    sys.exit(main())
