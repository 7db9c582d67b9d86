"""Every shipped checkpoint predicts what was pinned when it was released."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from predictor.api import load
from predictor.checkpoint import list_releases

FOLDER = Path(__file__).parent
TOLERANCE = 1e-4
"""Relative: sums run in another order on another machine."""


@pytest.fixture(scope="module")
def make_golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden", FOLDER / "make_golden.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def differences(pinned: object, found: object, where: str = "") -> Iterator[str]:
    """What differs, by path; numbers by more than the tolerance."""
    if isinstance(pinned, dict) and isinstance(found, dict):
        for key in sorted(set(pinned) | set(found)):
            yield from differences(pinned.get(key), found.get(key), f"{where} {key}")
    elif isinstance(pinned, list) and isinstance(found, list) and len(pinned) == len(found):
        for i, (a, b) in enumerate(zip(pinned, found, strict=True)):
            yield from differences(a, b, f"{where}[{i}]")
    elif isinstance(pinned, float) and isinstance(found, float):
        if found != pytest.approx(pinned, rel=TOLERANCE, abs=1e-6):
            yield f"{where}: {pinned} pinned, {found} now"
    elif pinned != found:
        yield f"{where}: {pinned!r} pinned, {found!r} now"


@pytest.mark.parametrize("name", list_releases())
def test_release_predicts_what_was_pinned(make_golden: ModuleType, name: str) -> None:
    path = FOLDER / f"{name}.json"
    assert path.is_file(), f"no golden file: {make_golden.COMMAND} {name}"
    content = json.loads(path.read_text())
    found = json.loads(json.dumps(make_golden.predictions(load(name))))
    differing = list(differences(content["predictions"], found))
    assert not differing, f"{len(differing)} differ, remake with `{content['remake']}`: " + (
        "; ".join(differing[:5])
    )


def test_no_golden_file_of_a_checkpoint_that_is_not_shipped() -> None:
    assert {p.stem for p in FOLDER.glob("*.json")} <= set(list_releases())


def test_every_golden_file_names_the_command_that_remakes_it(make_golden: ModuleType) -> None:
    for path in FOLDER.glob("*.json"):
        assert json.loads(path.read_text())["remake"] == f"{make_golden.COMMAND} {path.stem}"


def test_differences_are_found() -> None:
    pinned = {"step": [1.0, 2.0], "label": "learned", "n": 3}
    assert not list(differences(pinned, {"step": [1.00001, 2.0], "label": "learned", "n": 3}))
    found = {"step": [1.001, 2.0], "label": "roofline", "new": 1}
    assert [d.split(":")[0] for d in differences(pinned, found)] == [
        " label", " n", " new", " step[0]",
    ]  # fmt: skip
    assert list(differences({"a": [1.0]}, {"a": [1.0, 2.0]}))
