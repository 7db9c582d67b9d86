"""`predictor transfer-report` on the command line: bad input in one line, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.cli import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["transfer-report", *arguments])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_data_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no folder or file 'nowhere'" in refused(capsys, "--data", "nowhere")


def test_a_run_brings_its_own_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", str(tmp_path), "--run", str(tmp_path))
    assert "give one" in refused(capsys, *data, "--recipe", "a.toml")
    assert "give one" in refused(capsys, *data, "--set", "seed=1")


def test_a_recipe_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "--data", str(tmp_path), "--recipe", "no.toml")
    assert "no recipe 'no.toml'" in err


def test_folders_without_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none of the sources" in refused(capsys, "--data", str(tmp_path))


def test_a_suite_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "--data", str(tmp_path), "--suite", "tim")
    assert "no transfer suite 'tim'; known: timm" in err


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(
        capsys, "--data", str(tmp_path), "--suite", "timm", "--run", str(tmp_path),
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert "is not the folder of a run" in err
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder_of_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    err = refused(capsys, "--data", str(tmp_path), "--out", str(tmp_path / "file"))
    assert "Invalid value for --out" in err and "is no folder" in err
