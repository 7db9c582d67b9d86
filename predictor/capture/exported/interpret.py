"""Runs the calls of an exported program on meta tensors, as the module itself would make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from predictor.capture.exported import operators
from predictor.capture.exported.records import Body, Call, Pattern, Ref, TensorMeta
from predictor.capture.exported.symbols import bounded, evaluate
from predictor.capture.session import Session
from predictor.errors import CaptureError

_UNRECORDED = frozenset({"aten.detach_.default"})
"""Bookkeeping of the export around constants."""
_ALIASES = frozenset({"aten.lift_fresh_copy.default", "aten.lift_fresh.default"})
"""Constants of the program, which the real run holds already."""
_DEEPEST = 100


class Interpreter:
    """Makes the calls of one program inside of a running session.

    Args:
        session: records them.
        symbols: the value of every free size.
    """

    def __init__(self, session: Session, symbols: Mapping[str, int]) -> None:
        self._session = session
        self.symbols = symbols
        self._depth = 0
        self._module = ""

    def run(self, body: Body, given: Sequence[Any], *, loss: Any = None) -> Any:
        """The results of a graph of calls; those after `loss` is made are the backward."""
        if len(given) != len(body.inputs):
            raise CaptureError(
                f"a part of the program takes {len(body.inputs)} inputs, got {len(given)}"
            )
        if self._depth >= _DEEPEST:
            raise CaptureError(f"the program nests more than {_DEEPEST} regions: it is damaged")
        values: dict[str, Any] = dict(zip(body.inputs, given, strict=True))
        self._depth += 1
        for call in body.calls:
            self._enter(call.module)
            _bind(call.results, self._result(call, values), values)
            if isinstance(loss, Ref) and loss.name in values:
                self._session.recorder.differentiating = True
        self._depth -= 1
        if self._depth == 0:
            self._enter("")
            self._session.recorder.module_stack.clear()
        return _resolved(body.outputs, values)

    def _enter(self, module: str) -> None:
        if module != self._module:
            self._module = module
            self._session.recorder.module_stack[:] = [module]
            self._session.recorder.mark_module()

    def _result(self, call: Call, values: Mapping[str, Any]) -> Any:
        args = tuple(_resolved(a, values) for a in call.args)
        kwargs = {k: _resolved(v, values) for k, v in call.kwargs.items()}
        namespace, _, name = call.target.partition(".")
        if call.target == "getitem":
            return args[0][args[1]]
        if namespace == "sym":
            return _arithmetic(name, args)
        if namespace == "higher_order":
            return self._region(name, args, kwargs)
        func = operators.resolve(call.target)
        if func is None:
            return self._as_described(call, args, kwargs)
        packet = name.partition(".")[0]
        args, kwargs = operators.arranged(func, args, kwargs)
        if packet in operators.CHECKS:
            return None
        if packet in operators.SHAPE_READS:
            return operators.SHAPE_READS[packet](*args)
        if call.target in _ALIASES:
            return args[0]
        operators.check_parts(packet, args)
        if call.target in _UNRECORDED:
            with self._session.recorder.pause():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    # -- regions --------------------------------------------------------------------------------

    def _region(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that is given a part of the program."""
        region: Callable[..., Any] | None = getattr(self, f"_{name}", None)
        if name not in _REGIONS or region is None:
            raise CaptureError(
                f"{name} is a part of exported programs that capture does not know: capture the "
                f"module itself, or export it without; known: {', '.join(_REGIONS)}"
            )
        return region(*args, **kwargs)

    def _wrap_with_set_grad_enabled(self, enabled: bool, body: Body, *args: Any) -> Any:
        with torch.set_grad_enabled(bool(enabled)):
            return self.run(body, args)

    def _wrap_with_autocast(
        self, device: str, dtype: Any, enabled: bool, cache: Any, body: Body, *args: Any
    ) -> Any:
        with torch.autocast(str(device), dtype=dtype, enabled=bool(enabled), cache_enabled=cache):
            return self.run(body, args)

    def _hints_wrapper(self, body: Body, args: Sequence[Any], *_: Any, **__: Any) -> Any:
        return self.run(body, args)

    def _invoke_subgraph(self, body: Body, _identifier: Any, *args: Any) -> Any:
        return self.run(body, args)

    def _cond(self, test: Any, yes: Body, no: Body, args: Sequence[Any]) -> Any:
        return self.run(yes if bool(test) else no, args)

    # -- operators that are not run -------------------------------------------------------------

    def _as_described(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The results of another library's operator, in the shapes that the export gives them."""
        operands = [t for t in _leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
        name = call.target.rpartition(".")[0]
        if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
            raise CaptureError(
                f"{name} is an operator of another library, whose backward the export does not "
                "hold: capture mode='infer', or the module itself"
            )
        if not call.metas or any(meta is None for meta in call.metas):
            raise CaptureError(
                f"{name} is none of PyTorch's operators on tensors, and the export does not "
                "describe its results: capture the module itself"
            )
        with self._session.recorder.pause():
            made = [self.tensor(meta) for meta in call.metas if meta is not None]
        self._session.recorder.record(name, operands, made, {})
        self._session.recorder.notes.append(
            f"{name} is an operator of another library: taken in the shapes that the export gives"
        )
        single = len(made) == 1 and not isinstance(call.results, tuple)
        return made[0] if single else tuple(made)

    def tensor(self, meta: TensorMeta) -> torch.Tensor:
        """A meta tensor of its own as described."""
        return torch.empty_strided(
            self.sizes(meta.sizes), self.sizes(meta.strides), dtype=meta.dtype, device="meta"
        )

    def sizes(self, sizes: Sequence[int | str]) -> tuple[int, ...]:
        """The numbers that sizes stand for."""
        found = tuple(bounded(evaluate(size, self.symbols)) for size in sizes)
        if any(size < 0 for size in found):
            raise CaptureError(f"the program describes a tensor of shape {found}: it is damaged")
        return found


_REGIONS = (
    "wrap_with_set_grad_enabled", "wrap_with_autocast", "hints_wrapper", "invoke_subgraph", "cond",
)  # fmt: skip


def _arithmetic(name: str, args: tuple[Any, ...]) -> Any:
    work = operators.ARITHMETIC.get(name.removeprefix("ops."))
    if work is None:
        raise CaptureError(f"{name} is no arithmetic on sizes that capture knows")
    if not all(isinstance(a, int | float | list) for a in args):
        raise CaptureError(f"{name} is given something else than sizes: the program is damaged")
    return bounded(work(*args))


def _resolved(value: Any, values: Mapping[str, Any]) -> Any:
    """An argument with the values that it refers to."""
    if isinstance(value, Ref):
        if value.name not in values:
            raise CaptureError(f"the program uses {value.name!r} before it makes it: it is damaged")
        return values[value.name]
    if isinstance(value, list):
        return [_resolved(v, values) for v in value]
    if isinstance(value, tuple):
        return tuple(_resolved(v, values) for v in value)
    if isinstance(value, Mapping):
        return {k: _resolved(v, values) for k, v in value.items()}
    return value


def _bind(pattern: Pattern, value: Any, values: dict[str, Any]) -> None:
    if pattern is None or pattern == ():  # nothing of it is used
        return
    if isinstance(pattern, str):
        values[pattern] = value
        return
    parts = value if isinstance(value, list | tuple) else (value,)
    if len(parts) != len(pattern):
        raise CaptureError(
            f"a call makes {len(parts)} results where the program names {len(pattern)}: it is "
            "damaged, or of another version of PyTorch"
        )
    for inner, part in zip(pattern, parts, strict=True):
        _bind(inner, part, values)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    if isinstance(value, list | tuple):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]
