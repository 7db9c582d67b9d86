"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def code_version() -> str:
    """Version of the installed distribution; `0+uninstalled` when run from a bare source tree."""
    try:
        return version("latency-predictor")
    except PackageNotFoundError:
        return "0+uninstalled"
