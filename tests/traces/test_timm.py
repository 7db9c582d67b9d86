"""timm's benchmark tables: names of files, and a rule for every defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.traces.files import LayoutNotFoundError
from predictor.traces.merge import merged
from predictor.traces.schema import Imported
from predictor.traces.sources.timm import campaign_of, parts

HEAD = "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size\n"
FILE = "benchmark-infer-amp-nhwc-pt240-cu124-rtx4090-dynamo.csv"


def table(folder: Path, *rows: str, name: str = FILE) -> Path:
    """A benchmark table below `folder`/timm_bench."""
    path = folder / "timm_bench" / "results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD.replace("infer", name.split("-")[1]) + "".join(f"{r}\n" for r in rows))
    return folder


def read(folder: Path) -> Imported:
    return merged(parts(folder))


def test_a_row_in_the_schema(tmp_path):
    rows = read(table(tmp_path, "resnet18,10000,25.6,256,224")).steps
    assert len(rows) == 1
    row = rows.iloc[0]
    assert row["row_id"] == f"timm:results/{FILE}:0"
    assert (row["device"], row["mode"], row["dtype"]) == ("nvidia-rtx-4090", "infer", "amp-fp16")
    assert (row["execution"], row["layout"]) == ("compiled", "nhwc")
    assert (row["framework_version"], row["library"]) == ("2.4.0", "cuda 12.4")
    assert (row["batch"], row["size"], row["latency_us"]) == (256, 224, 25_600)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv",
         ("train", "1.12.0", "11.3", "rtx3090", False, "amp-unfused")),
        ("benchmark-infer-amp-nhwc-pt113-cu117-rtx3090.csv",
         ("infer", "1.13.0", "11.7", "rtx3090", False, "amp-unfused-fastnorm")),
        ("benchmark-infer-amp_bf16-nchw-pt291-cu130-pro6000maxq-dynamo.csv",
         ("infer", "2.9.1", "13.0", "pro6000maxq", True, "amp")),
        ("benchmark-infer-fp32-nchw-pt221-cpu-i9_10940x-dynamo.csv",
         ("infer", "2.2.1", None, "i9_10940x", True, "fp32")),
        ("benchmark-infer-bf16-nchw-pt291-cu130-h100.csv.gz",
         ("infer", "2.9.1", "13.0", "h100", False, "bf16")),
    ],
)  # fmt: skip
def test_what_a_file_name_says(name, expected):
    found = campaign_of(name)
    assert found is not None
    facts = (found.mode, found.torch, found.cuda, found.device, found.compiled, found.variant)
    assert facts == expected


@pytest.mark.parametrize("name", ["results-imagenet.csv", "benchmark-infer-int3-nchw-pt240-x.csv"])
def test_a_name_that_is_not_understood(name):
    assert campaign_of(name) is None


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ("resnet18,10000,25.6,,224", "not_a_positive_number"),
        ("resnet18,10000,-1,256,224", "not_a_positive_number"),
        ("resnet18,10000,25.6,256,224.5", "not_a_positive_number"),
        ("resnet18,10000,30.0,256,224", "throughput_disagrees"),  # 256 / 10000 s = 25.6 ms
        ("resnet50,10000,25.6,256,224", "row_repeated"),
    ],
)
def test_a_row_that_breaks_a_rule_is_counted(tmp_path, row, rule):
    data = read(table(tmp_path, "resnet50,10000,25.6,256,224", row))
    assert len(data.steps) == 1
    assert data.dropped == {rule: 1}
    assert data.rejects[0]["row"] == 1


def test_a_row_that_was_refused_is_no_earlier_row(tmp_path):
    rows = ("resnet50,10000,30.0,256,224", "resnet50,10000,25.6,256,224")
    data = read(table(tmp_path, *rows))
    assert data.steps["row"].tolist() == [1]
    assert data.dropped == {"throughput_disagrees": 1}


def test_rounding_of_fast_rows_is_no_disagreement(tmp_path):
    # 0.001 ms is the last digit published: 1 / 0.0104 ms = 96,153 a second may read 0.010
    assert len(read(table(tmp_path, "resnet18,96153.85,0.010,1,224")).steps) == 1


def test_a_device_that_nobody_knows(tmp_path):
    name = "benchmark-infer-amp-nchw-pt240-cu124-abacus.csv"
    data = read(table(tmp_path, "resnet18,10000,25.6,256,224", name=name))
    assert data.dropped == {"unknown_device": 1}
    assert data.rejects[0]["value"] == "abacus"


def test_a_model_without_a_graph_is_kept_and_marked(tmp_path):
    data = read(table(tmp_path, "no_such_net,10000,25.6,256,224"))
    assert data.steps["flag"].tolist() == ["no_graph"]


def test_one_file_alone_and_files_of_other_names(tmp_path):
    folder = table(tmp_path, "resnet18,10000,25.6,256,224")
    results = folder / "timm_bench" / "results"
    (results / "benchmark-notes.csv").write_text("a,b\n1,2\n")
    assert len(read(results / FILE).steps) == 1
    assert read(folder).left_out == {
        "results/benchmark-notes.csv": "its name is not that of a benchmark table"
    }
    with pytest.raises(LayoutNotFoundError, match="no timm benchmark tables"):
        read(tmp_path / "timm_bench" / "nothing")
