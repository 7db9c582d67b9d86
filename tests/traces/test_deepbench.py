"""DeepBench: kernels of a row, units, precisions, workbooks and rules, worked out by hand."""

from __future__ import annotations

import csv
import json
import os
import shutil
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from predictor.errors import DataError
from predictor.traces.merge import merged
from predictor.traces.sources import deepbench

SAMPLE = Path(__file__).parent / "deepbench_sample"
HEAD = ("device", "mode", "sheet", "op_table", "row_json")
GEMM = {"M": 1760, "N": 16, "K": 2048, "A Transpose": "N", "B Transpose": "N", "Time (msec)": 0.5}
CONV = {
    "W": 700, "H": 161, "C": 1, "N": 4, "K": 32, "R": 5, "S": 20, "pad_h": 0, "pad_w": 0,
    "Vertical stride": 2, "Horizontal stride": 2, "Forward (msec)": 0.1, "wrt Inputs (msec)": 0.2,
    "wrt Parameters (msec)": 0.3,
}  # fmt: skip
PRODUCT, CONVOLUTION = "Dense Matrix Multiplication", "W"


def read(folder):
    return merged(deepbench.parts(folder))


@pytest.fixture(scope="module")
def kernels():
    return read(SAMPLE).kernels.set_index("row_id")


@pytest.fixture
def table(tmp_path):
    """Reads a table of one row."""

    def one(cells, *, device="NV_V100", mode="train", sheet="Results FP32", title=PRODUCT):
        folder = tmp_path / "deepbench"
        folder.mkdir(exist_ok=True)
        with (folder / "deepbench_long.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEAD, (device, mode, sheet, title, json.dumps(cells))])
        return read(folder)

    return one


def dims(row, *names):
    return [int(row[f"dim_{name}"]) for name in names]


def row_of(kernels, place):
    return kernels.loc[f"deepbench:deepbench_long.csv:{place}"]


def test_products_are_column_major_there(kernels):
    row = row_of(kernels, 0)  # C^T = B^T A^T: the call of a row-major 16 x 2048 times 2048 x 1760
    assert dims(row, "batch", "m", "n", "k") == [1, 16, 1760, 2048]
    assert row["flops"] == 2 * 1760 * 16 * 2048
    assert (row["latency_us"], row["context"], row["library"]) == (500.0, "isolated", "cublas")


def test_precision_by_sheet(kernels):
    assert [row_of(kernels, i)["dtype"] for i in (0, 1, 2)] == ["fp32", "fp16", "int8"]
    row = row_of(kernels, 2)
    assert row["read_bytes"] == (16 + 1760) * 2048
    assert row["write_bytes"] == 4 * 16 * 1760  # sums are 32 bits


def test_sixteen_bits_kept_and_32_computed(table):
    row = table(GEMM, device="NV_P100", sheet="Results - Psuedo FP16").kernels.iloc[0]
    assert (row["dtype"], row["scheme"]) == ("fp16", "fp32_math")


def test_three_kernels_of_a_convolution(kernels):
    rows = [row_of(kernels, f"3:{part}") for part in ("forward", "dgrad", "wgrad")]
    assert [r["op"] for r in rows] == ["conv", "conv_dgrad", "conv_wgrad"]
    assert [r["latency_us"] for r in rows] == [100.0, 200.0, 300.0]
    assert [r["phase"] for r in rows] == ["forward", "backward", "backward"]
    for row in rows:  # (161 - 5) / 2 + 1 = 79, (700 - 20) / 2 + 1 = 341
        assert dims(row, "batch", "c_in", "h_in", "w_in") == [4, 1, 161, 700]
        assert dims(row, "c_out", "h_out", "w_out", "kh", "kw") == [32, 79, 341, 5, 20]
        assert row["flops"] == 2 * 4 * 32 * 79 * 341 * 5 * 20
        assert (row["layout"], row["library"]) == ("nchw", "cudnn")


def test_odd_strides_round_down(table):
    row = table({**CONV, "W": 701, "pad_w": 1}, title=CONVOLUTION).kernels.iloc[0]
    assert dims(row, "w_out") == [(701 + 2 - 20) // 2 + 1]


def test_inference_has_the_forward_alone_in_eight_bits(table):
    cells = {
        "W (input - time)": 54, "H (input)": 54, "C (channels)": 64, "N (batch size)": 8,
        "K  (number of filters)": 64, "S (filter width)": 3, "R (filter height)": 3, "pad_w": 1,
        "pad_h": 1, "Horizontal Stride": 1, "Vertical Stride": 1, "Forward (msec)": 0.25,
    }  # fmt: skip
    data = table(cells, device="NV_TitanXp", mode="inference", sheet="Results - Mixed Precision",
                 title="W (input - time)")  # fmt: skip
    assert not data.dropped
    row = data.kernels.iloc[0]
    assert (row["op"], row["dtype"], row["latency_us"]) == ("conv", "int8", 250.0)
    assert dims(row, "h_out", "w_out") == [54, 54]


def test_recurrent_layers_skip_the_input_product(kernels):
    forward, backward = row_of(kernels, "4:forward"), row_of(kernels, "4:backward")
    names = ("steps", "batch", "input_size", "hidden_size", "layers", "directions", "gates")
    assert dims(forward, *names) == [25, 16, 0, 512, 1, 1, 4]
    assert forward["flops"] == 2 * 25 * 16 * 4 * 512 * 512
    assert backward["flops"] == 2 * forward["flops"]
    # weights, two bias vectors a gate, and the input
    assert forward["read_bytes"] == 4 * (4 * 512 * 512 + 2 * 4 * 512 + 25 * 16 * 512)
    assert (forward["latency_us"], backward["latency_us"]) == (1000.0, 2000.0 + 500.0)


def test_one_backward_time_is_that_of_the_data(table):
    cells = {"Hidden units": 2816, "N": 32, "Timesteps": 1500, "Time Forward (msec)": 800,
             "Time Backward (msec)": 900}  # fmt: skip
    rows = table(cells, title="Recurrent Layers - GRU").kernels.set_index("op")
    assert rows.loc["rnn_backward", "flag"] == "data_gradient_only"
    assert rows.loc["rnn_backward", "flops"] == rows.loc["rnn", "flops"]
    assert rows.loc["rnn", "flops"] == 2 * 1500 * 32 * 3 * 2816**2


def test_half_a_backward_is_none(table):
    cells = {"Hidden Units": 512, "N": 16, "Timesteps": 25, "Time Forward (msec)": 1.0,
             "Time Backward wrt Inputs (msec)": 2.0,
             "Time Backward wrt Weights (msec)": None}  # fmt: skip
    data = table(cells, title="Recurrent Layers - Vanilla")
    assert data.dropped == {"not_measured": 1}
    assert data.kernels["op"].tolist() == ["rnn"]
    assert dims(data.kernels.iloc[0], "gates") == [1]


def test_a_recurrent_layer_of_unknown_kind_is_dropped(table):
    cells = {"Hidden units": 512, "N": 16, "Timesteps": 25, "Time Forward (msec)": 1.0}
    assert table(cells, title="Recurrent Layers - QRNN").dropped == {"unknown_op": 1}


def test_sparse_products_and_the_same_in_dense(table):
    cells = {"M": 7680, "N": 2, "K": 2560, "A Transpose": "N", "B Transpose": "N",
             "Sparsity": 0.95, "Sparse Time (msec)": 0.05, "Dense Time (msec)": 0.25}  # fmt: skip
    data = table(cells, device="NV_TitanXp", mode="inference", sheet="Results - Mixed Precision",
                 title="Sparse Matrix Multiplication")  # fmt: skip
    rows = data.kernels.set_index("op")
    assert dims(rows.loc["sparse_mm"], "m", "n", "k", "nnz") == [7680, 2, 2560, 983_040]
    assert dims(rows.loc["matmul"], "m", "n", "k") == [2, 7680, 2560]
    assert rows["latency_us"].to_dict() == {"sparse_mm": 50.0, "matmul": 250.0}
    assert set(rows["dtype"]) == {"fp32"}


def test_all_reduce_sizes_are_floats(kernels):
    row = row_of(kernels, 5)
    assert dims(row, "numel", "ranks") == [100_000, 2]
    assert row["read_bytes"] == 400_000
    assert (row["latency_us"], row["spread_us"], row["flag"]) == (60.0, 2.0, "")


@pytest.mark.parametrize(
    ("ranks", "count", "flag"),
    [("# chips / accelerator cards", 8, ""), ("# chips / accelerator cards", 16, "multi_node"),
     ("# nodes (1 process per node)", 2, "multi_node")],
)  # fmt: skip
def test_all_reduce_between_nodes_is_flagged(table, ranks, count, flag):
    cells = {"Size # floats": 1000, ranks: count, "Mean All Reduce Time (msec)": 0.5}
    assert table(cells, title="All-Reduce").kernels["flag"].tolist() == [flag]


@pytest.mark.parametrize("cell", ["N/A*", "#DIV/0!", "Not Supported", "", None, 0, 10**400])
def test_what_was_not_measured_is_dropped_kernel_by_kernel(table, cell):
    data = table({**CONV, "wrt Inputs (msec)": cell}, title=CONVOLUTION)
    assert data.dropped == {"not_measured": 1}
    assert data.kernels["op"].tolist() == ["conv", "conv_wgrad"]


def test_a_negative_time_is_dropped(table):
    assert table({**GEMM, "Time (msec)": -1}).dropped == {"not_positive": 1}


@pytest.mark.parametrize(
    ("cells", "title", "rule"),
    [({**GEMM, "K": 0.5}, PRODUCT, "dimension_not_a_positive_integer"),
     ({**CONV, "C": "x"}, CONVOLUTION, "dimension_not_a_positive_integer"),
     ({**CONV, "R": 162}, CONVOLUTION, "dimension_not_plausible"),
     ({"A": 1}, "Notes", "unknown_op")],
)  # fmt: skip
def test_sizes_that_cannot_be(table, cells, title, rule):
    assert table(cells, title=title).dropped == {rule: 1}


def test_phones_are_dropped_and_named(table):
    data = table(GEMM, device="iPhone_7", mode="inference", sheet="Kernels")
    assert data.dropped == {"unknown_device": 1}
    assert data.rejects[0]["value"] == "iPhone_7"


def test_a_header_in_another_unit(table):
    cells = {**GEMM, "Time (usec)": 30}
    del cells["Time (msec)"]
    assert table(cells).kernels["latency_us"].tolist() == [30.0]


@pytest.mark.parametrize(("ms", "flag"), [(0.009, "rounded"), (0.01, ""), (0.0093, "")])
def test_whole_microseconds_below_ten_are_flagged(table, ms, flag):
    assert table({**GEMM, "M": 64, "Time (msec)": ms}).kernels["flag"].tolist() == [flag]


def test_faster_than_the_datasheet_is_flagged(table):
    # 1.1e13 FLOPs at 15.7 TFLOP/s: 0.7 s
    cells = {**GEMM, "M": 17600, "N": 17600, "K": 17600, "Time (msec)": 500}
    assert table(cells).kernels["flag"].tolist() == ["above_peak"]


def workbook(path, sheets):
    """A workbook with texts inline, numbers as values, and one error."""
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    kind = "http://schemas.openxmlformats.org/package/2006/relationships"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as book:
        names = "".join(
            f'<sheet name="{escape(n)}" sheetId="{i}" r:id="r{i}"/>' for i, n in enumerate(sheets)
        )
        book.writestr(
            "xl/workbook.xml",
            f'<workbook {main} xmlns:r="{office}"><sheets>{names}</sheets></workbook>',
        )
        links = "".join(
            f'<Relationship Id="r{i}" Target="worksheets/s{i}.xml"/>' for i in range(len(sheets))
        )
        book.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{kind}">{links}</Relationships>'
        )
        for i, rows in enumerate(sheets.values()):
            cells = "".join(_cell(r, c, v) for r, row in rows.items() for c, v in row.items())
            book.writestr(
                f"xl/worksheets/s{i}.xml",
                f"<worksheet {main}><sheetData>{cells}</sheetData></worksheet>",
            )


def _cell(row, column, value):
    place = f"{chr(64 + column)}{row}"
    if isinstance(value, str) and value.startswith("#DIV"):
        return f'<c r="{place}" t="e"><v>{value}</v></c>'
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f'<c r="{place}"><v>{value}</v></c>'


SHEETS = {
    "Results FP32": {
        1: {1: "Precision", 2: "Float"},
        3: {1: "Dense Matrix Multiplication", 3: "M", 4: "N", 5: "K", 6: "A Transpose",
            7: "B Transpose", 9: "Time (msec)"},
        4: {3: 1760, 4: 16, 5: 2048, 6: "N", 7: "T", 9: 0.5},
        7: {1: "Recurrent Layers - LSTM", 3: "Hidden Units", 4: "N", 5: "Timesteps",
            7: "Time Forward (msec) ", 8: "Time Backward (msec)"},
        8: {2: "Machine Translation", 3: 512, 4: 16, 5: 25, 7: 1.0, 8: "#DIV/0!"},
    },
    "Specs": {1: {1: "CUDA Version", 2: "9.1"}, 2: {1: "Cudnn Version", 2: "7.0.2"},
              3: {1: "OpenMPI Version", 2: "-"}},
}  # fmt: skip


def test_workbooks_where_the_table_is_not_there(tmp_path):
    file = "results/train/DeepBench_NV_V100.xlsx"
    workbook(tmp_path / "deepbench" / file, SHEETS)
    data = read(tmp_path)
    assert data.dropped == {"not_measured": 1}
    assert data.files[file].rows == 2
    rows = data.kernels.set_index("op")
    assert rows["row_id"].to_dict() == {
        "matmul": f"deepbench:{file}:2:Results FP32",
        "rnn": f"deepbench:{file}:6:Results FP32:forward",
    }
    assert set(rows["framework_version"]) == {"cuda 9.1, cudnn 7.0.2"}
    assert dims(rows.loc["rnn"], "gates", "hidden_size") == [4, 512]


def test_beside_the_table_a_workbook_gives_versions_alone(tmp_path):
    root = shutil.copytree(SAMPLE, tmp_path / "deepbench")
    workbook(root / "results/train/DeepBench_NV_V100.xlsx", SHEETS)
    data = read(tmp_path)
    assert len(data.kernels) == 9
    versions = data.kernels.groupby("device")["framework_version"].unique().map(list).to_dict()
    assert versions == {
        "nvidia-v100-sxm2-16gb": ["cuda 9.1, cudnn 7.0.2"],
        "nvidia-titan-xp": [""], "nvidia-titan-x-pascal": [""],
    }  # fmt: skip
    assert list(data.left_out) == ["results/train/DeepBench_NV_V100.xlsx"]


@pytest.mark.parametrize("content", [b"no workbook", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_workbook_is_named(tmp_path, content):
    path = tmp_path / "results/train/DeepBench_NV_V100.xlsx"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"DeepBench_NV_V100.xlsx: not readable as a workbook"):
        read(tmp_path)


def test_a_workbook_without_tables_is_refused(tmp_path):
    workbook(tmp_path / "results/train/DeepBench_NV_V100.xlsx", {"Specs": SHEETS["Specs"]})
    with pytest.raises(DataError, match="no table of DeepBench"):
        read(tmp_path)


FOLDER = os.environ.get("PREDICTOR_TRACES", "")
published = pytest.mark.skipif(not FOLDER, reason="set PREDICTOR_TRACES to the published data")


@published
def test_published_rows():
    data = read(Path(FOLDER))
    assert len(data.kernels) == 6_555
    assert data.dropped == {"not_measured": 553, "unknown_device": 147}
    flags = data.kernels["flag"].value_counts().to_dict()
    assert flags == {"": 6_344, "data_gradient_only": 106, "multi_node": 70, "rounded": 32,
                     "above_peak": 3}  # fmt: skip


@published
def test_published_workbooks_hold_the_same_rows(tmp_path):
    (tmp_path / "results").symlink_to(Path(FOLDER) / "deepbench/results", target_is_directory=True)
    flat, books = read(Path(FOLDER)), read(tmp_path)
    columns = [
        c for c in flat.kernels if c not in ("row_id", "row", "file") and not c.startswith("spread")
    ]
    ours, theirs = (
        d.kernels[columns].sort_values(columns).reset_index(drop=True) for d in (flat, books)
    )
    assert ours.equals(theirs)
    assert books.dropped == flat.dropped
    assert sum(file.rows for file in books.files.values()) == 4_508
