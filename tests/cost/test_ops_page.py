"""`docs/ops.md` is true: every op, its dimensions, and every formula as the rules compute it."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

import pytest

from predictor.cost.rules import kernel_cost
from predictor.graph.ir import DTYPE_BYTES
from predictor.graph.ops import OPS

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
FORMULAS = ("flops", "matmul_flops", "read_bytes", "write_bytes")


def page_rows() -> dict[str, list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index(next(line for line in lines if line.startswith("| op |")))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        op, *cells = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
        rows[op] = cells
    return rows


ROWS = page_rows()


def names(d: dict[str, int]) -> dict[str, object]:
    """What the formulas may use beside the dimensions."""
    extra: dict[str, object] = {"max": max, "ceil": ceil, "log2": log2}
    extra["min"] = min
    if "kv_len" in d:
        kv, window = d["kv_len"], d.get("window", d["kv_len"])
        seen = [min(kv - i, window) for i in range(min(d["q_len"], kv))]
        extra["pairs"] = sum(seen) if d["causal"] else d["q_len"] * kv
        extra["keys"] = min(kv, d["q_len"] + window - 1) if d["causal"] else kv
        extra["dv"] = d.get("v_head_dim", d["head_dim"])
    if "groups" in d and "gates" in d:
        extra["active"] = d.get("active", min(d["groups"], d["m"]))
    if "hidden_size" in d:
        h = d["hidden_size"]
        later = (d["layers"] - 1) * (d["directions"] + 1) * h
        extra["weights"] = d["directions"] * d["gates"] * h * (d["input_size"] + h + later)
    return extra


def test_page_lists_the_vocabulary():
    assert list(ROWS) == list(OPS)
    for op, cells in ROWS.items():
        dims = [*OPS[op].dims, *(f"[{name}]" for name in OPS[op].optional)]
        assert cells[:3] == [OPS[op].op_class, OPS[op].token, ", ".join(dims)]


@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_formulas_are_the_rules(op, dtype):
    primes = (4, 6, 10, 14, 22, 26, 34, 38, 46, 58)
    dims = dict(zip(OPS[op].dims, primes, strict=False))
    for name, value in {"groups": 2, "causal": 1, "inputs": 3, "outputs": 2}.items():
        if name in dims:
            dims[name] = value
    check(op, dims, dtype)


@pytest.mark.parametrize(
    ("op", "optional"),
    [("attention", {"window": 3}), ("attention", {"v_head_dim": 5, "window": 40}),
     ("attention_backward", {"window": 3}), ("moe", {"active": 1, "topk": 2})],
)  # fmt: skip
def test_formulas_with_optional_dimensions(op, optional):
    dims = dict(zip(OPS[op].dims, (4, 6, 2, 14, 22, 26, 1), strict=False))
    assert set(optional) <= set(OPS[op].optional)
    check(op, {**dims, **optional}, "bf16")


def check(op: str, dims: dict[str, int], dtype: str) -> None:
    cost = kernel_cost(op, dims, dtype)
    for field, formula in zip(FORMULAS, ROWS[op][3:], strict=True):
        scope = {**dims, **names(dims), "w": DTYPE_BYTES[dtype]}
        assert eval(formula, {"__builtins__": {}}, scope) == pytest.approx(getattr(cost, field))
