"""Software context of a measured row, kernel or step."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.hardware.device import Software

AMP = "amp-"
"""What the dtype of a step under autocast begins with."""


def software_of(facts: Mapping[str, object]) -> Software:
    """Software context from the columns of a row; what is not told is PyTorch's default.

    Args:
        facts: columns of `kernels` or `steps`. A kernel row names autocast in `amp`, a step row in
            its dtype (`amp-fp16`).
    """
    dtype, tf32 = str(facts["dtype"]), facts.get("tf32", "")
    amp = str(facts.get("amp", "")) or (dtype.removeprefix(AMP) if dtype.startswith(AMP) else "")
    return Software(
        framework=str(facts.get("framework", "")) or "pytorch",
        framework_version=str(facts["framework_version"]) or None,
        mode="compiled" if facts["execution"] in ("compiled", "xla") else "eager",
        matmul_tf32=tf32 == "on", conv_tf32=tf32 != "off", amp=amp or None,
        memory_format="channels_last" if facts["layout"] == "nhwc" else "contiguous",
        library=str(facts.get("library", "")), scheme=str(facts.get("scheme", "")),
        routing=str(facts.get("routing", "")),
    )  # fmt: skip
