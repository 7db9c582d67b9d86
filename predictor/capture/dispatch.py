"""The dispatch mode: sees every framework call below autograd and hands it to the recorder.

Device tensors are meta tensors. Tensors on the CPU are host tensors: calls on them alone run for
real and launch nothing; one that meets a device tensor is taken to the device as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from predictor.capture.grouped import grouped_result, needs_shape_rule
from predictor.capture.known import KnownValues, collect
from predictor.capture.layout import convolution_layout
from predictor.capture.recorder import Recorder
from predictor.capture.schema import Plan, attributes, plan_of
from predictor.errors import CaptureError

META = torch.device("meta")

NOISE: frozenset[str] = frozenset(
    {
        "aten.detach",  # autograd's own bookkeeping under a mode: no call of the real run
        "aten.alias",
        "aten.lift_fresh",
        "aten.is_same_size",
        "aten.is_pinned",
        "aten._has_compatible_shallow_copy_type",
    }
)
"""Calls that neither compute nor are made by the real run."""

DATA_DEPENDENT: dict[str, str] = {
    "aten._local_scalar_dense": "reads the value of a tensor (`.item()`, `float()`, `if tensor:`)",
    "aten.nonzero": "makes a shape that depends on values (`nonzero`, boolean mask indexing)",
    "aten.nonzero_static": "makes a shape that depends on values (`nonzero`)",
    "aten.masked_select": "makes a shape that depends on values (`masked_select`)",
    "aten._unique": "makes a shape that depends on values (`unique`)",
    "aten._unique2": "makes a shape that depends on values (`unique`)",
    "aten.unique_dim": "makes a shape that depends on values (`unique`)",
    "aten.unique_consecutive": "makes a shape that depends on values (`unique_consecutive`)",
    "aten.bincount": "makes a shape that depends on values (`bincount`)",
    "aten.equal": "compares tensor values (`torch.equal`)",
    "aten.repeat_interleave": "makes a shape that depends on values (`repeat_interleave`)",
}
"""Calls that need values, which capture does not have."""
ONE_DTYPE: frozenset[str] = frozenset(
    {"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.convolution", "aten.mv", "aten.dot"}
)
"""Calls that a device refuses on operands of different dtypes; meta tensors let them pass."""
HOST_OPERANDS: dict[str, int] = {"aten._pack_padded_sequence": 1, "aten._pad_packed_sequence": 1}
"""Calls with an operand that stays on the host (lengths), and its position."""
DATA_REMEDY = (
    "capture knows values that follow from inputs and constants, not those that depend on "
    "parameters or random numbers: pass the value as a Python number, use a fixed-size form "
    "(`torch.where`, a mask multiplied in, `output_size=`), capture the part around it, or, where "
    "it follows from an input on the meta device, give that input its values (on the CPU)"
)


class RecordDispatch(TorchDispatchMode):
    """Records each call on device tensors.

    Args:
        recorder: where the nodes go.
        known: values that the program may read.
    """

    def __init__(self, recorder: Recorder, known: KnownValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._known = known
        self._plans: dict[object, Plan] = {}
        self._lifted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the call on meta tensors and record it."""
        kwargs = kwargs or {}
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = plan_of(func)
        tensors: list[torch.Tensor] = []
        collect(args, tensors)
        if kwargs:
            collect(tuple(kwargs.values()), tensors)
        on_device = False
        for tensor in tensors:
            if tensor.device is META or tensor.is_meta:
                on_device = True
                break
        if on_device:
            if plan.op in HOST_OPERANDS:
                args = self._with_host_operand(plan.op, args)
            else:
                args, kwargs, tensors = self._on_device(args, kwargs, tensors)
            if plan.op == "aten.index":
                args = self._without_masks(args)
                tensors = []
                collect(args, tensors)
            if plan.op in ONE_DTYPE:
                _check_one_dtype(plan.op, tensors)
            if plan.op in DATA_DEPENDENT and kwargs.get("output_size") is None:
                return self._read(plan, func, args, kwargs)
        if on_device and needs_shape_rule(plan.op, tensors):
            with self._recorder.pause():
                result = grouped_result(tensors)
        else:
            result = func(*args, **kwargs)
        if self._recorder.paused or plan.op in NOISE:
            return result
        outputs: list[torch.Tensor] = []
        collect((result,), outputs)
        if not on_device and not any(t.is_meta for t in outputs):
            return result
        if plan.op == "aten.convolution" or plan.op == "aten.convolution_backward":
            result, outputs = _relaid(plan.op, tensors, result)
        attrs = attributes(plan, args, kwargs)
        if tensors and not on_device:
            attrs["transfer"] = "host_to_device"
        writes = [args[i] for i in plan.writes if i < len(args)]
        written: list[torch.Tensor] = []
        collect(tuple(writes), written)
        self._recorder.record(plan.op, tensors, outputs, attrs, written)
        packet = plan.op.partition(".")[2]
        self._known.derive(packet, func, args, kwargs, tensors, outputs, written)
        return result

    def _read(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose result depends on values: made on the host when they are known."""
        real = self._known.real_arguments(args)
        if real is None:
            raise CaptureError(f"{plan.op} {DATA_DEPENDENT[plan.op]}; {DATA_REMEDY}")
        result = func(*real, **kwargs)
        if not isinstance(result, (torch.Tensor, tuple, list)):
            return result
        outputs: list[torch.Tensor] = []
        tensors: list[torch.Tensor] = []
        collect(args, tensors)

        def twin(value: torch.Tensor) -> torch.Tensor:
            made = torch.empty_like(value, device=META)
            self._known.learn(made, value, origin=tensors)
            outputs.append(made)
            return made

        made = _mapped((result,), twin)[0]
        self._recorder.record(plan.op, tensors, outputs, attributes(plan, args, kwargs))
        return made

    def _with_host_operand(self, op: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The lengths of sequences are read on the host, also on a real device."""
        at = HOST_OPERANDS[op]
        if not args[at].is_meta:
            return args
        value = self._known.value(args[at])
        if value is None:
            raise CaptureError(f"{op} reads the lengths of sequences; {DATA_REMEDY}")
        self._known.reads += 1
        return (*args[:at], value, *args[at + 1 :])

    def _without_masks(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Boolean masks among the indices become the positions that they select."""
        indices: list[Any] = []
        for index in args[1]:
            masks = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            if not masks:
                indices.append(index)
                continue
            plan = plan_of(torch.ops.aten.nonzero.default)
            found = self._read(plan, torch.ops.aten.nonzero.default, (index,), {})
            value = self._known.value(found)
            assert value is not None  # it was just read
            for column, real in zip(found.unbind(1), value.unbind(1), strict=True):
                self._known.learn(column, real, origin=[found])
                indices.append(column)
        return (args[0], indices, *args[2:])

    def _on_device(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """The call with every tensor on the device."""
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": META}  # a copy back to the host stays symbolic
        if all(t.is_meta for t in tensors):
            return args, kwargs, tensors
        lift = self._lift
        args = _mapped(args, lift)
        kwargs = {name: _mapped((value,), lift)[0] for name, value in kwargs.items()}
        return args, kwargs, [lift(t) for t in tensors]

    def _lift(self, tensor: torch.Tensor) -> torch.Tensor:
        """The device twin of a host tensor."""
        if tensor.is_meta:
            return tensor
        if tensor.layout is not torch.strided:
            raise CaptureError(
                f"a sparse tensor of shape {tuple(tensor.shape)} is used where capture knows dense "
                "ones only; sparse matrix products (`sparse @ dense`, `torch.sparse.mm`) work"
            )
        if isinstance(tensor, torch.nn.Parameter):
            raise CaptureError(
                f"a parameter of shape {tuple(tensor.shape)} is used but was not passed in: "
                "register it in the module (or hand its module over as an argument); a method "
                "under torch.compile keeps the module of before: capture it uncompiled"
            )
        known = self._lifted.get(id(tensor))
        if known is None:
            twin = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            known = self._lifted[id(tensor)] = (tensor, twin)
            self._recorder.tensors.set_role(twin, "input")
            self._known.learn(twin, tensor)
        return known[1]


def _check_one_dtype(op: str, tensors: Sequence[torch.Tensor]) -> None:
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1:
        shapes = ", ".join(f"{str(t.dtype)[6:]} {tuple(t.shape)}" for t in tensors)
        raise CaptureError(
            f"{op} on operands of different dtypes ({shapes}): cast the inputs to the module's "
            "dtype, or capture under autocast (amp)"
        )


def _mapped(
    values: tuple[Any, ...], change: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[Any, ...]:
    out: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            out.append(change(value))
        elif isinstance(value, (list, tuple)):
            out.append(type(value)(_mapped(tuple(value), change)))
        else:
            out.append(value)
    return tuple(out)


def _relaid(
    op: str, tensors: Sequence[torch.Tensor], result: Any
) -> tuple[Any, list[torch.Tensor]]:
    """Convolution results in the memory format that cuDNN gives them."""
    if op == "aten.convolution":
        out = convolution_layout(result, tensors[0], tensors[1])
        return out, [out]
    _, x, weight = tensors[:3]
    relaid = tuple(
        t if t is None or t.dim() < 3 else convolution_layout(t, x, weight) for t in result
    )
    return relaid, [t for t in relaid if t is not None]
