"""Lets a torchvision whose binary does not fit the installed torch be imported.

A torchvision built for CUDA beside a CPU build of torch lacks the operators that its own import
names, and every library that imports it where it is there (timm, transformers, torchmetrics and so
Lightning) fails. None of its operators is used here: their schemas are enough.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.library import Library

SCHEMAS: tuple[str, ...] = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Operators that torchvision's import names (its `_meta_registrations.py`)."""


@cache
def ensure_torchvision() -> Library | None:
    """Import torchvision where it is installed; call before a library that imports it.

    Returns:
        The library of declared operators, which lives as long as it is referred to; None where
        torchvision is not installed or complete.
    """
    if find_spec("torchvision") is None:
        return None
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    else:
        return None
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    from torch.library import Library

    library = Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    import_module("torchvision")
    return library
