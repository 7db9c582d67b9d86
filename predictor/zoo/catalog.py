"""The table of named models: how to build each, its default sizes and its published size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from predictor.errors import CaptureError, UnknownTargetError
from predictor.zoo.bert import BertConfig, BertForPreTraining
from predictor.zoo.gpt import Gpt, GptConfig
from predictor.zoo.llama import Llama, LlamaConfig
from predictor.zoo.opt import Opt, OptConfig
from predictor.zoo.recurrent import LstmConfig, LstmLm
from predictor.zoo.vision import IMAGE, ResNet, Vit

Mode = Literal["infer", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model on meta tensors and the inputs of one step."""

    module: nn.Module
    inputs: Mapping[str, Tensor]


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
    """Default sequence length; None for models that take images."""
    longest: int | None = None
    """Longest sequence that the position table holds."""
    pretraining: bool = False
    """Takes segment ids, and a next-sentence label in training."""
    description: str = ""


def _gpt(layers: int, hidden: int, heads: int, positions: int) -> Callable[[], nn.Module]:
    config = GptConfig(layers=layers, hidden=hidden, heads=heads, positions=positions)
    return partial(Gpt, config)


ZOO: Mapping[str, Entry] = {
    "bert-large": Entry(
        build=partial(BertForPreTraining, BertConfig(layers=24, hidden=1024, heads=16)),
        parameters=336_226_108,
        batch=8,
        seq=512,
        longest=512,
        pretraining=True,
        description="BERT-large with both pretraining heads",
    ),
    "gpt2": Entry(
        build=_gpt(12, 768, 12, 1024),
        parameters=124_439_808,
        batch=8,
        seq=1024,
        longest=1024,
        description="GPT-2, 12 layers",
    ),
    "gpt2-large": Entry(
        build=_gpt(36, 1280, 20, 1024),
        parameters=774_030_080,
        batch=4,
        seq=1024,
        longest=1024,
        description="GPT-2 large, 36 layers",
    ),
    "gpt3-xl": Entry(
        build=_gpt(24, 3072, 24, 2048),
        parameters=2_879_554_560,
        batch=1,
        seq=2048,
        longest=2048,
        description="GPT-3 XL with heads of 128 (24 x 128 = 3072 wide), as NeuSight measured it",
    ),
    "gpt3-2.7b": Entry(
        build=_gpt(32, 2560, 32, 2048),
        parameters=2_651_553_280,
        batch=1,
        seq=2048,
        longest=2048,
        description="GPT-3 2.7B, 32 layers",
    ),
    "opt-1.3b": Entry(
        build=partial(Opt, OptConfig(layers=24, hidden=2048, heads=32, ffn=8192)),
        parameters=1_315_758_080,
        batch=2,
        seq=2048,
        longest=2048,
        description="OPT-1.3B, 24 layers",
    ),
    "llama-3-8b": Entry(
        build=partial(Llama, LlamaConfig(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336)),
        parameters=8_030_261_248,
        batch=1,
        seq=4096,
        description="Llama 3 8B, 32 layers",
    ),
    "llama-3-70b": Entry(
        build=partial(Llama, LlamaConfig(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672)),
        parameters=70_553_706_496,
        batch=1,
        seq=4096,
        description="Llama 3 70B, 80 layers",
    ),
    "resnet-50": Entry(
        build=ResNet, parameters=25_557_032, batch=64, description="ResNet-50 v1.5, 224 x 224"
    ),
    "vit-b-16": Entry(
        build=Vit, parameters=86_567_656, batch=64, description="ViT-B/16, 224 x 224"
    ),
    "lstm-lm": Entry(
        build=partial(LstmLm, LstmConfig()),
        parameters=66_034_000,
        batch=20,
        seq=35,
        description="large LSTM language model (Zaremba et al. 2014)",
    ),
}
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
    rows = entry.batch if batch is None else batch
    if rows < 1:
        raise CaptureError(f"batch must be at least 1, not {rows}")
    with torch.device("meta"):
        module = entry.build()
        inputs = (
            _images(rows, mode)
            if entry.seq is None
            else _tokens(entry, rows, entry.seq if seq is None else seq, mode)
        )
    if entry.seq is None and seq is not None:
        raise CaptureError(f"{name} takes images and has no sequence length: leave seq out")
    return Program(module=module, inputs=inputs)


def _images(batch: int, mode: Mode) -> dict[str, Tensor]:
    inputs = {"images": torch.empty(batch, 3, IMAGE, IMAGE)}
    if mode == "train":
        inputs["labels"] = torch.empty(batch, dtype=torch.long)
    return inputs


def _tokens(entry: Entry, batch: int, seq: int, mode: Mode) -> dict[str, Tensor]:
    if seq < 1:
        raise CaptureError(f"seq must be at least 1, not {seq}")
    if entry.longest is not None and seq > entry.longest:
        raise CaptureError(
            f"{entry.description} has positions for {entry.longest} tokens, not {seq}: "
            f"take seq up to {entry.longest}"
        )
    inputs = {"input_ids": torch.empty(batch, seq, dtype=torch.long)}
    if entry.pretraining:
        inputs["token_type_ids"] = torch.empty(batch, seq, dtype=torch.long)
    if mode == "train":
        inputs["labels"] = torch.empty(batch, seq, dtype=torch.long)
        if entry.pretraining:
            inputs["next_sentence_label"] = torch.empty(batch, dtype=torch.long)
    return inputs
