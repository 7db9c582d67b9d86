"""FLOPs and memory of the bundled models, worked out by hand or as published."""

import pytest
import torch

import predictor
from predictor import zoo
from predictor.cost.memory import memory_report
from predictor.lower.eager import lower_eager


def lowered(name, **options):
    return lower_eager(predictor.capture(name, **options))


def work(graph):
    return sum(k.matmul_flops for k in graph.kernels)


def of(graph, *ops):
    return [k for k in graph.kernels if k.op in ops]


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [
        ("resnet-18", 1_814_073_344),
        ("resnet-50", 4_089_184_256),
        ("resnet-101", 7_801_405_440),
    ],
)
def test_images_as_published(name, multiply_adds):
    assert work(lowered(name, batch=2)) == 2 * 2 * multiply_adds


def test_convnext_by_hand():
    total, side = 56**2 * 48 * 128 + 1024 * 1000, 56
    for stage, (depth, width) in enumerate(zip((3, 3, 27, 3), (128, 256, 512, 1024), strict=True)):
        if stage:
            side //= 2
            total += side**2 * 4 * (width // 2) * width
        total += depth * side**2 * (49 * width + 8 * width**2)
    assert total == pytest.approx(15.36e9, rel=1e-3)  # as published
    assert work(lowered("convnext-base", batch=2)) == 2 * 2 * total


DECODERS = {  # layers, hidden, width of keys, MLP width that a token passes, vocabulary
    "llama-2-7b": (32, 4096, 4096, 11008, 32000),
    "mistral-7b": (32, 4096, 1024, 14336, 32000),
    "qwen2.5-7b": (28, 3584, 512, 18944, 152064),
    "mixtral-8x7b": (32, 4096, 1024, 2 * 14336, 32000),
}


@pytest.mark.parametrize("name", sorted(DECODERS))
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_decoders_by_hand(name, mode):
    layers, hidden, kv, ffn, vocab = DECODERS[name]
    tokens = 256
    weights = layers * (2 * hidden**2 + 2 * hidden * kv + 3 * hidden * ffn) + vocab * hidden
    if name == "mixtral-8x7b":
        weights += layers * 8 * hidden  # the router
    attention = layers * 4 * tokens**2 * hidden
    graph = lowered(name, mode=mode, batch=1, seq=tokens)
    assert work(graph) == (2 * tokens * weights + attention) * (3 if mode == "train" else 1)


def test_biases_are_in_the_products_epilogue():
    graph = lowered("qwen2.5-7b", batch=1, seq=64)
    assert len(of(graph, "linear")) == 3 * 28
    heads = {(k.dims["heads"], k.dims["kv_heads"]) for k in of(graph, "attention")}
    assert heads == {(28, 4)}


def test_a_window_leaves_out_what_it_does_not_reach():
    # queries 0 … 4095 see 1 … 4096 keys, the other 4096 see 4096 each
    pairs = 4096 * 4097 // 2 + 4096 * 4096
    graph = lowered("mistral-7b", mode="train", seq=8192, dtype="bf16")
    forward, backward = of(graph, "attention"), of(graph, "attention_backward")
    assert len(forward) == len(backward) == 32
    assert {k.flops for k in forward} == {4 * 32 * 128 * pairs}
    assert {k.flops for k in backward} == {10 * 32 * 128 * pairs}
    assert {k.dims["window"] for k in (*forward, *backward)} == {4096}
    inside = lowered("mistral-7b", seq=4096, dtype="bf16")
    assert {k.flops for k in of(inside, "attention")} == {4 * 32 * 128 * 4096 * 4097 // 2}
    assert all("window" not in k.dims for k in of(inside, "attention"))
    square = lowered("mistral-7b", seq=8192)  # fp32: no flash kernel, the whole square by a mask
    assert {k.flops for k in of(square, "attention")} == {4 * 32 * 128 * 8192**2}


@pytest.mark.parametrize(("dtype", "launches"), [("bf16", 1), (None, 8)])
def test_experts_are_grouped_products(dtype, launches):
    grouped = of(lowered("mixtral-8x7b", seq=64, dtype=dtype), "grouped_mm")
    assert len(grouped) == 2 * 32
    assert sum(k.flops for k in grouped) == 32 * 2 * (2 * 64) * 3 * 4096 * 14336
    assert {k.launches for k in grouped} == {launches}


def test_t5_by_hand():
    source = target = 512
    layer, cross = 4 * 768**2, 4 * 768**2
    mlp = 2 * 768 * 3072
    encoder = 12 * (2 * source * (layer + mlp) + 4 * source**2 * 768)
    decoder = 12 * (2 * target * (layer + cross + mlp) + 4 * (target**2 + source * target) * 768)
    graph = lowered("t5-base", batch=1)
    assert work(graph) == encoder + decoder + 2 * target * 768 * 32128
    masks = [k for k in of(graph, "attention") if k.dims["causal"]]
    assert masks == []  # the bias is an additive mask: the whole square is computed


def test_whisper_by_hand():
    width, frames, source, target = 512, 3000, 1500, 100
    stem = 2 * 3 * (frames * 80 * width + source * width**2)
    mlp = 8 * width**2
    encoder = 6 * (2 * source * (4 * width**2 + mlp) + 4 * source**2 * width)
    decoder = (
        6 * 2 * (target * (4 * width**2 + mlp) + target * 2 * width**2 + source * 2 * width**2)
    )
    decoder += 6 * 4 * width * (target**2 + target * source)
    graph = lowered("whisper-base", batch=1, seq=target)
    assert work(graph) == stem + encoder + decoder + 2 * target * width * 51865


def test_unet_by_hand():
    widths, sides = (320, 640, 1280, 1280), (64, 32, 16, 8)
    time = 1280

    def residual(a, b, side):
        shortcut = 0 if a == b else a * b
        return side**2 * (9 * a * b + 9 * b * b + shortcut) + time * b

    def attend(c, side):
        pixels, text = side**2, 77
        weights = 2 * c * c + 4 * c * c + 2 * c * c + 8 * c * c + 4 * c * c
        return pixels * weights + 2 * text * 768 * c + 2 * pixels * c * (pixels + text)

    total = 64**2 * 9 * 2 * 4 * 320 + 320 * time + time * time
    kept, before = [320], 320
    for level, (c, side) in enumerate(zip(widths, sides, strict=True)):
        for a in (before, c):
            total += residual(a, c, side) + (attend(c, side) if level < 3 else 0)
        kept += [c, c]
        if level < 3:
            total += (side // 2) ** 2 * 9 * c * c
            kept.append(c)
        before = c
    total += 2 * residual(1280, 1280, 8) + attend(1280, 8)
    for level in (3, 2, 1, 0):
        c, side = widths[level], sides[level]
        for _ in range(3):
            total += residual(before + kept.pop(), c, side) + (attend(c, side) if level < 3 else 0)
            before = c
        if level:
            total += (2 * side) ** 2 * 9 * c * c
    graph = lowered("sd-1.5-unet", batch=1)
    assert work(graph) == 2 * total
    assert 0.75e12 < work(graph) < 0.85e12
    assert {k.dims["head_dim"] for k in of(graph, "attention")} == {40, 80, 160}


def test_recommender_by_hand():
    batch = 64
    layers = 13 * 512 + 512 * 256 + 256 * 64 + 64 * 16 + 367 * 512 + 512 * 256 + 256
    graph = lowered("dlrm", batch=batch)
    assert work(graph) == batch * 2 * (layers + 27 * 27 * 16)
    bags = of(graph, "embedding")
    assert len(bags) == 26
    assert all((k.dims["rows"], k.dims["cols"]) == (batch, 16) for k in bags)
    assert sum(k.bytes for k in bags) < 1e6  # the rows looked up, not the tables
    step = lowered("dlrm", mode="train", batch=batch, optimizer="sgd")
    assert len(of(step, "embedding_backward")) == 26
    report = memory_report(step)
    assert report.gradients_bytes == report.parameters_bytes - 2 * 8 * 351
    assert report.optimizer_bytes == 0


@pytest.mark.parametrize("dtype", [None, "bf16", "amp-fp16"])
def test_graph_network_by_hand(dtype):
    nodes, stored = 169_343, 2_484_941
    dense = nodes * (128 * 256 + 256 * 256 + 256 * 40)
    sparse = stored * (256 + 256 + 40)
    forward = lowered("gcn-arxiv", dtype=dtype)
    assert work(forward) == 2 * (dense + sparse)
    step = lowered("gcn-arxiv", mode="train", dtype=dtype)
    # no gradient for the features or the adjacency: the first layer has one product less
    assert work(step) == 2 * (3 * dense - nodes * 128 * 256 + 2 * sparse)
    assert [k.dims["n"] for k in of(step, "sparse_mm")] == [256, 256, 40, 40, 256, 256]
    wide = 2 if dtype == "bf16" else 4
    held = wide * (nodes * 128 + stored) + 8 * (stored + nodes + 1)
    assert forward.workload.inputs_bytes == held


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [  # AdamW in fp32: 16 bytes a parameter and activations, or 4 a parameter for its own pass
        ("llama-2-7b", 20 * 6.738e9, 20.1 * 6.738e9),
        ("mixtral-8x7b", 20 * 46.70e9, 20.1 * 46.70e9),
        ("gpt2-xl", 20 * 1.5576e9, 20.1 * 1.5576e9),
        ("t5-base", 16 * 0.2229e9, 24 * 0.2229e9),
        ("sd-1.5-unet", 16 * 0.8595e9, 21 * 0.8595e9),
        ("resnet-200", 16 * 0.0647e9, 4 * 0.0647e9 + 3e9),
    ],
)
def test_memory_of_a_training_step(name, least, most):
    sizes = {"seq": 64} if name in ("llama-2-7b", "mixtral-8x7b", "gpt2-xl") else {}
    report = memory_report(lowered(name, mode="train", batch=1, **sizes))
    assert least <= report.peak_bytes <= most
    assert report.optimizer_bytes == pytest.approx(2 * report.gradients_bytes, rel=1e-4)


def test_nothing_is_allocated():
    program = zoo.build("mixtral-8x7b", mode="train")
    tensors = [*program.module.parameters(), *program.inputs.values()]
    assert all(t.device == torch.device("meta") for t in tensors)
