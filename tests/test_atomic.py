"""Files and folders are replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.atomic import replacing_file, replacing_folder, write_text


def test_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_interrupted_file_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_interrupted_folder_keeps_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with replacing_folder(folder) as fresh:
        (fresh / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing_folder(folder) as fresh:
        (fresh / "a").write_text("half")
        raise KeyboardInterrupt
    assert (folder / "a").read_text() == "old"
    with replacing_folder(folder) as fresh:
        (fresh / "b").write_text("new")
    assert [p.name for p in folder.iterdir()] == ["b"]
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    with replacing_folder(tmp_path / "link") as fresh:
        (fresh / "a").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "a").read_text() == "new"
