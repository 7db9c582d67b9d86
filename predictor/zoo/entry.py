"""What the table says of a named model, and the inputs of one step by kind of model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Mode = Literal["infer", "train"]
Inputs: TypeAlias = dict[str, Tensor]
MakeInputs: TypeAlias = Callable[[int, int, bool], Inputs]
"""Batch, sequence length (0 where the model has none) and whether labels are wanted."""

IMAGE = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model on meta tensors and the inputs of one step."""

    module: nn.Module
    inputs: Mapping[str, Tensor]


def ids(batch: int, seq: int) -> Tensor:
    """Token ids `[batch, seq]`."""
    return torch.empty(batch, seq, dtype=torch.long)


def tokens(batch: int, seq: int, train: bool) -> Inputs:
    """Token ids, and labels of the same shape."""
    inputs = {"input_ids": ids(batch, seq)}
    return {**inputs, "labels": ids(batch, seq)} if train else inputs


def sentence_pairs(batch: int, seq: int, train: bool) -> Inputs:
    """Token and segment ids, and the labels of both pretraining losses."""
    inputs = {**tokens(batch, seq, train), "token_type_ids": ids(batch, seq)}
    if train:
        inputs["next_sentence_label"] = torch.empty(batch, dtype=torch.long)
    return inputs


def token_pairs(batch: int, seq: int, train: bool) -> Inputs:
    """Source tokens and as many target tokens: given in inference, shifted labels in training."""
    target = "labels" if train else "decoder_input_ids"
    return {"input_ids": ids(batch, seq), target: ids(batch, seq)}


def images(batch: int, seq: int, train: bool) -> Inputs:
    """Images of 224 x 224, and a class each."""
    inputs = {"images": torch.empty(batch, 3, IMAGE, IMAGE)}
    return {**inputs, "labels": torch.empty(batch, dtype=torch.long)} if train else inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named model."""

    build: Callable[[], nn.Module]
    """Builds the model; called on the meta device."""
    parameters: int
    """Distinct parameters, as published."""
    batch: int
    """Default batch size."""
    seq: int | None = None
    """Default sequence length; None for models that take no sequence."""
    longest: int | None = None
    """Longest sequence that the position table holds."""
    inputs: MakeInputs = tokens
    """Inputs of one step; called on the meta device."""
    takes: str = "tokens"
    """What the inputs are, for messages."""
    description: str = ""
