"""State of the process around a captured program: random generators, compiled functions, foreach.

Everything is as it was when the context ends.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import _foreach_utils

_SEED = 0


@contextmanager
def as_on_device() -> Iterator[None]:
    """All of this module's contexts."""
    with ExitStack() as stack:
        stack.enter_context(preserved_random_state())
        stack.enter_context(compiled_functions_eager())
        stack.enter_context(foreach_on_meta())
        yield


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """The same draws in every capture, and the caller's generators as they were."""
    generator = torch.default_generator
    state, python_state = generator.get_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    generator.manual_seed(_SEED)
    random.seed(_SEED)
    if numpy is not None:
        numpy.random.seed(_SEED)
    try:
        yield
    finally:
        generator.set_state(state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


@contextmanager
def compiled_functions_eager() -> Iterator[None]:
    """Compiled functions run eagerly: their own graph capture would hide the calls."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    stance: Callable[[str], AbstractContextManager[Any]] = torch.compiler.set_stance
    with stance("force_eager"):
        yield


@contextmanager
def foreach_on_meta() -> Iterator[None]:
    """Multi-tensor calls (gradient clipping) are chosen for meta tensors as for CUDA ones."""
    supported: Callable[[], list[str]] = _foreach_utils._get_foreach_kernels_supported_devices

    def with_meta() -> list[str]:
        return [*supported(), "meta"]

    _foreach_utils._get_foreach_kernels_supported_devices = with_meta
    try:
        yield
    finally:
        _foreach_utils._get_foreach_kernels_supported_devices = supported
