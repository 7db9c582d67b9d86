"""The wheel works from any folder, without the source tree, with its data and checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from predictor.checkpoint import DEFAULT_CHECKPOINT, FILES, list_releases
from predictor.traces.graph_bank_files import FILES as BANK_FILES

ROOT = Path(__file__).parents[2]
SOURCES = (
    "predictor", "checkpoints", "datasets", "pyproject.toml", "setup.py", "LICENSE", "README.md",
)  # fmt: skip
BANKS = ("timm", "gptbench", "own", "enzyme", "tpugraphs")
READ_BANK = """
from predictor.traces.graph_bank import load_bank

bank = load_bank(source={source!r})
row = bank.index.iloc[0]
table = bank.graph(row["graph"]).table(batch=8)
print(len(table), (table.flops >= 0).all())
"""
PROGRAM = """
import torch


def make():
    return torch.nn.Linear(256, 512), torch.empty(64, 256, device="meta")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel; built from a copy, so that the source tree stays as it is."""
    work = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, work / "source" / name, ignore=ignore)
        elif source.exists():
            shutil.copy(source, work / "source" / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work)]
    built = subprocess.run(
        [*command, str(work / "source")], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = work.glob("latency_predictor-*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel unpacked, and nothing of the source tree."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the unpacked wheel, from another folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_wheel_holds_the_package_its_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = next(n.partition("/")[0] for n in names if ".dist-info/" in n)
    assert {n.partition("/")[0] for n in names} == {"predictor", info}
    assert "predictor/py.typed" in names
    assert "predictor/_weights/__init__.py" in names
    for release in list_releases():
        assert {f"predictor/_weights/{release}/{file}" for file in FILES} <= names


@pytest.mark.parametrize("source", BANKS)
def test_the_wheel_holds_the_graph_banks(
    source: str, wheel: Path, site: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"predictor/_{source}_graphs/{file}.parquet" for file in BANK_FILES} <= names
    assert not any(name.endswith("refused.csv") for name in names)
    read = run(site, tmp_path, "-c", READ_BANK.format(source=source))
    kernels, sound = read.stdout.split()
    assert int(kernels) > 0, read.stderr
    assert sound == "True"


def test_every_data_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = [p for p in (ROOT / "predictor").rglob("*") if p.is_file()]
    wanted = {str(p.relative_to(ROOT)) for p in files if "__pycache__" not in p.parts}
    assert wanted <= names


def test_the_wheel_works_from_another_folder(site: Path, tmp_path: Path) -> None:
    where = run(site, tmp_path, "-c", "import predictor; print(predictor.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(site), where.stderr
    listed = run(site, tmp_path, "-m", "predictor.cli", "devices", "--json")
    assert listed.returncode == 0, listed.stderr
    assert any(row["id"] == "nvidia-t4" for row in json.loads(listed.stdout))


@pytest.mark.skipif(DEFAULT_CHECKPOINT not in list_releases(), reason="the default is not shipped")
def test_the_wheel_predicts_from_its_own_checkpoint(site: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run(
        site, tmp_path, "-m", "predictor.cli",
        "estimate", "program.py:make", "--device", "nvidia-t4", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    estimate = json.loads(done.stdout)
    assert estimate["checkpoint"] == DEFAULT_CHECKPOINT
    assert estimate["workload"]["matmul_flops"] == 2 * 64 * 256 * 512
    assert 0 < estimate["step"]["lower_us"] <= estimate["step"]["latency_us"]
