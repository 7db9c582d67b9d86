"""`docs/data.md` says what the schema holds and what own rows need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.features.table import CONTEXTS
from predictor.traces.merge import merged
from predictor.traces.noise import PAIRS
from predictor.traces.schema import KERNEL_COLUMNS, STEP_COLUMNS
from predictor.traces.sources.rows import parts
from predictor.traces.sources.rows_columns import REQUIRED
from predictor.traces.validate import NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"{title}\n", 1)[1].split("\n#", 1)[0]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize(
    ("title", "columns"), [("### Kernel rows", KERNEL_COLUMNS), ("### Step rows", STEP_COLUMNS)]
)
def test_every_column_has_a_line(title, columns):
    lines = [x for x in section(title).splitlines() if x.startswith("|")]
    cells = {name for line in lines for name in named(line.split("|")[1])}
    plain = {"dim_*" if c.startswith("dim_") else c for c in columns}
    assert cells == plain


def test_every_allowed_name_is_listed():
    words = named(PAGE)
    allowed = {name for names in NAMES.values() for name in names if name}
    assert allowed | set(CONTEXTS) | set(PAIRS) <= words
    assert {f"unknown_{column}" for column in NAMES} <= words


def test_what_own_rows_need_is_listed():
    needed = next(x for x in section("## Your own rows").splitlines() if x.startswith("| needed"))
    _, _, kernels, steps, _ = needed.split("|")
    assert named(kernels) == set(REQUIRED["kernels"])
    assert named(steps) == set(REQUIRED["steps"])


def test_the_examples_are_read(tmp_path):
    blocks = re.findall(r"```\n(device,.*?)```", PAGE, flags=re.DOTALL)
    for i, block in enumerate(blocks):
        (tmp_path / f"{i}.csv").write_text(block)
    data = merged(parts(tmp_path))
    assert (len(data.kernels), len(data.steps)) == (2, 1)
    assert not data.dropped
    assert (data.kernels["flag"] == "").all()
