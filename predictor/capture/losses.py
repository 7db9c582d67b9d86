"""The loss of a training step when the user names none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from predictor.errors import CaptureError

Loss = Callable[[Any], torch.Tensor]


def own_loss(output: Any) -> torch.Tensor | None:
    """The loss that a module's output brings along: `output.loss` or `output["loss"]`."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return found if isinstance(found, torch.Tensor) else None


def _logits(output: Any) -> Any:
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    return getattr(output, "logits", output)


def step_loss(
    output: Any,
    loss: Loss | None,
    *,
    token_shape: tuple[int, ...] | None,
    make_target: Callable[[tuple[int, ...]], torch.Tensor],
) -> tuple[torch.Tensor, str | None]:
    """The scalar that backward starts from, and the note on how it was chosen.

    Args:
        output: what the module returned.
        loss: the user's own loss, or None.
        token_shape: shape of the token ids among the inputs, if any.
        make_target: makes integer class labels of a shape.

    Raises:
        CaptureError: the loss is no scalar, or the output holds no floating-point tensor.
    """
    if loss is not None:
        value = loss(output)
        if not isinstance(value, torch.Tensor) or value.dim() > 0:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise CaptureError(f"loss(output) must return a scalar tensor, not {shape}")
        return value, None
    brought = own_loss(output)
    if brought is not None:
        return (brought if brought.dim() == 0 else brought.mean()), None
    logits = _logits(output)
    if isinstance(logits, (tuple, list)) and logits:
        logits = logits[0]
    if isinstance(logits, torch.Tensor) and logits.is_floating_point():
        if logits.dim() == 3 and token_shape is not None and logits.shape[:2] == token_shape:
            rows = logits.reshape(-1, logits.shape[-1])
            value = functional.cross_entropy(rows, make_target((rows.shape[0],)))
            return value, "loss: cross-entropy over the logits of every token (none was given)"
        if logits.dim() == 2 and logits.shape[1] > 1:
            value = functional.cross_entropy(logits, make_target((logits.shape[0],)))
            return value, "loss: cross-entropy over the output's last axis (none was given)"
    floats = [t for t in _tensors(output) if t.is_floating_point()]
    if not floats:
        raise CaptureError(
            "the module's output holds no floating-point tensor to train on: pass "
            "loss=function(output) that returns a scalar"
        )
    total = floats[0].mean()
    for tensor in floats[1:]:
        total = total + tensor.mean()
    return total, "loss: mean of the outputs (none was given)"


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, Mapping):
        output = dict(output)
    return [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
