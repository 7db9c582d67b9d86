"""aiconfigurator: what each table becomes, formats, and every rule, on made-up tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor.errors import DataError
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.merge import merged
from predictor.traces.sources import aiconfigurator as source

GEMM = {"gemm_dtype": "bfloat16", "m": 8, "n": 256, "k": 128, "latency": 0.01}


@pytest.fixture
def write(aiconfigurator, tmp_path):
    """Writes a table and gives the kernel rows of the layout so far."""

    def of(place, kind, rows, **fixed):
        aiconfigurator.write_table(tmp_path, place, kind, rows, **fixed)
        return merged(source.parts(tmp_path))

    return of


def one(data) -> pd.Series:
    assert len(data.kernels) == 1
    return data.kernels.iloc[0]


def test_origin_of_a_row(write):
    row = one(write("h100_sxm/gemm/trtllm/1.3.0rc20", "gemm", [GEMM], kernel_source="torch_flow"))
    file = "systems/data/h100_sxm/gemm/trtllm/1.3.0rc20/gemm_perf.parquet"
    assert row["row_id"] == f"aiconfigurator:{file}:0"
    assert (row["file"], row["row"], row["licence"]) == (file, 0, "Apache-2.0")
    assert row["device"] == "nvidia-h100-sxm-80gb"
    assert (row["framework"], row["framework_version"]) == ("trtllm", "1.3.0rc20")
    assert (row["library"], row["execution"], row["context"]) == (
        "torch_flow", "cuda_graph", "device",
    )  # fmt: skip
    assert row["latency_us"] == pytest.approx(10)  # published as ms


def test_rows_that_will_be_read_are_those_of_the_footers(write, tmp_path):
    write("h100_sxm/gemm/trtllm/1.0.0", "gemm", [GEMM, GEMM])
    data = write("h100_sxm/gemm/trtllm/2.0.0", "unheard_of", [GEMM])
    assert source.expected_rows(tmp_path) == 3 == len(data.kernels) + data.dropped.total()
    path = tmp_path / "systems/data/h100_sxm/gemm/trtllm/1.0.0/gemm_perf.parquet"
    assert source.expected_rows(path) == 2
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DataError, match="git lfs pull"):
        source.expected_rows(path)


@pytest.mark.parametrize(
    ("name", "dtype", "weight"),
    [("bfloat16", "bf16", 2), ("fp8", "fp8", 1), ("fp8_static", "fp8", 1),
     ("fp8_block", "fp8", 1 + 4 / 16384), ("int8_wo", "bf16", 1), ("int4_wo", "bf16", 0.515625),
     ("sq", "int8", 1), ("nvfp4", "bf16", 0.5625)],
)  # fmt: skip
def test_formats_of_products(write, name, dtype, weight):
    # 8 x 128 activations of two bytes, 128 x 256 weights, 8 x 256 results of two bytes
    row = one(write("h100_sxm/gemm/trtllm/1.0.0", "gemm", [{**GEMM, "gemm_dtype": name}]))
    assert (row["op"], row["dtype"]) == ("matmul", dtype)  # Hopper has no fp4: weights alone
    assert row["scheme"] == ("" if name == "bfloat16" else name)
    assert row["flops"] == 2 * 8 * 256 * 128
    assert row["read_bytes"] == 2 * 8 * 128 + weight * 128 * 256
    assert row["write_bytes"] == 2 * 8 * 256
    assert [row[f"dim_{d}"] for d in ("batch", "m", "n", "k")] == [1, 8, 256, 128]


def test_narrow_formats_follow_the_device(write, aiconfigurator):
    row = {**GEMM, "gemm_dtype": "nvfp4"}
    data = write("b200_sxm/gemm/trtllm/1.0.0", "gemm", [row], device=aiconfigurator.B200)
    assert one(data)["dtype"] == "fp4"
    row = {**GEMM, "gemm_dtype": "fp8", "latency": 0.02}
    data = write("a100_sxm/gemm/trtllm/1.0.0", "gemm", [row], device=aiconfigurator.A100)
    assert data.kernels["dtype"].tolist() == ["bf16", "fp4"]


def test_prefill_attention(write, aiconfigurator):
    base = {**aiconfigurator.ATTENTION, "batch_size": 1, "isl": 4, "step": 2, "head_dim": 64}
    rows = [
        {**base, "latency": 0.1}, {**base, "window_size": 3, "latency": 0.1},
        {**base, "kv_cache_dtype": "fp8", "latency": 0.1},
        {**base, "attn_dtype": "fp8", "kv_cache_dtype": "fp8", "latency": 0.1},
    ]  # fmt: skip
    data = write("h100_sxm/attention/trtllm/1.0.0", "context_attention", rows)
    k = data.kernels
    # queries at keys 3..6: 3 + 4 + 5 + 6 pairs; through a window of three: 3 each
    assert (k["flops"] / (4 * 32 * 64)).tolist() == [18, 12, 18, 18]
    assert k["dim_kv_len"].tolist() == [6] * 4
    assert k["dim_window"].tolist() == [-1, 3, -1, -1]
    assert k["scheme"].tolist() == ["", "", "kv_fp8", "kv_fp8"]
    assert k["dtype"].tolist() == ["bf16", "bf16", "bf16", "fp8"]
    query, cache = 32 * 4 * 64, 2 * 8 * 6 * 64
    assert k["read_bytes"].tolist()[0] == 2 * query + 2 * cache
    assert k["read_bytes"].tolist()[2] == 2 * query + cache


def test_decode_attention(write, aiconfigurator):
    base = {**aiconfigurator.ATTENTION, "isl": 1, "step": 99, "latency": 0.01}
    row = one(write("h100_sxm/attention/vllm/0.24.0", "generation_attention", [base]))
    assert [row[f"dim_{d}"] for d in ("q_len", "kv_len", "kv_heads")] == [1, 100, 8]
    assert row["flops"] == 4 * 2 * 32 * 128 * 100


def test_tables_without_a_window_column(write, aiconfigurator):
    base = {k: v for k, v in aiconfigurator.ATTENTION.items() if k != "window_size"}
    place = "h100_sxm/attention/sglang/0.5.9"
    row = one(write(place, "context_attention", [{**base, "latency": 0.2}]))
    assert row["dim_window"] == -1


def test_encoder_attention_has_no_mask(write):
    row = {"batch_size": 2, "isl": 10, "num_heads": 4, "head_dim": 72, "attn_dtype": "bfloat16"}
    place = "h100_sxm/encoder_attention/vllm/0.24.0"
    found = one(write(place, "encoder_attention", [{**row, "latency": 0.01}]))
    assert (found["dim_causal"], found["dim_kv_heads"]) == (0, 4)
    assert found["flops"] == 4 * 2 * 4 * 72 * 100


@pytest.mark.parametrize(
    ("framework", "kernel", "op", "width"),
    [("trtllm", "default", "attention", 192 + 128),
     ("vllm", "vllm_flashmla", "attention", 192 + 128),
     ("sglang", "trtllm_mla", "attention", 192 + 128),
     ("sglang", "flash_attention", "latent_attention", 576 + 512),
     ("sglang", "triton", "latent_attention", 576 + 512)],
)  # fmt: skip
def test_mla_prefill(write, aiconfigurator, framework, kernel, op, width):
    row = {**aiconfigurator.MLA, "isl": 4, "latency": 0.1}
    place = f"h100_sxm/mla/{framework}/1.0.0"
    found = one(write(place, "context_mla", [row], kernel_source=kernel))
    assert found["op"] == op
    assert found["flops"] == 2 * 2 * 16 * width * 10  # four causal rows: 10 pairs


def test_mla_decode_reads_one_latent_a_token(write, aiconfigurator):
    rows = [
        {**aiconfigurator.MLA, "isl": 1, "step": 99, "kv_cache_dtype": cache, "latency": 0.1}
        for cache in ("bfloat16", "fp8")
    ]
    k = write("h100_sxm/mla/trtllm/1.0.0", "generation_mla", rows).kernels
    assert k["flops"].tolist() == [2 * 2 * 16 * (576 + 512) * 100] * 2
    assert k["read_bytes"].tolist() == [
        2 * 2 * (16 * 576 + 100 * 576), 2 * (2 * 16 * 576 + 100 * 576),
    ]  # fmt: skip
    assert k["dtype"].tolist() == ["bf16", "fp8"]  # TensorRT-LLM computes in fp8 from Hopper on


def test_mla_computes_in_bf16_elsewhere(write, aiconfigurator):
    row = {**aiconfigurator.MLA, "isl": 1, "step": 99, "kv_cache_dtype": "fp8", "latency": 0.1}
    data = write("h100_sxm/mla/vllm/0.14.0", "generation_mla", [row], kernel_source="vllm_flashmla")
    assert one(data)["dtype"] == "bf16"
    row["latency"] = 0.2
    data = write("l40s/mla/trtllm/1.0.0", "generation_mla", [row], device=aiconfigurator.L40S)
    assert data.kernels["dtype"].tolist() == ["bf16", "bf16"]


def test_mla_products(write):
    base = {"num_tokens": 3, "num_heads": 5, "latency": 0.01}
    rows = [
        {**base, "op_name": "mla_gen_pre", "bmm_dtype": "bfloat16"},
        {**base, "op_name": "mla_gen_post", "bmm_dtype": "bfloat16"},
        {**base, "op_name": "mla_gen_pre", "bmm_dtype": "fp8",
         "kernel_source": "trtllm_bmm_out_dequant_bf16"},
        {**base, "op_name": "mla_gen_pre", "bmm_dtype": "fp8"},
    ]  # fmt: skip
    k = write("h100_sxm/mla_bmm/trtllm/1.0.0", "mla_bmm", rows).kernels
    assert k["op"].unique().tolist() == ["bmm"]
    assert k[["dim_batch", "dim_m", "dim_n", "dim_k"]].to_numpy().tolist() == [
        [5, 3, 512, 128], [5, 3, 128, 512], [5, 3, 512, 128], [5, 3, 512, 128],
    ]  # fmt: skip
    assert k["dtype"].tolist() == ["bf16", "bf16", "bf16", "fp8"]
    assert k["read_bytes"].tolist()[2:] == [5 * (2 * 3 * 128 + 128 * 512)] * 2


def test_experts(write, aiconfigurator):
    base = {**aiconfigurator.MOE, "moe_tp_size": 2, "latency": 0.1}
    rows = [base, {**base, "kernel_source": "moe_torch_flow_nongated"}]
    k = write("h100_sxm/moe/trtllm/1.0.0", "moe", rows).kernels
    # 64 tokens x 8 experts, a quarter here: 128 rows, 32 experts of 768 / 2
    dims = ["tokens", "groups", "m", "n", "k", "active", "topk", "experts", "inter_size"]
    assert k[[f"dim_{d}" for d in dims]].to_numpy().tolist() == [
        [64, 32, 128, 384, 2048, 32, 8, 128, 768]
    ] * 2  # fmt: skip
    assert k["dim_gates"].tolist() == [2, 1]
    assert k["routing"].tolist() == ["balanced"] * 2
    assert k["flops"].tolist() == [2 * 128 * 384 * 2048 * 3, 2 * 128 * 384 * 2048 * 2]
    assert k["read_bytes"].tolist()[0] == 2 * (64 * 2048 + 32 * 3 * 384 * 2048)
    assert k["write_bytes"].tolist()[0] == 2 * 64 * 2048


def test_layers_without_a_gate_are_known_by_shape(write, aiconfigurator):
    row = {
        **aiconfigurator.MOE, "hidden_size": 2688, "inter_size": 1856, "topk": 6, "latency": 0.1,
    }  # fmt: skip
    found = one(write("h100_sxm/moe/vllm/0.24.0", "moe", [row]))
    assert found["dim_gates"] == 1


def test_experts_with_replicas_take_the_tokens_that_come_in(write, aiconfigurator):
    row = {
        **aiconfigurator.MOE, "distribution": "power_law_1.01_eplb", "num_slots": 144,
        "rank0_num_tokens": 60, "latency": 0.1,
    }  # fmt: skip
    found = one(write("h100_sxm/moe/trtllm/1.0.0", "wideep_moe", [row]))
    assert [found[f"dim_{d}"] for d in ("tokens", "groups", "m", "experts")] == [60, 36, 128, 128]
    assert found["routing"] == "power_law_1.01_eplb"


def test_routings_that_load_a_rank_alike_are_no_repeats(write, aiconfigurator):
    from predictor.traces.noise import NoiseMeter

    ways = ("balanced", "power_law_1.01", "power_law_1.2")
    rows = [{**aiconfigurator.MOE, "distribution": way, "num_tokens": 1, "latency": 0.01 * i}
            for i, way in enumerate(ways, 1)]  # fmt: skip
    k = write("h100_sxm/moe/trtllm/1.0.0", "moe", rows).kernels
    meter = NoiseMeter()
    meter.add(k)
    assert k["routing"].tolist() == list(ways)
    assert meter.measured().groups.empty


def test_quantisation(write):
    row = {"m": 4, "k": 32, "quant_dtype": "fp8", "latency": 0.005}
    found = one(write("h100_sxm/quantize/vllm/0.24.0", "scale_matrix", [row]))
    assert (found["op"], found["dtype"], found["scheme"]) == ("quantize", "bf16", "fp8")
    assert (found["read_bytes"], found["write_bytes"]) == (2 * 128, 128)


def test_collectives_count_elements(write, aiconfigurator):
    names = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
    rows = [
        {"op_name": name, "nccl_dtype": "half", "num_gpus": 8, "message_size": 800, "latency": 0.02}
        for name in names
    ]
    k = write("h100_sxm/comm/nccl/2.23", "nccl", rows, device=None).kernels
    assert k["op"].tolist() == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    assert k["read_bytes"].tolist() == [1600, 200, 1600, 1600]
    assert k["write_bytes"].tolist() == [1600, 1600, 200, 1600]
    assert k[["dtype", "framework", "execution", "context"]].drop_duplicates().values.tolist() == [
        ["fp16", "nccl", "library", "isolated"]
    ]
    assert (k["device"] == "nvidia-h100-sxm-80gb").all()  # no device column: the folder's
    assert (k["ranks_per_node"] == 8).all()
    assert (k["flag"] == "").all()


def test_eager_collectives_and_hosts_without_links(write, aiconfigurator):
    rows = [
        {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 2,
         "message_size": 64, "kernel_source": f"vLLM_custom_{how}", "latency": 0.01}
        for how in ("graph", "eager")
    ]  # fmt: skip
    place = "l40s/comm/vllm/0.24.0"
    k = write(place, "custom_allreduce", rows, device=aiconfigurator.L40S).kernels
    assert k["execution"].tolist() == ["cuda_graph", "eager"]
    assert k["context"].tolist() == ["device", "isolated"]
    assert (k["flag"] == "topology").all()


def test_stateful_layers(write, aiconfigurator):
    rows = [
        {**aiconfigurator.GDN, "kernel_source": "causal_conv1d_fn", "latency": 0.05},
        {**aiconfigurator.GDN, "kernel_source": "chunk_gated_delta_rule_triton", "latency": 0.1},
        {**aiconfigurator.GDN, "phase": "generation", "seq_len": 1, "latency": 0.01,
         "kernel_source": "causal_conv1d_update"},
    ]  # fmt: skip
    k = write("h100_sxm/linear_attention/vllm/0.24.0", "gdn", rows).kernels
    assert k["op"].tolist() == ["conv", "delta_rule", "conv"]
    channels = 2 * 16 * 128 + 32 * 128
    assert k["dim_c_in"].tolist() == [channels, -1, channels]
    assert k["flops"].tolist() == [
        2 * 2 * 256 * channels * 4, 6 * 2 * 256 * 32 * 128 * 128, 2 * 2 * channels * 4,
    ]  # fmt: skip
    assert k["dim_h_in"].tolist() == [256, -1, 4]
    assert k["execution"].tolist() == ["eager", "cuda_graph", "cuda_graph"]
    assert k["model"].unique().tolist() == ["Qwen/Qwen3.5-4B"]


@pytest.mark.parametrize(
    ("place", "channels"), [("trtllm/1.3.0rc20", 2048), ("sglang/0.5.10", 2048),
                            ("sglang/0.5.14", 8192)],
)  # fmt: skip
def test_convolution_over_the_keys_alone(write, aiconfigurator, place, channels):
    row = {**aiconfigurator.GDN, "kernel_source": "causal_conv1d_fn", "latency": 0.05}
    found = one(write(f"h100_sxm/linear_attention/{place}", "gdn", [row]))
    assert found["dim_c_in"] == channels


def test_mamba2(write, aiconfigurator):
    rows = [
        {**aiconfigurator.MAMBA, "kernel_source": "causal_conv1d_fn", "latency": 0.05},
        {**aiconfigurator.MAMBA, "kernel_source": "mamba_chunk_scan_combined", "latency": 0.1},
    ]
    k = write("h100_sxm/linear_attention/trtllm/1.0.0", "mamba2", rows).kernels
    assert k["op"].tolist() == ["conv", "ssd"]
    assert k["dim_c_in"].tolist()[0] == 128 * 64 + 2 * 8 * 128
    assert k["flops"].tolist()[1] == 4 * 2 * 256 * 128 * 128 * 64


class TestRules:
    """What is dropped or marked."""

    def test_warm_weights(self, write):
        rows = [
            {**GEMM, "gemm_dtype": "fp8_block"}, {**GEMM, "gemm_dtype": "fp8"},
            {**GEMM, "gemm_dtype": "fp8_block", "n": 8192, "k": 8192, "latency": 0.2},
        ]  # fmt: skip
        assert write("h100_sxm/gemm/vllm/0.24.0", "gemm", rows).kernels["flag"].tolist() == [
            "cache_warm", "", "",  # other formats rotate copies; 64 MiB exceed the cache
        ]  # fmt: skip
        k = write("h100_sxm/gemm/sglang/0.5.14", "gemm", [{**rows[0], "latency": 0.02}]).kernels
        assert k["flag"].tolist() == ["", "cache_warm", "", ""]

    def test_products_that_wait_for_their_host(self, write):
        slow = {**GEMM, "gemm_dtype": "fp8_block", "kernel_source": "cutlass", "latency": 0.15}
        fast = {**GEMM, "gemm_dtype": "fp8_block", "kernel_source": "deepgemm", "latency": 0.01}
        rows = [
            slow, {**slow, "m": 512, "latency": 0.2},
            {**slow, "m": 65536, "n": 8192, "k": 8192, "latency": 6.0},  # the device's own time
            {**fast, "n": 8192, "k": 8192}, {**GEMM, "latency": 0.15},
        ]  # fmt: skip
        flags = write("h100_sxm/gemm/vllm/0.24.0", "gemm", rows).kernels["flag"].tolist()
        # the bf16 row has the same floor: whichever kernel it is, no product so small takes as long
        assert flags == ["host_bound", "host_bound", "", "", "host_bound"]

    def test_products_above_the_peak(self, write):
        # 1.1e12 FLOP in 1 ms are 1,100 TFLOP/s: above bf16 on Hopper, below fp8
        shape = {"m": 8192, "n": 8192, "k": 8192, "latency": 1.0}
        rows = [{**GEMM, **shape}, {**GEMM, **shape, "gemm_dtype": "fp8"}]
        k = write("h100_sxm/gemm/trtllm/1.0.0", "gemm", rows).kernels
        assert k["flag"].tolist() == ["above_peak", ""]

    def test_prefill_that_cannot_be_without_a_window(self, write, aiconfigurator):
        base = {**aiconfigurator.ATTENTION, "isl": 16384, "num_heads": 64}
        rows = [
            {**base, "latency": 0.1}, {**base, "isl": 16, "latency": 0.01},
            {**base, "window_size": 128, "latency": 1.0},
        ]  # fmt: skip
        k = write("h100_sxm/attention/sglang/0.5.12", "context_attention", rows).kernels
        assert k["flag"].tolist() == ["window_unknown", "window_unknown", ""]

    def test_rows_of_another_system(self, write, aiconfigurator):
        rows = [
            {**GEMM, "device": "NVIDIA GB300"}, {**GEMM, "device": "NVIDIA B300 SXM6 AC"},
        ]  # fmt: skip
        data = write("b300_sxm/gemm/sglang/0.5.14", "gemm", rows)
        assert one(data)["device"] == "nvidia-b300-sxm"
        assert data.dropped == {"device_not_of_system": 1}
        assert data.rejects[0]["value"] == "NVIDIA GB300"

    def test_a_short_name_is_the_folders_device(self, write):
        data = write("h100_pcie/gemm/sglang/0.5.14", "gemm", [GEMM], device="NVIDIA H100")
        assert one(data)["device"] == "nvidia-h100-pcie-80gb"

    def test_an_unknown_system_is_named_by_its_column(self, write):
        data = write("our_box/gemm/sglang/0.5.14", "gemm", [GEMM], device="NVIDIA H200")
        assert one(data)["device"] == "nvidia-h200-sxm-141gb"
        data = write("our_tpu/gemm/sglang/0.5.14", "gemm", [GEMM], device="Nobody's 1000")
        assert data.dropped == {"unknown_device": 1}

    def test_copies_of_a_table(self, write, aiconfigurator):
        row = {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 2,
               "message_size": 64, "latency": 0.01}  # fmt: skip
        write("h100_sxm/comm/sglang/0.5.6.post2", "custom_allreduce", [row], backend="sglang_graph")
        data = write("h100_sxm/comm/trtllm/1.2.0rc5", "custom_allreduce", [row])
        assert one(data)["framework"] == "sglang"
        assert data.dropped == {"copy_of_another_table": 1}
        other = write("h100_sxm/comm/vllm/0.14.0", "custom_allreduce", [{**row, "latency": 0.02}])
        assert len(other.kernels) == 2

    def test_a_copy_in_another_system_does_not_displace_the_original(self, write):
        write("b300_sxm/gemm/sglang/0.5.14", "gemm", [GEMM], device="NVIDIA GB300")
        data = write("gb300/gemm/sglang/0.5.14", "gemm", [GEMM], device="NVIDIA GB300")
        assert one(data)["device"] == "nvidia-gb300"
        assert data.dropped == {"device_not_of_system": 1}

    @pytest.mark.parametrize(
        ("kind", "rule"),
        [(kind, rule) for kind, (rule, _) in source.NOT_READ.items()] + [("kda", "unknown_kind")],
    )
    def test_tables_that_are_not_read(self, write, kind, rule):
        data = write("h100_sxm/moe/sglang/0.5.14", kind, [{"latency": 0.1}, {"latency": 0.2}])
        assert not len(data.kernels)
        assert data.dropped == {rule: 2}
        assert list(data.left_out) == list(data.files)

    @pytest.mark.parametrize(
        ("kind", "change", "rule"),
        [("gemm", {"gemm_dtype": "fp3"}, "unknown_format"),
         ("scale_matrix", {"quant_dtype": "fp3"}, "unknown_format"),
         ("moe", {"moe_dtype": "fp3"}, "unknown_format"),
         ("moe", {"distribution": "zipf"}, "unknown_routing"),
         ("mla_bmm", {"op_name": "mla_gen_mid"}, "unknown_op"),
         ("context_attention", {"attn_dtype": "fp3"}, "unknown_format"),
         ("generation_mla", {"kv_cache_dtype": "fp3"}, "unknown_format"),
         ("nccl", {"op_name": "broadcast"}, "unknown_op"),
         ("nccl", {"nccl_dtype": "quad"}, "unknown_format"),
         ("gdn", {"kernel_source": "short_conv"}, "unknown_op")],
    )  # fmt: skip
    def test_names_in_no_table(self, write, aiconfigurator, kind, change, rule):
        rows = {
            "gemm": GEMM, "scale_matrix": {"m": 4, "k": 32, "quant_dtype": "fp8"},
            "moe": aiconfigurator.MOE, "context_attention": aiconfigurator.ATTENTION,
            "generation_mla": aiconfigurator.MLA, "gdn": aiconfigurator.GDN,
            "mla_bmm": {"bmm_dtype": "fp8", "num_tokens": 1, "num_heads": 1},
            "nccl": {"op_name": "all_reduce", "nccl_dtype": "half", "num_gpus": 2,
                     "message_size": 8},
        }  # fmt: skip
        row = {**rows[kind], "latency": 0.1, **change}
        data = write("h100_sxm/gemm/trtllm/1.0.0", kind, [row])
        assert data.dropped == {rule: 1}
        assert len(data.kernels) == 0

    @pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), None])
    def test_times_that_are_none(self, write, latency):
        rows = [{**GEMM, "latency": latency}, GEMM]
        data = write("h100_sxm/gemm/trtllm/1.0.0", "gemm", rows)
        assert one(data)["row"] == 1
        assert sum(data.dropped.values()) == 1

    def test_sizes_that_are_none(self, write, aiconfigurator):
        rows = [{**GEMM, "m": 0}, {**GEMM, "k": None}, GEMM]
        data = write("h100_sxm/gemm/trtllm/1.0.0", "gemm", rows)
        assert data.dropped == {"dimension_not_plausible": 2}
        moe = [{**aiconfigurator.MOE, "moe_ep_size": 3, "latency": 0.1}]
        data = write("h100_sxm/moe/trtllm/1.0.0", "moe", moe)  # 128 experts on three ranks
        assert data.dropped == {"dimension_not_plausible": 3}

    @pytest.mark.parametrize("size", [3.7, float("nan"), float("inf"), 1e30])
    def test_sizes_that_are_not_whole(self, write, size):
        data = write(
            "h100_sxm/gemm/trtllm/1.0.0", "gemm", [{**GEMM, "m": size}, {**GEMM, "m": 8.0}]
        )
        assert data.dropped == {"dimension_not_plausible": 1}
        assert one(data)["dim_m"] == 8

    @pytest.mark.parametrize("column", ["m", "latency"])
    def test_text_in_place_of_numbers_is_no_fault_of_a_row(self, write, column):
        says = rf"gemm_perf\.parquet: column '{column}' holds string, no numbers"
        with pytest.raises(DataError, match=says):
            write("h100_sxm/gemm/trtllm/1.0.0", "gemm", [{**GEMM, column: "many"}])

    def test_a_missing_column_is_no_fault_of_a_row(self, write):
        row = {k: v for k, v in GEMM.items() if k != "k"}
        with pytest.raises(DataError, match=r"gemm_perf\.parquet: no column 'k'"):
            write("h100_sxm/gemm/trtllm/1.0.0", "gemm", [row])

    def test_a_table_that_is_not_parquet(self, tmp_path, aiconfigurator):
        path = aiconfigurator.write_table(tmp_path, "h100_sxm/gemm/trtllm/1.0.0", "gemm", [GEMM])
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
        with pytest.raises(DataError, match="git lfs pull"):
            list(source.parts(tmp_path))

    def test_power_limits_are_kept(self, write, aiconfigurator):
        row = {**aiconfigurator.MAMBA, "kernel_source": "causal_conv1d_fn", "latency": 0.05}
        place = "b200_sxm/linear_attention/trtllm/1.0.0"
        rows = [{**row, "power": 500.0, "power_limit": 1000.0}]
        assert (
            one(write(place, "mamba2", rows, device=aiconfigurator.B200))["power_limit_w"] == 1000
        )


class TestPlaces:
    """Where the layout may lie."""

    @pytest.mark.parametrize(
        "place", ["aiconfigurator", "", "src/aiconfigurator", "aic-core/src/aiconfigurator_core"]
    )
    def test_folders(self, aiconfigurator_root, tmp_path, place):
        whole = merged(source.parts(aiconfigurator_root))
        moved = tmp_path / "elsewhere" / place
        shutil.copytree(aiconfigurator_root, moved)
        found = merged(source.parts(tmp_path / "elsewhere"))
        pd.testing.assert_frame_equal(found.kernels, whole.kernels)

    def test_one_table(self, aiconfigurator_root):
        whole = merged(source.parts(aiconfigurator_root)).kernels
        for file, rows in whole.groupby("file"):
            found = merged(source.parts(aiconfigurator_root / str(file)))
            assert set(found.files) == {file}
            pd.testing.assert_frame_equal(found.kernels, rows.reset_index(drop=True))

    def test_a_file_of_something_else(self, tmp_path):
        (tmp_path / "gemm_perf.parquet").write_text("x")
        with pytest.raises(LayoutNotFoundError, match="no table of an aiconfigurator layout"):
            source.parts(tmp_path / "gemm_perf.parquet")


def test_parts_are_bounded_and_add_up(aiconfigurator_root, monkeypatch):
    whole = merged(source.parts(aiconfigurator_root)).kernels
    monkeypatch.setattr(source, "PART_ROWS", 3)
    found = list(source.parts(aiconfigurator_root))
    assert max(len(part.kernels) for part in found) <= 3
    joined = pd.concat([part.kernels for part in found], ignore_index=True)
    pd.testing.assert_frame_equal(joined, whole)


def test_every_row_of_the_sample_is_kept_and_costed(aiconfigurator_root: Path):
    data = merged(source.parts(aiconfigurator_root))
    assert sum(f.rows for f in data.files.values()) == len(data.kernels)
    assert not data.dropped
    work = data.kernels[["flops", "read_bytes", "write_bytes", "latency_us"]].to_numpy()
    assert np.isfinite(work).all()
    assert {path.split("/")[-1].removesuffix("_perf.parquet") for path in data.files} == set(
        source.READERS
    )
