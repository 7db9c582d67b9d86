"""Near-twins: devices that must be unseen together, or a split leaks.

A device and its twins share a chip (or differ in little but memory or clock), so measurements of
one give the other away.
"""

from __future__ import annotations

TWIN_GROUPS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "nvidia-a100-pcie-40gb",
            "nvidia-a100-pcie-80gb",
            "nvidia-a100-sxm-40gb",
            "nvidia-a100-sxm-80gb",
        }
    ),
    frozenset(
        {
            "nvidia-v100-pcie-16gb",
            "nvidia-v100-pcie-32gb",
            "nvidia-v100-sxm2-16gb",
            "nvidia-v100-sxm2-32gb",
        }
    ),
    frozenset(
        {
            "nvidia-h100-pcie-80gb",
            "nvidia-h100-sxm-80gb",
            "nvidia-h100-sxm-96gb-hbm2e",
            "nvidia-h100-nvl-94gb",
            "nvidia-h200-sxm-141gb",
            "nvidia-h200-nvl-141gb",
            "nvidia-gh200-96gb",
            "nvidia-gh200-144gb",
        }
    ),
    frozenset({"nvidia-b200-sxm-180gb", "nvidia-gb200"}),
    frozenset({"nvidia-b300-sxm", "nvidia-gb300"}),
    frozenset(
        {
            "amd-mi210",
            "amd-mi250-gcd",
            "amd-mi250-package",
            "amd-mi250x-gcd",
            "amd-mi250x-package",
        }
    ),
    frozenset({"amd-mi300x", "amd-mi325x"}),
    frozenset({"nvidia-p100-pcie-16gb", "nvidia-p100-sxm2-16gb"}),
    frozenset({"nvidia-a40", "nvidia-rtx-a6000"}),
    frozenset({"nvidia-titan-x-pascal", "nvidia-titan-xp"}),
    # One device counted in two ways: a package and its die.
    frozenset({"intel-max-1550-stack", "intel-max-1550-package"}),
    frozenset({"google-tpu-v2-core", "google-tpu-v2-chip"}),
    frozenset({"google-tpu-v3-core", "google-tpu-v3-chip"}),
    frozenset({"google-tpu7x-device", "google-tpu7x-chip"}),
)
"""Disjoint groups of catalogue ids."""

_GROUP_OF = {device_id: group for group in TWIN_GROUPS for device_id in group}


def twins(device_id: str) -> frozenset[str]:
    """The device and its near-twins; a device without twins (or of a user's file) stands alone."""
    return _GROUP_OF.get(device_id, frozenset({device_id}))
