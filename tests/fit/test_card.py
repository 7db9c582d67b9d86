"""The card of a checkpoint: each sentence follows from recipe, rows and what was learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.capture.specs import TORCH_DTYPES
from predictor.checkpoint import load_release
from predictor.errors import NotYetError
from predictor.fit.card import KNOWN_FAILURES, card_text
from predictor.fit.recipe import Recipe
from predictor.fit.splits import device_split
from predictor.fit.train import _remake
from predictor.hardware.catalogue import adopt_device, resolve_device
from predictor.program import DTYPES, capture

DEVICES = ["nvidia-rtx-3090", "nvidia-rtx-4090"]
VISION: dict[str, Any] = {
    "kernel_rows": 0, "op_rows": 0, "step_rows": 16_277, "devices": DEVICES,
    "executions": ["compiled", "eager"], "licences": ["Apache-2.0"], "modes": ["infer", "train"],
    "sha256": "ab" * 32,
}  # fmt: skip
SERVING: dict[str, Any] = {
    "kernel_rows": 400_000, "op_rows": 0, "step_rows": 0, "devices": ["nvidia-h100-sxm-80gb"],
    "executions": ["cuda_graph", "library"], "licences": ["Apache-2.0", "MIT"], "modes": [],
    "sha256": "cd" * 32,
}  # fmt: skip
LEARNED = [["gemm", "fp32"], ["conv", "bf16"], ["gemm", "bf16"]]


def card(
    facts: dict[str, Any],
    *,
    split: str = "all",
    parts: tuple[Any, ...] = ("train",),
    **changes: Any,
) -> str:
    recipe = Recipe(name="card-v1", sources=tuple(facts), split=split, parts=parts)
    devices = [d for fact in facts.values() for d in fact["devices"]]
    given = {"learned": LEARNED, "metrics": {"held_out": []}, "remake": "predictor train X"}
    return card_text(recipe, device_split(split, devices), facts, **{**given, **changes})


def line(text: str, start: str) -> str:
    (found,) = [part for part in text.splitlines() if part.startswith(start)]
    return found


def test_uses_follow_dtypes_executions_modes_and_devices() -> None:
    text = card({"timm": VISION})
    assert line(text, "- **Use it for**") == (
        "- **Use it for** bf16 and fp32 programs of the kernels below, run as compiled and eager, "
        "on GPUs, one device: inference and training steps."
    )
    assert line(text, "- **Not for**") == (
        "- **Not for** several devices, CPUs (figures extrapolate) and TPUs (figures extrapolate)."
    )
    alone = card({"aiconfigurator": SERVING}, learned=[["attention", "fp8"]])
    assert "fp8 programs of the kernels below, run as cuda graph and library" in alone
    assert "one device: kernels (no whole step trains it)." in alone
    assert "several devices, compiled programs, CPUs" in line(alone, "- **Not for**")


def test_what_the_command_line_does_not_take_is_said() -> None:
    assert "From the command line" not in card({"own": {**VISION, "executions": ["eager"]}})
    text = card({"timm": VISION}, learned=[*LEARNED, ["gemm", "fp8"]])
    told = line(text, "- **From the command line**")
    assert "eager programs in fp32 and bf16 (autocast too)" in told
    assert TORCH_DTYPES.keys() >= set(DTYPES)
    assert "; compiled and fp8 kernels are learned" in told and "`--compile`" in told
    with pytest.raises(NotYetError, match=r"fp8 does not work yet; fp32, fp16, bf16, amp-fp16"):
        capture("gpt2", dtype="fp8")


def test_classes_by_the_device_that_they_were_measured_on() -> None:
    measured = {
        "amd-mi300x": [["bmm", "bf16"], ["gemm", "fp8"], ["grouped_mm", "bf16"]],
        "nvidia-t4": [["conv", "fp32"]],
    }
    text = card({"timm": VISION}, measured=measured)
    assert line(text, "| amd-mi300x") == (
        "| amd-mi300x | grouped matmul (bf16), matmul (bf16, fp8) |"
    )
    assert line(text, "| nvidia-t4") == "| nvidia-t4 | conv (fp32) |"
    assert "## Measured on" not in card({"timm": VISION})


def test_a_cpu_that_trained_is_not_excluded() -> None:
    fact = {**SERVING, "devices": ["intel-xeon-phi-7250", "nvidia-t4"]}
    text = card({"deepbench": fact})
    assert "on CPUs and GPUs" in line(text, "- **Use it for**")
    assert "CPU" not in line(text, "- **Not for**")


def test_a_device_that_came_with_its_rows_counts_by_its_kind() -> None:
    adopt_device(replace(resolve_device("intel-xeon-phi-7250"), id="card-cpu"))
    fact = {**SERVING, "devices": ["card-cpu"], "executions": ["eager"], "modes": ["infer"]}
    text = card({"own": fact})
    assert "run as eager, on CPUs, one device: inference." in line(text, "- **Use it for**")
    assert line(text, "- **Not for**") == (
        "- **Not for** several devices, compiled programs, GPUs (figures extrapolate) and TPUs "
        "(figures extrapolate)."
    )
    unknown = card({"own": {**fact, "devices": ["nobodys-device"]}})
    assert "on nobodys-device, one device" in line(unknown, "- **Use it for**")
    assert "extrapolate" not in line(unknown, "- **Not for**")


def test_kernels_timed_inside_steps_are_counted_as_such() -> None:
    fact = {**SERVING, "kernel_rows": 8_812, "in_step_kernel_rows": 3_750, "step_rows": 100}
    text = card({"own": fact})
    assert (
        "- **Data** own: 5,062 rows of kernels alone, 3,750 of kernels inside steps, 100 step rows"
    ) in text
    assert "No kernel was timed alone" not in text
    inside = card({"own": {**fact, "in_step_kernel_rows": 8_812}})
    assert "No kernel was timed alone" in inside


def test_kernels_by_dtype() -> None:
    text = card({"timm": VISION})
    assert "| bf16 | conv, gemm |\n| fp32 | gemm |" in text


def test_licences_and_rows_of_every_source() -> None:
    text = card({"timm": VISION, "aiconfigurator": SERVING})
    assert line(text, "- **Licence**") == (
        "- **Licence** Apache-2.0; trained on measurements published under Apache-2.0 (timm), "
        "Apache-2.0 and MIT (aiconfigurator)."
    )
    assert "timm: 0 kernel rows, 0 rows of ops inside steps, 16,277 step rows" in text
    assert "aiconfigurator: 400,000 kernel rows" in text
    assert f"sha256 `{'cd' * 8}…`" in text


def test_the_card_says_when_the_development_part_was_trained_on() -> None:
    assert ", parts" not in card({"timm": VISION}, split="timm-families")
    text = card({"timm": VISION}, split="timm-families", parts=("train", "development"))
    assert ", parts train and development" in text


def test_the_split_names_what_it_holds_out() -> None:
    text = card({"timm": VISION}, split="timm-families-unseen-nvidia-rtx-4090")
    assert line(text, "- **Split**") == (
        "- **Split** `timm-families-unseen-nvidia-rtx-4090`; trained on nvidia-rtx-3090; test "
        "devices nvidia-rtx-4090; by family: test 0, development 1."
    )
    assert line(card({"timm": VISION}), "- **Split**") == (
        "- **Split** `all`; trained on nvidia-rtx-3090, nvidia-rtx-4090."
    )


def test_failures_are_those_of_the_sources() -> None:
    (first, *_), host = KNOWN_FAILURES["neusight"], "The host is assumed"
    whole = card({"timm": VISION})
    assert first not in whole
    assert "No kernel was timed alone" in whole
    kernels = card({"neusight": {**SERVING, "step_rows": 90}})
    assert first in kernels
    assert "No kernel was timed alone" not in kernels
    assert host in whole
    assert host in kernels


def test_errors_of_steps_and_else_of_kernels() -> None:
    errors = {"n": 7, "mape": 0.125, "median_ape": 0.1, "p90_ape": 0.3, "bias": -0.05}
    kernel = {"fold_kind": "device", "fold": "nvidia-t4", "target": "isolated", "group": "bmm"}
    step = {"fold_kind": "device", "fold": "nvidia-l4", "target": "step", "group": "total"}
    held_out = [{**kernel, **errors}]
    text = card({"timm": VISION}, metrics={"held_out": held_out})
    assert "Device never seen, kernels:" in text
    assert "| nvidia-t4 | bmm | 7 | 12.5% | 10.0% | 30.0% | -5.0% |" in text
    assert "Model family never seen, device seen: not run." in text
    both = card({"timm": VISION}, metrics={"held_out": [*held_out, {**step, **errors}]})
    assert "Device never seen, whole steps:" in both
    assert "bmm" not in both


def test_the_card_of_a_run(run_dir: Path) -> None:
    text = (run_dir / "release/README.md").read_text()
    assert "fp32 programs of the kernels below, run as eager, on GPUs" in text
    assert "published under MIT (neusight)" in text
    assert "- **Data** neusight: 300 kernel rows, 48 rows of ops inside steps, 8 step rows" in text
    assert "predictor train tiny-v1.toml --data DIR --out runs/tiny-v1" in text
    learned = load_release(run_dir / "release").config["model"]["learned"]
    for token, dtype in learned:
        assert token in line(text, f"| {dtype} |")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("anywhere/training/recipes/base-v1.toml", "training/recipes/base-v1.toml"),
        ("anywhere/base-v1.toml", "base-v1.toml"),
        ("anywhere/my base.toml", "'my base.toml'"),
    ],
)
def test_the_command_has_the_recipe_file_and_its_overrides(path: str, named: str) -> None:
    plain = f"predictor train {named} --data DIR --out runs/base-v1"
    assert _remake(Path(path), "base-v1", {}) == plain
    assert (
        _remake(Path(path), "base-v1-modified", {"seed": "1"}) == f"{plain}-modified --set seed=1"
    )


def test_kernels_stand_by_kind_of_device_where_several_trained() -> None:
    learned = [["adamw", "fp32", "cpu"], ["gemm", "fp32", "cpu"], ["gemm", "fp32", "gpu"]]
    text = card({"timm": VISION}, learned=learned)
    assert line(text, "| CPUs | fp32") == "| CPUs | fp32 | adamw, gemm |"
    assert line(text, "| GPUs | fp32") == "| GPUs | fp32 | gemm |"


def test_a_source_that_is_held_out_whole_has_no_licence_to_tell() -> None:
    none = {**VISION, "step_rows": 0, "licences": [], "devices": []}
    text = card({"timm": VISION, "own": none})
    assert "published under Apache-2.0 (timm)." in text


def test_the_command_names_the_rows_that_come_with_the_project() -> None:
    recipe = Path("training/recipes/x.toml")
    assert "--data datasets --out" in _remake(recipe, "x", {}, sources=["own"])
    assert "--data DIR --data datasets --out" in _remake(recipe, "x", {}, sources=["timm", "own"])
    assert "--data DIR --out" in _remake(recipe, "x", {}, sources=["timm"])
