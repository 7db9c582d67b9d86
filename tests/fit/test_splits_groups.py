"""Splits by shape, family and source: no group is in two parts, in any source."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.fit.shape_groups import shape_groups, shape_hash
from predictor.fit.splits import Split, device_split
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.twins import twins
from predictor.traces.schema import Imported, empty_table, filled
from predictor.traces.sources.registry import SOURCES

if TYPE_CHECKING:
    import pandas as pd

TRACES = os.environ.get("PREDICTOR_TRACES")
DEVICES = (
    "nvidia-t4", "nvidia-l4", "nvidia-a100-pcie-40gb", "nvidia-a100-sxm-80gb", "nvidia-rtx-3090",
    "nvidia-rtx-4090", "nvidia-h100-sxm-80gb", "amd-mi210",
)  # fmt: skip
SHAPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nk": (("linear", "matmul", "bmm", "sparse_mm", "grouped_mm"), ("n", "k")),
    "attention": (
        ("attention", "attention_backward", "latent_attention", "delta_rule", "ssd"),
        ("heads", "kv_heads", "head_dim", "window"),
    ),
    "moe": (("moe",), ("k", "inter_size", "topk", "experts")),
}  # fmt: skip
KINDS: Mapping[str, tuple[str, ...]] = {
    "unseen-nvidia-l4": ("device",),
    "unseen-nvidia-a100-sxm-80gb": ("device",),
    "unseen-nvidia-a100-sxm-80gb/develop-nvidia-t4": ("device",),
    "timm-families": ("family", "graph"),
    "timm-families-unseen-nvidia-rtx-3090": ("family", "graph"),
    "unseen-nk": ("nk",),
    "unseen-attention-shape": ("attention",),
    "unseen-moe-shape": ("moe",),
    "unseen-source-vidur": ("source",),
    "unseen-source-timm": ("source",),
}
"""Kinds of groups that are in one part only, by split."""
TEST_ONLY = {"timm-families-unseen-nvidia-rtx-3090": ("device",)}
"""Kinds whose test groups are in no other part (a device may train and develop)."""

Seen = dict[tuple[str, str], dict[str, set[str]]]
"""Parts by split, kind and group."""


def folds() -> dict[tuple[str, str, str], dict[str, str]]:
    with (resources.files("predictor.fit") / "timm_folds.csv").open(encoding="utf-8") as file:
        return {(r["model"], r["size"], r["mode"]): r for r in csv.DictReader(file)}


FOLDS = folds()


def shape_of(row: Mapping[str, Any], kind: str) -> str:
    ops, dims = SHAPES[kind]
    return ",".join(str(row[f"dim_{d}"]) for d in dims) if row["op"] in ops else ""


def fact_of(row: Mapping[str, Any], column: str) -> str:
    if row["source"] != "timm":
        return ""
    fact = FOLDS.get((row["model"], f"{row['size']:.0f}", row["mode"]))
    return fact[column] if fact else ""


KERNEL_KINDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "device": lambda row: min(twins(row["device"])),
    "source": lambda row: row["source"],
    **{kind: (lambda row, kind=kind: shape_of(row, kind)) for kind in SHAPES},
}
STEP_KINDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "device": lambda row: min(twins(row["device"])),
    "source": lambda row: row["source"],
    "family": lambda row: fact_of(row, "family"),
    "graph": lambda row: fact_of(row, "graph_group"),
}
COLUMNS = {
    "kernels": ["source", "device", "op", *sorted({f"dim_{d}" for _, n in SHAPES.values()
                                                   for d in n})],
    "steps": ["source", "device", "model", "size", "mode"],
}  # fmt: skip


def watch(seen: Seen, split: Split, table: str, rows: pd.DataFrame) -> None:
    """Note in which parts each group of some rows is."""
    if not len(rows):
        return
    found = rows[COLUMNS[table]].assign(part=split.parts(rows, table)).drop_duplicates()
    kinds = KERNEL_KINDS if table == "kernels" else STEP_KINDS
    for row in found[found["part"] != "unused"].to_dict("records"):
        for kind, group_of in kinds.items():
            if group := group_of(row):
                seen[split.name, kind][group].add(row["part"])


def crossings(parts: Iterable[Imported], devices: Iterable[str]) -> tuple[list[Any], Seen]:
    """Groups in more than one part, over all rows of all sources together."""
    seen: Seen = defaultdict(lambda: defaultdict(set))
    splits = [device_split(name, devices) for name in KINDS]
    for part in parts:
        for split in splits:
            watch(seen, split, "kernels", part.kernels)
            watch(seen, split, "steps", part.steps)
    wrong = [
        (split, kind, group, found)
        for split, kinds in KINDS.items()
        for kind in (*kinds, *TEST_ONLY.get(split, ()))
        for group, found in seen[split, kind].items()
        if len(found) > 1 and (kind in kinds or "test" in found)
    ]
    return wrong, seen


def kernels(rows: int, seed: int) -> pd.DataFrame:
    """Kernel rows of every op with a shape, few sizes, on all devices."""
    draw = np.random.default_rng(seed)
    ops = [op for names, _ in SHAPES.values() for op in names] + ["softmax", "conv"]
    sizes = [1, 8, 64, 128, 192, 1024, 4096]
    columns = [*COLUMNS["kernels"], "dim_m", "dim_kv_len", "dim_tokens"]
    dims = {c: draw.choice(sizes, rows) for c in columns if c.startswith("dim_")}
    dims["dim_window"] = draw.choice([-1, 128], rows)
    return filled("kernels", {
        "row_id": np.arange(rows).astype(str), "device": draw.choice(DEVICES, rows),
        "source": draw.choice(["neusight", "vidur", "deepbench", "rows"], rows),
        "op": draw.choice(ops, rows), "dtype": draw.choice(["fp16", "fp32"], rows), **dims,
    }, rows)  # fmt: skip


def steps() -> pd.DataFrame:
    """A step of every timm model on every device, and of models of other sources."""
    names = [(m, float(s), o, "timm") for m, s, o in FOLDS]
    names += [("bert_large", float("nan"), "train", "neusight"), ("gone", 224.0, "infer", "timm")]
    each = [(*name, device) for name in names for device in DEVICES]
    columns = zip(*each, strict=True)
    keys = ("model", "size", "mode", "source", "device")
    return filled("steps", dict(zip(keys, map(list, columns), strict=True)), len(each))


def imported(kernel_rows: pd.DataFrame, step_rows: pd.DataFrame) -> Imported:
    out = Imported.empty("rows")
    out.kernels, out.steps = kernel_rows, step_rows
    return out


def test_no_group_is_in_two_parts() -> None:
    wrong, seen = crossings([imported(kernels(4000, 0), steps()[::5])], DEVICES)
    assert wrong == []
    for split, kinds in KINDS.items():  # and every part has a group
        if "/develop-" in split or "unseen-nvidia" not in split:
            parts = set().union(*seen[split, kinds[0]].values())
            assert parts == {"train", "development", "test"}, split


@pytest.mark.skipif(not TRACES, reason="PREDICTOR_TRACES names no folder of published data")
def test_no_group_is_in_two_parts_of_the_published_rows() -> None:
    assert TRACES is not None
    wrong, seen = crossings(published(Path(TRACES)), load_catalogue())
    assert wrong == []
    assert {"test", "train"} <= set().union(*seen["timm-families", "family"].values())
    for split in ("unseen-nk", "unseen-source-vidur"):
        parts = set().union(*seen[split, KINDS[split][0]].values())
        assert parts == {"train", "development", "test"}, split


def published(traces: Path) -> Iterator[Imported]:
    """Rows of the published sources; of the largest a table of each kind from two systems."""
    for name in sorted({"neusight", "timm", "vidur", "deepbench", "aiter"} & set(SOURCES)):
        yield from SOURCES[name].parts(traces)
    if "aiconfigurator" in SOURCES:
        for system in ("a100_sxm", "l40s"):
            folder = traces / "aiconfigurator" / "systems" / "data" / system
            for kind in ("gemm", "context_attention", "moe"):
                table = min(folder.rglob(f"{kind}_perf.parquet"))
                yield from SOURCES["aiconfigurator"].parts(table)


def test_families_are_held_out_with_the_published_folds() -> None:
    rows = steps()
    parts = device_split("timm-families", DEVICES).parts(rows, "steps")
    for row, part in zip(rows.to_dict("records"), parts, strict=True):
        fact = FOLDS.get((row["model"], f"{row['size']:.0f}", row["mode"]))
        if fact is None:
            assert part == ("train" if row["source"] == "neusight" else "unused")
        elif fact["cross_fold_twin"] == "True":
            assert part == "unused"
        else:
            assert part == {"0": "test", "1": "development"}.get(fact["fold"], "train")


def test_a_model_that_the_folds_name_is_held_out_in_every_source() -> None:
    rows = filled("steps", {
        "model": ["deit_tiny_patch16_224", "deit_tiny_patch16_224", "resnet50", "vit_b_16",
                  "resnet18"],
        "size": [float("nan"), 9999.0, 224.0, 224.0, 224.0], "mode": "train",
        "source": ["rows", "timm", "steps", "rows", "rows"], "device": "nvidia-t4",
    }, 5)  # fmt: skip
    parts = device_split("timm-families", DEVICES).parts(rows, "steps")
    assert parts.tolist() == ["test", "test", "train", "train", "unused"]  # resnet18: two folds


@pytest.mark.parametrize(
    ("fold", "device", "expected"),
    [
        ("0", "nvidia-rtx-3090", "test"), ("0", "nvidia-t4", "unused"),
        ("1", "nvidia-rtx-3090", "unused"), ("1", "nvidia-t4", "development"),
        ("2", "nvidia-rtx-3090", "unused"), ("2", "nvidia-t4", "train"),
    ],
)  # fmt: skip
def test_an_unseen_family_on_an_unseen_device(fold: str, device: str, expected: str) -> None:
    rows = steps()
    wanted = {k for k, f in FOLDS.items() if f["fold"] == fold and f["cross_fold_twin"] == "False"}
    keys = zip(rows["model"], rows["size"].map("{:.0f}".format), rows["mode"], strict=True)
    rows = rows[np.array([k in wanted for k in keys]) & (rows["device"] == device).to_numpy()]
    split = device_split("timm-families-unseen-nvidia-rtx-3090", DEVICES)
    assert set(split.parts(rows, "steps")) == {expected}


def test_kernels_of_a_device_unseen_with_its_families_are_in_no_part() -> None:
    rows = kernels(100, 0).assign(device=["nvidia-rtx-3090", "nvidia-t4"] * 50)
    split = device_split("timm-families-unseen-nvidia-rtx-3090", DEVICES)
    assert split.parts(rows, "kernels").tolist() == ["unused", "train"] * 50


@pytest.mark.parametrize("name", ["unseen-nk", "unseen-attention-shape", "unseen-moe-shape"])
def test_shapes_hold_out_no_whole_models_and_no_other_ops(name: str) -> None:
    split = device_split(name, DEVICES)
    assert set(split.parts(steps(), "steps")) == {"unused"}
    rows = kernels(1000, 1).assign(op="softmax")
    assert set(split.parts(rows, "kernels")) == {"train"}


@pytest.mark.parametrize(
    ("split", "test", "development"),
    [
        ("unseen-source-vidur", "vidur", "deepbench"),
        ("unseen-source-neusight", "neusight", "vidur"),
    ],
)  # fmt: skip
def test_an_unseen_source_develops_on_another(split: str, test: str, development: str) -> None:
    rows = kernels(1000, 2)
    parts = device_split(split, DEVICES).parts(rows, "kernels")
    expected = rows["source"].map(lambda s: {test: "test", development: "development"}.get(s))
    assert parts.tolist() == expected.fillna("train").tolist()


@pytest.mark.parametrize("name", KINDS)
def test_a_part_depends_on_no_other_row(name: str) -> None:
    split = device_split(name, DEVICES)
    for rows, table in ((kernels(500, 3), "kernels"), (steps()[::40], "steps")):
        whole = split.parts(rows, table)
        order = np.random.default_rng(4).permutation(len(rows))
        assert split.parts(rows.iloc[order], table).tolist() == whole[order].tolist()
        assert split.parts(rows[::7], table).tolist() == whole[::7].tolist()


@pytest.mark.parametrize("name", KINDS)
def test_no_rows_have_no_parts(name: str) -> None:
    split = device_split(name, DEVICES)
    for table in ("kernels", "steps"):
        assert split.parts(empty_table(table), table).tolist() == []


SIZES = st.integers(min_value=1, max_value=2**31)


@given(n=SIZES, k=SIZES, m=SIZES)
def test_a_product_has_one_group_in_every_source_dtype_and_op(n, k, m):
    rows = filled("kernels", {
        "op": ["linear", "matmul", "bmm", "grouped_mm"], "dtype": ["fp32", "fp16", "fp8", "bf16"],
        "source": ["neusight", "aiconfigurator", "vidur", "rows"], "device": list(DEVICES[:4]),
        "dim_m": [m, m + 1, 1, 7], "dim_n": n, "dim_k": k,
    }, 4)  # fmt: skip
    assert set(shape_groups(rows, "nk", 5)) == {shape_hash({"k": k, "n": n}, 5)}
    assert 0 <= shape_hash({"n": n, "k": k}, 5) < 5


def test_hashes_are_the_stored_ones() -> None:
    """SHA-256 of the text, its first eight bytes modulo 5, as sha256sum and bc give them."""
    assert shape_hash({"n": 4096, "k": 4096}, 5) == 1
    assert shape_hash({"heads": 32, "kv_heads": 8, "head_dim": 128, "window": -1}, 5) == 0


def test_a_fifth_of_the_pairs_tests_and_a_fifth_develops() -> None:
    n, k = (x.ravel() for x in np.meshgrid(np.arange(1, 101), np.arange(1, 101)))
    rows = filled("kernels", {"op": "matmul", "dim_n": n, "dim_k": k}, 10_000)
    share = np.bincount(shape_groups(rows, "nk", 5)) / 10_000
    assert np.allclose(share, 0.2, atol=0.016)  # four standard deviations
