"""What the project measured itself: read by device, with graphs, and split by family."""

from __future__ import annotations

import pytest

from predictor.errors import DataError
from predictor.fit.splits import device_split
from predictor.hardware.catalogue import resolve_device
from predictor.traces.merge import merged
from predictor.traces.sources.own import own_bank, parts

MODELS = {"llama-4x384": {"batch": 2, "seq": 128}, "resnet-basic-4": {"batch": 4, "size": 96},
          "mlp-4x512": {"batch": 256}, "t5-3x256": {"batch": 2, "seq": 64}}  # fmt: skip


def test_steps_have_the_graph_of_their_program(tmp_path, samples_own):
    data = merged(parts(samples_own.own_sample(tmp_path, MODELS)))
    bank = own_bank()
    assert not data.dropped and (data.steps["flag"] == "").all()
    for step in data.steps.to_dict("records"):
        table = bank.graph(step["graph"]).table(int(step["batch"]))
        assert len(table) > 10 and table.flops.sum() > 1e8
    assert data.steps["graph"].is_unique


def test_a_step_of_another_size_has_none(tmp_path, samples_own):
    odd = {"llama-4x384": {"batch": 3, "seq": 128}, "gpt-9x9": {"batch": 1}}
    data = merged(parts(samples_own.own_sample(tmp_path, odd)))
    assert data.steps["flag"].tolist() == ["no_graph", "no_graph"]
    assert data.steps["graph"].tolist() == ["", ""]


def test_the_device_file_comes_along(tmp_path, samples_own):
    merged(parts(samples_own.own_sample(tmp_path, MODELS)))
    assert resolve_device(samples_own.FOUND.device_id).units == 2


def test_one_devices_folder_is_enough(tmp_path, samples_own):
    folder = samples_own.own_sample(tmp_path, MODELS)
    assert len(merged(parts(folder / samples_own.FOUND.device_id)).kernels) == 6


def test_families_of_one_fold_are_in_one_part(tmp_path, samples_own):
    data = merged(parts(samples_own.own_sample(tmp_path, MODELS)))
    split = device_split("own-families", [samples_own.FOUND.device_id])
    steps = dict(zip(data.steps["model"], split.parts(data.steps, "steps"), strict=True))
    assert steps == {"llama-4x384": "test", "resnet-basic-4": "train", "mlp-4x512": "train",
                     "t5-3x256": "development"}  # fmt: skip
    kernels = split.parts(data.kernels, "kernels")
    inside = (data.kernels["context"] == "step").to_numpy()
    named = dict(zip(data.kernels["model"][inside], kernels[inside], strict=True))
    assert named == steps
    assert set(kernels[~inside]) == {"train"}


def test_the_bank_holds_whole_families_in_a_fold():
    index = own_bank().index
    assert len(index) >= 100
    assert index.groupby("family")["fold"].nunique().max() == 1
    assert set(index["fold"]) == {0, 1, 2, 3, 4}
    shared = index.groupby("graph")["family"].nunique()
    assert shared.max() == 1
    assert set(index["mode"]) == {"infer", "train"} and set(index["variant"]) == {"fp32", "bf16"}


def test_nothing_measured_is_an_error(tmp_path):
    with pytest.raises(DataError, match="nothing that was measured here"):
        next(parts(tmp_path))
