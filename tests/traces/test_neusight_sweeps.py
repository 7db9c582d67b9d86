"""Kernel sweeps of NeuSight: units, letters, shapes, flags and row ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.traces.sources import neusight

V100, P4 = "Tesla V100-PCIE-32GB", "Tesla P4"
GEMM = ("B", "M", "N", "K")


@pytest.fixture(scope="module")
def kernels(complete_root):
    return neusight.read(complete_root).kernels


def rows_of(kernels, op, device="nvidia-v100-pcie-32gb"):
    return kernels[(kernels["op"] == op) & (kernels["device"] == device)].reset_index(drop=True)


def test_latency_is_ms_there_and_us_here(kernels):
    assert rows_of(kernels, "bmm")["latency_us"].tolist() == [500.0, 2000.0]


def test_letter_n_is_the_contracted_size(kernels):
    # (13, 27, 15) x (13, 15, 29): 2*13*27*29*15 FLOPs, 4-byte operands and result once each
    row = rows_of(kernels, "bmm").iloc[0]
    assert [row[f"dim_{d}"] for d in ("batch", "m", "n", "k")] == [13, 27, 29, 15]
    assert row["flops"] == 2 * 13 * 27 * 29 * 15
    assert row["read_bytes"] == 4 * 13 * (27 * 15 + 15 * 29)
    assert row["write_bytes"] == 4 * 13 * 27 * 29


def test_linear_reads_a_bias_and_bmm_does_not(kernels):
    row = rows_of(kernels, "linear").iloc[0]
    assert row["read_bytes"] == 4 * (1024 * 256 + 256 * 512 + 512)
    assert (kernels.loc[kernels["op"] == "bmm", "dim_batch"] > 1).all()


def test_two_tensors_or_a_tensor_and_a_number(kernels):
    add, mulu = rows_of(kernels, "add").iloc[0], rows_of(kernels, "mul").iloc[0]
    assert (add["dim_inputs"], mulu["dim_inputs"]) == (2, 1)
    assert (add["read_bytes"], mulu["read_bytes"]) == (2 * 4 * 32_768, 4 * 32_768)
    assert add["dim_numel"] == mulu["dim_numel"] == 128 * 256


def test_rows_and_columns_of_norm_and_softmax(kernels):
    for op in ("layer_norm", "softmax"):
        row = rows_of(kernels, op).iloc[0]
        assert (row["dim_rows"], row["dim_cols"]) == (60, 272)


def test_output_side_of_a_convolution(kernels):
    # 5 + 2*1 - 3 + 1 = 5; (224 + 2*3 - 7) // 2 + 1 = 112
    conv = rows_of(kernels, "conv")
    assert conv["dim_h_out"].tolist() == conv["dim_w_out"].tolist() == [5, 112]
    assert conv["flops"][1] == 2 * 8 * 112 * 112 * 128 * 64 * 49


def test_dimensions_that_an_op_lacks_are_minus_one(kernels):
    assert (rows_of(kernels, "add")["dim_rows"] == -1).all()


def test_long_products_of_the_p4_training_sweep_are_flagged(kernels):
    flags = rows_of(kernels, "linear", "nvidia-tesla-p4")["flag"].tolist()
    assert flags == ["", "throttled"]
    assert (rows_of(kernels, "linear", "nvidia-l4")["flag"] == "").all()


def test_part_and_version_come_from_the_files(kernels):
    test = kernels[kernels["part"] == "test"]
    assert test["file"].tolist() == ["data/dataset/test/linear.csv.gz"]
    amd = kernels[kernels["device"] == "amd-mi100"]
    assert amd["framework_version"].tolist() == ["2.1.0"]  # as its column says
    assert amd["op"].tolist() == ["tanh"]


def test_version_of_files_without_the_column_comes_from_the_folder(layout):
    layout.table(
        "data/dataset_amd/train/collect/gelu/p2.4.1/AMD Instinct MI210.csv",
        ("OPName", "Latency", "Device", "B", "H"),
        [("gelu", 0.05, "AMD Instinct MI210", 64, 64)],
    )
    assert neusight.read(layout.root).kernels["framework_version"].tolist() == ["2.4.1"]


def test_row_ids_do_not_depend_on_compression_or_other_files(layout, tmp_path):
    layout.sweeps()
    ids = set(neusight.read(layout.root).kernels["row_id"])
    assert "neusight:data/dataset/train/collect/bmm/p2.1.0/Tesla V100-PCIE-32GB.csv:1" in ids
    alone = type(layout)(tmp_path / "other" / "neusight")
    alone.sweep("bmm", [(0.5, 13, 27, 15, 29), (2.0, 4, 64, 32, 16)], columns=GEMM, gzipped=False)
    assert set(neusight.read(alone.root).kernels["row_id"]) <= ids


def test_a_second_copy_of_a_file_is_read_once(layout):
    for gzipped in (True, False):
        layout.sweep("add", [(0.04, 128, 256)], gzipped=gzipped)
    found = neusight.read(layout.root)
    assert len(found.kernels) == 1
    assert list(found.left_out.values()) == ["a second copy, gzipped"]


@pytest.mark.parametrize(
    ("present", "read"),
    [
        (("vec", "habitat", "elem", "ln", "softmax"), {"vec"}),
        (("habitat", "elem", "ln"), {"habitat"}),
        (("elem", "ln", "softmax"), {"elem", "ln", "softmax"}),
    ],
)
def test_merged_files_do_not_count_twice(layout, present, read):
    for name in present:
        layout.sweep("add", [(0.04, 128, 256)], file=f"data/dataset/test/{name}.csv")
    found = neusight.read(layout.root)
    assert {f.split("/")[-1].split(".")[0] for f in found.kernels["file"]} == read
    assert len(found.left_out) == len(present) - len(read)


def test_devices_of_the_catalogue_that_the_publisher_did_not_have(layout):
    rows = [(0.04, 128, 256)]
    for device in ("NVIDIA H100 80GB HBM3", "AMD Instinct MI250", "NVIDIA GeForce RTX 4090"):
        layout.sweep("add", rows, device=device)
    devices = set(neusight.read(layout.root).kernels["device"])
    assert devices == {"nvidia-h100-sxm-80gb", "amd-mi250-gcd", "nvidia-rtx-4090"}


def test_one_file_of_the_layout_alone(layout):
    layout.complete()
    path = layout.root / "data/dataset/train/collect/bmm/p2.1.0/Tesla V100-PCIE-32GB.csv.gz"
    found = neusight.read(path)
    whole = neusight.read(layout.root)
    assert found.kernels["row_id"].tolist() == whole.kernels["row_id"].tolist()[1:3]
    assert found.steps.empty and found.peers.empty and not found.left_out


def test_a_merged_file_is_read_when_it_is_asked_for(layout, monkeypatch):
    for name in ("vec", "ln"):
        layout.sweep("ln", [(0.05, 60, 272)], file=f"data/dataset/test/{name}.csv")
    monkeypatch.chdir(layout.root / "data" / "dataset" / "test")
    assert neusight.read(Path("ln.csv.gz")).kernels["row_id"].tolist() == [
        "neusight:data/dataset/test/ln.csv:0"
    ]


def test_a_label_alone_brings_its_graph_and_ops(layout):
    layout.complete()
    found = neusight.read(layout.root / "label" / "Tesla_V100-PCIE-32GB" / "toy-inf-4-2.json")
    assert found.steps["graph"].tolist() == list(found.graphs) == ["toy-inf-4-2"]
    assert len(found.ops) and found.kernels.empty
