"""What surrounds a kernel: the library that it comes from, quantisation, routing of tokens.

Sources name libraries and schemes in many ways; what they have in common is told by a few flags.
All are 0 where nothing is known, which is also how a captured program comes: training hides them
from a share of the rows, so that the rest of the network does not lean on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.hardware.device import Software

FRAMEWORKS: Mapping[str, str] = {
    "trtllm": "by_trtllm", "sglang": "by_sglang", "vllm": "by_vllm", "aiter": "by_aiter",
    "deepbench": "by_vendor_library",
}  # fmt: skip
"""Column of a framework that is not PyTorch."""
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "lib_triton": ("triton",), "lib_deepgemm": ("deepgemm", "deep_gemm"),
    "lib_cutlass": ("cutlass", "cutedsl", "cute_dsl"), "lib_marlin": ("marlin",),
    "lib_trtllm_gen": ("flashinfer_trtllm", "flashinfertrtllm", "trtllm_mha", "trtllm_mla",
                       "trtllmprefill", "trtllmdecode"),
    "lib_flash_attention": ("flash_attn", "flash_attention", "fa3"),
    "lib_min_latency": ("min_latency",),
    "lib_nongated": ("nongated",),
}  # fmt: skip
"""Words in a library's name, by column."""
SCHEMES: Mapping[str, tuple[str, ...]] = {
    "block_scaled": ("fp8_block", "nvfp4", "mxfp4", "mxfp8"),
    "weight_only": ("int4_wo", "int8_wo", "w4a16"),
    "low_kv": ("kv_fp8",),
    "static_scale": ("static", "w8a8_tensor"),
}  # fmt: skip
"""Words in a scheme's name, by column."""
NAMES: tuple[str, ...] = (*FRAMEWORKS.values(), *LIBRARIES, *SCHEMES, "routing_skew")
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")


def context_values(software: Software) -> dict[str, float]:
    """Value of each of `NAMES`: flags, and the exponent by which tokens prefer experts."""
    library, scheme = software.library.lower(), software.scheme.lower()
    found = {c: float(software.framework == name) for name, c in FRAMEWORKS.items()}
    found |= {c: float(any(w in library for w in words)) for c, words in LIBRARIES.items()}
    found |= {c: float(any(w in scheme for w in words)) for c, words in SCHEMES.items()}
    skew = _POWER_LAW.match(software.routing)
    return {**found, "routing_skew": float(skew[1]) if skew else 0.0}
