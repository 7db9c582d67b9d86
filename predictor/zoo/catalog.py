"""The table of named models: how to build each, its default sizes and its published size."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import torch

from predictor.errors import CaptureError, UnknownTargetError
from predictor.zoo.entry import Entry, Mode, Program
from predictor.zoo.languages import LANGUAGE
from predictor.zoo.others import OTHER
from predictor.zoo.pictures import PICTURES

ZOO: Mapping[str, Entry] = {**LANGUAGE, **PICTURES, **OTHER}
"""The bundled models by name."""


def names() -> tuple[str, ...]:
    """Names of the bundled models."""
    return tuple(ZOO)


def build(
    name: str, *, mode: Mode = "infer", batch: int | None = None, seq: int | None = None
) -> Program:
    """A bundled model on meta tensors with the inputs of one step; nothing is allocated.

    Args:
        name: a key of `ZOO`.
        mode: `train` adds labels to the inputs, so that the model returns its loss.
        batch: batch size; the entry's own by default.
        seq: sequence length; the entry's own by default.

    Raises:
        UnknownTargetError: no such model.
        CaptureError: a size that the model does not take.
    """
    if name not in ZOO:
        raise UnknownTargetError(f"no bundled model {name!r}; known: {', '.join(ZOO)}")
    entry = ZOO[name]
    rows = _size("batch", entry.batch if batch is None else batch)
    length = _seq(name, entry, seq)
    with torch.device("meta"):
        return Program(module=entry.build(), inputs=entry.inputs(rows, length, mode == "train"))


def _size(what: str, size: object) -> int:
    whole = int(size) if isinstance(size, Integral) else 0
    if whole < 1:
        raise CaptureError(f"{what} must be at least 1, a whole number, not {size}")
    return whole


def _seq(name: str, entry: Entry, seq: int | None) -> int:
    if entry.seq is None:
        if seq is not None:
            raise CaptureError(
                f"{name} takes {entry.takes} and has no sequence length: leave seq out"
            )
        return 0
    length = _size("seq", entry.seq if seq is None else seq)
    if entry.longest is not None and length > entry.longest:
        raise CaptureError(
            f"{entry.description} has positions for {entry.longest} tokens, not {length}: "
            f"take seq up to {entry.longest}"
        )
    return length
