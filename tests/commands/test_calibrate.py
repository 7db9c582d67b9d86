"""`predictor calibrate` on the command line: what it says of the fit, and refuses beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.cli import main

HEAD = "device,op,batch,m,n,k,dtype,context,latency_us"


def calibrated(rows: Path, out: Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main(
            ["calibrate", "--device", "nvidia-l4", "--rows", str(rows), "--out", str(out),
             "--checkpoint", "neusight-protocol-v2"]
        )  # fmt: skip
    assert isinstance(stop.value.code, int)
    return stop.value.code


def rows_of(path: Path, *latency_us: float) -> Path:
    lines = [f"nvidia-l4,linear,1,{1024 * (i + 1)},1024,1024,fp32,device,{t}"
             for i, t in enumerate(latency_us)]  # fmt: skip
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return path


def test_a_file_is_no_adapter_and_nothing_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "file"
    out.write_text("")
    unread = tmp_path / "rows.csv"
    unread.write_text("no rows at all")
    assert calibrated(unread, out) == 2
    assert "is no folder: name another" in capsys.readouterr().err


def test_rows_that_do_not_agree_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # an L4 needs some 200, 400 and 600 us: one kernel ten times slower tells nothing of the others
    assert calibrated(rows_of(tmp_path / "wild.csv", 200, 4000, 600), tmp_path / "a") == 0
    said = capsys.readouterr()
    assert "rows that do not agree; estimates without --adapter may be closer" in said.err
    assert "(3 kernels alone, device time)" in said.out
    assert calibrated(rows_of(tmp_path / "slow.csv", 400, 800, 1200), tmp_path / "b") == 0
    assert "do not agree" not in capsys.readouterr().err


def test_one_row_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrated(rows_of(tmp_path / "one.csv", 220), tmp_path / "a") == 0
    said = capsys.readouterr().out
    assert "(1 kernel alone, device time)" in said
    assert "off before; how far off after, one row cannot tell" in said


def test_rows_are_named_by_how_they_were_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(tmp_path / "rows.csv", 220, 430, 640)
    text = rows.read_text().replace("device,430", "in_step,430").replace("device,640", "step,640")
    rows.write_text(text)
    assert calibrated(rows, tmp_path / "a") == 0
    assert "(1 kernel alone, device time, 2 kernels inside steps)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["estimate", "compare"])
def test_auto_without_an_adapter_says_so(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PREDICTOR_ADAPTERS", str(tmp_path))
    device = ["--device" if command == "estimate" else "--devices", "nvidia-l4"]
    call = [command, "resnet-18", *device, "--checkpoint", "neusight-protocol-v2", "--json", "-"]
    for asked, told in ((["--adapter", "auto"], True), ([], False)):
        with pytest.raises(SystemExit) as stop:
            main([*call, *asked])
        assert stop.value.code == 0
        said = capsys.readouterr()
        assert ("adapter auto: no adapter in" in said.err) is told
        assert "adapter auto" not in said.out
