"""Typed access to `torch.autograd.Function`, which the ops kept whole are made of."""

from __future__ import annotations

from typing import Any

from torch.autograd import Function


def apply(function: type[Function], *args: Any) -> Any:
    """Run a custom function so that autograd calls its backward."""
    return function.apply(*args)
