"""Capture of PyTorch programs: a module's forward or training step, or a user's own step function.

The program runs on meta tensors, so nothing is computed and no weight is allocated; the user's
module, inputs, optimizer and random state stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from predictor.capture.losses import Loss, step_loss
from predictor.capture.metacopy import uncompiled
from predictor.capture.optimizers import record_update, watch
from predictor.capture.recompute import checkpoint_blocks
from predictor.capture.session import Session
from predictor.errors import CaptureError
from predictor.graph.ir import OpGraph

OPTIMIZERS = ("adamw", "sgd")
AMP = ("fp16", "bf16")
DTYPES = ("fp32", "fp16", "bf16")


def capture_module(
    module: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Literal["infer", "train"] = "infer",
    loss: Loss | None = None,
    optimizer: str | None = "adamw",
    amp: str | None = None,
    dtype: str | None = None,
    recompute: bool = False,
    name: str | None = None,
) -> OpGraph:
    """The framework calls of one step of a module.

    Inference is one forward in eval mode without gradients. Training is zero-grad, forward, loss,
    backward and optimizer step; a module whose top is in eval mode is put in train mode (in the
    copy), otherwise the flags of its parts are kept.

    Args:
        module: any `nn.Module`, on any device; meta parameters need no memory.
        args: positional inputs: a tensor, or a tuple or list of pytrees.
        kwargs: keyword inputs.
        mode: `infer` or `train`.
        loss: maps the module's output to a scalar; by default the output's own `loss`, else
            cross-entropy for logits, else the mean of the outputs (noted in the warnings).
        optimizer: `adamw`, `sgd` (without momentum) or None for no update; training only.
        amp: `fp16` or `bf16` runs forward and loss under CUDA autocast.
        dtype: casts the copy's floating-point parameters, buffers and inputs first.
        recompute: checkpoints every block of the module's stacks (members of one class of an
            `nn.ModuleList` or `nn.Sequential`): they run again in the backward; training only.
        name: what to call the program; the class name by default.

    Raises:
        CaptureError: the program cannot be captured; the message says where and what to pass.

    >>> import torch
    >>> graph = capture_module(torch.nn.Linear(4, 2), torch.ones(3, 4))
    >>> [node.op for node in graph.nodes]
    ['aten.t', 'aten.addmm']
    """
    check_options(mode=mode, optimizer=optimizer, amp=amp, dtype=dtype)
    if not isinstance(module, nn.Module):
        raise CaptureError(f"expected an nn.Module, got {type(module).__name__}")
    if recompute and mode != "train":
        raise CaptureError("recompute is for training: mode='train' (--train)")
    session = Session(name or type(uncompiled(module)).__name__, amp)
    twin = session.take_module(module)
    given, named = session.take_inputs((_positional(args), dict(kwargs or {})))
    if dtype is not None:
        twin = session.cast(dtype, twin)
        given, named = session.cast(dtype, (given, named))
    if mode == "infer":
        twin.eval()
    elif not twin.training:
        twin.train()
    if recompute:
        with session.guarded():
            checkpoint_blocks(session.recorder, twin)
    return record_step(
        session, lambda: twin(*given, **named), twin,
        mode=mode, loss=loss, optimizer=optimizer,
    )  # fmt: skip


def record_step(
    session: Session,
    forward: Callable[[], Any],
    twin: nn.Module,
    *,
    mode: Literal["infer", "train"],
    loss: Loss | None,
    optimizer: str | None,
) -> OpGraph:
    """One step of a program that a session has taken in.

    Args:
        session: what records.
        forward: runs the program on its inputs.
        twin: holds its parameters.
        mode: `infer` or `train`.
        loss: see `capture_module`.
        optimizer: see `capture_module`.

    Raises:
        CaptureError: the program fails, or nothing of it can be trained.
    """
    if mode == "infer":
        with session.running(), torch.no_grad(), session.autocast():
            forward()
        return session.graph("infer")
    for parameter in twin.parameters():
        parameter.grad = None
    updated: Any = ()
    with session.running():
        with torch.enable_grad(), session.autocast():
            value = _loss(session, forward(), loss)
        if not value.requires_grad:
            raise CaptureError(
                "the loss depends on no trainable parameter: set requires_grad on some, or "
                "capture mode='infer'"
            )
        value.backward()
        updated = record_optimizer(session, twin, optimizer)
    return session.graph("train", optimizer=optimizer, updated=updated)


def record_optimizer(
    session: Session, twin: nn.Module, optimizer: str | None
) -> Sequence[torch.Tensor]:
    """The update that ends a step; returns the parameters that got a gradient."""
    if optimizer is None:
        return [p for p in session.parameters() if session.has_gradient(p)]
    session.recorder.optimizing = True
    return record_update(session.recorder, optimizer, twin.parameters())


def capture_step(
    step: Callable[..., Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    amp: str | None = None,
    name: str | None = None,
) -> OpGraph:
    """The framework calls of a user's own step function.

    Everything the step uses is passed to it: modules, optimizers and tensors are copied onto meta
    tensors. Calls of autograd are the backward phase, those of `optimizer.step()` and whatever
    follows the last backward the optimizer phase.

    Args:
        step: called once as `step(*args, **kwargs)`.
        args: positional arguments.
        kwargs: keyword arguments.
        amp: runs the whole step under CUDA autocast; a step may also enter `torch.autocast`.
        name: what to call the program; the function's name by default.

    Raises:
        CaptureError: the program cannot be captured; the message says where and what to pass.
    """
    check_options(mode="train", optimizer=None, amp=amp, dtype=None)
    session = Session(name or str(getattr(step, "__name__", type(step).__name__)), amp)
    given, named = session.take_step((_positional(args), dict(kwargs or {})))
    optimizers = session.copy.copies(torch.optim.Optimizer)
    for optimizer in optimizers:
        watch(session.recorder, optimizer)
    with session.running(), session.autocast():
        step(*given, **named)
    updated = [p for p in session.parameters() if session.has_gradient(p)]
    kind = next((type(o).__name__.lower() for o in optimizers), None)
    trains = bool(optimizers or updated)
    return session.graph("train" if trains else "infer", optimizer=kind, updated=updated)


def _loss(session: Session, output: Any, loss: Loss | None) -> torch.Tensor:
    value, note = step_loss(
        output,
        loss,
        token_shape=session.token_shape,
        make_target=lambda shape: session.add_input(shape, torch.int64),
    )
    if note is not None:
        session.warnings.append(note)
    return value


def _positional(args: Any) -> tuple[Any, ...]:
    return tuple(args) if isinstance(args, (tuple, list)) else (args,)


def check_options(*, mode: str, optimizer: str | None, amp: str | None, dtype: str | None) -> None:
    """Refuse what no capture knows.

    Raises:
        CaptureError: names the value and what is allowed.
    """
    if mode not in ("infer", "train"):
        raise CaptureError(f"mode {mode!r} is unknown; use 'infer' or 'train'")
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise CaptureError(
            f"optimizer {optimizer!r} is unknown; use {', '.join(OPTIMIZERS)} or None (your own "
            "optimizer object works in capture_step)"
        )
    if amp is not None and amp not in AMP:
        raise CaptureError(f"amp {amp!r} is unknown; use {' or '.join(AMP)}, or None")
    if dtype is not None and dtype not in DTYPES:
        raise CaptureError(f"dtype {dtype!r} is unknown; use {', '.join(DTYPES)}, or None")
    if amp is not None and dtype not in (None, "fp32"):
        raise CaptureError(f"autocast ({amp}) is for fp32 modules; leave dtype={dtype!r} out")
