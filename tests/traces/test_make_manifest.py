"""Manifests: the same for a file and its gzipped copy, complete, compact, and checkable."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from predictor.errors import DataError

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "datasets" / "neusight" / "manifest.json"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_manifest", ROOT / "training" / "make_manifest.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_gzipped_copy_has_the_hash_of_the_original(script, layout):
    path = layout.sweep("add", [(0.04, 128, 256), (0.05, 64, 64)])
    packed = script.manifest_files(layout.root)
    plain = path.with_name(path.name.removesuffix(".gz"))
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    assert script.manifest_files(layout.root) == packed
    folder = "data/dataset/train/collect/add/p2.1.0"
    rows, digest = packed[folder]["Tesla V100-PCIE-32GB.csv"]
    assert (rows, len(digest)) == (2, 64)


def test_facts_stay_and_files_are_remade(script, layout, tmp_path, capsys):
    layout.models()
    out = tmp_path / "manifest.json"
    out.write_text(json.dumps({"origin": "https://example.org", "rows": 1, "folders": {"x": {}}}))
    assert script.main([str(layout.root), str(out)]) == 0
    made = json.loads(out.read_text())
    assert made["origin"] == "https://example.org"
    assert made["files"] == sum(len(names) for names in made["folders"].values()) == 24
    assert "x" not in made["folders"]
    first = out.read_text()
    script.main([str(layout.root), str(out)])
    assert out.read_text() == first
    assert "24 files" in capsys.readouterr().out


def test_check_names_what_differs(script, layout, tmp_path, capsys):
    layout.models()
    out = tmp_path / "manifest.json"
    script.main([str(layout.root), str(out)])
    assert script.main([str(layout.root), str(out), "--check"]) == 0
    (layout.root / "label/Tesla_V100-PCIE-32GB/toy-inf-4-2.json").unlink()
    layout.label("NVIDIA L4", "toy-inf-4-2", {})
    layout.label("Tesla V100-PCIE-32GB", "toy-train-4-2", {})
    capsys.readouterr()
    assert script.main([str(layout.root), str(out), "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "not in the manifest: label/NVIDIA_L4/toy-inf-4-2.json",
        "missing: label/Tesla_V100-PCIE-32GB/toy-inf-4-2.json",
        "other content: label/Tesla_V100-PCIE-32GB/toy-train-4-2.json",
    ]


def test_the_shipped_manifest_is_compact_and_relative():
    text = MANIFEST.read_text()
    assert len(text) < 150_000
    manifest = json.loads(text)
    assert manifest["commit"] == "6945927d9afcca2b9daf021f8395e53edc5b4eef"
    assert manifest["files"] == sum(len(names) for names in manifest["folders"].values())
    for folder, names in manifest["folders"].items():
        assert folder.split("/")[0] in {"data", "label", "results"}
        assert all(len(digest) == 64 and rows >= 0 for rows, digest in names.values())


def test_the_folder_of_a_source_holds_no_rows():
    assert {p.name for p in MANIFEST.parent.iterdir()} == {"README.md", "manifest.json"}


def test_files_of_a_further_kind_count_as_one_row(script, tmp_path):
    (tmp_path / "t.md").write_text("| a |\n| - |\n| 1 |\n")
    (tmp_path / "t.csv").write_text("a\n1\n2\n")
    assert {n: v[0] for n, v in script.manifest_files(tmp_path)[""].items()} == {"t.csv": 2}
    found = script.manifest_files(tmp_path, [".md"])[""]
    assert {n: v[0] for n, v in found.items()} == {"t.csv": 2, "t.md": 1}


def test_rows_of_parquet_tables_come_from_their_metadata(script, aiconfigurator, tmp_path):
    place = "h100_sxm/quantize/vllm/0.24.0"
    rows = [{"m": m, "k": 32, "quant_dtype": "fp8", "latency": 0.01} for m in (1, 2, 4)]
    path = aiconfigurator.write_table(tmp_path, place, "scale_matrix", rows)
    found = script.manifest_files(tmp_path)[f"systems/data/{place}"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found == {"scale_matrix_perf.parquet": [3, digest]}
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"scale_matrix_perf\.parquet: not readable as Parquet"):
        script.manifest_files(tmp_path)
