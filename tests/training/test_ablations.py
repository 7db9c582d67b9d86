"""Ablations: what a variant hides, the page from rows, and a run that goes on where it stopped."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch

from predictor.errors import RecipeError
from predictor.features.columns import COLUMNS
from predictor.fit.recipe import Recipe, recipe_of

TRAINING = Path(__file__).parents[2] / "training"


@pytest.fixture
def ablations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TRAINING))
    spec = importlib.util.spec_from_file_location("ablations", TRAINING / "ablations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kinds(ablations: ModuleType) -> ModuleType:
    return sys.modules["ablation_variants"]


def test_groups_are_columns_and_overlap_nowhere(kinds: ModuleType) -> None:
    names = [name for group in kinds.GROUPS.values() for name in group]
    assert set(names) <= set(COLUMNS)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "network",
    [
        {"message_layers": 0, "correction": 0.0},
        {"message_layers": 2, "correction": 0.3, "tiled_prior": True, "streamed_prior": True},
    ],
)
def test_every_variant_is_a_recipe_other_than_the_first(
    kinds: ModuleType, network: dict[str, object]
) -> None:
    plain = {"name": "a", "network": network}
    base = recipe_of(plain, "base")
    found = kinds.variants(base.network, seeds=2, devices_held=True)
    assert len({v.name for v in found}) == len(found)
    for variant in found[1:]:
        values: dict[str, object] = json.loads(json.dumps(plain))
        for key, text in variant.overrides.items():
            *section, name = key.split(".")
            inner = values.setdefault(section[0], {}) if section else values
            assert isinstance(inner, dict)
            inner[name] = json.loads(text)
        changed = recipe_of(values, variant.name)
        assert isinstance(changed, Recipe)
        own = variant.without or variant.single_device or variant.shapes or not variant.physics
        assert own or changed != base, variant.name


def test_variants_follow_what_a_recipe_reads_and_its_rows_hold(kinds: ModuleType) -> None:
    network = recipe_of({"name": "a"}, "a").network
    names = [v.name for v in kinds.variants(network)]
    assert "kernels only" in names
    assert "each device alone" in names
    assert "without power" in names
    assert "seed 1" not in names
    assert "no tiled prior" not in names
    unread = recipe_of({"name": "a", "network": {"unread": list(kinds.GROUPS["power"])}}, "a")
    found = kinds.variants(unread.network, seeds=3, both=False, devices_held=True)
    names = [v.name for v in found]
    assert names[:3] == ["recipe", "seed 1", "seed 2"]
    assert not {"kernels only", "steps only", "each device alone", "without power"} & {*names}
    together = next(v for v in found if v.name == kinds.TOGETHER_SHAPES)
    alone = next(v for v in found if v.name == kinds.ALONE_SHAPES)
    assert (together.shapes, together.single_device) == (True, False)
    assert (alone.shapes, alone.single_device) == (True, True)


def test_a_group_varies_where_kernels_differ_in_a_column(kinds: ModuleType) -> None:
    from predictor.fit.fitting import FitData
    from predictor.fit.samples import kernel_samples
    from predictor.traces.schema import empty_table

    x = torch.zeros(3, len(COLUMNS))
    x[:, COLUMNS.index("boost_room")] = 1.0
    x[1, COLUMNS.index("m_odd")] = 1.0
    samples = replace(kernel_samples(empty_table("kernels"), ()), x_NF=x)
    data = FitData(kernels=samples, steps=None, ratios=None, hosts=())
    assert kinds.varies(data, ("alignment",))
    assert kinds.varies(data, ("power", "alignment"))
    assert not kinds.varies(data, ("power",))
    assert not kinds.varies(data, ("alignment",), unread=("m_odd",))


def test_columns_and_base_of_a_variant(kinds: ModuleType) -> None:
    from predictor.fit.samples import kernel_samples
    from predictor.traces.schema import empty_table

    samples = kernel_samples(empty_table("kernels"), ())
    fields = {
        "x_NF": torch.ones(3, len(COLUMNS)), "base_us_N": torch.tensor([1.0, 2.0, 3.0]),
    }  # fmt: skip
    samples = replace(samples, **fields)
    plain = kinds.of_variant(samples, kinds.Variant(name="recipe"))
    assert torch.equal(plain.x_NF, samples.x_NF)
    assert torch.equal(plain.base_us_N, samples.base_us_N)
    power = kinds.of_variant(samples, kinds.Variant(name="a", without=("power",)))
    away = [COLUMNS.index(name) for name in kinds.GROUPS["power"]]
    assert float(power.x_NF[:, away].abs().max()) == 0
    assert float(power.x_NF.sum()) == 3 * (len(COLUMNS) - len(away))
    flat = kinds.of_variant(samples, kinds.Variant(name="b", physics=False))
    assert flat.base_us_N.tolist() == [kinds.CONSTANT_US] * 3


def test_the_page_tells_each_variant_against_the_recipe(
    ablations: ModuleType, tmp_path: Path
) -> None:
    for name, factor in (("recipe", 1.1), ("without power", 1.3)):
        place = tmp_path / "some-v1" / name.replace(" ", "-")
        place.mkdir(parents=True)
        pd.DataFrame({
            "row_id": ["a", "b"], "device": ["x", "y"], "target": "step",
            "measured_us": [10.0, 20.0], "predicted_us": [10.0 * factor, 20.0],
        }).to_parquet(place / "rows.parquet")  # fmt: skip
        facts = {"variant": name, "share": 1.0, "settings": {}}
        (place / "facts.json").write_text(json.dumps(facts))
    page = ablations.page(tmp_path)
    assert "Judged: 2 steps; 100% of the step rows trained on." in page
    assert "| variant | steps | steps of x | steps of y |" in page
    assert "| recipe | 5.0 | 10.0 | 0.0 |" in page
    assert "| without power | 15.0 (+10.0) | 30.0 (+20.0) | 0.0 (+0.0) |" in page


def test_devices_alone_stand_beside_all_together(ablations: ModuleType, tmp_path: Path) -> None:
    for name, factor in (
        ("recipe", 1.5), ("all devices, shapes unseen", 1.1),
        ("each device alone, shapes unseen", 1.3),
    ):  # fmt: skip
        place = tmp_path / "some-v1" / name.replace(" ", "-")
        place.mkdir(parents=True)
        pd.DataFrame({
            "row_id": ["a", "b", "c"], "device": ["x", "y", "x"],
            "target": ["kernel", "kernel", "step"], "measured_us": 10.0,
            "predicted_us": [10.0 * factor, 10.0, 10.0],
        }).to_parquet(place / "rows.parquet")  # fmt: skip
        facts = {"variant": name, "share": 0.5, "settings": {"seed": "2"}}
        (place / "facts.json").write_text(json.dumps(facts))
    page = ablations.page(tmp_path)
    assert "50% of the step rows trained on, `seed=2`." in page
    assert "| recipe | 0.0 | 25.0 |" in page
    assert "shapes unseen |" not in page  # other rows judge them than the recipe
    head = "| device | steps: n | together | alone | kernels: n | together | alone |"
    assert head in page
    assert "| x | 1 | 0.0 | 0.0 (+0.0) | 1 | 10.0 | 30.0 (+20.0) |" in page
    assert "| y | 0 | – | – | 1 | 0.0 | 0.0 (+0.0) |" in page
    assert "| all | 1 | 0.0 | 0.0 (+0.0) | 2 | 5.0 | 15.0 (+10.0) |" in page


def test_a_variant_that_there_is_not_is_refused(ablations: ModuleType, kinds: ModuleType) -> None:
    found = kinds.variants(recipe_of({"name": "a"}, "a").network)
    assert ablations._wanted(found, set()) == list(found)
    assert [v.name for v in ablations._wanted(found, {"steps only"})] == ["steps only"]
    with pytest.raises(RecipeError, match="no variant 'step only'; known: recipe, message passing"):
        ablations._wanted(found, {"recipe", "step only"})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"share": 0.5}, r"another share \(1.0, asked is 0.5\)"),
        ({"settings": {"seed": "2"}}, "another settings"),
        ({"recipe": {"name": "b"}}, "another recipe: name another folder"),
    ],
)
def test_rows_of_another_run_are_not_taken(
    ablations: ModuleType, tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    facts = {"variant": "recipe", "share": 1.0, "settings": {}, "recipe": {"name": "a"}}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    ablations._check_same(tmp_path, facts)
    with pytest.raises(RecipeError, match=named):
        ablations._check_same(tmp_path, {**facts, **changed})
    del facts["recipe"]  # as runs were kept before
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    ablations._check_same(tmp_path, {**facts, "recipe": {"name": "a"}})
