"""`predictor import`, `train` and `evaluate`: measured data in, networks and scores out."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from predictor.commands import options
from predictor.commands.output import check_files, note, say, show, write_json
from predictor.commands.progress import row_progress
from predictor.errors import DataError, MissingExtraError, RecipeError

SOURCE_TEXT: Mapping[str, str] = {
    "rows": "your own rows, CSV or Parquet, and what `predictor measure` writes",
    "kineto": "traces of torch.profiler",
    "own": "what this project measured itself",
    "neusight": "kernels and steps, fp32, nine GPUs",
    "timm": "steps of timm's vision models",
    "gptbench": "kernel sums of 30,000 GPT decoders (HW-GPT-Bench)",
    "enzyme": "the same JAX programs on an A100 and a TPU v6e",
    "steps": "published training steps, one to thousands of devices",
    "aiconfigurator": "kernels of serving frameworks, NVIDIA",
    "vidur": "operators of LLM serving, and collectives",
    "aiter": "tuned kernels, AMD Instinct",
    "deepbench": "library kernels of 2016 to 2019",
    "tpugraphs": "compiled kernels and one training step on TPU v3",
    "scalesim": "fitted lines of kernels on TPU v4",
    "tpurecipes": "two micro-benchmarks on TPU v6e",
}
"""What each source with an importer and a suite holds."""
SOURCES: tuple[str, ...] = tuple(SOURCE_TEXT)
WIDE = 200
"""Columns of an evaluation where it does not go to a terminal."""
_SOURCE_HELP = "; ".join(f"{name}: {text}" for name, text in SOURCE_TEXT.items()) + "."


def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", help="Data as published, or your own.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder to write; an import there is replaced."),
    ],
    device: Annotated[
        str | None,
        typer.Option(metavar="ID", help="kineto: device of profiler traces that name none."),
    ] = None,
) -> None:
    """Public traces to the one schema (Parquet); prints what was kept and dropped, and why."""
    _check_source(source)
    check_exists([folder])
    if source == "kineto":
        from predictor.commands.kineto import import_traces

        import_traces(folder, out, device)
        return
    if device is not None:
        raise DataError(f"--device is for profiler traces (kineto); {source} names its devices")
    from predictor.traces.import_folder import REJECTS
    from predictor.traces.sources.registry import expected_rows, import_source

    with row_progress(f"importing {source}", expected_rows(source, folder)) as progress:
        report = import_source(source, folder, out, progress=progress)
    say(str(report))
    if not report.devices:
        if not report.dropped:
            raise DataError(f"{folder}: the files hold no rows")
        raise DataError(f"{folder}: no row was kept; {out / REJECTS} has the first of each kind")


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe (TOML).")],
    data: options.Data,
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="Folder of the run.")],
    set_: options.Set = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="network; boosted_trees or roofline, for few rows; auto compares these; rates, "
            "for few rows on each of several devices of one kind.",
        ),
    ] = "network",
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", min=0.0, help="For the comparison of --model auto."),
    ] = None,
) -> None:
    """Train a model; a run that was stopped goes on at its last finished epoch."""
    overrides = overrides_of(set_ or [])
    check_recipe(recipe)
    check_exists(data)
    check_train_extra("train", ("lightning", "sklearn"))
    from predictor.fit.train import train as run_training

    if minutes is not None and model != "auto":
        raise RecipeError(f"--minutes is for --model auto; {model} alone is not compared")
    release = run_training(
        recipe, data, out, overrides, progress=sys.stderr.isatty(), model=model, minutes=minutes,
        on_choice=lambda choice: show(choice.view(), WIDE),
    )  # fmt: skip
    say(f"wrote {release.path}; use it with --checkpoint {release.path}")


def evaluate(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help=f"{', '.join(SOURCES)}.")],
    data: options.Data,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="The suite's own when not given.")
    ] = None,
    checkpoint: options.Checkpoint = None,
    adapter: options.Adapter = None,
    json: options.Json = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", metavar="FILE", help="Every row (Parquet).")
    ] = None,
) -> None:
    """Score a checkpoint on measured data, by device, phase and op class, with baselines."""
    check_files(json=json, rows=rows)
    _check_source(suite)
    check_exists(data)
    check_train_extra("evaluate", ("lightning", "sklearn"))
    from predictor.fit.evaluate import evaluate as run_evaluation

    with row_progress(f"evaluating {suite}", None) as progress:
        result = run_evaluation(
            suite, data, split=split, checkpoint=checkpoint, adapter=adapter, progress=progress
        )
    if json is not None:
        write_json(result.to_json(), json)
    if rows is not None:
        result.write_rows(rows)
        note(f"wrote {rows}")
    if json != "-":
        show(result.view(), WIDE)


def overrides_of(settings: Sequence[str]) -> dict[str, str]:
    """`key=value` texts as a mapping.

    Raises:
        RecipeError: a text is not of that form.
    """
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set {setting!r}: write it as key=value, for example seed=1")
        found[key] = value
    return found


def _check_source(name: str) -> None:
    if name not in SOURCES:
        raise DataError(f"no source {name!r}; known: {', '.join(SOURCES)}")


def check_train_extra(command: str, packages: Sequence[str]) -> None:
    """Refuse a command whose packages the core installation leaves out; quiet those that are there.

    Raises:
        MissingExtraError: names what is missing and what brings it.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"`predictor {command}` needs {' and '.join(missing)}, which the `train` extra brings: "
            "pip install -c constraints.txt -e '.[train]'"
        )
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\..*")


def check_recipe(recipe: Path) -> None:
    """Refuse a recipe that is not there.

    Raises:
        RecipeError: no such file.
    """
    if not recipe.is_file():
        raise RecipeError(f"no recipe {str(recipe)!r}; recipes stand in training/recipes/*.toml")


def check_exists(paths: Sequence[Path]) -> None:
    """Refuse a folder or file that is not there.

    Raises:
        DataError: the first one missing.
    """
    for path in paths:
        if not path.exists():
            raise DataError(f"no folder or file {str(path)!r}; give the data as published")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("import")(import_)
    app.command("train")(train)
    app.command("evaluate")(evaluate)
