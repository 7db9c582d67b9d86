"""Every bundled model against the library that people run: the same calls, in both phases."""

from collections import Counter

import pytest
import torch

from predictor.capture.torch import capture_module
from predictor.zoo.bert import BertConfig, BertForPreTraining
from predictor.zoo.convnext import ConvNext
from predictor.zoo.gpt import Gpt, GptConfig
from predictor.zoo.llama import Llama, LlamaConfig
from predictor.zoo.mixtral import Mixtral, MixtralConfig
from predictor.zoo.opt import Opt, OptConfig
from predictor.zoo.t5 import T5, T5Config
from predictor.zoo.vision import BasicBlock, ResNet
from predictor.zoo.whisper import Whisper, WhisperConfig

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
LLAMA = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 100}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def _ids(*shape):
    return torch.zeros(*shape, dtype=torch.long)


def _decoders(transformers):
    causal = {"input_ids": _ids(2, 32), "labels": _ids(2, 32)}
    grouped = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 96, **ROPE}
    gpt2 = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, n_positions=64, vocab_size=100, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    opt = transformers.OPTConfig(
        **SIZES, word_embed_proj_dim=64, ffn_dim=96, max_position_embeddings=64
    )
    mixtral = transformers.MixtralConfig(
        **grouped, num_local_experts=4, pad_token_id=None, bos_token_id=0, eos_token_id=0
    )
    mixtral._experts_implementation = "grouped_mm"
    qwen = transformers.Qwen2Config(**grouped, pad_token_id=None)
    mistral = transformers.MistralConfig(**grouped, head_dim=16, sliding_window=40)
    return {
        "gpt2": (
            lambda: transformers.GPT2LMHeadModel(gpt2),
            lambda: Gpt(GptConfig(layers=2, hidden=64, heads=4, positions=64, vocab=100)),
            causal,
        ),
        "llama": (
            lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**grouped)),
            lambda: Llama(LlamaConfig(**LLAMA)),
            causal,
        ),
        "mistral": (
            lambda: transformers.MistralForCausalLM(mistral),
            lambda: Llama(LlamaConfig(**LLAMA, window=40)),
            causal,
        ),
        "mixtral": (
            lambda: transformers.MixtralForCausalLM(mixtral),
            lambda: Mixtral(MixtralConfig(**LLAMA, experts=4)),
            causal,
        ),
        "qwen2": (
            lambda: transformers.Qwen2ForCausalLM(qwen),
            lambda: Llama(LlamaConfig(**LLAMA, qkv_bias=True)),
            causal,
        ),
        "opt": (
            lambda: transformers.OPTForCausalLM(opt),
            lambda: Opt(OptConfig(layers=2, hidden=64, heads=4, ffn=96, vocab=100, positions=64)),
            causal,
        ),
    }


def _others(transformers):
    ids = _ids(2, 32)
    bert = transformers.BertConfig(**SIZES, intermediate_size=256)
    t5 = transformers.T5Config(
        d_model=64, d_kv=16, num_heads=4, d_ff=96, num_layers=2, vocab_size=100,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    whisper = transformers.WhisperConfig(
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=100,
        num_mel_bins=8, max_source_positions=20, max_target_positions=40, pad_token_id=0,
        bos_token_id=1, eos_token_id=1, decoder_start_token_id=1,
    )  # fmt: skip
    small = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 96, "vocab": 100}
    return {
        "bert": (
            lambda: transformers.BertForPreTraining(bert),
            lambda: BertForPreTraining(BertConfig(layers=2, hidden=64, heads=4, vocab=100)),
            {"input_ids": ids, "labels": ids, "token_type_ids": ids,
             "next_sentence_label": ids[:, 0]},
        ),
        "t5": (
            lambda: transformers.T5ForConditionalGeneration(t5),
            lambda: T5(T5Config(**small, head_dim=16)),
            {"input_ids": ids, "labels": _ids(2, 24)},
        ),
        "whisper": (
            lambda: transformers.WhisperForConditionalGeneration(whisper),
            lambda: Whisper(WhisperConfig(**small, mels=8, source=20, target=40, start=1)),
            {"input_features": torch.empty(2, 8, 40), "labels": _ids(2, 24)},
        ),
    }  # fmt: skip


def _calls(graph):
    """Calls with floating-point results (the library also compares position ids)."""
    return Counter(
        (n.phase, n.op, tuple((s.shape, s.dtype) for s in n.outputs))
        for n in graph.nodes
        if not n.attrs.get("view") and n.outputs and n.outputs[0].dtype in ("fp32", "bf16")
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("amp", [None, "bf16"])
@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "mistral", "mixtral", "qwen2", "opt", "bert", "t5", "whisper"]
)
def test_same_calls_as_transformers(name, amp):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    theirs, ours, inputs = {**_decoders(transformers), **_others(transformers)}[name]
    with torch.device("meta"):
        library, own = theirs(), ours()
    extra = {} if name == "bert" else {"use_cache": False}
    options = {"mode": "train", "amp": amp}
    captured = capture_module(library, (), {**inputs, **extra}, **options)
    assert _calls(capture_module(own, (), inputs, **options)) == _calls(captured)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("resnet18", lambda: ResNet((2, 2, 2, 2), BasicBlock)),
        ("resnet101", lambda: ResNet((3, 4, 23, 3))),
        ("resnet200", lambda: ResNet((3, 24, 36, 3))),
        ("convnext_base", ConvNext),
    ],
)
def test_same_calls_as_timm(name, own):
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        library, ours = timm.create_model(name), own()
    images = torch.empty(2, 3, 224, 224)
    theirs = capture_module(library, images, mode="train", loss=lambda out: out.sum())
    mine = capture_module(ours, images, mode="train", loss=lambda out: out["logits"].sum())
    assert _calls(mine) == _calls(theirs)
