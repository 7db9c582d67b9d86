"""Rows read so far, told part by part."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import DataError
from predictor.traces.progress import told
from predictor.traces.schema import Imported, filled
from predictor.traces.sources.registry import expected_rows, import_source, read_source


def part(kernels: int, steps: int, dropped: int) -> Imported:
    made = Imported.empty("rows")
    made.kernels, made.steps = filled("kernels", {}, kernels), filled("steps", {}, steps)
    made.dropped["rule"] += dropped
    return made


def test_kept_and_dropped_rows_count_once_the_reader_is_done_with_them() -> None:
    heard: list[int] = []
    parts = told([part(3, 0, 1), part(0, 2, 0)], heard.append, before=10)
    first = next(parts)
    assert heard == []
    first.kernels = first.kernels.iloc[:0]  # a sample takes them out
    assert len(next(parts).steps) == 2
    assert heard == [14]
    assert list(parts) == []
    assert heard == [14, 16]


def test_without_a_listener_the_parts_come_through() -> None:
    assert len(list(told([part(1, 1, 0)], None))) == 1


KERNELS = """\
device,op,batch,m,n,k,dtype,context,latency_us
nvidia-t4,linear,1,512,512,512,fp32,isolated,80
nvidia-t4,linear,1,512,512,512,fp16,isolated,-1
"""


def test_import_and_reading_tell(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        (folder / f"{folder.name}.csv").write_text(KERNELS)
    heard: list[int] = []
    import_source("rows", folders[0], tmp_path / "out", progress=heard.append)
    assert heard == [2]
    heard.clear()
    read_source("rows", folders, progress=heard.append)
    assert heard == [2, 4]


def test_rows_that_will_be_read_are_known_where_that_is_quick(tmp_path: Path) -> None:
    assert expected_rows("rows", tmp_path) is None
    with pytest.raises(DataError, match="no source 'warp'"):
        expected_rows("warp", tmp_path)
    with pytest.raises(DataError, match="no aiconfigurator layout"):
        expected_rows("aiconfigurator", tmp_path)
