"""A small layout of aiconfigurator: one table of every kind that is read, made-up times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

H100, A100, B200, L40S = (
    "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA L40S",
)  # fmt: skip
ATTENTION = {
    "batch_size": 2, "isl": 1024, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "beam_width": 1, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 0,
    "window_size": 0,
}  # fmt: skip
MLA = {
    "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "num_heads": 16, "batch_size": 2,
    "isl": 1024, "tp_size": 8, "step": 0,
}  # fmt: skip
MOE = {
    "moe_dtype": "bfloat16", "num_tokens": 64, "hidden_size": 2048, "inter_size": 768, "topk": 8,
    "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 4, "distribution": "balanced",
}  # fmt: skip
GDN = {
    "phase": "context", "batch_size": 2, "seq_len": 256, "num_tokens": 512, "d_model": 2048,
    "d_conv": 4, "num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128,
    "model_name": "Qwen/Qwen3.5-4B",
}  # fmt: skip
MAMBA = {
    "phase": "context", "batch_size": 2, "seq_len": 256, "num_tokens": 512, "d_model": 4096,
    "d_state": 128, "d_conv": 4, "nheads": 128, "head_dim": 64, "n_groups": 8, "chunk_size": 128,
    "model_name": "MAMBA2_GENERIC_4K",
}  # fmt: skip


def write_table(
    root: Path,
    place: str,
    kind: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    device: str | None = H100,
    **fixed: Any,
) -> Path:
    """A table at `systems/data/PLACE/KIND_perf.parquet`; `fixed` columns hold in all rows."""
    _, _, framework, version = place.split("/")
    common = {"framework": framework.upper(), "version": version, "op_name": kind}
    if device is not None:
        common["device"] = device
    common["kernel_source"] = "default"
    path = root / "systems/data" / place / f"{kind}_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([{**common, **fixed, **row} for row in rows])
    pq.write_table(table, path)
    return path


def complete(root: Path) -> Path:
    """One sound table of every kind, on several systems; the root."""
    gemm = [
        {"gemm_dtype": name, "m": 128, "n": 4096, "k": 8192, "latency": 0.05}
        for name in ("bfloat16", "fp8", "fp8_static", "fp8_block", "int8_wo", "int4_wo", "sq")
    ]
    write_table(root, "h100_sxm/gemm/trtllm/1.3.0rc20", "gemm", gemm, kernel_source="torch_flow")
    write_table(root, "b200_sxm/gemm/vllm/0.24.0", "gemm", device=B200, rows=[
        {"gemm_dtype": "nvfp4", "m": 128, "n": 65536, "k": 16384, "latency": 0.2}
    ])  # fmt: skip
    attention = "h100_sxm/attention/trtllm/1.3.0rc20"
    write_table(root, attention, "context_attention", [
        {**ATTENTION, "latency": 0.2}, {**ATTENTION, "window_size": 128, "latency": 0.1},
        {**ATTENTION, "attn_dtype": "fp8", "kv_cache_dtype": "fp8", "latency": 0.1},
    ])  # fmt: skip
    write_table(root, attention, "generation_attention", [
        {**ATTENTION, "isl": 1, "step": 1023, "latency": 0.01}
    ])  # fmt: skip
    write_table(root, "h100_sxm/encoder_attention/vllm/0.24.0", "encoder_attention", [
        {"batch_size": 2, "isl": 576, "num_heads": 16, "head_dim": 72, "attn_dtype": "bfloat16",
         "latency": 0.05}
    ])  # fmt: skip
    write_table(root, "a100_sxm/mla/trtllm/1.0.0", "context_mla", [{**MLA, "latency": 0.5}],
                device=A100, op_name="mla_context")  # fmt: skip
    write_table(root, "h100_sxm/mla/sglang/0.5.14", "context_mla", [{**MLA, "latency": 0.6}],
                kernel_source="flash_attention")  # fmt: skip
    write_table(root, "h100_sxm/mla/sglang/0.5.14", "generation_mla", [
        {**MLA, "isl": 1, "step": 1023, "kv_cache_dtype": "fp8", "latency": 0.05}
    ])  # fmt: skip
    write_table(root, "h100_sxm/mla_bmm/trtllm/1.3.0rc20", "mla_bmm", [
        {"op_name": name, "bmm_dtype": dtype, "num_tokens": 64, "num_heads": 16, "latency": 0.01}
        for name in ("mla_gen_pre", "mla_gen_post") for dtype in ("bfloat16", "fp8")
    ])  # fmt: skip
    write_table(root, "h100_sxm/moe/sglang/0.5.14", "moe", [
        {**MOE, "latency": 0.1}, {**MOE, "moe_dtype": "nvfp4", "latency": 0.1},
        {**MOE, "distribution": "power_law_1.2", "latency": 0.1},
    ])  # fmt: skip
    write_table(root, "h100_sxm/moe/trtllm/1.3.0rc10", "wideep_moe", [
        {**MOE, "distribution": "power_law_1.01_eplb", "num_slots": 144, "dp_num_tokens": 16,
         "rank0_num_tokens": 60, "latency": 0.1}
    ])  # fmt: skip
    write_table(root, "h100_sxm/quantize/vllm/0.24.0", "scale_matrix", [
        {"m": 256, "k": 4096, "quant_dtype": "fp8", "latency": 0.005}
    ])  # fmt: skip
    write_table(root, "h100_sxm/linear_attention/vllm/0.24.0", "gdn", [
        {**GDN, "kernel_source": "causal_conv1d_fn", "latency": 0.05},
        {**GDN, "kernel_source": "chunk_gated_delta_rule_flashinfer", "latency": 0.1},
        {**GDN, "phase": "generation", "seq_len": 1, "kernel_source": "causal_conv1d_update",
         "latency": 0.01},
    ])  # fmt: skip
    write_table(root, "h100_sxm/linear_attention/trtllm/1.3.0rc20", "mamba2", [
        {**MAMBA, "kernel_source": "causal_conv1d_fn", "latency": 0.05},
        {**MAMBA, "kernel_source": "mamba_chunk_scan_combined", "latency": 0.1},
    ])  # fmt: skip
    write_table(root, "h100_sxm/comm/nccl/2.23", "nccl", device=None, kernel_source="NCCL", rows=[
        {"op_name": name, "nccl_dtype": dtype, "num_gpus": 8, "message_size": 4096,
         "latency": 0.02}
        for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
        for dtype in ("half", "int8")
    ])  # fmt: skip
    write_table(root, "l40s/comm/vllm/0.24.0", "custom_allreduce", device=L40S, rows=[
        {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 2,
         "message_size": 4096, "kernel_source": f"vLLM_custom_{how}", "latency": latency}
        for how, latency in (("graph", 0.01), ("eager", 0.02))
    ])  # fmt: skip
    return root
