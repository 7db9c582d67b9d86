"""Learned latency estimates for ML programs on accelerators you do not have.

>>> import predictor
>>> predictor.estimate("gpt2-large", device="nvidia-h100-sxm-80gb", mode="train")  # doctest: +SKIP
"""

from __future__ import annotations

# Loading the package `predictor.capture` binds its name here: do it now, so that the function of
# the same name, bound next, stays.
from predictor import capture as _capture_package  # noqa: F401
from predictor.api import capture, compare, estimate, load

__all__ = ["__version__", "capture", "compare", "estimate", "load"]


def __getattr__(name: str) -> str:
    if name == "__version__":  # read from the metadata only when asked for
        from predictor.version import code_version

        return code_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
