"""`train --model`: every kind is a release like any other, and the comparison says what it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from predictor.checkpoint import FILES, Release, load_release
from predictor.errors import CheckpointError, DataError, RecipeError
from predictor.fit import model_choice
from predictor.fit import train as training
from predictor.fit.candidates import KINDS
from predictor.fit.data import devices_of, load_data
from predictor.fit.evaluate import evaluate
from predictor.fit.model_choice import AS_GOOD, _choice, choice_of, choose_model
from predictor.fit.recipe import load_recipe
from predictor.fit.splits import device_split
from predictor.fit.train import CHOICE, train
from predictor.fit.validation import DevelopmentFold
from predictor.nn.latency import load_predictor

NO_FOLDS = {"calibration.device_folds": "false", "calibration.model_folds": "false"}


@pytest.fixture
def trained(recipe_path: Path, data_dir: Path, tmp_path: Path) -> Callable[..., Release]:
    def run(model: str, out: str | None = None, **options: Any) -> Release:
        place = tmp_path / (out or model)
        return train(
            recipe_path, [data_dir], place, NO_FOLDS, progress=False, model=model, **options
        )

    return run


@pytest.mark.parametrize(("kind", "stored"), [("boosted_trees", "boosted_trees"),
                                              ("roofline", "roofline")])  # fmt: skip
def test_a_simple_kind_is_a_release_like_any_other(
    trained: Callable[..., Release], data_dir: Path, kind: str, stored: str
) -> None:
    release = trained(kind)
    assert sorted(p.name for p in release.path.iterdir()) == sorted(FILES)
    config: Any = load_release(release.path).config
    assert config["model"]["kind"] == stored
    assert config["model"]["devices"] == ["nvidia-t4", "nvidia-v100-pcie-32gb"]
    predictor = load_predictor(release)
    assert ("gemm", "fp32") in predictor.learned
    found = evaluate("neusight", [data_dir], checkpoint=release.path)
    kernels = found.scored.rows[found.scored.rows["target"] == "kernel"]
    own = kernels[kernels["device"] == "nvidia-t4"]
    assert len(own) and own["predicted_us"].notna().all()
    off = (own["predicted_us"] / own["measured_us"] - 1).abs()
    roofline = (own["roofline_us"] / own["measured_us"] - 1).abs()
    assert off.mean() < roofline.mean()
    assert f"--model {kind}" in (release.path / "README.md").read_text()


def test_auto_trains_the_kind_that_did_best(
    trained: Callable[..., Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[model_choice.ModelChoice] = []
    release = trained("auto", on_choice=told.append)
    (choice,) = told
    best = min(choice.errors.values())
    assert set(choice.errors) == set(KINDS)
    assert choice.winner == next(k for k in KINDS if choice.errors[k] <= AS_GOOD * best)
    config: Any = release.config
    assert config["model"]["kind"] == {"network": "latency_net"}.get(choice.winner, choice.winner)
    assert release.metrics["model_choice"] == json.loads(json.dumps(choice.to_json()))
    assert choice_of(json.loads((tmp_path / "auto" / CHOICE).read_text())) == choice
    folds = {g.fold for g in choice.groups if not g.op_class}
    assert folds == {"develop-nvidia-t4", "develop-nvidia-v100-pcie-32gb"}
    judged = [g for g in choice.groups if not g.op_class]
    assert sum(g.n for g in judged) == choice.rows
    assert {g.target for g in judged} == {"step", "op", "kernel"}
    assert {"matmul", "softmax"} <= {g.op_class for g in choice.groups}

    def never(*_: object, **__: object) -> None:
        raise AssertionError("compared again")

    monkeypatch.setattr(training, "choose_model", never)
    assert trained("auto").key == release.key  # what was finished is kept
    (tmp_path / "auto" / CHOICE).write_text('{"winner": "network"}')
    with pytest.raises(DataError, match=r"is damaged .*remove it to compare again"):
        trained("auto")


def test_a_run_of_another_kind_is_refused(trained: Callable[..., Release]) -> None:
    trained("roofline", "run")
    with pytest.raises(RecipeError, match="holds a run of another"):
        trained("boosted_trees", "run")
    with pytest.raises(RecipeError, match="no kind of model 'forest'; known: auto, roofline"):
        trained("forest", "run")


def test_no_time_leaves_the_network_out_and_says_so(recipe_path: Path, data_dir: Path) -> None:
    recipe = load_recipe(recipe_path)
    data = load_data(recipe, [data_dir])
    split = device_split(recipe.split, devices_of(data))
    one = replace(split, train=frozenset({"nvidia-t4"}))  # folds by shape: the first is one of 5
    with pytest.raises(DataError, match=r"no kind of model could be judged .*the time was up"):
        choose_model(recipe, data, one, minutes=0)


def test_whole_steps_alone_leave_the_network(recipe_path: Path, data_dir: Path) -> None:
    recipe = load_recipe(recipe_path, {"split": "all", "exclude_flags": '["none"]'})
    data = load_data(recipe, [data_dir])
    steps = replace(data, ops=data.ops.head(0), kernels=data.kernels.head(0))
    with pytest.raises(DataError, match="no rows to train on"):
        choose_model(recipe, steps, device_split("all", devices_of(data)))


def rows(factor: float) -> pd.DataFrame:
    return pd.DataFrame(
        {"target": "kernel", "op_class": "matmul", "measured_us": 1.0, "predicted_us": factor},
        index=range(4),
    )


@pytest.mark.parametrize(
    ("roofline", "trees", "network", "winner"),
    [
        (1.3, 1.2, 1.1, "network"),
        (1.101, 1.2, 1.1, "roofline"),  # as good, and simpler
        (1.5, 1.101, 1.1, "boosted_trees"),
        (1.5, 1.11, 1.1, "network"),
    ],
)
def test_of_two_as_good_the_simpler_one_wins(
    roofline: float, trees: float, network: float, winner: str
) -> None:
    fold = DevelopmentFold(
        name="f", rows=None, held=None, devices=frozenset(), held_devices=frozenset(),  # type: ignore[arg-type]
        ratio_devices=frozenset(),
    )  # fmt: skip
    found = dict(zip(KINDS, ([rows(f)] for f in (roofline, trees, network)), strict=True))
    choice = _choice([fold], found, {})
    assert choice.winner == winner
    assert choice.errors["network"] == pytest.approx(network - 1)
    assert [(g.fold, g.op_class, g.n) for g in choice.groups] == [
        ("f", "", 4),
        ("all", "matmul", 4),
    ]


def test_a_kind_that_is_not_known_is_refused(trained: Callable[..., Release]) -> None:
    release = trained("roofline")
    text = json.loads((release.path / "config.json").read_text())
    text["model"]["kind"] = "forest"
    (release.path / "config.json").write_text(json.dumps(text))
    with pytest.raises(
        CheckpointError, match=r"model\.kind is 'forest'; known: latency_net, boost"
    ):
        load_predictor(load_release(release.path))
