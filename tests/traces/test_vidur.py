"""vidur's profiles: operators as kernels, units, flags and rules, by numbers worked out by hand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from predictor.errors import DataError
from predictor.traces.merge import merged
from predictor.traces.sources import vidur

SAMPLE = Path(__file__).parent / "vidur_sample"
GATED = "data/profiling/compute/a100/org/gated-8b/mlp.csv"
PLAIN = "data/profiling/compute/h100/org/plain-2b/mlp.csv"
REDUCE = "data/profiling/network/a100_dgx/all_reduce.csv"


def read(folder):
    return merged(vidur.parts(folder))


@pytest.fixture(scope="module")
def kernels():
    return read(SAMPLE).kernels.set_index("row_id")


@pytest.fixture
def changed(tmp_path):
    """Reads the sample with one column of one file changed."""

    def change(file, **columns):
        root = shutil.copytree(SAMPLE, tmp_path / "vidur")
        table = pd.read_csv(root / file)
        for column, values in columns.items():
            table[column.replace("__", ".")] = values
        table.to_csv(root / file, index=False)
        return read(root)

    return change


def dims(row, *names):
    return [int(row[f"dim_{name}"]) for name in names]


@pytest.mark.parametrize(
    ("operator", "op", "names", "expected"),
    [
        # 16 tokens, 32 heads of 128, 8 key-value heads, inner width 14336, cut by 4
        ("emb", "embedding", ("rows", "cols"), [16, 4096]),
        ("input_layernorm", "rms_norm", ("rows", "cols"), [16, 4096]),
        ("attn_pre_proj", "matmul", ("m", "k", "n"), [16, 4096, (32 + 2 * 8) * 128 // 4]),
        ("attn_rope", "pointwise", ("numel", "inputs", "outputs"), [16 * 40 * 128 // 4, 1, 1]),
        ("attn_post_proj", "matmul", ("m", "k", "n"), [16, 1024, 4096]),
        ("post_attention_layernorm", "rms_norm", ("rows", "cols"), [16, 4096]),
        ("mlp_up_proj", "matmul", ("m", "k", "n"), [16, 4096, 2 * 3584]),
        ("mlp_act", "exp", ("numel", "inputs", "outputs"), [16 * 3584, 2, 1]),
        ("mlp_down_proj", "matmul", ("m", "k", "n"), [16, 3584, 4096]),
        ("add", "add", ("numel", "inputs", "outputs"), [16 * 4096, 2, 1]),
    ],
)
def test_operators_of_a_gated_model_on_one_of_four_workers(kernels, operator, op, names, expected):
    row = kernels.loc[f"vidur:{GATED}:1:{operator}"]
    assert row["op"] == op
    assert dims(row, *names) == expected


@pytest.mark.parametrize(
    ("operator", "op", "names", "expected"),
    [
        ("input_layernorm", "layer_norm", ("rows", "cols"), [64, 2560]),
        ("attn_pre_proj", "linear", ("m", "k", "n"), [64, 2560, 3 * 2560]),
        ("mlp_up_proj", "linear", ("m", "k", "n"), [64, 2560, 10240]),
        ("mlp_act", "gelu", ("numel", "inputs"), [64 * 10240, 1]),
        # attention and MLP side by side: two sums, four tensors read, two written
        ("add", "add", ("numel", "inputs", "outputs"), [64 * 2560, 4, 2]),
    ],
)
def test_operators_of_a_model_without_gate(kernels, operator, op, names, expected):
    row = kernels.loc[f"vidur:{PLAIN}:0:{operator}"]
    assert row["op"] == op
    assert dims(row, *names) == expected


def test_an_operator_without_a_column_is_no_row(kernels):
    assert f"vidur:{PLAIN}:0:post_attention_layernorm" not in kernels.index
    assert len(kernels) == 2 * 10 + 9 + 3


def test_the_median_in_ms_there_is_us_here_with_its_spread(kernels):
    row = kernels.loc[f"vidur:{GATED}:1:emb"]
    assert (row["latency_us"], row["spread_us"], row["repeats"]) == (1500.0, 20.0, 20)
    assert (row["context"], row["dtype"], row["model"]) == ("device", "fp16", "org/gated-8b")
    assert row["read_bytes"] + row["write_bytes"] == 2 * (2 * 16 * 4096) + 8 * 16


def test_collective_sizes_are_bytes_there_and_elements_here(kernels):
    near, far = (kernels.loc[f"vidur:{REDUCE}:{i}"] for i in (0, 1))
    assert dims(near, "numel", "ranks") == [1_048_576 // 2, 8]
    assert (near["latency_us"], near["flag"], near["library"]) == (40.0, "", "nccl")
    assert dims(far, "numel", "ranks") == [1_048_576 // 2, 16]
    assert far["flag"] == "multi_node"  # 16 workers, 8 a node
    assert near["interconnect"] == far["interconnect"] == "nvswitch"
    assert near["ranks_per_node"] == far["ranks_per_node"] == 8


def test_a_missing_time_drops_one_operator(changed):
    data = changed(GATED, time_stats__add__median=[float("nan"), 0.0])
    assert data.dropped == {"latency_not_a_number": 1, "latency_not_positive": 1}
    assert len(data.kernels) == 32 - 2


def test_heads_that_the_workers_cannot_share_are_dropped(changed):
    assert changed(GATED, num_tensor_parallel_workers=[1, 3]).dropped == {
        "not_divisible_by_parallel_degree": 10
    }


def test_sizes_must_be_whole(changed):
    data = changed(GATED, num_tokens=[16.5, 16])
    assert data.dropped == {"dimension_not_a_positive_integer": 10}


def test_half_a_microsecond_above_a_tenth_of_the_time_is_flagged(changed):
    flags = changed(PLAIN, time_stats__input_layernorm__median=0.004,
                    time_stats__add__median=0.005).kernels.set_index("row_id")["flag"]  # fmt: skip
    assert flags[f"vidur:{PLAIN}:0:input_layernorm"] == "rounded"  # 0.5 us of 4
    assert flags[f"vidur:{PLAIN}:0:add"] == ""  # 0.5 us of 5


def test_faster_than_the_datasheet_is_flagged(changed):
    # 16 x 4096 x 28672 and a weight of 235 MB at 1,935 GB/s: 121 us at least
    flags = changed(GATED, time_stats__mlp_up_proj__median=[0.1, 1.5]).kernels
    assert flags.set_index("row_id")["flag"][f"vidur:{GATED}:0:mlp_up_proj"] == "above_peak"


def test_nodes_of_one_gpu_are_told_apart_by_what_joins_them(tmp_path):
    root = shutil.copytree(SAMPLE, tmp_path / "vidur")
    dgx = root / REDUCE
    for node in ("h100_dgx", "h100_pairwise_nvlink", "h100_lab"):
        target = root / f"data/profiling/network/{node}/all_reduce.csv"
        target.parent.mkdir()
        target.write_text(dgx.read_text().replace("0.04", f"0.04{len(node)}"))
    rows = read(root).kernels
    rows = rows[rows["op"] == "all_reduce"].assign(node=rows["file"].str.split("/").str[3])
    found = rows.groupby("node")["interconnect"].unique().map(list).to_dict()
    assert found == {
        "a100_dgx": ["nvswitch"], "h100_dgx": ["nvswitch"],
        "h100_pairwise_nvlink": ["nvlink_pairs"],
    }  # fmt: skip
    assert (rows["device"] == "nvidia-h100-sxm-80gb").sum() == 4
    flags = rows.groupby("node")["flag"].unique().map(list).to_dict()
    assert flags["h100_pairwise_nvlink"] == ["topology", "multi_node"]  # 8 of one node, 16 of two
    assert flags["h100_dgx"] == ["", "multi_node"]


def test_collectives_of_another_kind_or_odd_bytes_are_dropped(changed):
    data = changed(REDUCE, collective=["all_reduce", "broadcast"], size=[1025, 2048])
    assert data.dropped == {"unknown_collective": 1, "not_whole_elements": 1}


def test_unknown_devices_are_dropped(tmp_path):
    root = shutil.copytree(SAMPLE, tmp_path / "vidur")
    (root / "data/profiling/compute/h100").rename(root / "data/profiling/compute/q9000")
    data = read(root)
    assert data.dropped == {"unknown_device": 9}
    assert data.rejects[0]["value"] == "q9000"


def test_a_copy_under_another_node_type_is_left_out(tmp_path):
    root = shutil.copytree(SAMPLE, tmp_path / "vidur")
    other = "data/profiling/network/h100_dgx/send_recv.csv"
    (root / other).parent.mkdir()
    shutil.copy(root / "data/profiling/network/a100_dgx/send_recv.csv", root / other)
    data = read(root)
    assert data.left_out == {
        other: "the same rows as data/profiling/network/a100_dgx/send_recv.csv"
    }
    assert len(data.kernels) == 32


def test_other_profiles_are_left_out(tmp_path):
    root = shutil.copytree(SAMPLE, tmp_path / "vidur")
    shutil.copy(root / GATED, root / Path(GATED).with_name("attention.csv"))
    assert set(read(root).left_out.values()) == {"neither operators nor collectives"}


@pytest.mark.parametrize("part", [GATED, "data/profiling/network", "data/profiling/compute/h100"])
def test_part_of_the_layout_gives_the_same_rows(kernels, part):
    found = read(SAMPLE / part).kernels.set_index("row_id")
    assert 0 < len(found) < len(kernels)
    pd.testing.assert_frame_equal(found, kernels.loc[found.index])


def test_a_table_without_operators_is_refused(tmp_path):
    root = shutil.copytree(SAMPLE, tmp_path / "vidur")
    (root / GATED).write_text("n_head,num_tokens\n32,1\n")
    with pytest.raises(DataError, match=r"gated-8b/mlp.csv: no column time_stats"):
        read(root)


@pytest.mark.skipif(
    not os.environ.get("PREDICTOR_TRACES"), reason="set PREDICTOR_TRACES to the published data"
)
def test_published_rows():
    data = read(Path(os.environ["PREDICTOR_TRACES"]))
    assert len(data.kernels) == 167_966
    assert not data.dropped
    assert list(data.left_out) == ["data/profiling/network/h100_pairwise_nvlink/send_recv.csv"]
    assert data.kernels["flag"].value_counts().to_dict() == {
        "": 152_257, "multi_node": 6_958, "rounded": 5_429, "topology": 3_242, "above_peak": 80,
    }  # fmt: skip
