"""Imports on disk: whole or not at all, never over something else, refused when damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from predictor.cli import app
from predictor.errors import DataError
from predictor.traces import import_folder
from predictor.traces.graph_tables import GRAPH_TABLES
from predictor.traces.import_folder import imported_at
from predictor.traces.reading import measured_parts
from predictor.traces.schema import SCHEMA_VERSION, TABLES, Imported
from predictor.traces.sources import neusight
from predictor.traces.sources.registry import import_source, read_source
from predictor.traces.store import read_imported, write_imported

V100 = "Tesla V100-PCIE-32GB"


@pytest.fixture(scope="module")
def written(complete_root, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("import") / "out"
    import_source("neusight", complete_root, out)
    return out


@pytest.fixture
def imported(written, tmp_path) -> Path:
    """An import of the complete layout, to be changed at will."""
    return Path(shutil.copytree(written, tmp_path / "out"))


def test_files_of_an_import(imported):
    names = {p.name for p in imported.iterdir()}
    tables = {f"{t}.parquet" for t in (*TABLES, *GRAPH_TABLES)}
    assert names == {*tables, "report.json", "rejects.json"}


def test_graph_tables_can_be_read_without_this_library(imported):
    kernels = pd.read_parquet(imported / "graphs.parquet")
    addmm = kernels[(kernels["node_name"] == "addmm") & (kernels["graph"] == "toy-train-4-2")]
    assert addmm["op"].tolist() == ["linear", "matmul", "matmul", "reduction"]
    assert addmm["phase"].tolist() == ["forward", "backward", "backward", "backward"]
    assert set(addmm["repetitions"]) == {3.0}
    assert addmm["flops"].iloc[0] == 2 * 8 * 8 * 24
    assert addmm["dim_n"].iloc[0] == 24
    edges = pd.read_parquet(imported / "graph_edges.parquet")
    assert (edges["producer"] < edges["consumer"]).all()
    nodes = pd.read_parquet(imported / "graph_nodes.parquet")
    assert len(nodes) == 2 * 17
    peers = pd.read_parquet(imported / "peers.parquet")
    assert set(peers["peer"]) == set(neusight.PEERS)


def test_report_holds_counts_and_hashes(imported):
    report = json.loads((imported / "report.json").read_text())
    assert report["schema_version"] == SCHEMA_VERSION
    assert report["rows"]["kernels"] == 13
    assert report["rows"]["graph_kernels"] == (12 + 17) + 11  # training, inference
    assert report["flagged"]["kernels"] == {"throttled": 1}
    assert report["dropped"] == {}
    assert all(len(f["sha256"]) == 64 and f["rows"] >= 0 for f in report["files"])
    paths = [f["path"] for f in report["files"]]
    assert paths == sorted(paths)
    assert not any(Path(p).is_absolute() for p in paths)


def test_rejects_are_listed_and_counted(layout, tmp_path):
    layout.sweep("add", [(0.04, 128, 256), ("x", 1, 1), ("y", 1, 1), (0.04, -1, 256)])
    report = import_source("neusight", layout.root, tmp_path / "out")
    assert dict(report.dropped) == {
        "dimension_not_a_positive_integer": 1, "latency_not_a_number": 2,
    }  # fmt: skip
    assert "2 latency_not_a_number" in str(report)
    found = json.loads((tmp_path / "out" / "rejects.json").read_text())
    assert found["dropped"] == dict(report.dropped)
    first = found["first_of_file_and_rule"][0]
    assert first == {
        "file": f"data/dataset/train/collect/add/p2.1.0/{V100}.csv.gz", "row": 1,
        "column": "Latency", "value": "x", "rule": "latency_not_a_number", "rows": 2,
    }  # fmt: skip


def test_writing_again_gives_the_same_files(complete_root, written, tmp_path):
    import_source("neusight", complete_root, tmp_path / "again")
    for path in written.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_an_earlier_import_is_replaced_and_anything_else_is_not(layout, tmp_path, imported):
    layout.sweep("gelu", [(0.04, 128, 256)])
    assert import_source("neusight", layout.root, imported).rows["kernels"] == 1
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.tex").write_text("years of work")
    for target in (other, other / "chapter.tex", layout.root):
        with pytest.raises(DataError, match="no earlier import"):
            import_source("neusight", layout.root, target)
    assert (other / "chapter.tex").read_text() == "years of work"
    (tmp_path / "fresh").mkdir()
    import_source("neusight", layout.root, tmp_path / "fresh")


def test_what_an_import_replaced_is_said(layout, imported):
    layout.sweep("gelu", [(0.04, 128, 256)])
    said = str(import_source("neusight", layout.root, imported))
    assert "replaced the import of neusight that stood there (13 kernel rows, " in said
    assert "another --out" in said
    assert "replaced the import" not in str(import_source("neusight", layout.root, imported))


@pytest.mark.parametrize("again", [True, False])
def test_row_files_beside_an_import_are_neither_removed_nor_ignored_in_silence(
    layout, imported, monkeypatch, again
):
    (imported / "step.parquet").write_bytes(b"hours of measuring")
    if again:
        with pytest.raises(
            DataError, match=r"step\.parquet, which a new import there would remove"
        ):
            import_source("neusight", layout.root, imported)
        assert (imported / "step.parquet").read_bytes() == b"hours of measuring"
        return
    said: list[str] = []
    monkeypatch.setattr(
        import_folder.logger, "warning", lambda text, *given: said.append(text % given)
    )
    read_source("neusight", [imported])
    assert len(said) == 1 and "not step.parquet beside it" in said[0]
    assert sum(len(part.kernels) for part in measured_parts([imported])) == 13
    assert len(said) == 2


@pytest.mark.parametrize("name", ["notes.txt", "timm"])
def test_nothing_beside_an_import_is_removed(layout, imported, name):
    kept = imported / name / "report.json" if name == "timm" else imported / name
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("{}")
    with pytest.raises(DataError, match=f"{name}, which a new import there would remove"):
        import_source("neusight", layout.root, imported)
    assert kept.read_text() == "{}"


def test_what_no_folder_can_be_is_refused_before_anything_is_read(layout, tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for target, says in (
        (tmp_path / "a.csv" / "out", "a.csv is no folder"),
        (tmp_path / "loop", "a link to nothing"),
        (tmp_path / "loop" / "out", "loop is no folder"),
        (Path(), "the current folder"),
        (Path("/"), "no earlier import"),
    ):
        with pytest.raises(DataError, match=says):
            import_source("neusight", layout.root, target)


def test_an_interrupted_import_leaves_the_earlier_one(layout, imported, monkeypatch):
    before = {p.name: p.read_bytes() for p in imported.iterdir()}
    layout.sweep("gelu", [(0.04, 128, 256)])

    def interrupted(value: object, path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("predictor.traces.store._write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_source("neusight", layout.root, imported)
    assert {p.name: p.read_bytes() for p in imported.iterdir()} == before
    assert [p.name for p in imported.parent.iterdir() if p.name.startswith(".")] == []


def test_an_import_without_rows_is_an_import(tmp_path):
    report = write_imported("own", [Imported.empty("own")], tmp_path / "out")
    assert set(report.rows.values()) == {0}
    back = read_imported(tmp_path / "out")
    assert back.kernels.empty and not back.graphs
    assert imported_at(tmp_path / "out", "own") == tmp_path / "out"
    assert imported_at(tmp_path / "out", "neusight") is None


@pytest.mark.parametrize("name", ["kernels.parquet", "graph_edges.parquet", "rejects.json"])
@pytest.mark.parametrize("content", [None, b"", b"PAR1 but no more"])
def test_damaged_imports_are_refused_by_file(imported, name, content):
    if content is None:
        (imported / name).unlink()
    else:
        (imported / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        read_imported(imported)


@pytest.mark.parametrize("key", ["rows", "dropped"])
@pytest.mark.parametrize("counts", [None, [], {"kernels": "a"}, {"kernels": None}])
def test_reports_without_counts_are_refused(imported, key, counts):
    report = json.loads((imported / "report.json").read_text())
    (imported / "report.json").write_text(json.dumps({**report, key: counts}))
    with pytest.raises(DataError, match=f"report.json: '{key}' are no counts"):
        list(measured_parts([imported]))


def test_text_in_place_of_numbers_is_refused(imported):
    path = imported / "kernels.parquet"
    pd.read_parquet(path).assign(latency_us="fast").to_parquet(path)
    with pytest.raises(DataError, match=r"kernels\.parquet: 'latency_us' holds no numbers"):
        list(measured_parts([imported]))


def test_imports_of_another_version_are_refused(imported):
    report = json.loads((imported / "report.json").read_text())
    (imported / "report.json").write_text(json.dumps({**report, "schema_version": 99}))
    with pytest.raises(DataError, match=r"99.*import the source again"):
        read_imported(imported)
    with pytest.raises(DataError, match="no import"):
        read_imported(imported.parent)


@pytest.mark.parametrize(
    ("table", "change", "match"),
    [
        ("graph_edges", {"consumer": 10_000}, "not there"),
        ("graphs", {"node": -1}, "not there"),
        ("graphs", {"op": "fused_everything"}, "fused_everything"),
        ("graphs", {"phase": "sideways"}, "sideways"),
    ],
)
def test_graphs_that_do_not_hold_together_are_refused(imported, table, change, match):
    path = imported / f"{table}.parquet"
    pd.read_parquet(path).assign(**change).to_parquet(path)
    with pytest.raises(DataError, match=match):
        read_imported(imported)


@pytest.mark.parametrize("table", ["kernels", "graphs", "graph_nodes"])
def test_missing_columns_are_refused(imported, table):
    path = imported / f"{table}.parquet"
    column = "op" if table != "graph_nodes" else "node_class"
    pd.read_parquet(path).drop(columns=column).to_parquet(path)
    with pytest.raises(DataError, match=f"no column '{column}'"):
        read_imported(imported)


def test_rows_that_were_changed_are_checked_again(imported):
    path = imported / "kernels.parquet"
    rows = pd.read_parquet(path)
    rows.loc[0, "latency_us"] = -5.0
    rows.to_parquet(path)
    data = read_imported(imported)
    assert len(data.kernels) == len(rows) - 1
    assert data.dropped == {"latency_not_plausible": 1}


def test_the_command_prints_the_report(complete_root, tmp_path):
    runner = CliRunner()
    out = tmp_path / "out"
    result = runner.invoke(app, ["import", "neusight", str(complete_root), "--out", str(out)])
    assert result.exit_code == 0
    assert "13  kernel rows" in result.output
    assert (out / "kernels.parquet").is_file()
