"""Language models of the zoo: encoders, decoders, encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import nn

from predictor.zoo.bert import BertConfig, BertForPreTraining
from predictor.zoo.entry import Entry, sentence_pairs, token_pairs
from predictor.zoo.gpt import Gpt, GptConfig
from predictor.zoo.llama import Llama, LlamaConfig
from predictor.zoo.mixtral import Mixtral, MixtralConfig
from predictor.zoo.opt import Opt, OptConfig
from predictor.zoo.recurrent import LstmConfig, LstmLm
from predictor.zoo.t5 import T5, T5Config


def _gpt(layers: int, hidden: int, heads: int, positions: int) -> Callable[[], nn.Module]:
    config = GptConfig(layers=layers, hidden=hidden, heads=heads, positions=positions)
    return partial(Gpt, config)


def _bert(
    layers: int, hidden: int, heads: int, *, parameters: int, batch: int, words: str
) -> Entry:
    return Entry(
        build=partial(BertForPreTraining, BertConfig(layers=layers, hidden=hidden, heads=heads)),
        parameters=parameters,
        batch=batch,
        seq=512,
        longest=512,
        inputs=sentence_pairs,
        description=words,
    )


LANGUAGE: Mapping[str, Entry] = {
    "bert-base": _bert(
        12, 768, 12, parameters=110_106_428, batch=16,
        words="BERT-base with both pretraining heads (109,482,240 parameters without)",
    ),
    "bert-large": _bert(
        24, 1024, 16, parameters=336_226_108, batch=8,
        words="BERT-large with both pretraining heads",
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
    "gpt2-xl": Entry(
        build=_gpt(48, 1600, 25, 1024),
        parameters=1_557_611_200,
        batch=4,
        seq=1024,
        longest=1024,
        description="GPT-2 XL, 48 layers",
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
    "llama-2-7b": Entry(
        build=partial(
            Llama,
            LlamaConfig(
                layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008, vocab=32000,
                rope_theta=10000.0,
            ),
        ),
        parameters=6_738_415_616,
        batch=1,
        seq=4096,
        description="Llama 2 7B, 32 layers",
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
    "mistral-7b": Entry(
        build=partial(
            Llama,
            LlamaConfig(
                layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000,
                rope_theta=10000.0, window=4096,
            ),
        ),
        parameters=7_241_732_096,
        batch=1,
        seq=4096,
        description="Mistral 7B v0.1, a sliding window of 4096 tokens",
    ),
    "mixtral-8x7b": Entry(
        build=partial(Mixtral, MixtralConfig()),
        parameters=46_702_792_704,
        batch=1,
        seq=4096,
        description="Mixtral 8x7B, two of eight experts a token",
    ),
    "qwen2.5-7b": Entry(
        build=partial(
            Llama,
            LlamaConfig(
                layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064,
                rope_theta=1000000.0, eps=1e-6, qkv_bias=True,
            ),
        ),
        parameters=7_615_616_512,
        batch=1,
        seq=4096,
        description="Qwen2.5 7B, 28 layers, biases on query, key and value",
    ),
    "t5-base": Entry(
        build=partial(T5, T5Config()),
        parameters=222_903_552,
        batch=8,
        seq=512,
        inputs=token_pairs,
        description="T5-base, as many target as source tokens",
    ),
    "lstm-lm": Entry(
        build=partial(LstmLm, LstmConfig()),
        parameters=66_034_000,
        batch=20,
        seq=35,
        description="large LSTM language model (Zaremba et al. 2014)",
    ),
}  # fmt: skip
"""Language models by name."""
