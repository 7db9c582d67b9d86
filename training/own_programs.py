"""Programs whose steps the project measures itself: families of small models, and some known ones.

The graphs of all of them are captured by `capture_own.py`; `measure_own.py` runs them on a CPU,
`measure_device.py` some of them on any device. A fold holds whole families: 0 tests, 1 develops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from own_models import (
    Autoencoder,
    DenseNet,
    MessagePassing,
    Mixer,
    Mlp,
    MobileNet,
    Recurrent,
    Vgg,
)
from torch import nn

from predictor.graph.ir import OpGraph
from predictor.program import capture
from predictor.traces.measure.program import RealProgram, prepared, real_program
from predictor.traces.measure.real_values import real_inputs
from predictor.zoo.bert import BertConfig, BertForPreTraining
from predictor.zoo.convnext import ConvNext
from predictor.zoo.dlrm import Dlrm, DlrmConfig
from predictor.zoo.entry import Inputs, sentence_pairs, token_pairs, tokens
from predictor.zoo.gpt import Gpt, GptConfig
from predictor.zoo.llama import Llama, LlamaConfig
from predictor.zoo.opt import Opt, OptConfig
from predictor.zoo.t5 import T5, T5Config
from predictor.zoo.unet import Unet
from predictor.zoo.unet_blocks import UnetConfig
from predictor.zoo.vision import BasicBlock, ResNet, Vit
from predictor.zoo.whisper import Whisper, WhisperConfig

Mode = Literal["infer", "train"]
FOLDS: Mapping[str, int] = {
    "llama": 0, "convnext": 0, "gru": 0, "densenet": 0, "deit": 0,
    "t5": 1, "mobilenet": 1, "dlrm": 1, "vgg": 1,
    "gpt": 2, "resnet": 2, "mixer": 2, "rnn": 2, "efficientnet": 2,
    "bert": 3, "unet": 3, "lstm": 3, "mlp": 3, "regnet": 3,
    "opt": 4, "vit": 4, "whisper": 4, "autoencoder": 4, "gnn": 4, "ghostnet": 4,
}  # fmt: skip
"""Fold of each family."""
VOCAB = 8192
IMAGES = ("resnet", "vit", "convnext")
"""Families of the zoo whose inputs are images."""
BOTH: tuple[Mode, ...] = ("infer", "train")
HALF = ("fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A model at one size."""

    name: str
    family: str
    batch: int
    size: int = 0
    """Tokens or pixels; 0 where a model has neither."""
    build: Callable[[], nn.Module] | None = None
    """Builds the module; a named target of the library where there is none."""
    inputs: Callable[[int, int, bool], Inputs] | None = None
    takes: Literal["tokens", "images", "other"] = "tokens"
    modes: tuple[Mode, ...] = BOTH
    dtypes: tuple[str, ...] = ("fp32",)

    def program(self, mode: Mode, dtype: str, device: str = "cpu") -> RealProgram:
        """The model with weights and inputs, on a device."""
        if self.build is None:
            seq = self.size if self.takes == "tokens" else None
            real = real_program(self.name, device=device, mode=mode, batch=self.batch, seq=seq,
                                dtype=dtype)  # fmt: skip
            real.facts = self._facts()
            return real
        assert self.inputs is not None
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(0)
            module = self.build()
            with torch.device("meta"):
                wanted = self.inputs(self.batch, self.size, mode == "train")
            given = real_inputs(wanted, module, device)
            real = RealProgram(
                self.name, module, given, mode=mode, dtype=dtype, facts=self._facts(),
                optimizer="adamw" if mode == "train" else None,
            )  # fmt: skip
            return prepared(real)

    def graph(self, mode: Mode, dtype: str) -> OpGraph:
        """The captured step; a named target needs no memory for it."""
        if self.build is not None:
            return self.program(mode, dtype).graph()
        seq = self.size if self.takes == "tokens" else None
        return capture(self.name, mode=mode, batch=self.batch, seq=seq, dtype=dtype)

    def _facts(self) -> dict[str, float]:
        named = {"tokens": "seq", "images": "size"}.get(self.takes)
        return {"batch": self.batch, **({named: self.size} if named and self.size else {})}


def pictures(batch: int, size: int, train: bool) -> Inputs:
    """Square images, and a class each."""
    found: Inputs = {"images": torch.empty(batch, 3, size, size)}
    return {**found, "labels": torch.empty(batch, dtype=torch.long)} if train else found


def vectors(width: int, batch: int, size: int, train: bool) -> Inputs:
    """Rows of numbers, and a class each."""
    found: Inputs = {"x": torch.empty(batch, width)}
    return {**found, "labels": torch.empty(batch, dtype=torch.long)} if train else found


def _clicks(tables: int, batch: int, size: int, train: bool) -> Inputs:
    found: Inputs = {
        "dense": torch.empty(batch, 13),
        "indices": torch.empty(batch * tables, dtype=torch.long),
        "offsets": torch.empty(batch * tables, dtype=torch.long),
    }
    return {**found, "labels": torch.empty(batch)} if train else found


def _speech(config: WhisperConfig, batch: int, seq: int, train: bool) -> Inputs:
    heard = torch.empty(batch, config.mels, 2 * config.source)
    words = torch.empty(batch, seq, dtype=torch.long)
    return {"input_features": heard, "labels" if train else "decoder_input_ids": words}


def _latents(config: UnetConfig, batch: int, size: int, train: bool) -> Inputs:
    shape = (batch, config.latent, config.size, config.size)
    found: Inputs = {
        "latents": torch.empty(shape), "times": torch.empty(batch, dtype=torch.long),
        "text": torch.empty(batch, config.text_tokens, config.text),
    }  # fmt: skip
    return {**found, "noise": torch.empty(shape)} if train else found


def _small() -> Iterator[Spec]:
    """Small models, built here."""
    text = {"takes": "tokens", "dtypes": HALF}
    seen = {"takes": "images", "dtypes": HALF, "inputs": pictures}
    for layers, hidden, heads, batch, seq in ((4, 256, 4, 4, 128), (6, 384, 6, 2, 128),
                                              (2, 768, 12, 1, 256)):  # fmt: skip
        gpt = GptConfig(layers=layers, hidden=hidden, heads=heads, positions=512, vocab=VOCAB)
        yield Spec(name=f"gpt-{layers}x{hidden}", family="gpt", batch=batch, size=seq,
                   build=partial(Gpt, gpt), inputs=tokens, **text)  # fmt: skip
    for layers, hidden, heads, kv_heads, batch, seq in ((4, 384, 6, 2, 2, 128),
                                                        (2, 768, 12, 12, 1, 128)):  # fmt: skip
        llama = LlamaConfig(layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads,
                            ffn=hidden * 8 // 3, vocab=VOCAB)  # fmt: skip
        yield Spec(name=f"llama-{layers}x{hidden}", family="llama", batch=batch, size=seq,
                   build=partial(Llama, llama), inputs=tokens, **text)  # fmt: skip
    opt = OptConfig(layers=4, hidden=384, heads=6, ffn=1536, positions=512, vocab=VOCAB)
    yield Spec(name="opt-4x384", family="opt", batch=2, size=128, build=partial(Opt, opt),
               inputs=tokens, **text)  # fmt: skip
    for layers, hidden, heads, batch, seq in ((4, 256, 4, 4, 128), (6, 512, 8, 2, 64)):
        bert = BertConfig(layers=layers, hidden=hidden, heads=heads, vocab=VOCAB)
        yield Spec(name=f"bert-{layers}x{hidden}", family="bert", batch=batch, size=seq,
                   build=partial(BertForPreTraining, bert), inputs=sentence_pairs,
                   **text)  # fmt: skip
    for layers, hidden, batch, seq in ((3, 256, 2, 64), (2, 512, 1, 64)):
        t5 = T5Config(layers=layers, hidden=hidden, heads=hidden // 64, ffn=4 * hidden, vocab=VOCAB)
        yield Spec(name=f"t5-{layers}x{hidden}", family="t5", batch=batch, size=seq,
                   build=partial(T5, t5), inputs=token_pairs, **text)  # fmt: skip
    heard = WhisperConfig(layers=2, hidden=256, heads=4, ffn=1024, vocab=VOCAB, mels=40,
                          source=256, target=64, start=1)  # fmt: skip
    yield Spec(name="whisper-2x256", family="whisper", batch=2, size=32,
               build=partial(Whisper, heard), inputs=partial(_speech, heard), **text)  # fmt: skip
    for kind, hidden, layers, batch, seq in (("lstm", 256, 2, 8, 32), ("lstm", 512, 1, 4, 48),
                                             ("gru", 256, 2, 8, 32), ("gru", 384, 1, 8, 48),
                                             ("rnn", 384, 2, 8, 48)):  # fmt: skip
        yield Spec(name=f"{kind}-{layers}x{hidden}", family=kind, batch=batch, size=seq,
                   build=partial(Recurrent, kind, VOCAB, hidden, layers),
                   inputs=tokens)  # fmt: skip
    yield Spec(name="lstm-2way-1x256", family="lstm", batch=8, size=32, inputs=tokens,
               build=partial(Recurrent, "lstm", 1024, 256, 1, two_way=True))  # fmt: skip
    for blocks, batch, size in (((1, 1, 1, 1), 4, 96), ((2, 2, 2, 2), 2, 128)):
        yield Spec(name=f"resnet-basic-{sum(blocks)}", family="resnet", batch=batch, size=size,
                   build=partial(ResNet, blocks, BasicBlock), **seen)  # fmt: skip
    yield Spec(name="resnet-bottleneck-6", family="resnet", batch=2, size=128,
               build=partial(ResNet, (1, 2, 2, 1)), **seen)  # fmt: skip
    for widths, batch, size in (((32, 64, 128), 4, 64), ((48, 96, 192, 384), 2, 96)):
        yield Spec(name=f"vgg-{len(widths)}x{widths[-1]}", family="vgg", batch=batch, size=size,
                   build=partial(Vgg, widths), **seen)  # fmt: skip
    for widths, batch, size in (((16, 32, 64), 8, 96), ((24, 48, 96, 160), 2, 160)):
        yield Spec(name=f"mobilenet-{len(widths)}x{widths[-1]}", family="mobilenet", batch=batch,
                   size=size, build=partial(MobileNet, widths, 2), **seen)  # fmt: skip
    for growth, layers, batch, size in ((16, 4, 4, 64), (24, 6, 2, 96)):
        yield Spec(name=f"densenet-{layers}x{growth}", family="densenet", batch=batch, size=size,
                   build=partial(DenseNet, growth, layers, 3), **seen)  # fmt: skip
    for depths, widths, batch, size in (((1, 1, 3, 1), (48, 96, 192, 384), 2, 128),
                                        ((2, 2, 4, 2), (40, 80, 160, 320), 1, 160)):  # fmt: skip
        yield Spec(name=f"convnext-{sum(depths)}x{widths[-1]}", family="convnext", batch=batch,
                   size=size, build=partial(ConvNext, depths, widths), **seen)  # fmt: skip
    for patch, layers, hidden, batch, size in ((16, 4, 256, 4, 128), (8, 4, 192, 2, 96)):
        vit = partial(Vit, patch=patch, layers=layers, hidden=hidden, heads=hidden // 64,
                      mlp=4 * hidden, image=size)  # fmt: skip
        yield Spec(name=f"vit-{layers}x{hidden}-p{patch}", family="vit", batch=batch, size=size,
                   build=vit, **seen)  # fmt: skip
    yield Spec(name="mixer-4x256", family="mixer", batch=4, size=128,
               build=partial(Mixer, 128, 16, 256, 4), **seen)  # fmt: skip
    yield Spec(name="autoencoder-3x32", family="autoencoder", batch=2, size=64,
               build=partial(Autoencoder, 32, 3), **seen)  # fmt: skip
    noise = UnetConfig(size=16, widths=(64, 128), heads=4, text=128, text_tokens=16)
    yield Spec(name="unet-2x128", family="unet", batch=1, takes="other",
               build=partial(Unet, noise), inputs=partial(_latents, noise))  # fmt: skip
    for inputs, hidden, layers, batch in ((256, 512, 4, 256), (1024, 1024, 3, 64)):
        yield Spec(name=f"mlp-{layers}x{hidden}", family="mlp", batch=batch, takes="other",
                   build=partial(Mlp, inputs, hidden, layers), inputs=partial(vectors, inputs),
                   dtypes=HALF)  # fmt: skip
    bags = DlrmConfig(tables=(1000, 5000, 200, 10_000, 3000, 64, 800, 20_000), width=32,
                      bottom=(256, 32), top=(256, 1))  # fmt: skip
    for batch in (256, 1024):
        yield Spec(name=f"dlrm-8-b{batch}", family="dlrm", batch=batch, takes="other",
                   build=partial(Dlrm, bags), inputs=partial(_clicks, 8))  # fmt: skip
    for nodes, edges in ((2000, 16_000), (6000, 24_000)):
        yield Spec(name=f"gnn-3x128-n{nodes}", family="gnn", batch=nodes, takes="other",
                   build=partial(MessagePassing, 64, 128, 3, nodes, edges),
                   inputs=partial(vectors, 64))  # fmt: skip


def _known() -> Iterator[Spec]:
    """Bundled models and some of timm, at small sizes."""
    infer: tuple[Mode, ...] = ("infer",)
    for name, batch in (("resnet-18", 1), ("resnet-50", 1)):
        yield Spec(name=name, family="resnet", batch=batch, size=224, takes="images",
                   dtypes=HALF)  # fmt: skip
    yield Spec(name="vit-b-16", family="vit", batch=1, size=224, takes="images", modes=infer,
               dtypes=HALF)  # fmt: skip
    yield Spec(name="convnext-base", family="convnext", batch=1, size=224, takes="images",
               modes=infer)  # fmt: skip
    for name, family, batch, seq in (("bert-base", "bert", 1, 64), ("gpt2", "gpt", 1, 32),
                                     ("t5-base", "t5", 1, 16)):  # fmt: skip
        yield Spec(name=name, family=family, batch=batch, size=seq, modes=infer, dtypes=HALF)
    yield Spec(name="lstm-lm", family="lstm", batch=4, size=8, modes=infer)
    for name, family, size in (
        ("mobilenetv3_small_050", "mobilenet", 160), ("efficientnet_b0", "efficientnet", 128),
        ("regnetx_002", "regnet", 160), ("deit_tiny_patch16_224", "deit", 224),
        ("ghostnet_100", "ghostnet", 128), ("resnet10t", "resnet", 128),
    ):  # fmt: skip
        yield Spec(name=f"timm:{name}@{size}", family=family, batch=1, size=size, takes="images")


def on_a_gpu() -> list[tuple[Spec, Mode, str]]:
    """Steps of twenty bundled models at sizes for a large GPU, those that are run most first."""
    text: dict[str, tuple[str, int, int]] = {
        "gpt2": ("gpt", 8, 1024), "bert-base": ("bert", 16, 512), "bert-large": ("bert", 8, 512),
        "gpt2-large": ("gpt", 4, 1024), "t5-base": ("t5", 8, 512), "opt-1.3b": ("opt", 2, 1024),
        "lstm-lm": ("lstm", 20, 35), "whisper-base": ("whisper", 8, 128),
        "llama-3-8b": ("llama", 1, 2048), "mistral-7b": ("llama", 1, 2048),
        "qwen2.5-7b": ("llama", 1, 2048), "gpt2-xl": ("gpt", 2, 1024),
    }  # fmt: skip
    seen: dict[str, tuple[str, int]] = {
        "resnet-50": ("resnet", 64), "vit-b-16": ("vit", 64), "convnext-base": ("convnext", 32),
        "resnet-18": ("resnet", 128), "resnet-101": ("resnet", 64), "resnet-200": ("resnet", 32),
        "sd-1.5-unet": ("unet", 2), "dlrm": ("dlrm", 2048),
    }  # fmt: skip
    large = ("llama-3-8b", "mistral-7b", "qwen2.5-7b", "gpt2-xl", "opt-1.3b", "sd-1.5-unet")
    found = [
        Spec(name=name, family=family, batch=batch, size=seq)
        for name, (family, batch, seq) in text.items()
    ]
    found += [
        Spec(name=name, family=family, batch=batch, size=224 if family in IMAGES else 0,
             takes="images" if family in IMAGES else "other")
        for name, (family, batch) in seen.items()
    ]  # fmt: skip
    order = [
        "gpt2",
        "resnet-50",
        "bert-large",
        "vit-b-16",
        "llama-3-8b",
        "convnext-base",
        "t5-base",
    ]
    found.sort(key=lambda s: order.index(s.name) if s.name in order else len(order))
    first = [(s, "infer", "bf16") for s in found]
    trained = [(s, "train", "bf16") for s in found if s.name not in large]
    single = [(s, "infer", "fp32") for s in found if s.name not in large]
    return [step for steps in (first, trained, single) for step in steps]


def specs() -> list[Spec]:
    """All models, each once."""
    found = [*_small(), *_known()]
    assert len({s.name for s in found}) == len(found)
    assert {s.family for s in found} == set(FOLDS)
    return found


def steps() -> Iterator[tuple[Spec, Mode, str]]:
    """All steps: model, mode and dtype; families in turn, so that a part holds some of each."""
    every = [(s, mode, dtype) for s in specs() for dtype in s.dtypes for mode in s.modes]
    place: dict[str, int] = {}
    order = []
    for step in every:
        family = step[0].family
        place[family] = place.get(family, 0) + 1
        order.append((place[family], list(FOLDS).index(family), len(order), step))
    for *_, step in sorted(order, key=lambda x: x[:3]):
        yield step
