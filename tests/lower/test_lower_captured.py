"""The same right values end to end: from a module through capture to kernels (cases A and C)."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from predictor.capture.torch import capture_module  # noqa: E402
from predictor.cost.memory import memory_report  # noqa: E402
from predictor.lower.eager import lower_eager  # noqa: E402
from predictor.torchvision_ops import ensure_torchvision  # noqa: E402


class Call(nn.Module):
    """A module around a function, with parameters of its own modules."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, *args):
        return self.function(*self.parts, *args)


def lowered(module, *args, **options):
    return lower_eager(capture_module(module, args, **options))


def total(graph, *phases):
    return sum(k.matmul_flops for k in graph.kernels if not phases or k.phase in phases)


def zeros(*shape, **options):
    return torch.zeros(*shape, device="meta", **options)


def test_linear():
    layer, x = nn.Linear(1024, 4096, device="meta"), zeros(8, 1024)
    assert total(lowered(layer, x)) == 67_108_864
    assert total(lowered(layer, x, mode="train")) == 134_217_728
    needed = zeros(8, 1024, requires_grad=True)
    assert total(lowered(layer, needed, mode="train")) == 201_326_592


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
def test_bags_of_embeddings_train(kind):
    table = nn.EmbeddingBag(100, 8, mode=kind, device="meta")
    ids, starts = zeros(50, dtype=torch.int64), zeros(3, dtype=torch.int64)
    graph = lowered(table, ids, starts, mode="train")
    (scatter,) = (k for k in graph.kernels if k.op == "embedding_backward")
    assert dict(scatter.dims) == {"rows": 50, "cols": 8}
    assert scatter.write_bytes == 50 * 8 * 4
    gradient = next(k for k in graph.kernels if k.op == "fill" and k.dims["numel"] == 100 * 8)
    assert gradient.phase == "backward"


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_packed_sequences(mode):
    lengths = torch.tensor([7, 5, 3, 2])

    def call(layer, x):
        packed, _ = layer(nn.utils.rnn.pack_padded_sequence(x, lengths))
        return nn.utils.rnn.pad_packed_sequence(packed)[0]

    graph = lowered(Call(call, nn.LSTM(64, 32, device="meta")), zeros(7, 4, 64), mode=mode)
    first, *others = (k for k in graph.kernels if k.phase == "forward")
    assert (first.op, first.dims["numel"]) == ("copy", 17 * 64)
    (layer,) = (k for k in others if k.op == "rnn")
    assert layer.dims["steps"] == 7


def test_self_attention_grows_faster_than_the_sequence():
    layer = nn.MultiheadAttention(448, 8, batch_first=True, device="meta")
    module = Call(lambda a, x: a(x, x, x)[0], layer)
    long, short = (total(lowered(module, zeros(1, s, 448))) for s in (600, 300))
    assert long == 963_379_200 + 645_120_000
    assert short == 642_969_600
    unfused = total(lowered(module, zeros(1, 600, 448), mode="train"), "forward")
    assert unfused == long


@pytest.mark.parametrize(
    ("q", "kv", "causal", "convention", "work"),
    [
        ((1, 12, 64, 64), (1, 12, 64, 64), False, 12_582_912, 12_582_912),
        ((1, 32, 128, 64), (1, 8, 128, 64), False, 134_217_728, 134_217_728),
        ((1, 32, 4096, 128), (1, 32, 4096, 128), True, 274_877_906_944, 137_472_507_904),
    ],
    ids=["plain", "grouped-query", "causal"],
)
def test_attention(q, kv, causal, convention, work):
    def call(query, key, value):
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=q[1] != kv[1]
        )

    half = torch.float16
    graph = lowered(Call(call), zeros(*q, dtype=half), zeros(*kv, dtype=half),
                    zeros(*kv, dtype=half))  # fmt: skip
    (kernel,) = graph.kernels
    assert (kernel.op, kernel.matmul_flops, kernel.flops) == ("attention", convention, work)
    keys_and_values = 2 * kv[1] * kv[2] * kv[3] * 2
    assert kernel.read_bytes == q[1] * q[2] * q[3] * 2 + keys_and_values


def test_attention_trains_with_one_kernel_a_phase():
    def call(x):
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    graph = lowered(Call(call), zeros(1, 2, 16, 8, requires_grad=True), mode="train",
                    optimizer=None)  # fmt: skip
    ops = Counter(k.op for k in graph.kernels)
    assert (ops["attention"], ops["attention_backward"]) == (1, 1)


def test_grouped_convolution():
    layer = nn.Conv2d(64, 128, 3, padding=1, groups=4, bias=False, device="meta")
    assert total(lowered(layer, zeros(2, 64, 56, 56))) == 231_211_008
    graph = lowered(layer, zeros(2, 64, 56, 56, requires_grad=True), mode="train")
    assert total(graph) == 693_633_024
    frozen_input = lowered(layer, zeros(2, 64, 56, 56), mode="train")
    assert total(frozen_input) == 2 * 231_211_008
    assert "conv_dgrad" not in {k.op for k in frozen_input.kernels}


@pytest.mark.parametrize(
    ("kind", "right"), [(nn.LSTM, 35_840_000), (nn.GRU, 26_880_000), (nn.RNN, 8_960_000)]
)
def test_recurrent_layers_are_one_kernel_of_250_steps(kind, right):
    layer = kind(12, 128, batch_first=True, device="meta")
    graph = lowered(layer, zeros(1, 250, 12))
    (kernel,) = [k for k in graph.kernels if k.op == "rnn"]
    assert total(graph) == kernel.flops == right
    assert kernel.launches == 250
    trained = lowered(layer, zeros(1, 250, 12), mode="train")
    assert total(trained) == 3 * right


def test_embedding_bag_moves_its_rows():
    bag = nn.EmbeddingBag(1000, 64, device="meta")
    graph = lowered(bag, zeros(32, 10, dtype=torch.int64))
    (kernel,) = [k for k in graph.kernels if k.op == "embedding"]
    assert total(graph) == 0
    assert kernel.flops <= 20_480
    rows, indices = 320 * 64 * 4, 8 * (320 + 32)
    assert (kernel.read_bytes, kernel.write_bytes) == (rows + indices, 32 * 64 * 4)


def test_shared_layer_counts_each_call_and_one_set_of_parameters():
    layer = nn.Linear(64, 64, bias=False, device="meta")
    captured = capture_module(Call(lambda f, x: f(f(x)), layer), zeros(8, 64))
    assert captured.workload.parameters == 4_096
    assert total(lower_eager(captured)) == 131_072


def test_frozen_first_layer_leaves_one_weight_gradient():
    mlp = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to("meta")
    mlp[0].requires_grad_(False)
    assert total(lowered(mlp, zeros(8, 64), mode="train")) == 3 * 2 * 8 * 64 * 64


def test_integer_product():
    a, b = zeros(32, 64, dtype=torch.int8), zeros(64, 32, dtype=torch.int8)
    (kernel,) = lowered(Call(torch._int_mm), a, b).kernels
    assert (kernel.flops, kernel.dtype) == (131_072, "int8")


def test_scaled_fp8_product():
    a = zeros(32, 64, dtype=torch.float8_e4m3fn)
    b = zeros(16, 64, dtype=torch.float8_e4m3fn)

    def call(x, y, scale):
        return torch._scaled_mm(x, y.t(), scale, scale, out_dtype=torch.bfloat16)

    (kernel,) = lowered(Call(call), a, b, zeros(1)).kernels
    assert (kernel.flops, kernel.dtype) == (65_536, "fp8")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_product():
    sparse = torch.eye(64).to_sparse_csr()
    (kernel,) = lowered(Call(torch.matmul), sparse, torch.zeros(64, 64)).kernels
    assert (kernel.op, kernel.flops) == ("sparse_mm", 8_192)


def test_expanded_tensor_reads_its_storage():
    graph = lowered(Call(lambda x: x.expand(4096, 1024) + 1), zeros(1, 1024))
    (kernel,) = graph.kernels
    assert kernel.read_bytes == 4_096
    assert kernel.write_bytes == 16 * 2**20


def test_product_of_nothing():
    graph = lowered(Call(torch.mm), zeros(0, 8), zeros(8, 4))
    assert graph.kernels == ()


@pytest.mark.parametrize(("dtype", "right"), [(None, 8_008_008), ("bf16", 4_004_008)])
def test_adamw_states(dtype, right):
    layer = nn.Linear(1000, 1000, device="meta")
    graph = capture_module(layer, zeros(1, 1000), mode="train", dtype=dtype)
    assert memory_report(graph).optimizer_bytes == right
    assert memory_report(lower_eager(graph)).optimizer_bytes == right
    plain = capture_module(layer, zeros(1, 1000), mode="train", dtype=dtype, optimizer="sgd")
    assert memory_report(lower_eager(plain)).optimizer_bytes == 0


@pytest.mark.parametrize(("sparse", "right"), [(False, 3_200_000), (True, 256)])
def test_embedding_gradient(sparse, right):
    table = nn.Embedding(50_000, 64, sparse=sparse, device="meta")
    ids = zeros(4, dtype=torch.int64)
    graph = lowered(table, ids, mode="train", optimizer="sgd")
    assert memory_report(graph).gradients_bytes == 4 * right
    (update,) = [k for k in graph.kernels if k.phase == "optimizer"]
    assert update.dims["numel"] == right


def test_activations_peak_where_forward_meets_backward():
    # x is 8 MB; relu keeps its output alone, the first product its input
    class Block(nn.Module):
        def forward(self, x):
            return (x * 2.0).relu().relu()

    graph = lowered(Block(), zeros(1024, 1024, requires_grad=True), mode="train", optimizer=None)
    assert memory_report(graph).activations_bytes % (4 * 2**20) <= 8
    small = lowered(Block(), zeros(1024, 1024))
    assert small.peak_activation_bytes == 2 * 4 * 2**20


def test_gradients_feed_the_update():
    graph = lowered(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to("meta"),
                    zeros(2, 8), mode="train")  # fmt: skip
    update = len(graph.kernels) - 1
    sources = {graph.kernels[a].op for a, b in graph.edges if b == update}
    assert graph.kernels[update].op == "adamw"
    assert sources == {"matmul", "reduction"}
    assert all(a < b for a, b in graph.edges)
    assert len(graph.edge_bytes) == len(graph.edges)


def test_mixture_of_experts_computes_with_its_active_parameters():
    # A16: 46,702,792,704 parameters, of which a token meets 12,879,925,248
    transformers = pytest.importorskip("transformers")
    ensure_torchvision()  # transformers imports it where it is there
    config = transformers.MixtralConfig(
        vocab_size=32_000, hidden_size=4096, num_hidden_layers=32, intermediate_size=14_336,
        num_attention_heads=32, num_key_value_heads=8, num_local_experts=8,
        num_experts_per_tok=2, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    graph = capture_module(model, zeros(1, 8, dtype=torch.int64), dtype="bf16")
    assert graph.workload.parameters == 46_702_792_704
    classes = ("matmul", "linear", "grouped_mm", "bmm")
    kernels = [k for k in lower_eager(graph).kernels if k.op in classes and k.dims["k"] > 1]
    rotary = sum(k.flops for k in kernels if k.op == "bmm")
    products = sum(k.flops for k in kernels) - rotary
    embedding, norms = 32_000 * 4096, (2 * 32 + 1) * 4096
    assert products == 2 * 8 * (12_879_925_248 - embedding - norms)
