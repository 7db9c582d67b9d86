"""Values that a program may read: those that follow from inputs and constants, not from weights.

Programs branch on a mask that is all ones, or on positions that a range gives. Such values are
worked out on the host, and only when they are read; whatever depends on a parameter or on random
numbers stays unknown. One exception: which experts a router picks is taken as balanced, and said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from predictor.capture.recorder import Recorder

LARGEST = 1 << 24
"""Elements of the largest value that is worked out."""
MOST_EXPERTS = 512
"""Classes of the largest router: published models have up to 384 experts."""

_FACTORIES = frozenset(
    {
        "arange", "zeros", "ones", "full", "eye", "linspace", "logspace", "scalar_tensor",
        "tril_indices", "triu_indices", "hann_window", "hamming_window", "blackman_window",
        "bartlett_window", "kaiser_window",
    }
)  # fmt: skip
_FILLS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "zeros_like": lambda _: 0,
    "ones_like": lambda _: 1,
    "full_like": lambda args: args[1],
    "new_zeros": lambda _: 0,
    "new_ones": lambda _: 1,
    "new_full": lambda args: args[2],
}
"""Calls whose result depends on the operand's shape only: the value they fill with."""


@dataclass(slots=True)
class _Call:
    """A call to make on the host when its result is read."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[torch.Tensor] | None = None
    assumed: bool = False
    """Whether it follows from routing that was taken as balanced."""

    def run(self) -> list[torch.Tensor]:
        if self.results is None:
            args, kwargs = _real(self.args), dict(_real(tuple(self.kwargs.items())))
            if kwargs.get("device") is not None:
                kwargs["device"] = torch.device("cpu")
            found: list[torch.Tensor] = []
            collect((self.func(*args, **kwargs),), found)
            self.results = found
        return self.results


@dataclass(slots=True)
class _Known:
    """One result of a call."""

    call: _Call
    index: int

    def value(self) -> torch.Tensor:
        return self.call.run()[self.index]


@dataclass(slots=True)
class KnownValues:
    """Which device tensors have a value that can be read."""

    recorder: Recorder
    reads: int = 0
    """How often the program read one."""
    assumed_reads: int = 0
    """How many of these rest on balanced routing."""
    most: int | None = None
    """Elements of all values together, of a program that is not trusted; None: no limit."""
    _elements: int = 0
    _values: dict[int, _Known] = field(default_factory=dict)
    _rows: dict[int, set[int]] = field(default_factory=dict)

    def learn(
        self, twin: torch.Tensor, real: torch.Tensor, origin: Sequence[torch.Tensor] = ()
    ) -> None:
        """The device twin of a tensor whose value the host has, made from `origin`."""
        if real.numel() <= LARGEST and not real.is_meta:
            call = _Call(
                torch.Tensor.detach, (real,), {}, [real.detach()], assumed=self._assumed(origin)
            )
            self._keep(twin, _Known(call, 0))

    def derive(
        self,
        packet: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """Note what a call makes of known values, and forget what it overwrites."""
        call = self._call(packet, func, args, kwargs, tensors, outputs)
        for tensor in writes:
            for row in self._rows.pop(self.recorder.tensors.storage_id(tensor), ()):
                self._values.pop(row, None)
        if call is not None:
            for index, out in enumerate(outputs):
                self._keep(out, _Known(call, index))
        elif packet == "topk" and routes_tokens(tensors[0], outputs[1]):
            even = _Call(_balanced, (tuple(outputs[1].shape), tensors[0].shape[-1]), {})
            even.assumed = True
            self._keep(outputs[1], _Known(even, 0))

    def value(self, tensor: object) -> torch.Tensor | None:
        """The value of a device tensor, or None when it is not known."""
        if not self._values or not isinstance(tensor, torch.Tensor) or not tensor.is_meta:
            return None
        known = self._values.get(self.recorder.tensors.row(tensor))
        return None if known is None else known.value()

    def real_arguments(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The arguments of a read, values in place of device tensors; None if one is unknown."""
        found: list[torch.Tensor] = []
        collect(values, found)
        if not all(self._known(t) for t in found if t.is_meta):
            return None
        self.reads += 1
        self.assumed_reads += self._assumed(found)
        return _real(self._swapped(values))

    def _known(self, tensor: torch.Tensor) -> bool:
        return self.recorder.tensors.row(tensor) in self._values

    def _assumed(self, tensors: Sequence[torch.Tensor]) -> bool:
        known = (self._values.get(self.recorder.tensors.row(t)) for t in tensors if t.is_meta)
        return any(k.call.assumed for k in known if k is not None)

    def _keep(self, tensor: torch.Tensor, known: _Known) -> None:
        row = self.recorder.tensors.row(tensor)
        self._values[row] = known
        self._rows.setdefault(self.recorder.tensors.storage_id(tensor), set()).add(row)

    def _call(
        self,
        packet: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> _Call | None:
        if not outputs or any(o.numel() > LARGEST for o in outputs):
            return None
        self._elements += sum(o.numel() for o in outputs)
        if self.most is not None and self._elements > self.most:
            return None
        if packet in _FILLS:
            fill = _FILLS[packet](args)
            return _Call(torch.full, (outputs[0].shape, fill), {"dtype": outputs[0].dtype})
        if not tensors:
            return _Call(func, args, kwargs) if packet in _FACTORIES else None
        if torch.Tag.nondeterministic_seeded in func.tags:
            return None
        for tensor in tensors:
            if tensor.is_meta and not self._known(tensor):
                return None
        return _Call(
            _on_copies(func), self._swapped(args), dict(self._swapped(tuple(kwargs.items()))),
            assumed=self._assumed(tensors),
        )  # fmt: skip

    def _swapped(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        out: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                out.append(
                    self._values[self.recorder.tensors.row(value)] if value.is_meta else value
                )
            elif isinstance(value, (list, tuple)):
                out.append(type(value)(self._swapped(tuple(value))))
            else:
                out.append(value)
        return tuple(out)


def routes_tokens(scores: torch.Tensor, picked: torch.Tensor) -> bool:
    """Whether a `topk` over the last axis looks like a router's: few classes, some of them picked.

    Anything larger ranks a vocabulary or candidates.
    """
    return (
        scores.is_floating_point()
        and scores.dim() > 1
        and scores.shape[:-1] == picked.shape[:-1]
        and 0 < picked.shape[-1] < scores.shape[-1] <= MOST_EXPERTS
        and picked.numel() <= LARGEST
    )


def _balanced(shape: tuple[int, ...], classes: int) -> torch.Tensor:
    """Picks that spread the rows evenly: row r of k picks takes r*k, r*k + 1, … modulo classes."""
    return torch.arange(math.prod(shape)).remainder(classes).view(shape)


def _on_copies(func: Any) -> Callable[..., Any]:
    """The call, on copies of operands that it would overwrite."""
    if not func._schema.is_mutable:
        return func  # type: ignore[no-any-return]

    def run(*args: Any, **kwargs: Any) -> Any:
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        return func(*copies, **kwargs)

    return run


def _real(values: tuple[Any, ...]) -> tuple[Any, ...]:
    out: list[Any] = []
    for value in values:
        if isinstance(value, _Known):
            out.append(value.value())
        elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            out.append(type(value)(_real(tuple(value))))
        else:
            out.append(value)
    return tuple(out)


def collect(values: Sequence[Any], into: list[torch.Tensor]) -> None:
    """Tensors of an argument list, lists included, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            into.append(value)
        elif isinstance(value, (list, tuple)):
            collect(value, into)
