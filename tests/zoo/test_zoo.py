"""The bundled models: published sizes, nothing allocated, the calls that people run."""

from collections import Counter

import pytest
import torch

from predictor.capture.torch import capture_module
from predictor.errors import CaptureError, UnknownTargetError
from predictor.graph.serialize import graph_from_dict, graph_to_dict
from predictor.zoo import ZOO, build, names
from predictor.zoo.bert import BertConfig, BertForPreTraining
from predictor.zoo.gpt import Gpt, GptConfig
from predictor.zoo.llama import Llama, LlamaConfig
from predictor.zoo.opt import Opt, OptConfig

PUBLISHED = {
    "bert-large": 336_226_108,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt3-xl": 24 * (12 * 3072**2 + 13 * 3072) + (50257 + 2048 + 2) * 3072,
    "gpt3-2.7b": 32 * (12 * 2560**2 + 13 * 2560) + (50257 + 2048 + 2) * 2560,
    "opt-1.3b": 1_315_758_080,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "resnet-50": 25_557_032,
    "vit-b-16": 86_567_656,
    "lstm-lm": 2 * 10_000 * 1500 + 10_000 + 2 * (8 * 1500**2 + 8 * 1500),
}


@pytest.mark.parametrize("name", names())
def test_published_parameter_counts_on_meta(name):
    program = build(name)
    parameters = list(program.module.parameters())
    assert sum(p.numel() for p in parameters) == ZOO[name].parameters == PUBLISHED[name]
    tensors = [*parameters, *program.module.buffers(), *program.inputs.values()]
    assert all(t.is_meta for t in tensors)


def test_the_table_holds_what_was_promised():
    assert set(names()) == set(PUBLISHED)


SMALL = ["gpt2", "resnet-50", "vit-b-16", "lstm-lm"]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_capture_and_round_trip(name, mode):
    program = build(name, mode=mode, batch=2)
    graph = capture_module(program.module, (), program.inputs, mode=mode, name=name)
    assert graph.workload.warnings == ()
    assert graph.workload.batch == 2
    assert graph_from_dict(graph_to_dict(graph)) == graph
    if mode == "train":
        assert graph.nodes[-1].attrs["numel"] == ZOO[name].parameters


def test_one_attention_node_a_layer_and_phase():
    program = build("gpt2-large", mode="train", batch=1, seq=128)
    graph = capture_module(program.module, (), program.inputs, mode="train")
    counted = Counter(n.op for n in graph.nodes)
    assert counted["predictor.sdpa"] == counted["predictor.sdpa_backward"] == 36
    assert counted["aten.native_layer_norm"] == 73
    assert counted["aten.pow"] == 36 * 2  # the written-out GELU, forward and backward
    assert graph.workload.tokens == 128


def test_grouped_query_attention_of_llama():
    program = build("llama-3-8b", batch=1, seq=64)
    graph = capture_module(program.module, (), program.inputs, dtype="bf16")
    node = next(n for n in graph.nodes if n.op == "predictor.sdpa")
    assert [node.attrs[k] for k in ("heads", "kv_heads", "head_dim", "causal")] == [
        32,
        8,
        128,
        True,
    ]
    assert graph.workload.parameters_bytes == 2 * 8_030_261_248


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("gpt5", {}, UnknownTargetError, "no bundled model 'gpt5'"),
        ("resnet-50", {"seq": 8}, CaptureError, "no sequence length"),
        ("gpt2", {"seq": 1025}, CaptureError, "positions for 1024 tokens"),
        ("gpt2", {"seq": 0}, CaptureError, "seq must be at least 1"),
        ("gpt2", {"batch": 0}, CaptureError, "batch must be at least 1"),
    ],
)
def test_sizes_out_of_range(name, options, kind, words):
    with pytest.raises(kind, match=words):
        build(name, **options)


SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}


def _pairs(transformers):
    """(the library's model, ours, our inputs) of equal small sizes."""
    ids = torch.zeros(2, 32, dtype=torch.long)
    causal = {"input_ids": ids, "labels": ids}
    masked = {**causal, "token_type_ids": ids, "next_sentence_label": ids[:, 0]}
    gpt2 = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, n_positions=64, vocab_size=100, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    llama = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, intermediate_size=96)
    opt = transformers.OPTConfig(
        **SIZES, word_embed_proj_dim=64, ffn_dim=96, max_position_embeddings=64
    )
    bert = transformers.BertConfig(**SIZES, intermediate_size=256)
    return {
        "gpt2": (
            lambda: transformers.GPT2LMHeadModel(gpt2),
            lambda: Gpt(GptConfig(layers=2, hidden=64, heads=4, positions=64, vocab=100)),
            causal,
        ),
        "llama": (
            lambda: transformers.LlamaForCausalLM(llama),
            lambda: Llama(LlamaConfig(layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=100)),
            causal,
        ),
        "opt": (
            lambda: transformers.OPTForCausalLM(opt),
            lambda: Opt(OptConfig(layers=2, hidden=64, heads=4, ffn=96, vocab=100, positions=64)),
            causal,
        ),
        "bert": (
            lambda: transformers.BertForPreTraining(bert),
            lambda: BertForPreTraining(BertConfig(layers=2, hidden=64, heads=4, vocab=100)),
            masked,
        ),
    }


def _calls(graph):
    """Calls with floating-point results (the library also compares position ids)."""
    return Counter(
        (n.phase, n.op, tuple((s.shape, s.dtype) for s in n.outputs))
        for n in graph.nodes
        if not n.attrs.get("view") and n.outputs and n.outputs[0].dtype in ("fp32", "bf16")
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("amp", [None, "bf16"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "bert"])
def test_same_calls_as_transformers(name, amp):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    theirs, ours, inputs = _pairs(transformers)[name]
    with torch.device("meta"):
        library, own = theirs(), ours()
    extra = {} if name == "bert" else {"use_cache": False}
    options = {"mode": "train", "amp": amp}
    captured = capture_module(library, (), {**inputs, **extra}, **options)
    assert _calls(capture_module(own, (), inputs, **options)) == _calls(captured)
