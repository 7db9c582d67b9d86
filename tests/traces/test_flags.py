"""The list of flags: what stands in it is given somewhere, documented, and found when misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.traces.flags import FLAGS, unknown_flag

ROOT = Path(__file__).parents[2]


def test_every_flag_is_given_by_a_module_and_stands_in_the_documentation() -> None:
    modules = [p for p in (ROOT / "predictor/traces").rglob("*.py") if p.name != "flags.py"]
    modules.append(ROOT / "predictor/traces/measure/flags.py")
    code = "\n".join(p.read_text(encoding="utf-8") for p in modules)
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    assert list(FLAGS) == sorted(FLAGS)
    for flag, meaning in FLAGS.items():
        assert f'"{flag}"' in code or f"+{flag}" in code
        assert f"| `{flag}` | {meaning} |" in page


@pytest.mark.parametrize("name", ["noisy", "waits_for_peers", "derived+attention_uncertain", "own"])
def test_a_flag_of_any_source_or_of_the_rows_is_known(name: str) -> None:
    assert unknown_flag(name, {"own"}) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NOISY", "'noisy'"), ("OTHER_LOAD", "'other_load'"), (" noisy", "'noisy'"),
        ("cold", "'cold_cache'"), ("load", "'other_load'"), ("several", "'several_kernels'"),
        ("noisy,other_load", "'noisy', 'other_load'"), ("throtled", "'throttled'"),
    ],
)  # fmt: skip
def test_what_excludes_nothing_is_told_with_what_is_near(name: str, meant: str) -> None:
    assert unknown_flag(name) == f"nearest: {meant}"


def test_without_anything_near_all_are_told() -> None:
    for name in ("", "zzz", "noisy+zzz"):
        told = unknown_flag(name)
        assert told is not None and (told.startswith("known: above_peak, ") or "noisy" in told)
