"""The operators that an exported program may name, and which of them capture runs.

A program is data: it names operators, and only those run that compute shapes on meta tensors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from predictor.capture.dispatch import DATA_DEPENDENT
from predictor.capture.exported.symbols import bounded, power
from predictor.errors import CaptureError

NAMESPACES = frozenset({"aten", "torchvision"})
"""Libraries whose operators have shape rules of PyTorch's own; others are taken as described."""
_KERNELS = (
    "Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)  # fmt: skip

CHECKS = frozenset(
    {
        "_assert_tensor_metadata", "_assert_scalar", "_assert_async", "_functional_assert_scalar",
        "_functional_assert_async", "sym_constrain_range", "sym_constrain_range_for_size",
        "_functional_sym_constrain_range", "_functional_sym_constrain_range_for_size",
    }
)  # fmt: skip
"""Checks that the export wrote into the program; the real run has none of them."""
SHAPE_READS: Mapping[str, Callable[..., Any]] = {
    "sym_size": lambda x, dim=None: tuple(x.shape) if dim is None else x.shape[dim],
    "sym_stride": lambda x, dim=None: tuple(x.stride()) if dim is None else x.stride(dim),
    "sym_numel": lambda x: x.numel(),
    "sym_storage_offset": lambda x: x.storage_offset(),
    "sym_is_contiguous": lambda x, *_: x.is_contiguous(),
}


def _shifted(a: int, b: int) -> int:
    return bounded(a << b) if 0 <= b < 63 else bounded(math.inf)  # type: ignore[no-any-return]


ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in ("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub",
                     "floordiv", "mod", "truediv", "and_", "or_", "rshift")
    },
    "pow": power,
    "lshift": _shifted,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "sym_not": operator.not_,
    "sym_int": int,
    "sym_float": float,
    "sym_max": max,
    "sym_min": min,
    "sym_ite": lambda test, yes, no: yes if test else no,
    "sym_sqrt": math.sqrt,
    "_sym_sqrt": math.sqrt,
    "sym_sum": sum,
}  # fmt: skip
"""Arithmetic on sizes, by the name of the function."""

SPLITS: Mapping[str, Callable[..., int]] = {
    "split": lambda x, size, dim=0: -(-x.shape[dim] // max(int(size), 1)) if size else 1,
    "unsafe_split": lambda x, size, dim=0: -(-x.shape[dim] // max(int(size), 1)) if size else 1,
    "unbind": lambda x, dim=0: x.shape[dim],
    "chunk": lambda x, chunks, dim=0: min(int(chunks), max(x.shape[dim], 1)),
    "unsafe_chunk": lambda x, chunks, dim=0: min(int(chunks), max(x.shape[dim], 1)),
    "tensor_split": lambda x, parts, dim=0: parts if isinstance(parts, int) else 0,
    "hsplit": lambda x, parts: parts if isinstance(parts, int) else 0,
    "vsplit": lambda x, parts: parts if isinstance(parts, int) else 0,
    "dsplit": lambda x, parts: parts if isinstance(parts, int) else 0,
}
"""How many tensors a call makes of one."""
MOST_PARTS = 65_536


@cache
def resolve(target: str) -> Any:
    """The operator of `namespace.name.overload`, or None where capture does not run it.

    None is given for operators of other libraries, and for those that do no more than compute on
    tensors: such as read or write files.
    """
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.rpartition(".")
    if namespace not in NAMESPACES or not name.isidentifier() or not overload.isidentifier():
        return None
    qualified = f"{namespace}::{name}" + ("" if overload == "default" else f".{overload}")
    if not torch._C._dispatch_has_kernel(qualified):
        return None
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    shaped = any(has(qualified, key) for key in _KERNELS)
    if not shaped and f"{namespace}.{name}" not in DATA_DEPENDENT:
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    schema = found._schema
    holds = any("Tensor" in str(one.type) for one in (*schema.arguments, *schema.returns))
    return found if holds else None


def arranged(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Positional and keyword arguments as PyTorch's own functions pass them.

    Everything the schema lets be positional is, up to the last that is given; each device is the
    captured one.
    """
    given = dict(kwargs)
    for one, value in zip(func._schema.arguments, args, strict=False):
        given[one.name] = value
    positional: list[Any] = []
    named: dict[str, Any] = {}
    last = max(
        (i for i, a in enumerate(func._schema.arguments) if a.name in given and not a.kwarg_only),
        default=-1,
    )
    makes_own = not any("Tensor" in str(a.type) for a in func._schema.arguments)
    for index, one in enumerate(func._schema.arguments):
        if one.name == "generator" and one.kwarg_only:
            given.pop(one.name, None)
            continue
        if one.name == "pin_memory" and given.get(one.name):
            given[one.name] = False  # of host memory; there is none
        if one.name == "device" and makes_own:
            given["device"] = torch.device("meta")
        if index <= last and not one.kwarg_only:
            positional.append(given.pop(one.name, one.default_value))
        elif one.name in given:
            named[one.name] = given.pop(one.name)
    if given or len(args) > len(func._schema.arguments):
        raise CaptureError(f"{func.name()} takes no argument {', '.join(sorted(given)) or 'more'}")
    return tuple(positional), named


def check_parts(name: str, args: tuple[Any, ...]) -> None:
    """Refuse calls that take a tensor apart into more pieces than any program uses."""
    if name in SPLITS and args and isinstance(args[0], torch.Tensor) and args[0].dim():
        parts = SPLITS[name](*args)
        if parts > MOST_PARTS:
            raise CaptureError(f"aten.{name} makes {parts:,} tensors of one; take smaller sizes")
