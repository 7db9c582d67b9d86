"""Arguments as profilers record them: type names, values as text, and what may stay unknown."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch

TORCH_TYPES: Mapping[str, torch.dtype] = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16, "long int": torch.int64, "long": torch.int64,
    "int": torch.int32, "short int": torch.int16, "short": torch.int16,
    "signed char": torch.int8, "unsigned char": torch.uint8, "bool": torch.bool,
    "c10::complex<float>": torch.complex64, "c10::complex<double>": torch.complex128,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn, "c10::Float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
"""Dtypes by the names of `Input type` (C++ type names, which differ a little by platform)."""

TENSOR_LISTS: Mapping[str, torch.dtype | None] = {
    "TensorList": None,
    **{f"TensorList[{name}]": dtype for name, dtype in TORCH_TYPES.items()},
}
"""Lists of tensors; profiler traces do not tell the dtype, execution graphs do."""

CHOICES: frozenset[str] = frozenset({
    "Optional[ScalarType]", "ScalarType", "Optional[Layout]", "Layout", "Optional[Device]",
    "Device", "Optional[MemoryFormat]", "MemoryFormat", "Optional[Generator]", "Generator",
})  # fmt: skip
"""Types of arguments that choose where and how a result is stored: absent means the default."""

_SCALAR_TYPES: Mapping[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64,
    5: torch.float16, 6: torch.float32, 7: torch.float64, 9: torch.complex64,
    10: torch.complex128, 11: torch.bool, 15: torch.bfloat16, 23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}  # fmt: skip
"""Numbers of c10::ScalarType."""
_MEMORY_FORMATS: Mapping[int, torch.memory_format] = {
    0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last,
    3: torch.channels_last_3d,
}  # fmt: skip
"""Numbers of c10::MemoryFormat."""

_NEUTRAL_NAMES: Mapping[str, Any] = {
    "non_blocking": False, "copy": False, "padding_idx": -1, "scale_grad_by_freq": False,
    "sparse": False, "train": True, "training": True, "accumulate": False, "out_int32": False,
    "half_to_float": False, "approximate": "none", "unbiased": True, "benchmark": False,
    "deterministic": False, "allow_tf32": True, "upper": False, "pin_memory": None,
    "output_mask": None,
}  # fmt: skip
"""Arguments that change neither the sizes of results nor what must be computed."""
_NEUTRAL_OF_OP: Mapping[tuple[str, str], Any] = {("cat", "dim"): 0, ("stack", "dim"): 0}
_FROM_OPERAND: Mapping[tuple[str, str], int] = {
    ("native_layer_norm", "normalized_shape"): 2, ("layer_norm", "normalized_shape"): 2,
}  # fmt: skip
"""Arguments that equal the sizes of an operand, by its place."""


def parsed_value(recorded: Any, argument: Any) -> Any:
    """A recorded value as an argument takes it; None where it is absent.

    Args:
        recorded: text or value as recorded; None or empty text is absent.
        argument: of a schema.
    """
    value = _literal(recorded)
    kind = str(argument.real_type)
    if "Device" in kind or "Generator" in kind or "Layout" in kind:
        return torch.device("meta") if "Device" in kind and value is not None else None
    if "ScalarType" in kind:
        return _SCALAR_TYPES.get(value) if isinstance(value, int) else None
    if "MemoryFormat" in kind:
        return _MEMORY_FORMATS.get(value) if isinstance(value, int) else None
    if value is None or (value == [] and "List" not in kind):
        return None
    if "List" in kind and not isinstance(value, list | tuple):
        return [value]
    if "bool" in kind and isinstance(value, int):
        return bool(value)
    return list(value) if isinstance(value, tuple) else value


def _literal(recorded: Any) -> Any:
    if not isinstance(recorded, str):
        return recorded
    text = recorded.strip()
    if not text or text == "<None>":
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def neutral_value(op: str, argument: Any, dims: tuple[Any, ...]) -> tuple[bool, Any]:
    """Whether an argument that is not recorded may be chosen, and its value.

    Args:
        op: the op's name without namespace.
        argument: of its schema.
        dims: recorded sizes of all arguments.
    """
    name, kind = str(argument.name), str(argument.type)
    place = _FROM_OPERAND.get((op, name))
    if place is not None and place < len(dims) and dims[place]:
        return True, list(dims[place])
    if (op, name) in _NEUTRAL_OF_OP:
        return True, _NEUTRAL_OF_OP[op, name]
    if name in _NEUTRAL_NAMES and _NEUTRAL_NAMES[name] is not None:
        return True, _NEUTRAL_NAMES[name]
    if kind in ("number", "float", "Optional[number]", "Optional[float]"):
        return True, 1.0 if argument.default_value is None else argument.default_value
    return False, None
