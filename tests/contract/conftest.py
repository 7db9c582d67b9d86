"""The six programs, taken through each front end."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def programs() -> Iterator[ModuleType]:
    """The module beside this file."""
    path = Path(__file__).with_name("programs.py")
    spec = importlib.util.spec_from_file_location("contract_programs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["contract_programs"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["contract_programs"]


@pytest.fixture(scope="session")
def made(programs: ModuleType) -> Callable[[str], tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """A program by name: its weights are random, since exporters merge weights that are equal."""
    kept: dict[str, Any] = {}

    def make(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        if name not in kept:
            torch.manual_seed(0)
            module, inputs = programs.PROGRAMS[name]()
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_floating_point():
                    nn.init.uniform_(tensor, 0.01, 0.1)
            kept[name] = module, inputs
        return kept[name]

    return make
