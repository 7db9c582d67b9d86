"""The Python examples of README and docs run as they stand, each page's in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = {
    path.relative_to(ROOT).as_posix(): found
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if (found := EXAMPLE.findall(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("page", EXAMPLES)
def test_its_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for example in EXAMPLES[page]:
        exec(compile(example, page, "exec"), names)
