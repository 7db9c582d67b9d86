"""`predictor tune` on the command line: bad input in one line, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.cli import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "a-v1.toml"
    path.write_text('name = "a-v1"\n[tune]\n"network.hiden" = [8, 16]\n')
    return path


def test_a_recipe_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "tune", "no.toml", "--data", str(tmp_path), "--out", str(tmp_path / "s"))
    assert "no recipe 'no.toml'" in err


def test_data_that_are_not_there(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no folder or file" in refused(
        capsys, "tune", str(recipe), "--data", "nowhere", "--out", "s"
    )


def test_a_misspelt_setting(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    err = refused(capsys, "tune", str(recipe), "--data", str(tmp_path), "--out", str(out))
    assert "no setting 'network.hiden' to search; known: network.hidden" in err
    assert not out.exists()


@pytest.mark.parametrize("flags", [["--trials", "0"], ["--minutes", "-1"], ["--set", "seed"]])
def test_bad_numbers(
    flags: list[str], recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refused(capsys, "tune", str(recipe), "--data", str(tmp_path), "--out", "s", *flags)
    assert flags[0] in err
