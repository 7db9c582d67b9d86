"""Calls as a profiler recorded them, replayed on meta tensors: the ops that capture would see.

A recorded call is a name and, for each argument of its schema, sizes, type, perhaps strides, value.
Where these determine the call, it is made again on meta tensors of these sizes under the recorder
of program capture, so that its nodes read like those of a captured program. Where they do not, the
call is refused with the argument that is missing: nothing is filled in that would change sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from predictor.capture.dispatch import RecordDispatch
from predictor.capture.environment import as_on_device
from predictor.capture.failures import PROGRAM_ERRORS, first_line
from predictor.capture.kineto_arguments import (
    CHOICES,
    TENSOR_LISTS,
    TORCH_TYPES,
    neutral_value,
    parsed_value,
)
from predictor.capture.known import KnownValues
from predictor.capture.recorder import Recorder
from predictor.errors import CaptureError
from predictor.graph.ir import OpNode

Reason: TypeAlias = Literal[
    "op_without_shapes", "argument_not_recorded", "op_unknown", "op_not_replayable"
]
"""Why a call cannot be replayed."""

RENAMED: Mapping[str, tuple[str, Callable[[list[Any]], list[Any]]]] = {
    "cudnn_batch_norm": ("native_batch_norm", lambda a: a),
    "miopen_batch_norm": ("native_batch_norm", lambda a: a),
    "cudnn_batch_norm_backward": (
        "native_batch_norm_backward",
        lambda a: [a[1], a[0], *a[2:7], True, a[7], [True, True, True]],
    ),
    "miopen_batch_norm_backward": (
        "native_batch_norm_backward",
        lambda a: [a[1], a[0], *a[2:7], True, a[7], [True, True, True]],
    ),
    "cudnn_convolution": (
        "convolution",
        lambda a: [a[0], a[1], None, a[3], a[2], a[4], False, [0] * len(a[2]), a[5]],
    ),
    "miopen_convolution": (
        "convolution",
        lambda a: [a[0], a[1], a[2], a[4], a[3], a[5], False, [0] * len(a[3]), a[6]],
    ),
}
"""Calls of one library: the general op that capture sees in their place, and its arguments."""


class ReplayError(CaptureError):
    """A recorded call does not determine what ran.

    Args:
        reason: the rule by which it is counted.
        message: what is missing.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call; sequences are tuples, so that equal calls are replayed once."""

    name: str
    """`aten::addmm`."""
    dims: tuple[Any, ...] = ()
    """Sizes an argument; for a list of tensors a tuple of sizes; empty for what is no tensor."""
    types: tuple[str, ...] = ()
    """As the profiler names them: `float`, `c10::Half`, `TensorList`, `Scalar`; empty: others."""
    strides: tuple[Any, ...] | None = None
    concrete: tuple[Any, ...] | None = None
    """Values of arguments that are no tensors, as text or as they are; None where not recorded."""


@dataclass(slots=True)
class Replayer:
    """Replays calls, equal ones once."""

    _nodes: dict[RecordedCall, tuple[OpNode, ...] | ReplayError] = field(default_factory=dict)

    def nodes(self, call: RecordedCall) -> tuple[OpNode, ...]:
        """The framework calls below autograd that `call` consists of.

        Raises:
            ReplayError: its record does not determine them.
        """
        found = self._nodes.get(call)
        if found is None:
            try:
                found = _replayed(call)
            except ReplayError as error:
                found = error
            self._nodes[call] = found
        if isinstance(found, ReplayError):
            raise found
        return found


def _replayed(call: RecordedCall) -> tuple[OpNode, ...]:
    namespace, _, name = call.name.partition("::")
    packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
    if packet is None:
        raise ReplayError("op_unknown", f"no aten op is called {call.name!r}")
    if not call.dims:
        raise ReplayError(
            "op_without_shapes",
            f"{call.name}: no sizes are recorded (profile with record_shapes=True)",
        )
    function = _overload(packet, call)
    recorder = Recorder()
    try:
        with torch.no_grad(), as_on_device():
            arguments = [
                _argument(a, i, name, call) for i, a in enumerate(function._schema.arguments)
            ]
            function, arguments = _functional(packet, function, arguments)
            if name in RENAMED:
                other, rearranged = RENAMED[name]
                function = getattr(torch.ops.aten, other).default
                arguments = rearranged(arguments)
            with RecordDispatch(recorder, KnownValues(recorder)):
                _call(function, arguments)
    except ReplayError:
        raise
    except PROGRAM_ERRORS as error:
        raise ReplayError(
            "op_not_replayable", f"{call.name} fails on meta tensors: {first_line(error)}"
        ) from error
    return recorder.nodes()


def _call(function: Any, arguments: Sequence[Any]) -> None:
    plain, named = [], {}
    for argument, value in zip(function._schema.arguments, arguments, strict=True):
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            plain.append(value)
    function(*plain, **named)


def _functional(packet: Any, function: Any, arguments: list[Any]) -> tuple[Any, list[Any]]:
    """The overload that returns its result, in place of one that takes `out`; the others as is."""
    schema = function._schema.arguments
    kept = [i for i, a in enumerate(schema) if not (a.kwarg_only and _is_written(a))]
    if len(kept) == len(schema):
        return function, arguments
    wanted = [(schema[i].name, str(schema[i].type)) for i in kept]
    for overload in packet.overloads():
        other = getattr(packet, overload)
        if [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:
            return other, [arguments[i] for i in kept]
    return function, arguments


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _overload(packet: Any, call: RecordedCall) -> Any:
    """The overload whose schema the recorded types fit."""
    for overload in packet.overloads():
        function = getattr(packet, overload)
        schema = function._schema.arguments
        if len(schema) == len(call.dims) and all(
            _fits(str(a.type), i, call) for i, a in enumerate(schema)
        ):
            return function
    raise ReplayError(
        "op_unknown",
        f"{call.name}: no overload of this PyTorch takes {len(call.dims)} arguments of types "
        f"{', '.join(t or '-' for t in call.types)}",
    )


def _fits(kind: str, index: int, call: RecordedCall) -> bool:
    recorded = call.types[index] if index < len(call.types) else ""
    is_tensor, is_list = recorded in TORCH_TYPES, recorded in TENSOR_LISTS
    if kind == "Tensor":
        return is_tensor
    if kind == "Optional[Tensor]":
        return is_tensor or recorded == ""
    if "Tensor" in kind:
        return is_list
    if is_tensor or is_list:
        return False
    return not (recorded == "Scalar" and "List" in kind)


def _argument(argument: Any, index: int, op: str, call: RecordedCall) -> Any:
    """The value of one argument of a replay."""
    kind = str(argument.type)
    recorded = call.types[index] if index < len(call.types) else ""
    if recorded in TORCH_TYPES:
        return _tensor(call, call.dims[index], TORCH_TYPES[recorded], _strides(call, index))
    if recorded in TENSOR_LISTS:
        return _tensors(call, index, kind)
    if kind == "Optional[Tensor]":
        return None
    if str(argument.real_type) in CHOICES or kind in CHOICES:
        return parsed_value(_concrete(call, index), argument)
    value = parsed_value(_concrete(call, index), argument)
    if value is not None:
        return value
    if call.concrete is not None and argument.has_default_value():
        return argument.default_value
    if call.concrete is not None and kind.startswith("Optional"):
        return None
    return _neutral(argument, op, call)


def _neutral(argument: Any, op: str, call: RecordedCall) -> Any:
    """A value that changes no size and no cost, where the recorded one is not known."""
    known, value = neutral_value(op, argument, call.dims)
    if not known:
        raise ReplayError(
            "argument_not_recorded",
            f"{call.name}: argument {argument.name!r} is not recorded (newer releases of PyTorch "
            "do, as `Concrete Inputs`)",
        )
    return value


def _tensor(call: RecordedCall, sizes: Any, dtype: torch.dtype, strides: Any) -> torch.Tensor:
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ReplayError("op_without_shapes", f"{call.name}: sizes {sizes!r} are no tensor's")
    if strides and len(strides) == len(sizes):
        return torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device="meta")
    return torch.empty(tuple(sizes), dtype=dtype, device="meta")


def _tensors(call: RecordedCall, index: int, kind: str) -> list[torch.Tensor | None]:
    """A list of tensors; its dtype is not recorded by the profiler, so that of the others."""
    sizes, strides = call.dims[index], _strides(call, index)
    if not sizes or not all(isinstance(s, tuple) for s in sizes):
        raise ReplayError(
            "op_without_shapes", f"{call.name}: the sizes of a list of tensors are not recorded"
        )
    told = TENSOR_LISTS[call.types[index]]
    others = [TORCH_TYPES[t] for t in call.types if t in TORCH_TYPES]
    dtype = told or (others[0] if others else torch.float32)
    if op_indexes(call.name) and "Optional" in kind:
        dtype = torch.int64
    return [
        _tensor(call, s, dtype, strides[i] if strides and i < len(strides) else None)
        for i, s in enumerate(sizes)
    ]


def op_indexes(name: str) -> bool:
    """Whether a list of tensors of the call holds indices."""
    return "index" in name


def _strides(call: RecordedCall, index: int) -> Any:
    return call.strides[index] if call.strides and index < len(call.strides) else None


def _concrete(call: RecordedCall, index: int) -> Any:
    return call.concrete[index] if call.concrete and index < len(call.concrete) else None
