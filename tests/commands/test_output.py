"""Names of files to write: refused before any work where no file can be."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from predictor.commands.output import check_files, check_folder


def test_json_may_go_to_standard_output_and_tables_may_not(tmp_path: Path) -> None:
    check_files(json="-", rows=tmp_path / "new" / "rows.parquet", out=None)
    for flag in ("rows", "html", "out"):
        with pytest.raises(typer.BadParameter, match="'-' is for --json"):
            check_files(**{flag: Path("-")})


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("", tmp_path, tmp_path / "file" / "rows.parquet"):
        with pytest.raises(typer.BadParameter, match="name a file"):
            check_files(rows=name)


def test_a_folder_to_write_is_no_file_and_below_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_folder("--out", tmp_path)
    check_folder("--out", tmp_path / "new" / "deep")
    for name in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(typer.BadParameter, match="file is no folder: name another"):
            check_folder("--out", name)
