"""The checkpoint folder: a round trip, and every way a folder can be wrong."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pytest
import torch

from predictor.checkpoint import (
    CARD,
    CONFIG,
    FILES,
    METRICS,
    WEIGHTS,
    Release,
    default_checkpoint,
    list_releases,
    load_release,
    save_release,
)
from predictor.errors import CheckpointError

CONFIG_VALUES: dict[str, object] = {
    "name": "tiny-v1",
    "model": {"hidden": 4},
    "features": {"hash": "abc"},
    "vocabulary": ["gemm"],
    "calibration": {},
    "data": {"neusight": "123"},
    "training": {"seed": 0},
}


def save(folder: Path, **changes: object) -> Release:
    arguments: dict[str, object] = {
        "config": CONFIG_VALUES,
        "tensors": {"b": torch.ones(2, 2), "a": torch.arange(3.0)},
        "metrics": {"mape": 0.1},
        "card": "# tiny-v1\n",
    }
    return save_release(folder, **{**arguments, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "tiny-v1")
    return tmp_path / "tiny-v1"


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    config.update(changes)
    (folder / CONFIG).write_text(json.dumps({k: v for k, v in config.items() if v != "DROP"}))


def test_round_trip_is_the_identity(folder: Path) -> None:
    release = load_release(folder)
    assert release.name == "tiny-v1"
    assert {k: release.config[k] for k in CONFIG_VALUES} == CONFIG_VALUES
    assert release.metrics == {"mape": 0.1}
    assert torch.equal(release.tensors["a"], torch.arange(3.0))
    assert torch.equal(release.tensors["b"], torch.ones(2, 2))
    assert sorted(p.name for p in folder.parent.iterdir()) == ["tiny-v1"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


def test_weights_are_the_same_bytes_whatever_their_order(folder: Path, tmp_path: Path) -> None:
    again = save(tmp_path / "again", tensors={"a": torch.arange(3.0), "b": torch.ones(2, 2)})
    assert again.config["weights_sha256"] == load_release(folder).config["weights_sha256"]
    assert again.key == load_release(folder).key


def test_shared_and_strided_tensors_are_stored(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    release = save(tmp_path / "r", tensors={"a": base, "b": base, "t": base.T})
    assert torch.equal(release.tensors["t"], base.T)


@pytest.mark.parametrize("file", FILES)
def test_missing_file(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"has no {file}"):
        load_release(folder)


def test_the_folder_of_a_run_is_told_from_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    folder.rename(run / "release")
    with pytest.raises(CheckpointError, match=r"run is the folder of a run; .* is .*run/release"):
        load_release(run)


def test_wrong_hash(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"sha256 .* differs"):
        load_release(folder)


@pytest.mark.parametrize("version", [2, "1", None, True, "DROP"])
def test_unknown_version(folder: Path, version: object) -> None:
    edit_config(folder, format_version=version)
    with pytest.raises(CheckpointError, match="format_version"):
        load_release(folder)


def test_unknown_key_and_missing_key(folder: Path) -> None:
    edit_config(folder, extra=1)
    with pytest.raises(CheckpointError, match="unknown key 'extra'; allowed: calibration"):
        load_release(folder)
    edit_config(folder, extra="DROP", vocabulary="DROP")
    with pytest.raises(CheckpointError, match="key 'vocabulary' is missing"):
        load_release(folder)


@pytest.mark.parametrize("file", [CONFIG, METRICS])
@pytest.mark.parametrize("text", ["{", "[1]", "\xff", "[" * 100_000, '{"a": NaN}'])
def test_json_that_is_not_an_object(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=file):
        load_release(folder)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_is_never_loaded(folder: Path, protocol: int) -> None:
    data = pickle.dumps({"a": 1}, protocol=protocol)
    (folder / WEIGHTS).write_bytes(data)
    edit_config(folder, weights_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(CheckpointError, match="pickled weights are never loaded"):
        load_release(folder)
    (folder / WEIGHTS).rename(folder / "model.pt")
    with pytest.raises(CheckpointError, match=r"has model\.pt but no model\.safetensors"):
        load_release(folder)


def test_a_file_cut_short_is_refused_even_with_its_own_hash(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()[:-4]
    (folder / WEIGHTS).write_bytes(data)
    edit_config(folder, weights_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        _ = load_release(folder).tensors


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_weights(tmp_path: Path, folder: Path, value: float) -> None:
    with pytest.raises(CheckpointError, match="tensor 'w' holds NaN or infinite"):
        save(tmp_path / "nan", tensors={"w": torch.tensor([value])})
    from safetensors.torch import save as to_bytes

    data = to_bytes({"w": torch.tensor([1.0, value])})
    (folder / WEIGHTS).write_bytes(data)
    edit_config(folder, weights_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(CheckpointError, match="tensor 'w' holds NaN or infinite"):
        _ = load_release(folder).tensors


def test_more_than_20_mb(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(CheckpointError, match="at most 20,000,000"):
        save(tmp_path / "big", tensors={"w": torch.zeros(5_000_001)})
    assert not (tmp_path / "big").exists()
    with (folder / CARD).open("ab") as file:
        file.truncate(20_000_000)
    with pytest.raises(CheckpointError, match="at most 20,000,000"):
        load_release(folder)


@pytest.mark.parametrize("name", ["Base", "a/b", "", "../x", "a b"])
def test_bad_release_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="release name"):
        save(tmp_path / "r", config={**CONFIG_VALUES, "name": name})


def test_unstorable_values_and_unknown_keys_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="finite numbers"):
        save(tmp_path / "r", metrics={"mape": float("nan")})
    with pytest.raises(CheckpointError, match="unknown key 'extra'"):
        save(tmp_path / "r", config={**CONFIG_VALUES, "extra": 1})
    assert list(tmp_path.iterdir()) == []


def test_names_are_immutable_unless_told(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="immutable"):
        save(folder)
    release = save(folder, metrics={"mape": 0.2}, overwrite=True)
    assert release.metrics == {"mape": 0.2}
    assert [p.name for p in folder.parent.iterdir()] == ["tiny-v1"]


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint 'base-v999'; shipped"):
        load_release("base-v999")
    for nowhere in (tmp_path / "nowhere", "", "~no-such-user/base-v1", "\0"):
        with pytest.raises(CheckpointError, match="no checkpoint"):
            load_release(nowhere)
    (tmp_path / "file.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file"):
        load_release(tmp_path / "file.safetensors")


@pytest.mark.parametrize("name", list_releases())
def test_shipped_releases_load(name: str) -> None:
    release = load_release(name)
    assert release.name == name
    assert release.tensors


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        (["tpu"], "tpu-v1"), (["tpu", "tpu"], "tpu-v1"), (["gpu"], "base-v2"),
        (["cpu", "gpu"], "base-v2"), (["gpu", "tpu"], "base-v2"), (["npu"], "base-v2"),
        ([], "base-v2"),
    ],
)  # fmt: skip
def test_the_default_follows_the_kinds_of_device(kinds: list[str], name: str) -> None:
    assert default_checkpoint(kinds) == name
    assert name in list_releases()
