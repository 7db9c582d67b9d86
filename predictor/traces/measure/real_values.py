"""Values of weights and inputs: times do not depend on them, as long as none is out of range."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from predictor.errors import CaptureError
from predictor.zoo.vision import CLASSES

_SMALL_NAMES = ("token_type_ids", "next_sentence_label")
"""Inputs that take one of two values."""
_TIMES = 1000
"""Steps of a diffusion model."""


def set_weights(module: nn.Module) -> None:
    """Weights of usual size: some constructors leave memory as they find it."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() > 1:
                fan_in = math.prod(parameter.shape[1:])
                parameter.normal_(0.0, 1.0 / math.sqrt(max(1, fan_in)))
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def real_inputs(
    wanted: Mapping[str, Tensor], module: nn.Module, device: str
) -> Mapping[str, Tensor]:
    """Inputs of a bundled model with values: indices that are in range, numbers around zero.

    Raises:
        CaptureError: an input is sparse.
    """
    tables = [m for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    words = max((m.num_embeddings for m in tables), default=CLASSES)
    bags = [m.num_embeddings for m in tables if isinstance(m, nn.EmbeddingBag)]
    made: dict[str, Tensor] = {}
    for name, meta in wanted.items():
        if meta.layout is not torch.strided:
            raise CaptureError(
                f"input {name!r} is sparse: measure the module from file.py:function, which makes "
                "its own inputs"
            )
        shape = tuple(meta.shape)
        if meta.is_floating_point():
            made[name] = torch.randn(shape, device=device)
        elif name == "offsets":
            made[name] = torch.arange(shape[0], device=device) % (shape[0] // max(1, len(bags)))
        elif name == "indices" and bags:
            each = shape[0] // len(bags)
            made[name] = torch.cat([torch.randint(n, (each,), device=device) for n in bags])
        else:
            below = 2 if name in _SMALL_NAMES else _TIMES if name == "times" else words
            made[name] = torch.randint(below, shape, device=device)
    return made
