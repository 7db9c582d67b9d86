"""Tables of a card: what was held out by source and device, how far seeds lie apart."""

from __future__ import annotations

from typing import Any

from predictor.fit.card_tables import held_out_tables, seed_table


def entry(target: str, device: str, mape: float, **changes: Any) -> dict[str, Any]:
    given = {
        "fold_kind": "device", "target": target, "source": "timm", "device": device, "n": 10,
        "group": "total" if target == "step" else "matmul", "mape": mape, "median_ape": mape / 2,
        "p90_ape": 2 * mape, "bias": -mape,
    }  # fmt: skip
    return {**given, **changes}


def test_several_sources_stand_by_source_and_device() -> None:
    metrics = {
        "held_out": [],
        "by_device": [
            entry("step", "a", 0.1), entry("step", "b", 0.2, source="own"),
            entry("kernel", "a", 0.1), entry("kernel", "b", 0.3),
        ],
    }  # fmt: skip
    text = "\n".join(held_out_tables(metrics, of_sources=True))
    assert "| timm | a | 10 | 10.0% | 5.0% | 20.0% | -10.0% |" in text
    assert "| own | b | 10 | 20.0% |" in text
    assert "| timm | matmul | 2 | 20 | 20.0% (10.0% to 30.0%) | 10.0% |" in text
    assert "Model family never seen, device seen, whole steps: not run." in text


def test_one_source_stands_by_fold() -> None:
    step = entry("step", "a", 0.1, fold="a-and-twins")
    text = "\n".join(held_out_tables({"held_out": [step], "by_device": [step]}, of_sources=False))
    assert "| a-and-twins | total | 10 | 10.0% |" in text
    assert text.endswith("Model family never seen, device seen: not run.")


def test_seeds_stand_beside_each_other() -> None:
    assert seed_table({}) == []
    one, two = ({"mape": 0.1}, {"mape": 0.12})
    seeds = [{"source": "timm", "target": "step", "n": 1200, "members": [one, two],
              "together": {"mape": 0.09}}]  # fmt: skip
    text = seed_table({"seeds": seeds})
    assert "| timm | steps | 1,200 | 10.0% | 12.0% | 9.0% |" in text
    assert "| source | rows | n | seed 0 | seed 1 | together |" in text
