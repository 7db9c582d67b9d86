"""Flags of libraries, schemes and routing."""

from __future__ import annotations

import pytest

from predictor.features.context import NAMES, context_values
from predictor.hardware.device import Software


def test_nothing_is_known_of_a_captured_program():
    assert set(context_values(Software())) == set(NAMES)
    assert not any(context_values(Software()).values())


@pytest.mark.parametrize(
    ("software", "flags"),
    [
        ({"framework": "trtllm", "library": "torch_flow"}, {"by_trtllm"}),
        ({"framework": "vllm", "library": "TritonFp8BlockScaledMMKernel", "scheme": "fp8_block"},
         {"by_vllm", "lib_triton", "block_scaled"}),
        ({"framework": "sglang", "library": "sglang_marlin_moe", "scheme": "int4_wo"},
         {"by_sglang", "lib_marlin", "weight_only"}),
        ({"framework": "vllm", "library": "vllm_flash_attn_fa3", "scheme": "kv_fp8"},
         {"by_vllm", "lib_flash_attention", "low_kv"}),
        ({"framework": "trtllm", "scheme": "fp8_static"}, {"by_trtllm", "static_scale"}),
    ],
)  # fmt: skip
def test_flags(software, flags):
    assert {name for name, value in context_values(Software(**software)).items() if value} == flags


@pytest.mark.parametrize(
    ("routing", "skew"), [("balanced", 0.0), ("power_law_1.2", 1.2), ("power_law_1.01_eplb", 1.01)]
)
def test_routing_is_told_by_its_exponent(routing, skew):
    assert context_values(Software(routing=routing))["routing_skew"] == skew
