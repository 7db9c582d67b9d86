"""A copy of a program's objects in which every tensor is a meta tensor: nothing is allocated.

The copy shares no mutable state with the original, so that capturing leaves modules, inputs and
optimizers as they were. Storage sharing (tied weights, views) is kept.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.overrides import TorchFunctionMode

from predictor.capture.specs import dtype_name
from predictor.errors import CaptureError

log = logging.getLogger(__name__)

_IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, FunctionType, BuiltinFunctionType, range,
)  # fmt: skip
_UNCOPYABLE = (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError)
"""What `copy.deepcopy` raises for locks, handles, process groups and the like."""


class MetaCopy:
    """Copies objects onto meta tensors; one instance a capture, so that sharing is kept."""

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._kept: list[object] = []
        self._originals: list[torch.Tensor] = []
        self.tensors: list[torch.Tensor] = []
        """Every dense tensor made, in order."""
        self.sparse: list[torch.Tensor] = []
        """Every sparse tensor met, in order; they are not copied."""
        self.compiled = False
        """Whether a module was under `torch.compile`; its copy is not."""

    def __call__(self, value: Any) -> Any:
        """The copy of any object: modules, pytrees of tensors, optimizers."""
        for module in _modules_in(value):
            self._add_module(module)
        with _DeepMeta(self):
            return self._copied(value)

    def copies(self, kind: type) -> list[Any]:
        """Copies of a type made so far (submodules included), each once."""
        found = {id(v): v for v in self._memo.values() if isinstance(v, kind)}
        return list(found.values())

    def pairs(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """(meta twin, original) of every dense tensor."""
        return zip(self.tensors, self._originals, strict=True)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The meta twin of a tensor: same strides, offset and sharing; sparse ones stay real."""
        known = self._memo.get(id(tensor))
        if known is not None:
            return known  # type: ignore[no-any-return]
        _check_copyable(tensor)
        if tensor.layout is not torch.strided:
            if not any(tensor is met for met in self.sparse):
                self.sparse.append(tensor)
            return tensor
        twin = self._twin(tensor)
        if isinstance(tensor, nn.Parameter):
            twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad and tensor.is_leaf:
            twin.requires_grad_()
        if tensor.__dict__:
            twin.__dict__.update(tensor.__dict__)
        self._memo[id(tensor)] = twin
        self._kept.append(tensor)
        self.tensors.append(twin)
        self._originals.append(tensor)
        return twin

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        held = self._storages.get(key)
        if held is None:
            held = self._storages[key] = torch.UntypedStorage(storage.nbytes(), device="meta")
            self._kept.append(storage)
        twin = torch.empty(0, dtype=tensor.dtype, device="meta")
        with torch.no_grad():
            twin.set_(held, tensor.storage_offset(), tensor.shape, tensor.stride())
        return twin

    def _add_module(self, root: nn.Module) -> None:
        """Copy a module tree: shells first, so that references among modules resolve."""
        if id(root) in self._memo:
            return
        _check_module(root)
        modules = [m for m in root.modules() if id(m) not in self._memo]
        for tensor in (*root.parameters(), *root.buffers()):
            self.tensor(tensor)
        inner = {m: uncompiled(m) for m in modules}
        plain = [m for m in modules if not hasattr(type(m), "__deepcopy__") and inner[m] is m]
        for module in plain:
            self._memo[id(module)] = object.__new__(type(module))
        for module in modules:  # who holds the wrapper of torch.compile gets what it wraps
            if inner[module] is not module and id(inner[module]) in self._memo:
                self._memo[id(module)] = self._memo[id(inner[module])]
        self._kept.extend(modules)
        self.compiled |= any(inner[m] is not m for m in modules)
        with _DeepMeta(self):
            for module in reversed(modules):  # parts first: a copy hook of the whole may use them
                if inner[module] is module and not hasattr(type(module), "__deepcopy__"):
                    self._fill(self._memo[id(module)], module)
                elif inner[module] is not module and id(module) not in self._memo:
                    self._memo[id(module)] = self._copied(inner[module])

    def _fill(self, shell: nn.Module, module: nn.Module) -> None:
        for name, value in module.__dict__.items():
            shell.__dict__[name] = self._copied(value)
        if shell.__dict__.get(_COMPILED_CALL) is not None:
            shell.__dict__[_COMPILED_CALL] = None
            self.compiled = True

    def _copied(self, value: Any) -> Any:
        if isinstance(value, _IMMUTABLE):
            return value
        if type(value) in (dict, list, set) and not value:
            return type(value)()
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        try:
            return copy.deepcopy(value, self._memo)
        except _UNCOPYABLE as error:
            log.debug("sharing %s with the original: %s", type(value).__name__, error)
            return value


class _DeepMeta(TorchFunctionMode):
    """While `copy.deepcopy` runs, tensors become meta twins instead of real copies."""

    def __init__(self, owner: MetaCopy) -> None:
        super().__init__()
        self._owner = owner

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__deepcopy__", "clone") and isinstance(args[0], torch.Tensor):
            return self._owner.tensor(args[0])
        return func(*args, **(kwargs or {}))


def uncompiled(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile(module)`; any other module as it is."""
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    return module


def _modules_in(value: Any) -> list[nn.Module]:
    if isinstance(value, nn.Module):
        return [value]
    if isinstance(value, Mapping):
        return [m for v in value.values() for m in _modules_in(v)]
    if isinstance(value, (list, tuple)):
        return [m for v in value for m in _modules_in(v)]
    return []


def _check_copyable(tensor: torch.Tensor) -> None:
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        raise CaptureError(
            "a lazy module has no shapes yet: run it once on real inputs, or build it with "
            "explicit sizes, and capture it then"
        )
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer) and not isinstance(
        tensor, nn.Parameter
    ):
        raise CaptureError(
            f"tensors of type {type(tensor).__name__} cannot be captured: pass plain torch.Tensor "
            "objects (for distributed or quantised tensors: the module before it was wrapped)"
        )
    if tensor.is_nested:
        raise CaptureError("nested tensors cannot be captured: pass a padded tensor and a mask")
    dtype_name(tensor.dtype)


_COMPILED_CALL = "_compiled_call_impl"
"""Where `module.compile()` keeps the compiled forward."""
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def _check_module(root: nn.Module) -> None:
    for name, module in root.named_modules():
        kind = type(module).__name__
        where = f"module {name!r}" if name else "the module"
        if kind in _WRAPPERS:
            raise CaptureError(
                f"{where} is wrapped in {kind}: capture one replica, `module.module`, and ask for "
                "several devices when estimating"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{where} is a TorchScript {kind}: pass the eager nn.Module it was made from"
            )
