"""Shape rules of repeated calls worked out once: captures of deep models in half the time.

On meta tensors the rule of a call costs more than all the rest of a capture, and a model repeats
its blocks. A call whose operands have the shapes, strides and dtypes of an earlier one gets a
result of the same form. Views and calls without operands run as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.memory_format, torch.layout)


class MetaMemo(TorchDispatchMode):
    """Remembers the form of results by call and operands; enter it around a capture."""

    def __init__(self) -> None:
        super().__init__()
        self._forms: dict[tuple[Any, ...], tuple[bool, list[_Form | None]]] = {}
        self._fresh: dict[Any, bool] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The call, or a result of the form that it had before."""
        kwargs = kwargs or {}
        if not self._gives_fresh_tensors(func):
            return func(*args, **kwargs)
        key = _key((func, args, tuple(sorted(kwargs.items()))))
        if key is None:
            return func(*args, **kwargs)
        known = self._forms.get(key)
        if known is not None:
            single, forms = known
            made = [None if form is None else _made(form) for form in forms]
            return made[0] if single else tuple(made)
        result = func(*args, **kwargs)
        single = not isinstance(result, (tuple, list))
        results = [result] if single else list(result)
        held = {t.untyped_storage()._cdata for t in _tensors((args, tuple(kwargs.values())))}
        if all(_is_fresh(r, held) for r in results):
            forms = [None if r is None else (tuple(r.shape), r.stride(), r.dtype) for r in results]
            self._forms[key] = single, forms
        return result

    def _gives_fresh_tensors(self, func: Any) -> bool:
        """Whether no result shares memory with an operand, by the schema."""
        known = self._fresh.get(func)
        if known is None:
            schema = func._schema
            parts = (*schema.arguments, *schema.returns)
            known = self._fresh[func] = (
                func.namespace == "aten"
                and bool(schema.returns)
                and all("Tensor" in str(r.type) and "[]" not in str(r.type) for r in schema.returns)
                and all(p.alias_info is None for p in parts)
                and any("Tensor" in str(a.type) for a in schema.arguments)
                and func.overloadpacket.__name__ not in ("_to_copy", "lift_fresh")
            )
        return known


def _made(form: _Form) -> torch.Tensor:
    shape, stride, dtype = form
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _is_fresh(result: Any, held: set[int]) -> bool:
    """Whether a result is a meta tensor with memory of its own: some schemas hide a view."""
    if result is None:
        return True
    return (
        isinstance(result, torch.Tensor)
        and result.is_meta
        and result.untyped_storage()._cdata not in held
    )


def _key(value: Any) -> Any:
    """A hashable form of a call; None where an operand is no meta tensor or plain value."""
    if isinstance(value, torch.Tensor):
        if not value.is_meta or value.layout is not torch.strided:
            return None
        return (tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    if isinstance(value, (tuple, list)):
        parts = [_key(item) for item in value]
        if any(p is None for p in parts):
            return None
        return tuple(parts)
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, _PLAIN):
        return (type(value), value)
    return value if callable(value) else None
