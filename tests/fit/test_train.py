"""Training: the same seed gives the same weights, killed or not, and a release that loads."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from predictor.checkpoint import CONFIG_KEYS, FILES, Release, load_release
from predictor.errors import CheckpointError, DataError, RecipeError
from predictor.features.columns import COLUMNS
from predictor.fit import run_folder
from predictor.fit.data import load_data
from predictor.fit.module import LatencyTraining
from predictor.fit.train import train
from predictor.graph.ops import TOKENS
from predictor.nn.latency import load_predictor

TrainOnce = Callable[..., Release]


def weights(release: Release) -> bytes:
    return (release.path / "model.safetensors").read_bytes()


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[int]]:
    """Raise in the given fit (counted from 0) and epoch; gives the list of epochs trained."""
    plain, begin = LatencyTraining.training_step, LatencyTraining.on_train_start
    seen: list[int] = []
    fits = [-1]

    def arm(fit: int, epoch: int, error: type[BaseException] = Killed) -> list[int]:
        def start(self: LatencyTraining) -> None:
            fits[0] += 1
            begin(self)

        def step(self: LatencyTraining, index: torch.Tensor, batch: int) -> torch.Tensor:
            if batch == 0:
                seen.append(self.current_epoch)
            if (fits[0], self.current_epoch, batch) == (fit, epoch, 1):
                raise error
            return plain(self, index, batch)

        monkeypatch.setattr(LatencyTraining, "on_train_start", start)
        monkeypatch.setattr(LatencyTraining, "training_step", step)
        return seen

    return arm


def test_release_of_a_finished_run(run_dir: Path) -> None:
    folder = run_dir / "release"
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    release = load_release(folder)
    assert release.name == "tiny-v1"
    assert set(release.config) == CONFIG_KEYS
    assert release.config["model"]["devices"] == ["nvidia-t4", "nvidia-v100-pcie-32gb"]
    assert release.config["features"]["columns"] == list(COLUMNS)
    assert release.config["vocabulary"] == list(TOKENS)
    assert release.config["training"]["optimizer"]["epochs"] == 3
    source = release.config["data"]["neusight"]
    assert (source["kernel_rows"], source["op_rows"], source["step_rows"]) == (300, 48, 8)
    learned = {tuple(pair) for pair in release.config["model"]["learned"]}
    assert {("gemm", "fp32"), ("bmm", "fp32"), ("softmax_backward", "fp32")} <= learned
    assert not {token for token, _ in learned} & {"conv", "attention", "adamw", "gelu_backward"}
    measured = release.config["model"]["measured"]
    assert set(measured) == {"nvidia-t4", "nvidia-v100-pcie-32gb"}
    assert {tuple(pair) for pairs in measured.values() for pair in pairs} == learned
    network = load_predictor(release)
    assert network.measured.here("nvidia-t4", "gemm", "fp32")
    assert not network.measured.here("nvidia-t4", "conv", "fp32")
    for tensor in release.tensors.values():
        assert bool(tensor.isfinite().all())


def numbers(value: object) -> Iterator[float]:
    """All numbers inside plain values."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)
    elif isinstance(value, int | float):
        yield float(value)


def test_metrics_hold_every_fold_and_no_nan(run_dir: Path) -> None:
    metrics = json.loads((run_dir / "release/metrics.json").read_text())
    folds = {(g["fold_kind"], g["fold"]) for g in metrics["held_out"]}
    assert folds == {
        ("device", "nvidia-t4"), ("device", "nvidia-v100-pcie-32gb"),
        ("model", "toy"), ("model", "alien"),
    }  # fmt: skip
    assert {g["target"] for g in metrics["held_out"]} == {"step", "in_step", "isolated"}
    assert all(math.isfinite(n) for n in numbers(metrics))
    steps = [g for g in metrics["held_out"] if g["target"] == "step"]
    assert {(g["group"], g["n"]) for g in steps if g["fold_kind"] == "device"} == {
        ("total", 4), ("forward", 4), ("backward", 2),
    }  # fmt: skip


def test_calibration_covers_devices_seen_and_unseen(run_dir: Path) -> None:
    calibration = load_release(run_dir / "release").config["calibration"]
    assert calibration["level"] == 0.9
    for context in ("isolated", "in_step"):
        for kind in ("seen", "unseen"):
            assert "default" in calibration[context][kind]
    assert {"total"} <= set(calibration["step"]["unseen"])
    assert "matmul" in calibration["isolated"]["unseen"]
    assert all(math.isfinite(n) for n in numbers(calibration))


def test_what_was_resolved_stands_beside_the_run(run_dir: Path) -> None:
    resolved = json.loads((run_dir / "recipe.json").read_text())
    assert resolved["recipe"]["name"] == "tiny-v1"
    assert resolved["recipe"]["network"]["hidden"] == 8
    assert len(resolved["data"]["neusight"]["sha256"]) == 64


def test_same_seed_same_weights(train_once: TrainOnce) -> None:
    first, second = train_once("a"), train_once("b")
    assert weights(first) == weights(second)
    assert first.key == second.key
    assert weights(train_once("c", seed=1)) != weights(first)


def test_state_outside_does_not_matter_and_is_left_alone(train_once: TrainOnce) -> None:
    first = train_once("a", network__dropout=0.1)
    torch.manual_seed(1234)
    torch.rand(17)
    torch.set_num_threads(2)  # the fixture puts it back
    assert weights(train_once("b", network__dropout=0.1)) == weights(first)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_killed_run_goes_on_to_the_same_weights(
    train_once: TrainOnce, kill_at: Callable[..., list[int]], dropout: float, tmp_path: Path
) -> None:
    whole = train_once("whole", network__dropout=dropout)
    trained = kill_at(0, 2)
    with pytest.raises(Killed):
        train_once("stopped", network__dropout=dropout)
    assert not (tmp_path / "stopped/release").exists()
    assert trained == [0, 1, 2]
    trained.clear()
    resumed = train_once("stopped", network__dropout=dropout)
    assert trained == [2]
    assert weights(resumed) == weights(whole)
    trained.clear()
    again = train_once("stopped", network__dropout=dropout)
    assert trained == []  # all epochs are behind it
    assert weights(again) == weights(whole)


def test_a_run_killed_in_its_second_fold_keeps_the_first(
    run_dir: Path, recipe_path: Path, data_dir: Path, tmp_path: Path,
    kill_at: Callable[..., list[int]],
) -> None:  # fmt: skip
    trained = kill_at(1, 1)
    with pytest.raises(Killed):
        train(recipe_path, [data_dir], tmp_path / "run", progress=False)
    assert trained == [0, 1, 2, 0, 1]
    trained.clear()
    release = train(recipe_path, [data_dir], tmp_path / "run", progress=False)
    assert trained == [1, 2, *(3 * [0, 1, 2])]  # rest of the second fold, two more, the last fit
    whole = load_release(run_dir / "release")
    assert weights(release) == weights(whole)
    assert release.key == whole.key
    assert release.metrics == whole.metrics


class Payload:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "run"))


def test_a_damaged_or_foreign_file_is_not_resumed(
    train_once: TrainOnce, kill_at: Callable[..., list[int]], tmp_path: Path
) -> None:
    kill_at(0, 2)
    with pytest.raises(Killed):
        train_once("run")
    (last,) = (tmp_path / "run").rglob("last.ckpt")
    whole = last.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no archive"):
        last.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"last\.ckpt cannot be resumed .*remove it"):
            train_once("run")
    torch.save({"state_dict": Payload(tmp_path / "ran")}, last)
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        train_once("run")
    assert not (tmp_path / "ran").exists()


def test_a_damaged_fold_is_told_with_the_remedy(
    run_dir: Path, recipe_path: Path, data_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    table = tmp_path / "run/folds/model-toy/kernels.parquet"
    whole = table.read_bytes()
    for damage in (lambda: table.write_bytes(whole[: len(whole) // 2]), table.unlink):
        damage()
        with pytest.raises(DataError, match=r"model-toy is damaged \(kernels\.parquet .*remove"):
            train(recipe_path, [data_dir], tmp_path / "run", progress=False)


def test_ctrl_c_leaves_no_release(
    train_once: TrainOnce, kill_at: Callable[..., list[int]], tmp_path: Path
) -> None:
    kill_at(0, 1, KeyboardInterrupt)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            train_once("run")
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not (tmp_path / "run/release").exists()


def test_a_folder_of_another_recipe_or_other_data_is_refused(
    train_once: TrainOnce, tmp_path: Path, data_dir: Path
) -> None:
    first = weights(train_once("run"))
    with pytest.raises(RecipeError, match="holds a run of another recipe, other data"):
        train_once("run", network__hidden=12)
    other = tmp_path / "other"
    shutil.copytree(data_dir, other)
    shutil.rmtree(other / "neusight/label/Tesla_T4")
    with pytest.raises(RecipeError, match=r"run of another recipe.*another --out"):
        train_once("run", data=[other])
    assert weights(load_release(tmp_path / "run/release")) == first


def test_a_folder_of_other_features_is_refused(
    train_once: TrainOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_once("run").path.parent
    (run / "recipe.json").write_bytes(b"\xff")  # damaged, so not known to be this recipe's
    with pytest.raises(RecipeError, match="holds a run of another"):
        train_once("run")
    (run / "recipe.json").unlink()
    train_once("run")
    monkeypatch.setattr(run_folder, "columns_hash", lambda: "0" * 16)
    with pytest.raises(RecipeError, match="holds a run of another"):
        train_once("run")


def test_split_and_folder_are_refused_before_the_data_is_read(
    train_once: TrainOnce, tmp_path: Path
) -> None:
    unread = [tmp_path / "empty"]
    unread[0].mkdir()
    (tmp_path / "file").write_text("x")
    train_once("run")
    with pytest.raises(RecipeError, match="unknown split 'none'"):
        train_once("new", data=unread, split="none")
    for out in ("file", "file/run"):
        with pytest.raises(RecipeError, match=r"file is no folder; give another --out"):
            train_once(out, data=unread)
    with pytest.raises(RecipeError, match="holds a run of another recipe"):
        train_once("run", data=unread, network__hidden=12)
    with pytest.raises(DataError, match="no NeuSight layout"):  # all is well but the data
        train_once("run", data=unread)


def test_a_run_that_came_to_nothing_does_not_keep_its_folder(tmp_path: Path) -> None:
    run_folder.claim_folder(tmp_path, {"seed": 0}, {})  # and then the rows were wrong
    run_folder.check_folder(tmp_path, {"seed": 1})
    run_folder.claim_folder(tmp_path, {"seed": 1}, {})
    (tmp_path / "fit").mkdir()  # something to lose
    for refuse in (run_folder.check_folder, partial(run_folder.claim_folder, facts={})):
        with pytest.raises(RecipeError, match="holds a run of another recipe"):
            refuse(tmp_path, {"seed": 0})
        refuse(tmp_path, {"seed": 1})


def test_a_training_that_diverges_ends_and_says_so(train_once: TrainOnce) -> None:
    with pytest.raises(RecipeError, match=r"the loss is nan after epoch \d+: .*learning_rate"):
        train_once("run", optimizer__learning_rate=1e30, optimizer__epochs=3)


def test_no_training_rows_is_a_line(train_once: TrainOnce, layout: Any, tmp_path: Path) -> None:
    layout.graphs()
    layout.steps("Tesla T4")
    with pytest.raises(DataError, match="no rows to train on of the training devices"):
        train_once("run", data=[layout.root])
    with pytest.raises(DataError, match="no NeuSight layout"):
        train_once("run", data=[tmp_path])
    with pytest.raises(RecipeError, match="unknown split 'warp'"):
        train_once("run", split="warp")


def test_kernels_alone_make_a_release(train_once: TrainOnce, layout: Any) -> None:
    layout.kernels("Tesla T4")
    layout.kernels("Tesla V100-PCIE-32GB")
    release = train_once(
        "run", data=[layout.root], calibration__device_folds=True, calibration__model_folds=True
    )
    predictor = load_predictor(release)
    assert ("gemm", "fp32") in predictor.learned
    assert not {t for t, _ in predictor.learned if t.endswith("_backward")}
    assert predictor.calibration["step"]["unseen"]["total"] > 0
    assert {g["target"] for g in release.metrics["held_out"]} == {"isolated"}


def test_one_device_and_model_hold_out_kernel_shapes(train_once: TrainOnce, layout: Any) -> None:
    layout.kernels("Tesla T4")
    layout.graphs(["toy-train-1024-8"])
    layout.steps("Tesla T4", ["toy-train-1024-8"])
    release = train_once(
        "run", data=[layout.root], optimizer__epochs=1, calibration__device_folds=True,
        calibration__model_folds=True,
    )  # fmt: skip
    held_out = release.metrics["held_out"]
    assert {(g["fold_kind"], g["target"]) for g in held_out} == {("model", "isolated")}
    assert {g["fold"] for g in held_out} == {f"shapes-{i}" for i in range(5)}
    assert sum(g["n"] for g in held_out) == 150
    assert load_predictor(release).calibration["step"]["unseen"]["total"] > 0
    assert "Device never seen: not run" in (release.path / "README.md").read_text()


def test_steps_without_ops_or_backward_times_train(train_once: TrainOnce, layout: Any) -> None:
    for device in ("Tesla T4", "Tesla V100-PCIE-32GB"):
        layout.kernels(device)
        layout.graphs()
        layout.steps(device, ops=False)
    label = layout.top / "label/Tesla_T4/toy-train-1024-8.json"
    value = json.loads(label.read_text())
    label.write_text(json.dumps({**value, "bwall_latency": 0}))
    release = train_once(
        "run", data=[layout.root], calibration__device_folds=True, calibration__model_folds=True
    )
    assert all(math.isfinite(n) for n in numbers(release.metrics))
    backward = [g for g in release.metrics["held_out"] if g["group"] == "backward"]
    assert {(g["fold"], g["n"]) for g in backward if g["fold_kind"] == "device"} == {
        ("nvidia-t4", 1), ("nvidia-v100-pcie-32gb", 2),
    }  # fmt: skip


def test_members_differ_and_all_are_stored(train_once: TrainOnce) -> None:
    release = train_once("run", network__members=2, network__message_layers=0)
    nets = load_predictor(release).networks.members
    assert len(nets) == 2
    assert not torch.equal(
        nets[0].encoders[0].encoder[0].weight, nets[1].encoders[0].encoder[0].weight
    )


def test_training_learns_the_factors_of_the_devices(train_once: TrainOnce, data_dir: Path) -> None:
    from predictor.fit.recipe import Recipe
    from predictor.fit.samples import kernel_samples
    from predictor.fit.scoring import score_kernels

    def error(release: Release) -> float:
        predictor = load_predictor(release)
        rows = load_data(Recipe(name="a"), [data_dir]).kernels
        hosts = predictor.networks.devices
        scored = score_kernels(
            predictor.networks, kernel_samples(rows[rows["device"].isin(hosts)], hosts)
        )
        return float((scored["predicted_us"] / scored["measured_us"] - 1).abs().mean())

    fast = {"network__hidden": 32, "optimizer__learning_rate": 0.02, "optimizer__batch_size": 64}
    short = train_once("a", optimizer__epochs=1, **fast)
    long = train_once("b", optimizer__epochs=30, **fast)
    assert error(long) < 0.12
    assert error(long) < error(short) / 3


def test_a_correction_of_steps_is_trained_stored_and_read_back(train_once: TrainOnce) -> None:
    settings = {"optimizer__epochs": 3, "network__message_layers": 0}
    plain = load_predictor(train_once("a", **settings)).networks
    corrected = load_predictor(train_once("b", network__correction=0.3, **settings)).networks
    assert [net.correction is None for net in plain.members] == [True]
    (net,) = corrected.members
    assert net.correction is not None
    assert net.correction.limit == 0.3
    assert float(net.correction.weight_S.detach().abs().max()) > 0
