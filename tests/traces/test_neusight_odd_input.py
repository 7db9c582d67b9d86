"""Damaged, odd and hostile files: a counted reject or a `DataError` that names the file."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.errors import DataError
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.sources import neusight

V100 = "Tesla V100-PCIE-32GB"
TRAIN = "toy-train-4-2"
LABEL = {"num_layer": 3, "e2e_latency": 9.0, "fw_latency": 3.0, "bwall_latency": 6.0}
GOOD = (0.04, 128, 256)


@pytest.mark.parametrize("part", ["", "nothing", "files"])
def test_no_layout_says_what_was_expected(tmp_path, part):
    (tmp_path / part).mkdir(exist_ok=True)
    with pytest.raises(LayoutNotFoundError, match="expected label, results, data/dataset"):
        neusight.read(tmp_path / part)
    with pytest.raises(LayoutNotFoundError, match="missing"):
        neusight.read(tmp_path / "missing")


@pytest.mark.parametrize("name", ["alone.csv", "label/x.csv", "README.md"])
def test_a_file_outside_a_layout_is_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("OPName,Latency,Device,B,H\n")
    with pytest.raises(LayoutNotFoundError, match=path.name):
        neusight.read(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"\x1f\x8b",
        lambda content: content[:20] + b"\x00\xff" * 20 + content[60:],
        lambda content: b"\x00\xff\xfe binary",
        lambda content: gzip.compress(b""),
        lambda content: b"a,b\n1,2\n3,4,5,6\n",
        lambda content: b"<html>not found</html>",
    ],
    ids=["truncated", "empty", "header only", "garbled", "binary", "empty gzip", "ragged", "html"],
)
@pytest.mark.parametrize("kind", ["sweep", "graph", "label_ops"])
def test_damaged_tables_are_named(layout, nodes, kind, damage):
    layout.label(V100, TRAIN, LABEL)
    paths = {
        "sweep": layout.sweep("add", [(0.04 + i / 1e3, 128 + i, 256) for i in range(200)]),
        "graph": layout.graph(TRAIN, nodes),
        "label_ops": layout.label_ops(V100, TRAIN, [("addmm", 0.1 + i, 0.2) for i in range(200)]),
    }
    path = paths[kind]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=path.name.replace(".", r"\.")):
        neusight.read(layout.root)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("sweep", "Latency"), ("sweep", "Device"), ("sweep", "OPName"), ("sweep", "H"),
        ("graph", "InputShapes"), ("graph", "Prev"), ("label_ops", "fw_latency"),
        ("label_ops", "Name"), ("raw", "Name"),
    ],
)  # fmt: skip
def test_missing_columns_are_named(layout, nodes, kind, column):
    layout.label(V100, TRAIN, LABEL)
    paths = {
        "sweep": layout.sweep("add", [GOOD]), "graph": layout.graph(TRAIN, nodes),
        "label_ops": layout.label_ops(V100, TRAIN, [("addmm", 0.1, 0.2)]),
        "raw": layout.raw_graph(TRAIN, nodes),
    }  # fmt: skip
    path = paths[kind]
    text = gzip.decompress(path.read_bytes()).decode()
    head, rest = text.split("\r\n", 1)
    names = ["renamed" if c == column else c for c in head.split(",")]
    path.write_bytes(gzip.compress((",".join(names) + "\r\n" + rest).encode()))
    with pytest.raises(DataError, match=f"no column '{column}'") as caught:
        neusight.read(layout.root)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"text"', "{'a': 1}", "\x00"])
def test_labels_that_are_no_json_object_are_named(layout, text):
    path = layout.label(V100, TRAIN, text)
    with pytest.raises(DataError, match=path.name):
        neusight.read(layout.root)


@pytest.mark.parametrize(
    ("latency", "rule"),
    [
        ("", "latency_not_a_number"), ("fast", "latency_not_a_number"),
        ("nan", "latency_not_a_number"), ("inf", "latency_not_a_number"),
        (0, "latency_not_positive"), (-1.5, "latency_not_positive"),
        (1e-9, "latency_not_plausible"), (1e12, "latency_not_plausible"),
    ],
)  # fmt: skip
def test_latencies_that_cannot_be(layout, latency, rule):
    layout.sweep("add", [GOOD, (latency, 128, 256), GOOD])
    data = neusight.read(layout.root)
    assert data.kernels["row"].tolist() == [0, 2]
    assert data.dropped == {rule: 1}
    reject = data.rejects[0]
    assert reject["row"] == 1
    assert reject["rows"] == 1
    assert reject["file"].endswith(f"{V100}.csv.gz")


@pytest.mark.parametrize("size", ["", "wide", "nan", -128, 0, 1.5, 1e30, "1e400", "128 256"])
def test_sizes_that_cannot_be(layout, size):
    layout.sweep("add", [GOOD, (0.04, 128, size), (0.04, size, 128), GOOD])
    data = neusight.read(layout.root)
    assert data.kernels["row"].tolist() == [0, 3]
    assert data.dropped == {"dimension_not_a_positive_integer": 2}
    assert {r["column"] for r in data.rejects} == {"B", "H"}
    assert data.kernels["dim_numel"].dtype == "int64"


def test_sizes_whose_product_overflows(layout):
    layout.sweep("add", [GOOD, (0.04, 2**35, 2**35)])
    data = neusight.read(layout.root)
    assert data.kernels["dim_numel"].tolist() == [128 * 256]
    assert data.dropped == {"dimension_not_plausible": 1}


@pytest.mark.parametrize(
    ("sizes", "column"),
    [
        ((8, 3, 4, 7, 5, 1, 0), None),  # window larger than its input
        ((8, 3, 4, 3, 5, 0, 1), "Stride"), ((8, 3, 4, 3, 5, 1, -1), "Padding"),
        ((8, 3, 4, 3, 5, "x", 1), "Stride"),
    ],
)  # fmt: skip
def test_convolutions_that_cannot_be(layout, sizes, column):
    columns = (
        "B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding",
    )  # fmt: skip
    layout.sweep("conv", [(1.0, 8, 3, 4, 3, 5, 1, 1), (1.0, *sizes)], columns=columns)
    data = neusight.read(layout.root)
    assert len(data.kernels) == 1
    assert sum(data.dropped.values()) == 1
    assert column is None or data.rejects[0]["column"] == column


@pytest.mark.parametrize("device", ["", "Imaginary X1", "nan", "device.toml", "H100", "3.5", "ä"])
def test_devices_that_are_not_in_the_catalogue(layout, device):
    layout.sweep("add", [GOOD])
    layout.sweep("mul", [GOOD, GOOD], device=device, file="data/dataset/test/vec.csv")
    data = neusight.read(layout.root)
    assert data.kernels["device"].tolist() == ["nvidia-v100-pcie-32gb"]
    assert data.dropped == {"unknown_device": 2}


@pytest.mark.parametrize("op", ["", "fused_attention", "ADD", "nan"])
def test_ops_that_are_not_in_the_sweeps(layout, op):
    layout.sweep("add", [GOOD])
    layout.sweep(op, [GOOD, GOOD], file="data/dataset/test/vec.csv")
    data = neusight.read(layout.root)
    assert len(data.kernels) == 1
    assert data.dropped == {"unknown_op": 2}


def test_a_table_with_a_header_and_no_rows(layout):
    layout.sweep("add", [])
    assert neusight.read(layout.root).kernels.empty


@pytest.mark.parametrize("key", ["e2e_latency", "fw_latency"])
def test_labels_without_a_time(layout, key):
    layout.label(V100, TRAIN, {k: v for k, v in LABEL.items() if k != key})
    layout.label("NVIDIA L4", TRAIN, LABEL)
    data = neusight.read(layout.root)
    assert len(data.steps) == 1
    assert data.dropped == {"label_value_missing": 1}
    assert (data.rejects[0]["column"], data.rejects[0]["row"]) == (key, None)


@pytest.mark.parametrize(
    "value", ["long", None, [1.0], True, float("nan"), float("inf"), {}, 10**400]
)
@pytest.mark.parametrize("key", ["e2e_latency", "fw_latency", "bwall_latency"])
def test_labels_whose_time_is_no_number(layout, key, value):
    layout.label(V100, TRAIN, {**LABEL, key: value})
    data = neusight.read(layout.root)
    assert data.steps.empty
    assert sum(data.dropped.values()) == 1


@pytest.mark.parametrize(
    "change",
    [{"e2e_latency": 0}, {"e2e_latency": -2.0}, {"fw_latency": 0}, {"e2e_latency": 1e15}],
)
def test_labels_whose_time_cannot_be(layout, change):
    layout.label(V100, TRAIN, {**LABEL, **change})
    data = neusight.read(layout.root)
    assert data.steps.empty
    assert set(data.dropped) <= {"step_latency_not_positive", "latency_not_plausible"}


@pytest.mark.parametrize(
    "name", ["notes", "toy-train-4", "toy-tune-4-2", "toy-train-x-2", "toy-train-4-²", "toy---"]
)
def test_labels_whose_name_is_not_understood(layout, name):
    layout.label(V100, name, LABEL)
    data = neusight.read(layout.root)
    assert data.steps.empty
    assert data.dropped == {"step_name_not_understood": 1}


def test_labels_of_unknown_devices_are_counted(layout):
    layout.label("Imaginary_X1", TRAIN, LABEL)
    layout.prediction("Imaginary_X1", "neusight", TRAIN, LABEL)
    data = neusight.read(layout.root)
    assert data.dropped == {"unknown_device_step": 1, "unknown_device_prediction": 1}


@pytest.mark.parametrize(
    "cell",
    ["", "garbage(", "5", "{}", "[(8, -8)]", "[(8, 2.5)]", "[('a',)]", "[[8], 8]", "[" * 500,
     "[(1e9,)]", "__import__('os')", "[(4611686018427387904, 4)]", "x" * 200_000],
)  # fmt: skip
@pytest.mark.parametrize("column", ["inputs", "output", "fw", "bw"])
def test_graph_cells_that_cannot_be_read(layout, nodes, column, cell):
    own = [replace(n, **{column: cell}) if n.name == "addmm" else n for n in nodes]
    path = layout.graph(TRAIN, own)
    layout.label(V100, TRAIN, LABEL)
    data = neusight.read(layout.root)
    if column in ("fw", "bw") and cell == "{}":
        return
    assert data.steps["flag"].tolist() == ["graph_not_understood"]
    assert data.dropped == {"graph_cell_not_understood": 1}
    assert not data.graphs
    reject = data.rejects[0]
    assert (reject["file"], reject["row"]) == (f"results/opgraph/{path.name}", 5)
    assert len(reject["value"]) <= 80


@pytest.mark.parametrize(
    ("node", "change"),
    [
        ("addmm", {"fw": "[]"}), ("addmm", {"fw": "[['Linear', (8, -8, 24)]]"}),
        ("addmm", {"fw": "[['Linear', ('a', 8, 24)]]"}), ("addmm", {"fw": "[['Linear', (8,)]]"}),
        ("matmul", {"inputs": "[]"}), ("matmul", {"inputs": "[(4,), (4,)]"}),
        ("transformer_ln_f", {"output": "()"}), ("softmax", {"output": "(4, 0)"}),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_the_op(layout, nodes, node, change):
    layout.graph(TRAIN, [replace(n, **change) if n.name == node else n for n in nodes])
    layout.label(V100, TRAIN, LABEL)
    data = neusight.read(layout.root)
    assert data.steps["flag"].tolist() == ["graph_not_understood"]
    assert sum(data.dropped.values()) == 1


def test_ops_of_a_step_that_cannot_be(layout, nodes):
    layout.graph(TRAIN, nodes)
    layout.label(V100, TRAIN, LABEL)
    layout.label_ops(V100, TRAIN, [
        ("addmm", 0.1, 0.2), ("addmm", 0.1, 0.2), ("elsewhere", 0.1, 0.2), ("mul", -0.1, 0.2),
        ("softmax", 0.1, float("nan")), ("pow_1", 0.1, 0.0),
    ])  # fmt: skip
    data = neusight.read(layout.root)
    assert [data.graphs[TRAIN].nodes[i] for i in data.ops["node"]] == ["addmm", "pow_1"]
    assert data.dropped == {"op_repeated": 1, "op_not_in_graph": 1, "op_latency_not_a_number": 2}


@pytest.mark.parametrize(
    "value",
    [{}, {"e2e_latency": "x"}, {**LABEL, "fw_latency": None}, {**LABEL, "fw_latency": 10**400}],
)
def test_predictions_that_are_no_numbers(layout, value):
    layout.prediction(V100, "neusight", TRAIN, value)
    data = neusight.read(layout.root)
    assert data.peers.empty
    assert data.dropped == {"prediction_not_a_number": 1}


def test_predictors_that_are_not_compared_with_are_left_out(layout):
    layout.prediction(V100, "other", TRAIN, LABEL)
    data = neusight.read(layout.root)
    assert data.peers.empty
    assert list(data.left_out.values()) == ["a predictor that is not compared with"]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cells=st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=4))
def test_any_text_in_a_sweep_is_kept_or_counted(layout, cells):
    rows = [GOOD, *((latency, 128, size) for latency, size in cells)]
    layout.sweep("add", rows)
    try:
        data = neusight.read(layout.root)
    except DataError as error:
        assert "add" in str(error)
        return
    assert len(data.kernels) + sum(data.dropped.values()) >= 1
    assert (data.kernels["latency_us"] > 0).all()
