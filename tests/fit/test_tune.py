"""Searches: resumable to the same trials, refused for other data, never worse than the recipe."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pandas as pd
import pytest

from predictor.errors import DataError, RecipeError
from predictor.fit import tune as tuning
from predictor.fit.recipe import load_recipe
from predictor.fit.study import BEST, Study, TrialRow
from predictor.fit.tune import JOURNAL, PROCESS, _open, _report, tune

TUNE = """
[tune]
"optimizer.learning_rate" = { low = 1e-3, high = 3e-2, log = true }
"network.hidden" = [4, 8]
"""


@pytest.fixture
def searched(recipe_path: Path, tmp_path: Path) -> Path:
    """The small recipe with a space."""
    path = tmp_path / "tiny-v1.toml"
    path.write_text(recipe_path.read_text() + TUNE)
    return path


@pytest.fixture
def search(searched: Path, data_dir: Path, tmp_path: Path) -> Callable[..., Study]:
    def run(out: str, trials: int, data: Sequence[Path] | None = None, **settings: object) -> Study:
        overrides = {k.replace("__", "."): str(v) for k, v in settings.items()}
        return tune(searched, data or [data_dir], tmp_path / out, overrides, trials=trials)

    return run


def trials(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "trials.csv").drop(columns="seconds")


def test_a_study_goes_on_as_it_would_have(search: Callable[..., Study], tmp_path: Path) -> None:
    whole = search("whole", 3)
    search("parts", 1)
    search("parts", 3)
    assert len(whole.rows) == 3
    pd.testing.assert_frame_equal(trials(tmp_path / "whole"), trials(tmp_path / "parts"))
    assert trials(tmp_path / "whole")["optimizer.learning_rate"].nunique() == 3
    again = search("parts", 2)  # enough already
    assert len(again.rows) == 3


def test_trial_0_is_the_recipe_and_the_best_one_a_recipe(
    search: Callable[..., Study], searched: Path, tmp_path: Path
) -> None:
    study = search("study", 3)
    assert study.as_given is not None and study.as_given.number == 0
    assert study.as_given.settings == {"optimizer.learning_rate": 3e-3, "network.hidden": 8}
    assert study.best is not None and study.best.error is not None
    assert study.best.error <= (study.as_given.error or math.inf)
    best = load_recipe(tmp_path / "study" / BEST)
    assert best.name == "tiny-v1-tuned"
    assert best.optimizer.learning_rate == study.best.settings["optimizer.learning_rate"]
    assert best.network.hidden == study.best.settings["network.hidden"]
    assert best.optimizer.epochs == load_recipe(searched).optimizer.epochs


@pytest.mark.parametrize("settings", [{"seed": 1}, {"tune.network.hidden": "[8, 12]"}])
def test_a_folder_of_another_study_is_refused(
    search: Callable[..., Study], settings: dict[str, object], tmp_path: Path
) -> None:
    search("study", 1)
    with pytest.raises(RecipeError, match="holds a study of another recipe"):
        search("study", 1, **settings)


def test_split_and_folder_are_refused_before_the_data_is_read(
    search: Callable[..., Study], tmp_path: Path
) -> None:
    unread = [tmp_path / "empty"]
    unread[0].mkdir()
    (tmp_path / "file").write_text("x")
    search("study", 1)
    with pytest.raises(RecipeError, match="unknown split 'none'"):
        search("new", 1, unread, split="none")
    with pytest.raises(RecipeError, match=r"file is no folder; give another --out"):
        search("file", 1, unread)
    with pytest.raises(RecipeError, match="holds a study of another recipe"):
        search("study", 1, unread, seed=1)
    with pytest.raises(DataError, match="no NeuSight layout"):  # all is well but the data
        search("study", 1, unread)


def test_an_interrupted_trial_is_tried_again(
    search: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "fit_networks", interrupt)
        with pytest.raises(KeyboardInterrupt):
            search("study", 1)
    study = search("study", 1)
    assert study.as_given is not None
    assert study.as_given.number == 1


def test_a_trial_of_a_killed_process_counts_as_failed(searched: Path, tmp_path: Path) -> None:
    recipe = load_recipe(searched)
    first = _open(tmp_path, recipe, {})
    assert (tmp_path / JOURNAL).is_file()
    for pid in (os.getpid(), 2**30):  # alive, and beyond what a system numbers
        first.ask().set_user_attr(PROCESS, [platform.node(), pid])
    states = [t.state.name for t in _open(tmp_path, recipe, {}).trials]
    assert states == ["RUNNING", "FAIL"]


def test_the_worse_half_is_cut_short(tmp_path: Path, searched: Path) -> None:
    study = _open(tmp_path, load_recipe(searched), {})
    for error in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        trial = study.ask()
        trial.report(error, 1)
        study.tell(trial, error)
    _report(study.ask(), 0.3, 1)
    _report(study.ask(), 0.9, 0)  # nothing to compare with there
    _report(study.ask(), 0.9, 1, last=True)  # trained already
    for bad in (0.4, math.nan):
        with pytest.raises(optuna.TrialPruned):
            _report(study.ask(), bad, 1)


def test_the_table_shows_the_recipe_even_among_the_last(searched: Path) -> None:
    own = {"network.hidden": 8}
    rows = [
        TrialRow(
            number=i, state="finished", error=0.1 + i / 100, targets={"step": 0.1}, seconds=1.0,
            settings={"network.hidden": 8 if i == 19 else 4},
        )
        for i in range(20)
    ]  # fmt: skip
    study = Study(recipe=load_recipe(searched), rows=tuple(rows), own=own)
    assert [row.number for row in study._shown()] == [*range(10), 19]
    assert study.as_given is rows[19]
