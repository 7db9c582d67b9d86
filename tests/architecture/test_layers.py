"""What holds across the whole code: one-way imports, light start, small modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "predictor").rglob("*.py"))
HEAVY = (
    "torch_geometric", "lightning", "optuna", "onnx", "jax", "plotly", "transformers", "timm",
    "sklearn", "pandas", "pyarrow", "torch",
)  # fmt: skip
VAGUE_NAMES = {"utils", "helpers", "common", "misc", "tools"}


def test_imports_run_one_way() -> None:
    # In a process of its own: the linter switches off the loggers of whoever runs it.
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["predictor", "predictor.cli"])
def test_import_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []


def test_datasets_folder_is_not_a_package() -> None:
    found = {p.relative_to(ROOT).as_posix() for p in (ROOT / "datasets").rglob("__init__.py")}
    assert all(name.endswith("/graphs/__init__.py") for name in found)  # installed as package data


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_is_small_and_says_what_it_owns(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, "split it: look for the noun hiding in it"
    assert path.stem not in VAGUE_NAMES, "name a module for what it holds"
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "say what the module owns"
