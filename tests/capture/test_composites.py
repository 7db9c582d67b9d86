"""Attention, recurrent layers, fused calls and sparse operands: one op a call and phase."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from predictor.capture.torch import capture_module
from predictor.errors import CaptureError


class Attend(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def heads(*shape, grad=False):
    return torch.empty(shape, device="meta", requires_grad=grad)


def test_attention_is_one_node(only):
    qkv = (heads(1, 12, 64, 64),) * 3
    node = only(capture_module(Attend(), qkv), "predictor.sdpa")
    assert dict(node.attrs) == {
        "batch": 1, "heads": 12, "kv_heads": 12, "q_len": 64, "kv_len": 64, "head_dim": 64,
        "v_head_dim": 64, "causal": False, "dropout_p": 0.0, "has_mask": False,
    }  # fmt: skip
    assert [s.shape for s in node.outputs] == [(1, 12, 64, 64)]


def test_grouped_attention_keeps_the_true_key_heads(only):
    q, kv = heads(1, 32, 128, 64).half(), heads(1, 8, 128, 64).half()
    node = only(capture_module(Attend(enable_gqa=True), (q, kv, kv)), "predictor.sdpa")
    assert (node.attrs["heads"], node.attrs["kv_heads"]) == (32, 8)
    assert sum(s.touched_bytes for s in node.inputs[1:2]) * 2 == 262_144


def test_causal_attention_in_training(only, ops):
    qkv = tuple(heads(1, 32, 4096, 128, grad=True) for _ in range(3))
    graph = capture_module(
        Attend(is_causal=True), qkv, mode="train", optimizer=None, loss=lambda y: y.sum()
    )
    forward, backward = only(graph, "predictor.sdpa"), only(graph, "predictor.sdpa_backward")
    assert forward.attrs["causal"] is backward.attrs["causal"] is True
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert [s.shape for s in backward.outputs] == [(1, 32, 4096, 128)] * 3
    assert forward.outputs[1].shape == (1, 32, 4096)  # log-sum-exp, kept for the backward
    assert forward.outputs[1].storage_id in {s.storage_id for s in backward.inputs}
    assert "aten.bmm" not in ops(graph)


def test_masked_attention_with_a_learned_bias(only):
    class Bias(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.empty(1, 2, 8, 8))

        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, attn_mask=self.bias)

    graph = capture_module(Bias(), heads(3, 2, 8, 4), mode="train")
    assert only(graph, "predictor.sdpa").attrs["has_mask"] is True
    assert only(graph, "predictor.sdpa_backward").outputs[-1].shape == (1, 2, 8, 8)


def test_attention_output_follows_the_memory_order_of_the_query():
    class Block(nn.Module):
        def forward(self, x):
            q = x.view(2, 8, 4, 16).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).contiguous()

    graph = capture_module(Block(), torch.empty(2, 8, 64))
    assert [n.op for n in graph.nodes if not n.attrs.get("view")] == ["predictor.sdpa"]


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 4, 8, 16), (1, 4, 8, 32), (1, 4, 8, 32)), {}, "do not fit together"),
        (((1, 4, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16)), {}, "enable_gqa=True"),
        (((1, 4, 8, 16),) * 3, {"is_causal": True, "attn_mask": torch.ones(8, 8)}, "not both"),
    ],
)
def test_attention_refuses_what_pytorch_refuses(shapes, options, message):
    with pytest.raises(CaptureError, match=message):
        capture_module(Attend(**options), tuple(heads(*s) for s in shapes))


@pytest.mark.parametrize("training", [False, True])
def test_multihead_attention_counts(training, matmul_flops, only):
    layer = nn.MultiheadAttention(448, 8)

    class Self(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, x, x, need_weights=False)[0]

    x = torch.empty(600, 1, 448)
    if training:
        graph = capture_module(Self(), x, mode="train")
        assert only(graph, "predictor.sdpa_backward").attrs["q_len"] == 600
        return
    graph = capture_module(Self(), x)
    assert matmul_flops(graph) == 963_379_200 + 645_120_000
    half = capture_module(Self(), x[:300])
    assert matmul_flops(half) == 642_969_600


def test_multihead_attention_with_weights_takes_two_products(matmul_flops):
    graph = capture_module(nn.MultiheadAttention(448, 8), (torch.empty(600, 1, 448),) * 3)
    assert matmul_flops(graph) == 963_379_200 + 645_120_000


def test_encoder_layer_in_eval_mode_and_with_padding(ops):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    x = torch.empty(2, 5, 16)
    assert ops(capture_module(encoder, x))["predictor.sdpa"] == 2
    padded = capture_module(encoder, x, {"src_key_padding_mask": torch.zeros(2, 5).bool()})
    assert ops(padded)["predictor.sdpa"] == 2
    assert any("padded batch" in w for w in padded.workload.warnings)


@pytest.mark.parametrize(
    ("kind", "mode", "gates"), [(nn.LSTM, "lstm", 4), (nn.GRU, "gru", 3), (nn.RNN, "rnn_tanh", 1)]
)
def test_recurrent_layer_is_one_call_of_dependent_steps(kind, mode, gates, only, ops):
    graph = capture_module(kind(12, 128, batch_first=True), torch.empty(1, 250, 12), mode="train")
    node = only(graph, "predictor.rnn")
    expected = {
        "mode": mode, "gates": gates, "steps": 250, "batch": 1, "input_size": 12,
        "hidden_size": 128, "layers": 1, "directions": 1, "proj_size": 0,
    }  # fmt: skip
    assert {k: node.attrs[k] for k in expected} == expected
    assert node.outputs[0].shape == (1, 250, 128)
    assert only(graph, "predictor.rnn_backward").phase == "backward"
    assert not {"aten.mm", "aten.addmm"} & set(ops(graph))
    assert graph.nodes[-1].attrs["tensors"] == 4


def test_stacked_bidirectional_projected_lstm(only):
    layer = nn.LSTM(12, 32, num_layers=2, bidirectional=True, proj_size=8, dropout=0.5)
    node = only(capture_module(layer, torch.empty(7, 3, 12), mode="train"), "predictor.rnn")
    assert [node.attrs[k] for k in ("layers", "directions", "proj_size")] == [2, 2, 8]
    assert node.attrs["dropout"] == 0.5
    assert [s.shape for s in node.outputs[:3]] == [(7, 3, 16), (4, 3, 8), (4, 3, 32)]


def test_packed_sequences(only):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(4, 8, batch_first=True)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.layer(packed)[0].data

    for lengths in ([5, 4, 3], torch.tensor([5, 4, 3])):
        node = only(capture_module(Packed(), (torch.empty(3, 5, 4), lengths)), "predictor.rnn")
        assert [node.attrs[k] for k in ("steps", "batch", "rows")] == [5, 3, 12]


@pytest.mark.parametrize(("cell", "name"), [(nn.LSTMCell, "lstm"), (nn.GRUCell, "gru")])
def test_cells_are_two_products_and_a_fused_kernel(cell, name, ops):
    graph = capture_module(cell(16, 8), torch.empty(4, 16))
    counted = ops(graph)
    assert counted["aten.mm"] == 2
    assert counted[f"aten._thnn_fused_{name}_cell"] == 1
    assert "aten.sigmoid_" not in counted


def test_rms_norm_is_one_kernel_each_way(only):
    graph = capture_module(nn.RMSNorm(16), torch.empty(4, 16), mode="train")
    assert only(graph, "aten._fused_rms_norm").outputs[1].shape == (4, 1)
    backward = only(graph, "aten._fused_rms_norm_backward")
    assert [s.shape for s in backward.outputs] == [(16,)]
    assert backward.attrs["output_mask"] == [False, True]


@pytest.mark.parametrize(("dtype", "casts"), [(torch.float16, 0), (torch.bfloat16, 1)])
def test_half_softmax_to_fp32_is_one_kernel_as_on_cuda(dtype, casts, ops):
    class Softmax(nn.Module):
        def forward(self, x):
            return F.softmax(x, dim=-1, dtype=torch.float32)

    counted = ops(capture_module(Softmax(), torch.empty(4, 8, dtype=dtype)))
    assert (counted["aten._softmax"], counted["aten._to_copy"]) == (1, casts)


def test_embedding_bag_reads_rows_not_the_table(only):
    graph = capture_module(nn.EmbeddingBag(1000, 64), torch.zeros(32, 10, dtype=torch.long))
    node = only(graph, "aten._embedding_bag")
    assert node.outputs[0].shape == (32, 64)
    assert node.inputs[0].storage_bytes == 256_000
    assert node.inputs[1].shape == (320,)


@pytest.mark.parametrize(("sparse", "elements"), [(False, 3_200_000), (True, 256)])
def test_embedding_gradient(sparse, elements):
    layer = nn.Embedding(50_000, 64, sparse=sparse)
    ids = torch.zeros(4, dtype=torch.long)
    graph = capture_module(layer, ids, mode="train", optimizer="sgd")
    assert graph.nodes[-1].attrs["numel"] == elements
    assert graph.workload.trainable_bytes == elements * 4


def test_sparse_bag_gradient(ops):
    layer = nn.EmbeddingBag(1000, 64, sparse=True)
    ids = torch.zeros(32, 10, dtype=torch.long)
    graph = capture_module(layer, ids, mode="train", optimizer="sgd")
    assert graph.nodes[-1].attrs["numel"] == 320 * 64
    assert "aten._embedding_bag_backward" not in ops(graph)


def test_adamw_refuses_sparse_gradients():
    with pytest.raises(CaptureError, match="use optimizer='sgd'"):
        capture_module(
            nn.Embedding(10, 4, sparse=True), torch.zeros(2, dtype=torch.long), mode="train"
        )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_product_counts_stored_values(layout, only):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("matrix", getattr(torch.eye(64), layout)())

        def forward(self, x):
            return self.matrix @ x

    node = only(capture_module(Product(), torch.empty(64, 64)), "predictor.sparse_mm")
    assert dict(node.attrs) == {"m": 64, "n": 64, "k": 64, "nnz": 64}
    assert node.inputs[0].storage_bytes < 64 * 64 * 4


def test_sparse_product_backward(only, ops):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.register_buffer("matrix", torch.ones(6, 10).to_sparse())

        def forward(self, x):
            return torch.sparse.mm(self.matrix, self.layer(x))

    graph = capture_module(Product(), torch.empty(10, 8), mode="train")
    forward, backward = (n for n in graph.nodes if n.op == "predictor.sparse_mm")
    assert dict(forward.attrs) == {"m": 6, "n": 4, "k": 10, "nnz": 60}
    assert dict(backward.attrs) == {"m": 10, "n": 4, "k": 6, "nnz": 60}
    assert (forward.phase, backward.phase) == ("forward", "backward")


def test_integer_and_fp8_products_are_seen():
    class Products(nn.Module):
        def forward(self, a, b, c, d):
            one = torch.ones((), device=a.device)
            scaled = torch._scaled_mm(c, d.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            return torch._int_mm(a, b), scaled

    int8, fp8 = torch.int8, torch.float8_e4m3fn
    graph = capture_module(
        Products(),
        (
            torch.zeros(32, 64, dtype=int8),
            torch.zeros(64, 32, dtype=int8),
            torch.zeros(32, 64).to(fp8),
            torch.zeros(16, 64).to(fp8),
        ),
    )
    products = {n.op: n for n in graph.nodes if n.op.endswith("_mm")}
    assert products["aten._int_mm"].outputs[0].shape == (32, 32)
    assert products["aten._scaled_mm"].inputs[0].dtype == "fp8"
    assert products["aten._scaled_mm"].outputs[0].shape == (32, 16)
