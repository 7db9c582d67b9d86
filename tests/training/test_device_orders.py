"""Devices over time: what is trained, how transfer is reckoned, and a run that goes on."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

TRAINING = Path(__file__).parents[2] / "training"
DEVICES = ("nvidia-tesla-p4", "nvidia-v100-pcie-32gb", "nvidia-t4", "nvidia-l4")


def _loaded(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TRAINING))
    return _loaded(TRAINING / "device_orders.py", "device_orders", monkeypatch)


@pytest.fixture
def data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = TRAINING.parent / "tests" / "fit" / "conftest.py"
    data: Path = _loaded(path, "fit_layout", monkeypatch).Layout(tmp_path / "traces").complete()
    return data


@pytest.fixture
def variants(orders: ModuleType) -> ModuleType:
    return sys.modules["device_variants"]


@pytest.fixture
def reckoning(orders: ModuleType) -> ModuleType:
    return sys.modules["device_efficiency"]


@pytest.fixture
def pages(orders: ModuleType) -> ModuleType:
    return sys.modules["device_orders_page"]


def _facts(orders: ModuleType, devices: tuple[str, ...] = DEVICES) -> dict[str, Any]:
    return {
        "devices": list(devices), "orders": orders.orders(devices),
        "rows": {d: {"kernel": {"held": 10, "known": 20}} for d in devices},
    }  # fmt: skip


def _write(folder: Path, orders: ModuleType, error: Any) -> None:
    """A run of every training in which `error(run, device, what)` was measured."""
    folder.mkdir(parents=True)
    (folder / "facts.txt").write_text(json.dumps(_facts(orders), sort_keys=True))
    for run in orders.plan(DEVICES):
        errors = {}
        for device in DEVICES:
            found: dict[str, Any] = {"n": 10, "zero": error(run, device, "zero")}
            if device not in run.devices:
                found["ten"] = [error(run, device, "ten")] * 3
                found["all"] = error(run, device, "all")
            elif run.variant == "ten rows":
                found = {"n": 0, "ten": [error(run, device, "ten")] * 3}
            errors[device] = {"kernel": found}
        text = {
            "variant": run.variant, "devices": sorted(run.devices), "seed": run.seed,
            "seconds": 1.0, "errors": errors,
        }  # fmt: skip
        (folder / f"{run.name}.json").write_text(json.dumps(text))


def _halving(run: Any, device: str, what: str) -> float:
    """20 in a model of its own, 10 with any other device, 40 unseen, 30 with ten rows."""
    if run.variant == "no training":
        return 80.0 if what == "zero" else 60.0
    if run.variant == "ten rows":
        return 90.0
    if device in run.devices:
        return 20.0 if len(run.devices) == 1 else 10.0
    return {"zero": 40.0, "ten": 30.0, "all": 15.0}[what]


def test_orders_are_the_same_devices(orders: ModuleType) -> None:
    found = orders.orders(DEVICES)
    assert tuple(found) == ("release", "reversed", "random")
    assert found["reversed"] == DEVICES[::-1]
    assert {tuple(sorted(order)) for order in found.values()} == {tuple(sorted(DEVICES))}
    assert len(set(found.values())) == 3


def test_every_stage_of_every_order_is_trained_once(orders: ModuleType) -> None:
    runs = orders.plan(DEVICES)
    assert len(set(runs)) == len(runs)
    assert len({run.name for run in runs}) == len(runs)
    for order in orders.orders(DEVICES).values():
        for i in range(2, len(order) + 1):
            for variant in ("one model", "device parts"):
                assert orders.Run(variant=variant, devices=frozenset(order[:i])) in runs
    singles = [run for run in runs if len(run.devices) == 1 and run.variant != "ten rows"]
    assert {run.variant for run in singles} == {"one model"}
    halves = [run for run in runs if run.variant == "equal rows"]
    assert [len(run.devices) for run in halves] == [4, 2]


def test_where_all_devices_measured_the_same_weights_are_not_varied(orders: ModuleType) -> None:
    left = orders.variants_of(orders.STREAMS["gptbench"])
    assert len(left) == len(orders.VARIANTS) - 2
    assert not any(variant.weights for variant in left)


def test_transfer_is_of_the_errors_as_by_hand(
    orders: ModuleType, reckoning: ModuleType, tmp_path: Path
) -> None:
    def error(run: Any, device: str, what: str) -> float:
        if len(run.devices) == len(DEVICES) and device == "nvidia-l4":
            return 25.0  # the last device of the order by release harms itself in the joint model
        return _halving(run, device, what)

    _write(tmp_path / "neusight", orders, error)
    errors = reckoning.load_errors(tmp_path / "neusight")
    found = {
        (e.order, e.device): e for e in reckoning.efficiencies(errors, "device parts", "kernel")
    }
    middle = found["release", "nvidia-v100-pcie-32gb"]
    assert middle.position == 1
    assert middle.forward == pytest.approx(math.log(2))
    assert middle.backward == pytest.approx(0.0)
    assert middle.unseen == pytest.approx(math.log(80 / 40))
    assert middle.unseen_ten == pytest.approx(math.log(60 / 30))
    first = found["release", "nvidia-tesla-p4"]
    assert first.forward == pytest.approx(0.0)
    assert first.backward == pytest.approx(math.log(2))
    assert math.isnan(first.unseen)
    last = found["reversed", "nvidia-l4"]
    assert last.backward == pytest.approx(math.log(20 / 25))
    totals = [e.total for e in found.values() if e.device == "nvidia-l4"]
    assert totals == pytest.approx([math.log(20 / 25)] * 3)
    assert reckoning.noise(errors, "device parts", "kernel") == pytest.approx(0.0)
    order = errors.orders["release"]
    assert reckoning.frozen(errors, order, order[0], "kernel") == 10.0
    assert reckoning.frozen(errors, order, order[3], "kernel") == 15.0


def test_the_page_names_the_harmed_device_and_nobody_else(
    orders: ModuleType, pages: ModuleType, tmp_path: Path
) -> None:
    def error(run: Any, device: str, what: str) -> float:
        if len(run.devices) == len(DEVICES) and device == "nvidia-l4":
            return 25.0
        return _halving(run, device, what)

    _write(tmp_path / "neusight", orders, error)
    lines = pages.page(tmp_path).splitlines()
    assert (
        "| l4 | 80.0 | 20.0 | 25.0 | 25.0 | -0.15, -0.07, -0.22 | -0.15, -0.07, -0.22 | "
        "one model, device parts |"
    ) in lines
    assert sum("one model, device parts |" in line for line in lines) == 1
    assert (
        "| neusight, kernels | 4 | +0.46 (1/4) | +0.46 (1/4) | +0.46 (1/4) | +0.46 (1/4) "
        "| +0.29 (0/4) | one model |"
    ) in lines
    assert "| neusight, kernels | +0.69, +0.69 | +0.69, +0.69 | +0.69, +0.69 |" in lines
    harm = next(line for line in lines if line.startswith("| neusight, kernels | device parts"))
    assert "| 4 |" in harm
    assert "| 0.00 |" in harm
    orders.write_figure(tmp_path, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().count("<polyline") == 5 + 6 + 3


def test_what_pays_is_told_by_the_log_of_errors(
    orders: ModuleType, pages: ModuleType, reckoning: ModuleType, tmp_path: Path
) -> None:
    def error(run: Any, device: str, what: str) -> float:
        found = _halving(run, device, what)
        return found / 2 if run.variant == "equal rows" and device in run.devices else found

    _write(tmp_path / "neusight", orders, error)
    errors = reckoning.load_errors(tmp_path / "neusight")
    assert pages.gain(errors, "equal rows", "kernel", seen=True) == "+0.69 (4/4)"
    assert pages.gain(errors, "equal rows", "kernel", seen=False) == "+0.00 (0/2)"
    told = pages.verdicts([errors])
    assert "- **equal rows**: pays: neusight kernels seen +0.69; costs: nowhere." in told
    assert "- **aligned states**: pays: nowhere; costs: nowhere." in told
    assert pages.gain(errors, "nothing", "kernel", seen=True) == "–"


def test_a_run_goes_on_and_refuses_another(
    orders: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []

    def errors_of(stream: object, run: Any, given: object) -> dict[str, Any]:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(run.name)
        return {}

    stream = SimpleNamespace(devices=DEVICES, facts=lambda: _facts(orders)["rows"])
    monkeypatch.setattr(orders, "read_stream", lambda *_: stream)
    monkeypatch.setattr(orders, "_errors", errors_of)
    runs = tmp_path / "neusight"
    with pytest.raises(KeyboardInterrupt):
        orders._stream("neusight", [], runs, {})
    assert len(list(runs.glob("*.json"))) == 3
    monkeypatch.setattr(orders, "_errors", lambda _, run, __: done.append(run.name) or {})
    orders._stream("neusight", [], runs, {})
    assert sorted(done) == sorted(run.name for run in orders.plan(DEVICES))
    with pytest.raises(orders.RecipeError, match=r"other recipe.*--runs"):
        orders._stream("neusight", [], runs, {"network.hidden": "8"})


def test_weights_sum_alike_over_devices_or_rows(variants: ModuleType) -> None:
    device_N, weight_N = torch.tensor([0, 0, 0, 1]), torch.tensor([1.0, 2.0, 1.0, 3.0])
    found = variants.weights_of(device_N, weight_N, "devices")
    assert found[:3].sum() == pytest.approx(float(found[3]))
    assert found.mean() == pytest.approx(1.0)
    assert variants.weights_of(device_N, weight_N, "rows").tolist() == [1.0] * 4


def test_alignment_is_of_kinds_that_two_devices_share(variants: ModuleType) -> None:
    h_BH = torch.tensor([[0.0], [0.0], [0.0], [2.0], [2.0], [2.0], [9.0]])
    token_B = torch.tensor([4, 4, 4, 4, 4, 4, 5])
    device_B = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    found = variants.spread_of_means(h_BH, token_B, device_B)
    assert found == pytest.approx(1.0 / float(h_BH.var()))
    apart = variants.spread_of_means(h_BH, device_B, device_B)  # no kind on two devices
    assert apart == 0.0


def test_draws_are_distinct_rows_and_the_same_again(orders: ModuleType) -> None:
    first = orders.drawn("neusight", "nvidia-l4", "kernel", 50, 10, 0)
    assert len(set(first.tolist())) == 10
    assert first.max() < 50
    np.testing.assert_array_equal(first, orders.drawn("neusight", "nvidia-l4", "kernel", 50, 10, 0))
    assert first.tolist() != orders.drawn("neusight", "nvidia-l4", "kernel", 50, 10, 1).tolist()
    assert len(orders.drawn("neusight", "nvidia-l4", "kernel", 4, 10, 0)) == 4


def test_devices_come_by_year_then_name(orders: ModuleType) -> None:
    streams = sys.modules["device_streams"]
    assert streams.by_release(("nvidia-l4", "nvidia-v100-pcie-32gb", "nvidia-t4")) == (
        "nvidia-t4", "nvidia-v100-pcie-32gb", "nvidia-l4",
    )  # fmt: skip


def test_the_command_trains_judges_and_writes(
    orders: ModuleType, variants: ModuleType, data_dir: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    streams = sys.modules["device_streams"]
    devices = ("nvidia-t4", "nvidia-v100-pcie-32gb")
    tiny = streams.StreamPlan(
        name="tiny", source="neusight", devices=devices, updates=1, steps_train=False,
        settings={"network.hidden": "4", "rows_per_group": "20"},
    )  # fmt: skip
    monkeypatch.setattr(orders, "STREAMS", {"tiny": tiny})
    monkeypatch.setattr(orders, "FEW_UPDATES", 1)
    few = [v for v in variants.VARIANTS if v.every_order or v.aligned or v.weights == "devices"]
    for module in (orders, sys.modules["device_orders_page"]):
        monkeypatch.setattr(module, "VARIANTS", few)
    monkeypatch.setattr(orders, "variants_of", lambda _: few)
    page, runs = tmp_path / "docs" / "page.md", tmp_path / "runs"
    given = ["--data", str(data_dir), "--out", str(page), "--runs", str(runs)]
    assert orders.main(given) == 0
    found = {p.name: json.loads(p.read_text()) for p in (runs / "tiny").glob("*.json")}
    assert len(found) == len(orders.plan(devices, few))
    both = found["device-parts@0@nvidia-t4+nvidia-v100-pcie-32gb.json"]["errors"]
    assert set(both) == set(devices)
    assert "ten" not in both["nvidia-t4"]["kernel"]
    one = found["one-model@0@nvidia-t4.json"]["errors"]["nvidia-v100-pcie-32gb"]["kernel"]
    assert len(one["ten"]) == 3
    assert one["n"] > 0
    assert "## tiny, kernels" in page.read_text()
    assert (page.parent / "figures" / "page.svg").is_file()
    aligned = found["aligned-states@0@nvidia-t4+nvidia-v100-pcie-32gb.json"]["errors"]
    assert aligned["nvidia-t4"] != both["nvidia-t4"]
