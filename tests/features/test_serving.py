"""Attention and experts cut as libraries cut them: what must hold of the times."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.cost.rules import kernel_cost
from predictor.features.columns import COLUMNS, node_features
from predictor.features.expert_tiles import kind_of
from predictor.features.serving import SERVING_COLUMNS, serving_columns
from predictor.features.table import CONTEXTS, KernelTable, dims_matrix, op_index
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software

H100, B200, B300, A100 = (
    "nvidia-h100-sxm-80gb", "nvidia-b200-sxm-180gb", "nvidia-b300-sxm", "nvidia-a100-sxm-80gb",
)  # fmt: skip
TRTLLM = Software(framework="trtllm", framework_version="1.3.0rc20", library="torch_flow")
ATTENTION = {
    "batch": 1, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 4096, "head_dim": 128,
    "causal": 1, "window": -1,
}  # fmt: skip
EXPERTS = {
    "tokens": 64, "groups": 128, "m": 512, "n": 768, "k": 2048, "gates": 2, "active": 120,
    "topk": 8, "experts": 128, "inter_size": 768,
}  # fmt: skip


def _table(op: str, dims: list[dict[str, int]], dtype: str = "bf16") -> KernelTable:
    costs = [kernel_cost(op, {k: max(v, 0) for k, v in d.items()}, dtype) for d in dims]
    n = len(dims)
    return KernelTable(
        op=op_index([op] * n), phase=np.zeros(n, dtype=np.int8), dtype=np.array([dtype] * n),
        dims=dims_matrix(dims), flops=np.array([float(c.flops) for c in costs]),
        read_bytes=np.array([float(c.read_bytes) for c in costs]),
        write_bytes=np.array([float(c.write_bytes) for c in costs]),
        launches=np.ones(n, dtype=np.int64),
        context=np.full(n, CONTEXTS.index("device"), dtype=np.int8),
    )  # fmt: skip


def _us(
    op: str, dims: list[dict[str, int]], device: str = H100, software: Software = TRTLLM,
    dtype: str = "bf16",
) -> np.ndarray:  # fmt: skip
    """Times that the prior of the network says."""
    found = node_features(_table(op, dims, dtype), resolve_device(device), software)
    prior = sum(found.x[:, COLUMNS.index(c)] for c in ("log_tiled", "log_library", "log_serving"))
    return np.asarray(found.roofline.base_us * np.exp(prior))


def test_decoding_long_caches_takes_as_long_as_memory_gives_them() -> None:
    (time,) = _us("attention", [{**ATTENTION, "batch": 64, "kv_len": 16_384}], B200)
    cache_bytes = 2.0 * 64 * 8 * 16_384 * 256
    assert time == pytest.approx(cache_bytes / 7.7e6, rel=0.2)


def test_splitting_keys_keeps_one_long_sequence_from_one_unit() -> None:
    sizes = {**ATTENTION, "heads": 8, "kv_heads": 1}
    short, long = _us("attention", [{**sizes, "kv_len": n} for n in (2_048, 32_768)])
    assert long < 2.0 * short


def test_heads_beyond_a_tile_are_read_one_by_one() -> None:
    sizes = {**ATTENTION, "batch": 64, "heads": 64}
    together, alone = _us("attention", [{**sizes, "kv_heads": g} for g in (2, 1)], A100)
    assert alone > 1.5 * together  # 64 heads of one key head are not taken together


def test_a_causal_mask_and_a_window_save_blocks() -> None:
    sizes = {**ATTENTION, "batch": 4, "q_len": 8_192, "kv_len": 8_192}
    full, causal, window = _us(
        "attention", [{**sizes, "causal": 0}, sizes, {**sizes, "window": 1_024}]
    )
    assert 0.5 * full < causal < 0.65 * full
    assert window < 0.45 * causal


def test_exponentials_bound_narrow_heads_and_blackwell_ultra_has_more_of_them() -> None:
    sizes = {**ATTENTION, "batch": 4, "q_len": 8_192, "kv_len": 8_192, "head_dim": 64}
    (plain,), (ultra,) = (_us("attention", [sizes], device) for device in (B200, B300))
    assert ultra < 0.85 * plain


def test_a_call_outside_of_serving_has_no_start_of_its_own() -> None:
    served, alone = (_us("attention", [ATTENTION], H100, s)[0] for s in (TRTLLM, Software()))
    assert served - alone > 3.0


def test_latents_and_wide_values_are_told_apart() -> None:
    sizes = {**ATTENTION, "heads": 128, "batch": 32, "head_dim": 576, "v_head_dim": 512}
    del sizes["kv_heads"]
    (latent,) = _us("latent_attention", [sizes], B200)
    (plain,) = _us("attention", [{**sizes, "kv_heads": 128}], B200)
    assert latent < 0.2 * plain


def test_few_rows_cost_the_weights_of_the_experts_that_they_meet() -> None:
    few, all_met = _us("moe", [{**EXPERTS, "active": n} for n in (8, 120)], H100, TRTLLM)
    weights = 120 * 3 * 2048 * 768 * 2.0
    assert all_met - few == pytest.approx(weights / 2.95e6, rel=0.4)


def test_unequal_shares_have_more_half_full_tiles() -> None:
    many = {**EXPERTS, "tokens": 4_096, "m": 32_768, "active": 128}
    even, skewed = (
        _us("moe", [many], H100, Software(framework="trtllm", routing=r))[0]
        for r in ("balanced", "power_law_1.2")
    )
    assert even < skewed < 1.5 * even


def test_kinds_of_kernels_are_told_by_library_and_scheme() -> None:
    assert kind_of("moe_torch_flow_min_latency", "nvfp4").start < 0.5
    assert kind_of("deepgemm", "fp8_block").rate > kind_of("moe_torch_flow", "fp8_block").rate
    assert kind_of("moe_torch_flow_cutlass", "") == kind_of("", "")


def test_other_kernels_and_other_devices_have_zeros() -> None:
    matmul = _table("matmul", [{"batch": 1, "m": 64, "n": 64, "k": 64}])
    cases = ((matmul, H100), (_table("attention", [ATTENTION], "fp32"), "intel-i9-10940x"))
    for table, device in cases:
        found = node_features(table, resolve_device(device), Software())
        residency = {"log_tiled": np.zeros(len(table))}
        columns = serving_columns(
            table, found.roofline, resolve_device(device), Software(), residency
        )
        assert {name: values.tolist() for name, values in columns.items()} == {
            name: [0.0] for name in SERVING_COLUMNS
        }
