"""The function mode: sees calls where the program makes them, above autograd.

It takes apart what must be known whole (attention, recurrent layers, sparse products), runs what
CUDA fuses as one op, applies autocast, and keeps every device in the program symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from predictor.capture.autocast import CastPolicy
from predictor.capture.dispatch import DATA_REMEDY
from predictor.capture.intercept import HOST_TOO, META, interceptors, symbolic
from predictor.capture.known import KnownValues
from predictor.capture.recorder import Recorder
from predictor.errors import CaptureError

_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")

_VALUES: Mapping[str, str] = {
    "item": "`.item()` reads the value of a tensor",
    "tolist": "`.tolist()` reads the values of a tensor",
    "numpy": "`.numpy()` reads the values of a tensor",
    "__array__": "conversion to numpy reads the values of a tensor",
    "__bool__": "a branch (`if`, `while`, `and`) reads the value of a tensor",
    "__float__": "`float(tensor)` reads the value of a tensor",
    "__int__": "`int(tensor)` reads the value of a tensor",
    "__index__": "indexing with a tensor as a number reads its value",
    "__contains__": "`in` reads the values of a tensor",
    "allclose": "`torch.allclose` reads the values of tensors",
}


class RouteFunctions(TorchFunctionMode):
    """Routes the program's calls.

    Args:
        recorder: where composite ops are recorded.
        policy: the autocast in force.
        known: values that the program may read.
    """

    def __init__(self, recorder: Recorder, policy: CastPolicy, known: KnownValues) -> None:
        super().__init__()
        self._known = known
        self._recorder = recorder
        self._policy = policy
        self._bodies: dict[object, Callable[..., Any] | None] = {}
        self._active: set[object] = set()
        self._globals: dict[int, dict[str, Any]] = {}
        self._interceptors = interceptors(recorder)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one call of the program."""
        if isinstance(func, FunctionType):
            body = self._body(func)
            if body is None or func in self._active:
                return func(*args, **(kwargs or {}))
            self._active.add(func)
            try:
                with self:
                    return body(*args, **(kwargs or {}))
            finally:
                self._active.discard(func)
        name = _called(func)
        keywords = dict(kwargs) if kwargs else {}
        if "device" in keywords:
            keywords["device"] = symbolic(keywords["device"])
        if name in _VALUES and _on_device(args[:2], {}):
            return self._read(name, func, args, keywords)
        if name in ("tensor", "as_tensor") and keywords.get("device") == META:
            return _made_on_host(func, args, keywords)
        to = self._policy.dtype(recomputing=self._recomputing())
        if to is not None:
            args, keywords = self._policy.apply(name, to, args, keywords)
        intercept = self._interceptors.get(name)
        if intercept is not None and (name in HOST_TOO or _on_device(args, keywords)):
            result = intercept(func, to, args, keywords)
            if result is not NotImplemented:
                return result
        return func(*args, **keywords)

    def _read(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The program reads values: they are given where they are known."""
        real = self._known.real_arguments(args)
        if real is None:
            raise CaptureError(f"{_VALUES[name]}; {DATA_REMEDY}")
        return func(*real, **kwargs)

    def _recomputing(self) -> bool:
        """Whether autograd is running the forward again (checkpointing)."""
        return torch.is_grad_enabled() and torch._C._current_autograd_node() is not None

    def _body(self, func: FunctionType) -> Callable[..., Any] | None:
        """The Python body of a library function, without its check for function modes.

        The check would hand the call to this mode once more; without it the calls *inside* come
        here one by one. None for functions that do not check.
        """
        if func in self._bodies:
            return self._bodies[func]
        body: Callable[..., Any] | None = None
        plain = "__class__" in func.__code__.co_freevars  # super(): straight to the C method
        if not plain and any(name in func.__globals__ for name in _CHECKS):
            scope = self._globals.get(id(func.__globals__))
            if scope is None:
                scope = self._globals[id(func.__globals__)] = {
                    **func.__globals__,
                    **{name: _never for name in _CHECKS if name in func.__globals__},
                }
            rebound = FunctionType(
                func.__code__, scope, func.__name__, func.__defaults__, func.__closure__
            )
            rebound.__kwdefaults__ = func.__kwdefaults__
            body = rebound
        self._bodies[func] = body
        return body


def _called(func: Any) -> str:
    """The name of a call; that of an aten overload (`aten::linear.default`) is its packet's."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._opname)
    return getattr(func, "__name__", "")


def _on_device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether any operand is a device (meta) tensor."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            if value.is_meta:
                return True
        elif isinstance(value, (list, tuple)) and _on_device(tuple(value), {}):
            return True
    return False


def _never(*_: object) -> bool:
    return False


def _made_on_host(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor(data, device=…)`: made on the host, then copied over."""
    if args and isinstance(args[0], torch.Tensor):
        return func(*args, **kwargs)
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "requires_grad")}
    made = func(*args, **rest).to(META)
    return made.requires_grad_() if kwargs.get("requires_grad") else made
