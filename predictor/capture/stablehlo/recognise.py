"""Which targets are StableHLO or JAX programs; imports neither jax nor anything heavy."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FunctionType

FILES: tuple[str, ...] = (".mlir", ".mlirbc", ".mlir.bc")
"""Endings of files of StableHLO text or bytecode."""
PLATFORMS: Mapping[str, str] = {"gpu": "cuda", "tpu": "tpu", "cpu": "cpu"}
"""Platform that JAX lowers for, by kind of device."""


def is_jax_program(target: object) -> bool:
    """Whether `target` is a jitted function, one that was traced or lowered, or an export.

    Without jax in memory there is no such object.
    """
    if "jax" not in sys.modules or isinstance(target, type):
        return False
    exported = hasattr(target, "mlir_module_serialized")
    lowered = hasattr(target, "compiler_ir") and hasattr(target, "compile")
    return exported or lowered or (hasattr(target, "lower") and _traces(target))


def _traces(target: object) -> bool:
    """Whether JAX made it: jitted, traced, or the plain function with `.lower` of `jax.pmap`."""
    mapped = isinstance(target, FunctionType) and hasattr(target, "__wrapped__")
    return hasattr(target, "trace") or hasattr(target, "jaxpr") or mapped


def is_stablehlo(target: object) -> bool:
    """Whether a target is a StableHLO file or a JAX program in memory."""
    return (isinstance(target, str) and target.endswith(FILES)) or is_jax_program(target)
