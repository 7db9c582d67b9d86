"""The command line: one clear line and a status for bad input, pure JSON, whole files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from predictor import api, cli
from predictor.commands.later import INSTEAD

PROGRAM = """
import torch


def make():
    return torch.nn.Linear(16, 32), torch.empty(8, 16)


def chatty():
    print("building")
    return make()


class Singular(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)


def stacked():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 3), torch.empty(2, 8, 16)


def singular():
    return Singular(), torch.empty(8, 8)


def broken():
    raise ValueError("no such thing")
"""
COMMANDS = (
    "estimate", "compare", "plan", "devices", "capture", "measure", "import", "train", "tune",
    "evaluate", "calibrate", "transfer-report", "data",
)  # fmt: skip


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A program in a file: batch 8, 16 to 32."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return f"{tmp_path / 'program.py'}:make"


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch, network: api.Predictor) -> None:
    """Any checkpoint name loads the stand-in network, except the unknown ones."""
    original = api.load

    def load(checkpoint: str | Path = api.DEFAULT_CHECKPOINT) -> api.Predictor:
        return network if checkpoint == api.DEFAULT_CHECKPOINT else original(checkpoint)

    monkeypatch.setattr(api, "load", load)


def run(*arguments: str) -> int:
    """Exit status of `predictor` with these arguments."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refused call prints on standard error."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    listed = {line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line}
    assert listed == set(COMMANDS)
    assert run() == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (
            "estimate",
            "--device --train --batch --seq --dtype --dim --compile --optimizer --gpus --plan "
            "--json --html --perfetto --checkpoint --tf32 --adapter",
        ),
        ("compare", "--devices --train --batch --seq --dtype --optimizer --checkpoint --tf32"),
        ("capture", "--out --train --batch --seq --dtype"),
        ("devices", "--json"),
        ("import", "--out"),
        ("train", "--data --out --set"),
        ("evaluate", "--data --split --checkpoint --adapter --json --rows"),
        ("calibrate", "--device --rows --out --checkpoint"),
    ],
)
def test_help_lists_every_flag(
    command: str, flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    assert [flag for flag in flags.split() if flag not in text] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.count(".") >= 1


def test_estimate_prints_the_table(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("estimate", target, "--device", "nvidia-v100-pcie-32gb", "--train") == 0
    out, err = capsys.readouterr()
    assert err == ""
    for expected in ("nvidia-v100-pcie-32gb", "90% interval", "backward", "optimizer", "544 param"):
        assert expected in out


def test_estimate_json_is_pure_and_whole(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("estimate", target, "--device", "nvidia-t4", "--json", "-") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["device"], printed["mode"]) == ("nvidia-t4", "infer")
    assert printed["workload"]["matmul_flops"] == 2 * 8 * 16 * 32
    path = tmp_path / "new" / "e.json"
    assert run("estimate", target, "--device", "nvidia-t4", "--json", str(path)) == 0
    assert json.loads(path.read_text()) == printed
    assert "nvidia-t4" in capsys.readouterr().out
    assert [p.name for p in path.parent.iterdir()] == ["e.json"]


def test_a_terminal_without_the_signs(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert run("estimate", target, "--device", "nvidia-t4") == 0
    sys.stdout.flush()
    assert b" ?s   90% interval" in raw.getvalue()


def test_what_a_program_prints_is_no_result(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chatty = target.replace(":make", ":chatty")
    for command in (("estimate", "--device"), ("compare", "--devices")):
        assert run(command[0], chatty, command[1], "nvidia-t4", "--json", "-") == 0
        out, err = capsys.readouterr()
        json.loads(out)
        assert err == "building\n"


def test_several_devices_give_an_array(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    devices = ("--device", "nvidia-t4", "--device", "nvidia-l4")
    assert run("estimate", target, *devices, "--json", "-", "--tf32") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["device"] for row in rows] == ["nvidia-t4", "nvidia-l4"]
    assert all(row["software"]["matmul_tf32"] for row in rows)


def test_compare_has_a_row_a_device(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", target, "--devices", "nvidia-t4, nvidia-l4") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{target},", "device", "nvidia-t4", "nvidia-l4",
    ]  # fmt: skip
    assert run("compare", target, "--devices", "nvidia-t4", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["device"] for row in document["devices"]] == ["nvidia-t4"]


def test_capture_writes_a_graph_that_estimates_alike(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from predictor.graph.serialize import load_graph

    path = tmp_path / "graph.json"
    assert run("capture", target, "--train", "--out", str(path)) == 0
    assert "544 parameters" in capsys.readouterr().out
    assert load_graph(path) == api.capture(target, mode="train")
    assert run("estimate", str(path), "--device", "nvidia-t4", "--json", "-") == 0
    from_file = json.loads(capsys.readouterr().out)
    assert run("estimate", target, "--device", "nvidia-t4", "--train", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == from_file


def test_recompute_works_in_every_command(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stacked = target.replace(":make", ":stacked")
    flops = []
    for extra in ((), ("--recompute",)):
        out = tmp_path / f"graph{len(extra)}.json"
        assert run("capture", stacked, "--train", *extra, "--out", str(out)) == 0
        capsys.readouterr()
        options = (stacked, "--train", *extra, "--json", "-")
        assert run("estimate", *options, "--device", "nvidia-t4") == 0
        flops.append(json.loads(capsys.readouterr().out)["workload"]["matmul_flops"])
        assert run("compare", *options, "--devices", "nvidia-t4") == 0
        capsys.readouterr()
    assert flops[1] > 1.25 * flops[0]  # nothing but blocks: four forwards for three
    text = refused(capsys, "estimate", stacked, "--recompute", "--device", "nvidia-t4")
    assert "--train" in text


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("devices") == 0
    assert "nvidia-rtx-pro-6000-blackwell-maxq " in capsys.readouterr().out
    assert run("devices", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert any(row["id"] == "nvidia-t4" for row in rows)
    assert run("devices", "nvidia-t4") == 0
    assert "memory_bw_gbps" in capsys.readouterr().out
    assert run("devices", "nvidia-t4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == "nvidia-t4"


def test_every_id_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    from predictor.hardware.catalogue import load_catalogue

    assert run("devices") == 0
    printed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert set(load_catalogue()) <= printed


def test_bad_input_is_one_line(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    t4 = ("--device", "nvidia-t4")
    assert "no device 'nope'" in refused(capsys, "estimate", target, "--device", "nope")
    assert "--device" in refused(capsys, "estimate", target)
    assert "nosuchmodel" in refused(capsys, "estimate", "nosuchmodel", *t4)
    assert "--batch" in refused(capsys, "estimate", target, *t4, "--batch", "0")
    assert "int4" in refused(capsys, "estimate", target, *t4, "--dtype", "int4")
    assert "lion" in refused(capsys, "estimate", target, *t4, "--train", "--optimizer", "lion")
    assert "nope" in refused(capsys, "estimate", target, *t4, "--checkpoint", "nope")
    assert "missing.py" in refused(capsys, "estimate", f"{tmp_path}/missing.py:make", *t4)
    assert "broken" in refused(capsys, "estimate", target.replace(":make", ":broken"), *t4)
    assert "No such option" in refused(capsys, "estimate", target, "--devcie", "x")
    assert "No such command" in refused(capsys, "estimte")
    assert "key=value" in refused(capsys, "train", "r", "--data", "d", "--out", "o", "--set", "x")
    assert "no recipe" in refused(capsys, "train", "r", "--data", "d", "--out", "o")
    assert "no folder" in refused(capsys, "evaluate", "neusight", "--data", f"{tmp_path}/no")
    assert "no source 'x'" in refused(capsys, "import", "x", str(tmp_path), "--out", "o")
    (tmp_path / "file").touch()
    for file in (f"{tmp_path}/file/x.json", f"{tmp_path}/file/new/x.json", str(tmp_path), ""):
        assert "name a file" in refused(capsys, "estimate", target, *t4, "--json", file)
        assert "name a file" in refused(capsys, "compare", target, "--devices", "x", "--json", file)
    assert "name a file" in refused(capsys, "capture", target, "--out", str(tmp_path))
    rows = ("--data", str(tmp_path), "--rows", str(tmp_path))
    assert "name a file" in refused(capsys, "evaluate", "neusight", *rows)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["file", "program.py"]


def test_calls_without_a_rule_are_opaque_when_allowed(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    singular = target.replace(":make", ":singular")
    err = refused(capsys, "estimate", singular, "--device", "nvidia-t4")
    assert "'aten._linalg_svd'" in err
    assert "--allow-opaque" in err
    for command in (("estimate", "--device"), ("compare", "--devices")):
        arguments = (command[0], singular, command[1], "nvidia-t4", "--allow-opaque")
        assert run(*arguments, "--json", "-") == 0
        document = json.loads(capsys.readouterr().out)
        if command[0] == "estimate":
            assert [k["op_class"] for k in document["kernels"]] == ["opaque"]


def test_debug_shows_the_traceback_wherever_it_stands(target: str) -> None:
    from predictor.errors import UnknownDeviceError

    for arguments in (
        ["--debug", "estimate", target, "--device", "nope"],
        ["estimate", target, "--device", "nope", "--debug"],
    ):
        with pytest.raises(UnknownDeviceError):
            cli.main(arguments)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--dim n", "write NAME=N"),
        ("--dim n=-3", "write NAME=N"),
        ("--dim n=1.5", "write NAME=N"),
        ("--dim =3", "write NAME=N"),
        ("--dim n=3 --dim n=4", "names 'n' twice"),
        ("--dim n=3", "this target has none"),
    ],
)
def test_sizes_by_name_are_checked(
    flags: str, said: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "estimate", target, "--device", "nvidia-t4", *flags.split())


@pytest.mark.parametrize(
    "flags",
    [
        "--gpus 8", "--gpus 0", "--plan dp=8", "--html f.html", "--perfetto f.json",
    ],
)  # fmt: skip
def test_flags_that_do_not_work_yet(
    flags: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = flags.split()[0]
    err = refused(capsys, "estimate", target, "--device", "nvidia-t4", *flags.split())
    assert f"{name} does not work yet; {INSTEAD[name]}" in err


@pytest.mark.parametrize(
    "call",
    [
        "plan gpt2 --device nvidia-t4 --gpus 8", "measure gpt2 --compile --out rows.parquet",
        "estimate gpt2 --device nvidia-t4 --dtype fp8",
    ],
)  # fmt: skip
def test_calls_that_do_not_work_yet(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not work yet; " in refused(capsys, *call.split())


@pytest.mark.parametrize(
    "kind",
    ["hf:folder"],
)
def test_targets_that_do_not_work_yet(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "yet" in refused(capsys, "estimate", kind, "--device", "nvidia-t4")


def test_an_interrupt_leaves_no_file(
    target: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    path = tmp_path / "out" / "e.json"
    assert run("estimate", target, "--device", "nvidia-t4", "--json", str(path)) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert list(path.parent.iterdir()) == []
