"""aiter's tuned tables: shapes, formats, devices and rules, by numbers worked out by hand."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from predictor.errors import DataError
from predictor.traces.merge import merged
from predictor.traces.sources import aiter
from predictor.traces.sources.aiter_tables import active_experts

SAMPLE = Path(__file__).parent / "aiter_sample"
A8W8 = "aiter/configs/a8w8_tuned_gemm.csv"
BLOCK = "aiter/configs/model_configs/a8w8_blockscale_tuned_gemm_x.csv"
MOE = "aiter/configs/tuned_fmoe.csv"
FLAT_HEAD = (
    "gfx,cu_num,kind,dtype,q_dtype_w,batch,M,N,K,libtype,us,tflops,bw_GBs,file,tflops_calc,valid\n"
)


def read(folder):
    return merged(aiter.parts(folder))


@pytest.fixture(scope="module")
def kernels():
    return read(SAMPLE).kernels.set_index("row_id")


@pytest.fixture
def changed(tmp_path):
    """Reads the sample with columns of one file changed."""

    def change(file, **columns):
        root = shutil.copytree(SAMPLE, tmp_path / "rocm_aiter")
        pd.read_csv(root / file).assign(**columns).to_csv(root / file, index=False)
        return read(root)

    return change


def dims(row, *names):
    return [int(row[f"dim_{name}"]) for name in names]


def test_k_is_contracted_and_results_are_16_bits(kernels):
    row = kernels.loc[f"aiter:{A8W8}:0"]
    assert dims(row, "batch", "m", "n", "k") == [1, 128, 1280, 8192]
    assert (row["op"], row["dtype"], row["scheme"]) == ("matmul", "int8", "w8a8")
    assert row["flops"] == 2 * 128 * 1280 * 8192
    assert row["read_bytes"] == (128 + 1280) * 8192
    assert row["write_bytes"] == 2 * 128 * 1280
    assert (row["latency_us"], row["library"], row["execution"]) == (20.0, "asm", "tuned")


def test_formats_by_column_and_by_file(kernels):
    fp8, block = kernels.loc[f"aiter:{A8W8}:1"], kernels.loc[f"aiter:{BLOCK}:0"]
    assert (fp8["dtype"], fp8["scheme"]) == ("fp8", "w8a8")
    assert (block["dtype"], block["scheme"]) == ("fp8", "fp8_block")


def test_bias_and_batch(kernels):
    ops = kernels.groupby("op")
    assert dims(ops.get_group("linear").iloc[0], "m", "n", "k") == [256, 256, 7168]
    assert dims(ops.get_group("bmm").iloc[0], "batch", "m", "n", "k") == [16, 32, 1280, 8192]


def test_experts_both_stages_together(kernels):
    row = kernels.loc[f"aiter:{MOE}:0"]
    # 4 tokens, 2 of 8 experts each: 8 rows; idle with probability 0.75^4 = 0.32: 5.47 of 8 at work
    assert dims(row, "tokens", "groups", "m", "n", "k", "gates", "active") == [
        4, 8, 8, 512, 2048, 2, 5,
    ]  # fmt: skip
    assert row["flops"] == 2 * 8 * 512 * 2048 * 3
    assert row["read_bytes"] == 4 * 2048 + 5 * 3 * 512 * 2048
    assert (row["latency_us"], row["scheme"], row["device"]) == (35.0, "fp8_block", "amd-mi308x")


def test_every_expert_is_active_at_many_tokens_and_topk_at_one():
    assert active_experts(8, 2, 1000) == 8
    assert active_experts(256, 8, 1) == 8


def test_the_delta_rules_pass_over_the_state(kernels):
    row = kernels[kernels["op"] == "delta_rule"].iloc[0]
    names = ("batch", "heads", "kv_heads", "q_len", "head_dim", "v_head_dim")
    assert dims(row, *names) == [2, 32, 16, 1024, 128, 128]
    state = 32 * 128 * 128
    assert row["flops"] == 2 * 2 * 2048 * state  # two products a token
    assert row["write_bytes"] == 2 * 2048 * 32 * 128 + 2 * 32 * state  # 32 chunks, bf16
    assert row["read_bytes"] == 2 * 2048 * (16 * 128 + 32 * 256) + 4 * 2048 * 32 + 4 * 2 * state
    assert (row["flag"], row["context"]) == ("state_pass", "isolated")


def test_devices_by_architecture_and_units(kernels):
    assert kernels.loc[f"aiter:{A8W8}:0", "device"] == "amd-mi308x"
    row = kernels.loc[f"aiter:{BLOCK}:0"]
    assert (row["device"], row["flag"]) == ("amd-mi300x", "mi300x_or_mi325x")


@pytest.mark.parametrize("us", [0.0, 1.0, float("inf")])
def test_placeholder_times_are_dropped(changed, us):
    assert changed(BLOCK, us=us).dropped == {"placeholder": 1}


def test_rows_without_a_logged_rate_are_dropped(changed):
    assert changed(BLOCK, tflops=0.0).dropped == {"placeholder": 1}


def test_a_rate_that_disagrees_by_more_than_15_per_cent_is_dropped(changed):
    rate = 2 * 4096 * 4096 * 7168 / 400.0 * 1e-6
    assert changed(BLOCK, tflops=rate / 1.2).dropped == {"tflops_disagree": 1}


def test_a_rate_within_15_per_cent_is_kept(changed):
    rate = 2 * 4096 * 4096 * 7168 / 400.0 * 1e-6
    assert not changed(BLOCK, tflops=rate / 1.1).dropped


def test_a_time_copied_to_another_token_count_is_dropped(changed):
    data = changed(MOE, token=8)  # the rate is that of 4 tokens
    assert data.dropped == {"tflops_disagree": 1}


def test_unknown_devices_are_dropped_and_named(changed):
    data = changed(BLOCK, gfx="gfx1250", cu_num=256)
    assert data.dropped == {"unknown_device": 1}
    assert data.rejects[0]["value"] == "gfx1250-cu256"


def test_a_device_that_beats_its_datasheet_by_far_is_mislabelled(changed):
    # 2 * 4096^2 * 7168 FLOPs in 400 us are 601 TFLOP/s; 80 units have 465 at most
    data = changed(BLOCK, cu_num=80)
    assert data.dropped == {"mislabelled_device": 1}


def test_slightly_above_an_uncertain_peak_is_kept_and_flagged(changed):
    us = 2 * 4096 * 4096 * 7168 / 480e12 * 1e6  # 480 of 465 TFLOP/s
    data = changed(BLOCK, cu_num=80, us=us, tflops=480.0)
    row = data.kernels.set_index("row_id").loc[f"aiter:{BLOCK}:0"]
    assert (row["device"], row["flag"]) == ("amd-mi308x", "above_peak")


@pytest.mark.parametrize(("error", "flag"), [(0.05, "mi300x_or_mi325x"), (0.06, "inaccurate")])
def test_inaccurate_kernels_are_flagged(changed, error, flag):
    rows = changed(BLOCK, errRatio=error).kernels.set_index("row_id")
    assert rows.loc[f"aiter:{BLOCK}:0", "flag"] == flag


def test_errors_of_experts_are_per_cent(changed):
    rows = changed(MOE, err2="6.0%").kernels.set_index("row_id")
    assert rows.loc[f"aiter:{MOE}:0", "flag"] == "inaccurate"


def test_unknown_formats_are_dropped(changed):
    assert changed(MOE, q_dtype_w="torch.int4").dropped == {"unknown_dtype": 1}


def test_unknown_schemes_are_dropped(changed):
    assert changed(MOE, q_type="QuantType.other").dropped == {"unknown_scheme": 1}


def test_sizes_must_be_whole_and_positive(changed):
    assert changed(BLOCK, M=-4).dropped == {"dimension_not_a_positive_integer": 1}


@pytest.mark.parametrize(
    ("column", "why"), [("us", "no column us"), ("cu_num", "no column cu_num")]
)
def test_tables_without_time_or_device_are_left_out(tmp_path, column, why):
    root = shutil.copytree(SAMPLE, tmp_path / "rocm_aiter")
    pd.read_csv(root / BLOCK).drop(columns=column).to_csv(root / BLOCK, index=False)
    data = read(root)
    assert data.left_out == {BLOCK: why}
    assert len(data.kernels) == 6


def flattened(folder):
    folder.mkdir(exist_ok=True)
    rows = (
        "gfx942,80.0,a8w8,,torch.int8,1.0,128.0,1280.0,8192.0,asm,20.0,134.22,1,aiter/configs/a8w8_"
        "tuned_gemm.csv,134.22,True\n"
        "gfx942,304.0,bf16_gemm,,,16.0,32.0,1280.0,8192.0,,112.0,95.87,1,aiter/configs/bf16_tuned_"
        "batched_gemm.csv,95.87,True\n"
        "gfx942,304.0,a8w8_blockscale,,,1.0,1.0,32.0,256.0,ck,1.0,0.0,0,x.csv,0.02,False\n"
    )
    (folder / "aiter_gemm_long.csv.gz").write_bytes(gzip.compress((FLAT_HEAD + rows).encode()))
    return folder


def test_the_flattened_table_alone(tmp_path):
    data = read(flattened(tmp_path / "rocm_aiter"))
    assert data.dropped == {"not_valid": 1}
    rows = data.kernels.set_index("row_id")
    product, batched = (rows.loc[f"aiter:aiter_gemm_long.csv:{i}"] for i in (0, 1))
    assert (product["op"], product["dtype"], product["device"]) == ("matmul", "int8", "amd-mi308x")
    assert (batched["op"], batched["dtype"]) == ("bmm", "bf16")
    assert dims(batched, "batch", "m", "n", "k") == [16, 32, 1280, 8192]


def test_the_flattened_table_is_left_out_beside_the_others(tmp_path):
    root = shutil.copytree(SAMPLE, tmp_path / "rocm_aiter")
    data = read(flattened(root))
    assert data.left_out == {
        "aiter_gemm_long.csv.gz": "repeats rows of the tables in aiter/configs"
    }
    assert len(data.kernels) == 7


def test_one_file_gives_the_same_rows(kernels):
    found = read(SAMPLE / BLOCK).kernels.set_index("row_id")
    pd.testing.assert_frame_equal(found, kernels.loc[found.index])


def test_nothing_there(tmp_path):
    (tmp_path / "aiter/configs").mkdir(parents=True)
    with pytest.raises(DataError, match="nothing of this source"):
        read(tmp_path)


@pytest.mark.skipif(
    not os.environ.get("PREDICTOR_TRACES"), reason="set PREDICTOR_TRACES to the published data"
)
def test_published_rows():
    data = read(Path(os.environ["PREDICTOR_TRACES"]))
    assert len(data.kernels) == 26_251
    assert data.dropped == {"tflops_disagree": 789, "placeholder": 491}
    assert data.kernels["flag"].value_counts().to_dict() == {
        "mi300x_or_mi325x": 23_560, "": 2_203, "state_pass": 368, "inaccurate": 116,
        "above_peak": 4,
    }  # fmt: skip
