"""The optimizer step as one op, `predictor.adamw`, `predictor.sgd` or `predictor.optimizer_other`.

On meta tensors `torch.optim` takes its single-tensor loop; a CUDA device takes the multi-tensor
(foreach) one. So the step is recorded whole and its launches are a matter of lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from predictor.capture.recorder import Recorder
from predictor.capture.specs import dtype_name
from predictor.errors import CaptureError

STATES: Mapping[str, int] = {"adamw": 2, "sgd": 0}
"""State tensors of the parameter's shape and dtype."""
STEP_BYTES: Mapping[str, int] = {"adamw": 4, "sgd": 0}
"""Bytes of the step counter of each parameter."""


def record_update(
    recorder: Recorder,
    name: str,
    parameters: Iterable[torch.Tensor],
    *,
    momentum: bool = False,
    options: Mapping[str, object] | None = None,
) -> Sequence[torch.Tensor]:
    """Record one update of all parameters that got a gradient; returns these.

    Args:
        recorder: where the node goes.
        name: `adamw`, `sgd` or `optimizer_other`.
        parameters: the optimizer's parameters.
        momentum: whether SGD keeps a momentum buffer.
        options: further attributes of the node.

    Raises:
        CaptureError: no parameter got a gradient, or AdamW meets a sparse one.
    """
    updated = [p for p in parameters if p.grad is not None or recorder.sparse_gradient_rows(p)]
    if not updated:
        raise CaptureError(
            "no parameter got a gradient: every parameter is frozen or unused by the loss; set "
            "requires_grad on some, or capture mode='infer'"
        )
    elements, state_bytes = 0, 0.0
    states = STATES.get(name, 2) + int(momentum and name == "sgd")
    for parameter in updated:
        rows = recorder.sparse_gradient_rows(parameter)
        if rows and name == "adamw":
            raise CaptureError(
                f"AdamW does not support the sparse gradient of a parameter of shape "
                f"{tuple(parameter.shape)}: use optimizer='sgd', or sparse=False"
            )
        elements += rows * math.prod(parameter.shape[1:]) if rows else parameter.numel()
        state_bytes += states * parameter.numel() * parameter.itemsize
        state_bytes += STEP_BYTES.get(name, 4)
    dtypes = sorted({dtype_name(p.dtype) for p in updated})
    attrs: dict[str, object] = {
        "numel": elements,
        "tensors": len(updated),
        "momentum": bool(momentum),
        "state_bytes": int(state_bytes),
        "dtypes": dtypes,
    }
    recorder.record_optimizer(f"predictor.{name}", updated, attrs | dict(options or {}))
    return updated


def watch(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    """Make `optimizer.step()` (of a copy) record one node instead of running its loop."""

    def step(closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        name = kind(optimizer)
        groups = optimizer.param_groups
        first = groups[0]
        record_update(
            recorder,
            name,
            [p for group in groups for p in group["params"]],
            momentum=any(group.get("momentum", 0) for group in groups),
            options={
                "kind": type(optimizer).__name__,
                "weight_decay": float(first.get("weight_decay") or 0.0),
                "fused": bool(first.get("fused")),
                "nesterov": bool(first.get("nesterov")),
            },
        )
        return result

    optimizer.step = step  # type: ignore[method-assign]


def kind(optimizer: torch.optim.Optimizer) -> str:
    """The composite op that stands for an optimizer."""
    if isinstance(optimizer, torch.optim.AdamW):
        return "adamw"
    return "sgd" if isinstance(optimizer, torch.optim.SGD) else "optimizer_other"
