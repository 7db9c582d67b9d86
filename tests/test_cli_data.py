"""`import`, `train` and `evaluate`: arguments arrive whole, results go where they were sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from predictor import cli
from predictor.commands import data
from predictor.traces.sources import registry

REPORT: dict[str, object] = {"suite": "neusight", "groups": [{"n": 2, "mape": float("nan")}]}


@dataclass
class Evaluation:
    """What an evaluation offers the command line."""

    adapter: str | None = None

    def to_json(self) -> dict[str, object]:
        """A report with an absent figure."""
        return REPORT

    def write_rows(self, path: Path) -> None:
        """Write a file."""
        path.write_text("rows")

    def view(self) -> str:
        """A table."""
        return "the table"


def run(*arguments: str) -> int:
    """Exit status of `predictor` with these arguments."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Calls that the commands made, of stand-ins for the work itself."""
    import predictor.fit.evaluate
    import predictor.fit.train
    import predictor.traces.sources.registry

    made: list[tuple[object, ...]] = []

    class Report:
        devices = ("nvidia-t4",)

        def __str__(self) -> str:
            return "kept 3 rows"

    def import_source(*args: object, progress: Callable[[int], None]) -> Report:
        made.append(args)
        progress(3)
        return Report()

    @dataclass
    class Trained:
        path: Path

    def train(*args: object, progress: bool, on_choice: object, **kwargs: object) -> Trained:
        made.append((*args, progress, kwargs))
        return Trained(path=Path("run/release"))

    def evaluate(*args: object, progress: Callable[[int], None], **kwargs: object) -> Evaluation:
        made.append((*args, kwargs))
        progress(3)
        return Evaluation()

    monkeypatch.setattr(predictor.traces.sources.registry, "import_source", import_source)
    monkeypatch.setattr(predictor.fit.train, "train", train)
    monkeypatch.setattr(predictor.fit.evaluate, "evaluate", evaluate)
    return made


def test_import(
    calls: list[tuple[object, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("import", "neusight", str(tmp_path), "--out", str(tmp_path / "out")) == 0
    assert calls == [("neusight", tmp_path, tmp_path / "out")]
    assert capsys.readouterr().out == "kept 3 rows\n"


def test_train(
    calls: list[tuple[object, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.touch()
    settings = ("--set", "seed=1", "--set", 'name="a=b"')
    data_and_out = ("--data", str(tmp_path), "--out", str(tmp_path / "run"))
    assert run("train", str(recipe), *data_and_out, *settings) == 0
    overrides = {"seed": "1", "name": '"a=b"'}
    plain = {"model": "network", "minutes": None}
    assert calls == [(recipe, [tmp_path], tmp_path / "run", overrides, False, plain)]
    assert "--checkpoint run/release" in capsys.readouterr().out
    chosen = ("--model", "auto", "--minutes", "2")
    assert run("train", str(recipe), *data_and_out, *chosen) == 0
    assert calls[1][4:] == (False, {"model": "auto", "minutes": 2.0})
    assert run("train", str(recipe), *data_and_out, "--minutes", "2") == 2
    assert "--minutes is for --model auto" in capsys.readouterr().err


def test_evaluate(
    calls: list[tuple[object, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ("--data", str(tmp_path), "--data", str(tmp_path.parent))
    files = ("--json", str(tmp_path / "e.json"), "--rows", str(tmp_path / "rows.parquet"))
    assert run("evaluate", "neusight", *folders, "--split", "all", *files) == 0
    given = {"split": "all", "checkpoint": None, "adapter": None}
    assert calls == [("neusight", [tmp_path, tmp_path.parent], given)]
    assert json.loads((tmp_path / "e.json").read_text())["groups"] == [{"n": 2, "mape": None}]
    assert (tmp_path / "rows.parquet").exists()
    said = capsys.readouterr()
    assert said.out == "the table\n"
    for file in ("e.json", "rows.parquet"):
        assert f"wrote {tmp_path / file}\n" in said.err
    assert run("evaluate", "neusight", *folders, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["suite"] == "neusight"


def test_the_named_sources_are_those_that_can_be_read() -> None:
    from predictor.traces.sources.registry import SOURCES

    assert set(data.SOURCES) == set(SOURCES)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_without_the_train_extra_the_remedy_is_named(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "a"\n')
    target = [str(recipe), "--out", str(tmp_path / "run")] if command == "train" else ["neusight"]
    assert run(command, *target, "--data", str(tmp_path)) == 2
    message = capsys.readouterr().err.strip()
    assert len(message.splitlines()) == 1
    assert "lightning and sklearn" in message
    assert "[train]" in message


def test_the_help_says_what_each_source_is(capsys):
    assert run("import", "--help") == 0
    said = "".join(capsys.readouterr().out.split())  # lines break anywhere
    assert set(data.SOURCES) == set(registry.SOURCES)
    for name, text in data.SOURCE_TEXT.items():
        assert f"{name}:{text}".replace(" ", "") in said


def test_files_without_rows_are_told_from_rows_that_were_refused(tmp_path, capsys):
    head = "device,op,batch,m,n,k,dtype,context,latency_us\n"
    (tmp_path / "empty.csv").write_text(head)
    (tmp_path / "refused.csv").write_text(f"{head}nobodys,linear,1,8,8,8,fp32,device,5\n")
    for name, expected in (
        ("empty", "the files hold no rows"), ("refused", "rejects.json has the first of each kind"),
    ):  # fmt: skip
        out = str(tmp_path / name)
        assert run("import", "rows", str(tmp_path / f"{name}.csv"), "--out", out) == 2
        assert expected in capsys.readouterr().err
