"""Which folders are the project's own data sets: whole ones, ones under way, and no others."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import pandas as pd
import pytest

from predictor.traces.files import LayoutNotFoundError
from predictor.traces.sources.own import parts


@pytest.fixture
def under_way(samples_own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device's folder with kernels alone and the device file: no step has been measured yet."""
    monkeypatch.setattr("predictor.hardware.catalogue._adopted", {})
    monkeypatch.setattr("predictor.hardware.catalogue._adopted_from", {})
    [folder] = samples_own.own_sample(tmp_path, {}).iterdir()
    assert {p.name for p in folder.iterdir()} == {"kernels.parquet", f"{folder.name}.device.toml"}
    return folder


def test_kernels_alone_with_their_device_are_a_data_set(under_way):
    for data in (under_way, under_way.parent):
        assert [len(part.kernels) for part in parts(data)] == [2]


@pytest.mark.parametrize("spoil", ["name", "more", "foreign", "none"])
def test_a_folder_of_a_users_own_is_left_to_own_rows(under_way, spoil):
    kernels = under_way / "kernels.parquet"
    if spoil == "name":
        under_way.rename(under_way.with_name("mine"))
    elif spoil == "more":  # would be lost: the importer reads its own names only
        copy(kernels, under_way / "more.parquet")
    elif spoil == "foreign":  # as if another program had written it
        pd.read_parquet(kernels).to_parquet(kernels)
    else:
        kernels.unlink()
    with pytest.raises(LayoutNotFoundError, match="nothing that was measured here"):
        list(parts(under_way.parent))


def test_a_device_of_the_catalogue_needs_no_file(under_way):
    (under_way / f"{under_way.name}.device.toml").unlink()
    known = under_way.rename(under_way.with_name("amd-epyc-9004-2vcpu"))
    [part] = parts(known)
    assert part.dropped["unknown_device"] == 2  # taken, though its rows name another device
