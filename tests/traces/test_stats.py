"""What measured data holds: counts, folders that overlap, and the command that prints them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from predictor import cli
from predictor.errors import DataError
from predictor.report import data_stats as report
from predictor.traces.sources.registry import import_source
from predictor.traces.stats import data_stats

HEAD = "device,op,batch,m,n,k,dtype,context,latency_us,framework,framework_version"
OLD = "nvidia-h100-sxm-80gb,bmm,1,64,64,64,bf16,device,100,trt,1.0"
NEW = "nvidia-h100-sxm-80gb,bmm,1,64,64,64,bf16,device,104,trt,1.1"
ALONE = "nvidia-l4,bmm,1,64,64,64,bf16,device,50,trt,1.1"
STEPS = "device,model,mode,batch,dtype,measure,latency_us,flag"
STEP = "nvidia-l4,resnet50,train,32,fp32,wall,1500,config_unknown"


def write(folder: Path, name: str, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two measurements of one kernel, another kernel, a step; one row that is refused."""
    place = write(tmp_path / "mine", "kernels.csv", HEAD, OLD, NEW, ALONE, ALONE.replace("l4", "x"))
    return write(place, "steps.csv", STEPS, STEP)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        cli.main(["data", "stats", *arguments])
    assert isinstance(done.value.code, int)
    return done.value.code


def test_rows_are_counted(folder):
    stats = data_stats([folder])
    assert (stats.total("kernels"), stats.total("steps")) == (3, 1)
    devices = {k[0]: c["rows"] for k, c in stats.by("kernels", "device").items()}
    assert devices == {"nvidia-h100-sxm-80gb": 2, "nvidia-l4": 1}
    assert stats.by("steps", "flag")[("config_unknown",)] == {"rows": 1, "flagged": 1}
    assert stats.dropped == {"rows": {"unknown_device": 1}}
    assert stats.noise is not None
    release = stats.noise.groups.iloc[0]
    assert (release["pair"], release["n"]) == ("release", 1)
    assert release["median"] == pytest.approx(0.04, rel=1e-5)


def test_an_import_and_a_folder_of_imports_are_read_like_the_files(folder, tmp_path):
    import_source("rows", folder, tmp_path / "imports" / "rows")
    wanted = data_stats([folder]).to_json()
    for place in (tmp_path / "imports", tmp_path / "imports" / "rows"):
        found = data_stats([place]).to_json()
        assert {**found, "folders": ""} == {**wanted, "folders": ""}


def test_a_row_counts_once_however_many_folders_hold_it(folder, tmp_path):
    import_source("rows", folder, tmp_path / "imports" / "rows")
    stats = data_stats([folder, tmp_path / "imports"])
    assert (stats.total("kernels"), stats.total("steps")) == (3, 1)
    assert stats.repeated == {"rows": 4}
    assert stats.noise is not None
    assert stats.noise.groups["pair"].tolist() == ["release"]  # no row repeats itself
    assert not data_stats([folder, folder]).repeated


def test_a_published_layout_is_found_and_its_tables_are_no_own_rows(layout):
    stats = data_stats([layout.complete()])
    assert {key[0] for key in stats.by("kernels", "source")} == {"neusight"}


def test_a_folder_without_data_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no measured data"):
        data_stats([tmp_path])


def test_an_import_of_another_schema_is_refused(folder, tmp_path):
    import_source("rows", folder, tmp_path / "out")
    path = tmp_path / "out" / "report.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 1}))
    with pytest.raises(DataError, match="import the source again"):
        data_stats([tmp_path / "out"])


class TestCommand:
    def test_tables_and_json(self, folder, tmp_path, capsys):
        file = tmp_path / "stats.json"
        assert run(str(folder), "--json", str(file)) == 0
        shown = capsys.readouterr().out
        assert "next release of one framework" in shown
        assert "4.0%" in shown
        assert "1 config_unknown" in shown
        made = json.loads(file.read_text())
        assert made["rows"] == {"kernels": 3, "steps": 1}
        assert made["noise_details"][0]["a"] == "trt 1.0"
        assert run(str(folder), "--json", "-") == 0
        assert json.loads(capsys.readouterr().out)["kernels"] == made["kernels"]

    def test_figure(self, folder, tmp_path):
        pytest.importorskip("plotly")
        assert run(str(folder), "--html", str(tmp_path / "noise.html")) == 0
        page = (tmp_path / "noise.html").read_text()
        assert "next release of one framework" in page
        assert '"name":"matmul"' in page

    def test_without_plotly_the_remedy_is_named(self, folder, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(report, "find_spec", lambda name: None)
        assert run(str(folder), "--html", str(tmp_path / "noise.html")) == 2
        assert "[report]" in capsys.readouterr().err
        assert not (tmp_path / "noise.html").exists()

    def test_no_folder(self, capsys):
        assert run("nowhere") == 2
        assert "no folder or file 'nowhere'" in capsys.readouterr().err


@pytest.mark.skipif("PREDICTOR_TRACES" not in os.environ, reason="PREDICTOR_TRACES is not set")
def test_repeats_of_the_published_sweeps_differ_by_little():
    stats = data_stats([Path(os.environ["PREDICTOR_TRACES"]) / "neusight"])
    assert stats.noise is not None
    groups = stats.noise.groups.set_index(["pair", "op_class"])
    assert groups.loc[("repeat", "elementwise"), "n"] > 1_000
    assert groups.loc[("repeat", "norm"), "median"] < 0.02
    assert groups.loc[("repeat", "norm"), "p90"] < 0.10


def test_a_file_of_own_rows_is_read_as_its_folder_is(folder):
    assert data_stats([folder / "kernels.csv"]).total("kernels") == 3
    assert data_stats([folder / "steps.csv"]).total("steps") == 1
