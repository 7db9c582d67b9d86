"""`predictor import kineto` as a user calls it."""

from __future__ import annotations

import json

from predictor import cli
from predictor.hardware.device_file import load_device_file
from predictor.traces.store import read_imported

MM = {"Input_Dims": [[64, 32], [32, 16]], "Input_type": ["float", "float"]}


def run(*arguments):
    try:
        cli.main([str(a) for a in arguments])
    except SystemExit as stop:
        return stop.code


def test_a_folder_gives_summaries_rows_and_reasons(writer, tmp_path, capsys):
    folder = tmp_path / "traces"
    folder.mkdir()
    for i in range(2):
        writer.step(i, 100 * i, 100)
        writer.op("aten::mm", 100 * i + 5, 10, **MM)
        writer.kernel("gemm", 100 * i + 40, 9, launched=100 * i + 7)
    writer.folder = folder
    writer.write("good.json.gz")
    (folder / "cut.json").write_text(writer.text()[:-5])
    out = tmp_path / "out"
    assert run("import", "kineto", folder, "--out", out) == 0
    said = capsys.readouterr().out
    assert "trace        good.json.gz" in said
    assert "busy         9.0 µs  9.0%" in said
    assert "left out cut.json: cut off" in said
    assert "1  kernel rows" in said and "dropped: 1 in_last_step" in said
    assert len(read_imported(out).kernels) == 1
    (summary,) = json.loads((out / "traces.json").read_text())
    assert "1 rows cover 100.0% of kernel time (last step aside); equal calls are one row" in said
    assert "calls        1 kept (9.0 µs) + 1 dropped (9.0 µs) = 2 read" in said
    assert "dropped         9.0 µs       1 calls  in_last_step" in said
    assert "taken for    nvidia-a100-sxm-40gb" in said
    assert summary["rows"]["dropped"] == {"in_last_step": {"calls": 1, "time_us": 9.0}}
    assert (summary["busy_us"], summary["top"][0]["name"]) == (9.0, "gemm")
    assert run("import", "kineto", folder, "--out", out) == 0  # an import is replaced


def test_the_device_of_a_trace_that_names_none_is_given(writer, tmp_path, capsys):
    writer.head.pop("deviceProperties")
    writer.op("aten::mm", 5, 10, **MM)
    writer.kernel("gemm", 40, 9, launched=7)
    path = writer.write()
    assert run("import", "kineto", path, "--out", tmp_path / "a", "--device", "L4") == 0
    assert "1  kernel rows" in capsys.readouterr().out
    assert run("import", "kineto", path, "--out", tmp_path / "b", "--device", "nobody's") == 2
    assert "no device" in capsys.readouterr().err
    assert run("import", "vidur", path, "--out", tmp_path / "c", "--device", "L4") == 2
    assert "--device is for profiler traces" in capsys.readouterr().err


def host_trace(writer):
    writer.head.pop("deviceProperties")
    writer.step(0, 0, 100)
    writer.op("aten::mm", 5, 10, **MM)
    return writer.write("host.json")


def test_a_device_file_names_the_device_and_is_kept(writer, tmp_path, capsys, samples_own):
    found = samples_own.FOUND.device_id
    device_file = samples_own.own_sample(tmp_path, {}) / found / f"{found}.device.toml"
    out = tmp_path / "out"
    path = host_trace(writer)
    assert run("import", "kineto", path, "--out", out, "--device", device_file) == 0
    said = capsys.readouterr()
    assert f"taken for    {found}" in said.out and "1  kernel rows" in said.out
    assert load_device_file(out / device_file.name) == load_device_file(device_file)
    data = read_imported(out)
    assert {*data.kernels["device"], *data.steps["device"]} == {found}
    lost = tmp_path / "lost.toml"
    assert run("import", "kineto", path, "--out", tmp_path / "b", "--device", lost) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_without_a_row_the_summaries_stay_and_the_exit_says_what_to_do(writer, tmp_path, capsys):
    path, out = host_trace(writer), tmp_path / "out"
    assert run("import", "kineto", path, "--out", out) == 2
    said = capsys.readouterr()
    (line,) = [part for part in said.err.splitlines() if "no row was kept" in part]
    assert "name it with --device, an id of `predictor devices` or a device file" in line
    assert "trace        host.json" in said.out
    (summary,) = json.loads((out / "traces.json").read_text())
    assert summary["rows"]["no_step_row"] == "device_not_named"
    assert run("import", "kineto", path, "--out", out, "--device", "L4") == 2
    said = capsys.readouterr()
    assert "times of the host alone are of a processor" in said.err
    assert "taken for    no device: times of the host alone" in said.out


def test_an_import_with_rows_is_not_replaced_by_one_without(writer, tmp_path, capsys):
    path, out = host_trace(writer), tmp_path / "out"
    assert run("import", "kineto", path, "--out", out, "--device", "intel-xeon-phi-7250") == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    capsys.readouterr()
    assert run("import", "kineto", path, "--out", out) == 2
    said = capsys.readouterr()
    assert f"no row was kept; {out} stays as it was" in said.err
    assert "trace        host.json" in said.out
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_what_the_summaries_say_is_not_said_before_them(writer, tmp_path, capsys):
    writer.op("mine::op", 5, 10, Input_Dims=[[8, 4]], Input_type=["float"])
    writer.kernel("k", 40, 9, launched=7)
    writer.op("aten::mm", 50, 10, **MM)
    writer.kernel("gemm", 70, 9, launched=52)
    assert run("import", "kineto", writer.write(), "--out", tmp_path / "out") == 0
    said = capsys.readouterr()
    assert "rows dropped by rule" not in said.err
    assert "dropped         9.0 µs       1 calls  op_unknown" in said.out
    assert json.loads((tmp_path / "out/rejects.json").read_text())["dropped"] == {"op_unknown": 1}


def test_a_file_that_is_refused_is_one_line(writer, tmp_path, capsys):
    path = writer.folder / "x.json"
    path.write_text('{"traceEvents": [{"ph": "X"')
    assert run("import", "kineto", path, "--out", tmp_path / "a") == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and "cut off" in error[0]
    assert not (tmp_path / "a").exists()


def test_capture_writes_the_measured_times(writer, tmp_path, capsys):
    writer.op("aten::mm", 5, 10, **MM)
    writer.kernel("gemm", 40, 9, launched=7)
    assert run("capture", writer.write(), "--out", tmp_path / "graph.json") == 0
    (node,) = json.loads((tmp_path / "graph.json").read_text())["nodes"]
    assert (node["op"], node["attrs"]["measured_us"]) == ("aten.mm", 9.0)
