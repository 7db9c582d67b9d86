"""What an op's schema says: its name, its arguments by name, and what it writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from predictor.capture.specs import DTYPE_NAMES


@dataclass(frozen=True, slots=True)
class Plan:
    """What a schema says, worked out once a call."""

    op: str
    overload: str
    names: tuple[str, ...]
    defaults: tuple[object, ...]
    tensor_like: tuple[bool, ...]
    writes: tuple[int, ...]
    inplace: bool


def plan_of(func: Any) -> Plan:
    """The plan of an op overload."""
    namespace, _, rest = func.name().partition("::")
    packet = rest.partition(".")[0]
    schema = func._schema
    arguments = schema.arguments
    inplace = any(r.alias_info is not None and r.alias_info.is_write for r in schema.returns)
    writes = tuple(
        i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    return Plan(
        op=f"{namespace}.{packet}",
        overload=func._overloadname,
        names=tuple(a.name for a in arguments),
        defaults=tuple(a.default_value for a in arguments),
        tensor_like=tuple("Tensor" in str(a.type) for a in arguments),
        writes=writes,
        inplace=inplace or (bool(writes) and not schema.returns),
    )


def attributes(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
    """Arguments that are not tensors, by schema name; an absent optional tensor is None."""
    attrs: dict[str, object] = {"overload": plan.overload} if plan.overload else {}
    given = len(args)
    for i, name in enumerate(plan.names):
        value = args[i] if i < given else kwargs.get(name, plan.defaults[i])
        if plan.tensor_like[i]:
            if value is None:
                attrs[name] = None
            continue
        if value is None or isinstance(value, (torch.device, torch.layout, torch.Generator)):
            continue
        attrs[name] = plain(value)
    if plan.inplace:
        attrs["inplace"] = True
    return attrs


def plain(value: Any) -> object:
    """A JSON-able form of an argument."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES.get(value, str(value))
    return str(value).removeprefix("torch.")
