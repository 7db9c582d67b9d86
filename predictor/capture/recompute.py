"""Activation checkpointing of a copied module: every block of its stacks runs its forward again.

A block keeps its inputs only; the backward runs its forward once more, then its gradients, as
Megatron's full recomputation and torchtitan's full checkpointing do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from predictor.capture.recorder import Recorder
from predictor.errors import CaptureError

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def checkpoint_blocks(recorder: Recorder, module: nn.Module) -> int:
    """Checkpoint every block of a module that belongs to the capture; gives their number.

    Raises:
        CaptureError: the module has no stack of blocks.
    """
    found = list(repeated_blocks(module))
    if not found:
        raise CaptureError(
            "recompute checkpoints the blocks of a stack (an nn.ModuleList or nn.Sequential of "
            f"modules of one class), and {type(module).__name__} has none: use "
            "torch.utils.checkpoint in its forward, or leave recompute out"
        )
    for path, block in found:
        block.forward = _checkpointed(recorder, path, block.forward)
    names = dict.fromkeys(path.rpartition(".")[0] for path, _ in found)
    recorder.notes.append(
        f"activation checkpointing: {len(found)} blocks (of {', '.join(names)}) keep their inputs "
        "and run their forward again in the backward"
    )
    return len(found)


def repeated_blocks(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Path and module of the outermost blocks: members of one class of a list or sequence."""
    stack = isinstance(module, (nn.ModuleList, nn.Sequential))
    kinds = {type(child) for child in module.children()}
    count = len(list(module.children()))
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        inner = not isinstance(child, CONTAINERS) and any(True for _ in child.children())
        if stack and count > 1 and len(kinds) == 1 and inner:
            yield where, child
        else:
            yield from repeated_blocks(child, where)


def _checkpointed(recorder: Recorder, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        stack = recorder.module_stack
        if stack and stack[-1] == path:  # the first time, called through the module
            return forward(*args, **kwargs)
        stack.append(path)
        try:
            return forward(*args, **kwargs)
        finally:
            stack.pop()

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with set_checkpoint_early_stop(False):
            return checkpoint(inside, *args, use_reentrant=False, **kwargs)

    return run
