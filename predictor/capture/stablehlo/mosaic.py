"""What the call of a Pallas kernel says of it: the cost its author states, and whether it masks.

The kernel itself is a program of another dialect, serialised; none of it is run or parsed.
"""

from __future__ import annotations

import base64
import binascii
import json
import math

MOSAIC = "tpu_custom_call"
"""Target of the calls that Pallas makes for TPUs."""
STATED_FLOPS = "stated_flops"
STATED_BYTES = "stated_bytes"
"""Attributes of a call whose author states its work and traffic."""
_NUMBERS = {"flops": STATED_FLOPS, "bytes_accessed": STATED_BYTES}
_POSITIONS = b"tpu.iota"
"""Operation that counts positions: attention kernels have it where they compare them, in a mask."""


def mosaic_facts(config: str) -> dict[str, object]:
    """Facts of a Mosaic kernel from its call's configuration.

    Args:
        config: the `backend_config` of the call: JSON with the serialised kernel in it.

    Returns:
        `masked`: whether the kernel compares positions; `stated_flops` and `stated_bytes`: work and
        traffic of one run as `pallas_call(cost_estimate=...)` states them. Nothing of what is
        no such JSON.
    """
    try:
        call = json.loads(config)["custom_call_config"]
        body = base64.b64decode(call.get("body", ""), validate=True)
        stated = dict(call.get("cost_estimate") or {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        return {}
    found: dict[str, object] = {"masked": _POSITIONS in body}
    for name, ours in _NUMBERS.items():
        value = stated.get(name)
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            found[ours] = float(value)
    return found
