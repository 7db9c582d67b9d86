"""A round trip of a graph file is the identity; a wrong file is a typed error."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import DataError
from predictor.graph.ir import Kernel, KernelGraph, OpGraph, OpNode, TensorSpec, Workload
from predictor.graph.serialize import graph_from_dict, graph_to_dict, load_graph, save_graph

WORKLOAD = Workload(
    name="mine", mode="train", parameters=10, trainable_parameters=8, parameters_bytes=40,
    buffers_bytes=0, inputs_bytes=16, batch=None, tokens=12, dtype="amp-bf16", optimizer="adamw",
    trainable_bytes=32, warnings=("one", "two"),
)  # fmt: skip


def spec(sid=0, shape=(2, 3), dtype="fp32"):
    return TensorSpec(
        shape=shape, dtype=dtype, storage_id=sid, storage_bytes=24, touched_bytes=24,
        role="parameter", layout="strided",
    )  # fmt: skip


def op_graph(attrs=None):
    first = OpNode(op="aten.t", phase="forward", inputs=(spec(),), outputs=(spec(shape=(3, 2)),))
    second = OpNode(
        op="aten.mm",
        phase="backward",
        inputs=(spec(), spec(1)),
        outputs=(spec(2, ()),),
        attrs=attrs or {"alpha": 1.0, "beta": 1, "dims": [0, 1], "bias": None, "name": "x"},
        deps=(0,),
        module="layers.0",
    )
    return OpGraph(workload=WORKLOAD, nodes=(first, second))


def kernel_graph():
    kernels = tuple(
        Kernel(
            op="matmul", phase="forward", dims={"batch": 1, "m": 2, "n": 3, "k": 4}, dtype="bf16",
            flops=48.0, read_bytes=40.5, write_bytes=12.0, name="aten.mm", module="m", launches=2,
        )
        for _ in range(2)
    )  # fmt: skip
    return KernelGraph(
        workload=WORKLOAD, kernels=kernels, edges=((0, 1),), edge_bytes=(12.0,),
        host_ops={"forward": 3}, peak_activation_bytes=64.0,
    )  # fmt: skip


@pytest.mark.parametrize("graph", [op_graph(), kernel_graph()])
@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_round_trip_is_the_identity(graph, name, tmp_path):
    path = tmp_path / name
    save_graph(graph, path)
    loaded = load_graph(path)
    assert loaded == graph
    assert type(loaded) is type(graph)
    save_graph(loaded, tmp_path / f"again-{name}")
    assert (tmp_path / f"again-{name}").read_bytes() == path.read_bytes()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_attributes_survive(attrs):
    graph = op_graph(attrs or {"a": 1})
    assert graph_from_dict(json.loads(json.dumps(graph_to_dict(graph)))) == graph


def test_compression_is_told_by_content_not_by_name(tmp_path):
    text = json.dumps(graph_to_dict(op_graph())).encode()
    (tmp_path / "plain.gz").write_bytes(text)
    (tmp_path / "packed.json").write_bytes(gzip.compress(text))
    assert load_graph(tmp_path / "plain.gz") == load_graph(tmp_path / "packed.json") == op_graph()


def test_equal_tensors_are_stored_once():
    assert len(graph_to_dict(op_graph())["tensors"]) == 4


def changed(**fields):
    return {**graph_to_dict(op_graph()), **fields}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "is no captured graph"),
        ([], "is no captured graph"),
        (changed(version=99), "version 99, this library reads 1"),
        (changed(kind="words"), "kind 'words'"),
        (changed(nodes=[{"op": "aten.mm"}]), "not a whole graph"),
        (changed(nodes=[{"inputs": [7], "outputs": []}]), "not a whole graph"),
        (changed(workload={"name": "x", "colour": 1}), "unknown field 'colour'"),
        ({k: v for k, v in changed().items() if k != "tensors"}, "not a whole graph"),
    ],
)
def test_wrong_content(data, words, tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(data))
    with pytest.raises(DataError, match=words) as caught:
        load_graph(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\x1f\x8b broken", b"\xff\xfe"])
def test_unreadable_files(content, tmp_path):
    path = tmp_path / "graph.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as a graph"):
        load_graph(path)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read as a graph"):
        load_graph(tmp_path / "absent.json")
