"""The function mode: sees calls where the program makes them, above autograd.

It takes apart what must be known whole (attention, recurrent layers, sparse products), runs what
CUDA fuses as one op, applies autocast, and keeps every device in the program symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from predictor.capture import attention, fused, recurrent, sparse
from predictor.capture.autocast import CastPolicy
from predictor.capture.dispatch import DATA_REMEDY
from predictor.capture.known import KnownValues
from predictor.capture.recorder import Recorder
from predictor.errors import CaptureError

Interceptor = Callable[..., Any]

_META = torch.device("meta")
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


_HOST_TOO = frozenset({"to", "cuda"})
"""Interceptors that also take tensors of the host."""


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
        self._interceptors = _interceptors(recorder)

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
        name = getattr(func, "__name__", "")
        keywords = dict(kwargs) if kwargs else {}
        if "device" in keywords:
            keywords["device"] = _symbolic(keywords["device"])
        if name in _VALUES and _on_device(args[:2], {}):
            return self._read(name, func, args, keywords)
        if name in ("tensor", "as_tensor") and keywords.get("device") == _META:
            return _made_on_host(func, args, keywords)
        to = self._policy.dtype(recomputing=self._recomputing())
        if to is not None:
            args, keywords = self._policy.apply(name, to, args, keywords)
        intercept = self._interceptors.get(name)
        if intercept is not None and (name in _HOST_TOO or _on_device(args, keywords)):
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
        self._known.reads += 1
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


def _symbolic(device: Any) -> Any:
    """Accelerators become the meta device; the host stays the host."""
    if device is None:
        return None
    if isinstance(device, int):
        return _META
    parsed = torch.device(device) if isinstance(device, str) else device
    return parsed if parsed.type == "cpu" else _META


def _made_on_host(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor(data, device=…)`: made on the host, then copied over."""
    if args and isinstance(args[0], torch.Tensor):
        return func(*args, **kwargs)
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "requires_grad")}
    made = func(*args, **rest).to(_META)
    return made.requires_grad_() if kwargs.get("requires_grad") else made


def _interceptors(recorder: Recorder) -> dict[str, Interceptor]:
    """Calls that are not simply run, by name; each returns NotImplemented to decline."""

    def sdpa(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        return attention.attention(recorder, *args, **kwargs)

    def rnn(mode: str, func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        return recurrent.recurrent(recorder, mode, (*args, *kwargs.values()))

    def simple(target: Callable[..., Any], func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        return target(recorder, *args, **kwargs)

    def matmul(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
        operands = [*args, *kwargs.values()]
        if not any(sparse.is_sparse(o) for o in operands):
            return NotImplemented
        if len(operands) == 2:
            return sparse.product(recorder, operands[0], operands[1])
        if len(operands) == 3:  # addmm
            return operands[0] + sparse.product(recorder, operands[1], operands[2])
        return NotImplemented

    return {
        "scaled_dot_product_attention": sdpa,
        "lstm": partial(rnn, "lstm"),
        "gru": partial(rnn, "gru"),
        "rnn_tanh": partial(rnn, "rnn_tanh"),
        "rnn_relu": partial(rnn, "rnn_relu"),
        "lstm_cell": partial(simple, recurrent.lstm_cell),
        "gru_cell": partial(simple, recurrent.gru_cell),
        "dropout": partial(simple, fused.dropout),
        "softmax": partial(simple, partial(fused.softmax, log=False)),
        "log_softmax": partial(simple, partial(fused.softmax, log=True)),
        "rms_norm": partial(simple, fused.rms_norm),
        "cross_entropy_loss": _cross_entropy,
        "matmul": matmul,
        "__matmul__": matmul,
        "mm": matmul,
        "mv": matmul,
        "addmm": matmul,
        "_sparse_mm": matmul,
        "embedding": partial(_sparse_gradient, recorder, 4),
        "embedding_bag": partial(_sparse_gradient, recorder, 5),
        "_nested_tensor_from_mask_left_aligned": partial(_padded, recorder),
        "cuda": _to_device,
        "cpu": _stays,
        "pin_memory": _stays,
        "to": _to,
    }


def _cross_entropy(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    """Under autocast log_softmax keeps the logits' dtype and nll_loss runs in fp32.

    The composite passes the logits' dtype on, so autocast leaves it (ATen/native/LossNLL.cpp).
    """
    bound = dict(
        zip(
            ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing"),
            args,
            strict=False,
        )
    )
    bound |= kwargs
    logits, target = bound["input"], bound["target"]
    smoothed = bound.get("label_smoothing", 0.0) > 0
    if to is None or logits.dtype is torch.float32 or smoothed or logits.shape == target.shape:
        return NotImplemented
    weight = bound.get("weight")
    log_probs = torch.log_softmax(logits, 0 if logits.dim() == 1 else 1).float()
    return torch._C._nn.nll_loss_nd(
        log_probs,
        target,
        None if weight is None else weight.float(),
        bound.get("reduction", 1),
        bound.get("ignore_index", -100),
    )


def _sparse_gradient(
    recorder: Recorder, flag: int, func: Any, to: Any, args: Any, kwargs: Any
) -> Any:
    """Embeddings with `sparse=True` (argument number `flag`) get a sparse gradient."""
    if kwargs or len(args) <= flag or args[flag] is not True:
        return NotImplemented
    weight = args[0]
    if not (torch.is_grad_enabled() and weight.requires_grad and weight.is_meta):
        return NotImplemented
    rest = list(args[2:])
    rest[flag - 2] = False  # the dense kernel forward; the gradient is ours
    return sparse.sparse_embedding(recorder, func, weight, args[1], tuple(rest))


def _padded(recorder: Recorder, func: Any, to: Any, args: Any, kwargs: Any) -> bool:
    """Encoders stay on padded batches: answering no keeps them off nested tensors."""
    recorder.notes.append(
        "nn.TransformerEncoder is captured on the padded batch, without its nested-tensor fast path"
    )
    return False


def _stays(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if args[0].is_meta else NotImplemented


def _to_device(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    return args[0].to("meta")


def _to(func: Any, to: Any, args: Any, kwargs: Any) -> Any:
    """`Tensor.to` with every device made symbolic."""
    x, *rest = args
    moved = [_symbolic(a) if isinstance(a, (str, torch.device)) else a for a in rest]
    if x.is_meta:  # a copy back to the host stays symbolic
        moved = [_META if isinstance(a, torch.device) else a for a in moved]
        kwargs = {**kwargs, "device": _META} if kwargs.get("device") else kwargs
        moved = [a.dtype if isinstance(a, torch.Tensor) and not a.is_meta else a for a in moved]
    return func(x, *moved, **kwargs)
