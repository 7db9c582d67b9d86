"""HW-GPT-Bench: devices from column names, precision from the device, every rule by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from predictor.traces.files import LayoutNotFoundError
from predictor.traces.merge import merged
from predictor.traces.schema import Imported
from predictor.traces.sources import gptbench

SAMPLE = Path(__file__).parent / "gptbench_sample" / "gpt_s_latency.csv"
TEXT = SAMPLE.read_text()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bank that has the first architecture, and another architecture by the second's name."""
    # 4 x 192 x 64 x 12 + 3 x 192^2 x 6 + 2 x 50254 x 192 + 10 x 192 and, with biases, 5376 more
    known = {("gpt-s-0", 20_558_208): "gptbench-aa", ("gpt-s-1", 1): "gptbench-bb"}
    monkeypatch.setattr(gptbench, "_graphs", lambda: known)


def read(folder: Path, content: str, name: str = "gpt_s_latency.csv") -> Imported:
    data = content.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return merged(gptbench.parts(folder))


def test_every_cell_is_a_step(tmp_path, graphs):
    rows = read(tmp_path, TEXT).steps
    assert len(rows) == 2 * 3
    first = rows[rows["device"] == "nvidia-p100-pcie-16gb"].iloc[0]
    assert first["row_id"] == "gptbench:gpt_s_latency.csv:0:P100"
    assert (first["latency_us"], first["spread_us"], first["repeats"]) == (86_700, 200, 10)
    assert (first["batch"], first["seq"], first["mode"]) == (8, 1024, "infer")
    assert (first["framework"], first["framework_version"]) == ("pytorch", "2.1.2")
    assert first["measure"] == "kernel_sum"


@pytest.mark.parametrize(("size", "batch"), [("s", 8), ("m", 4), ("l", 1)])
def test_the_size_gives_the_batch(tmp_path, graphs, size, batch):
    rows = read(tmp_path, TEXT, f"gpt_{size}_latency.csv.gz").steps
    assert set(rows["batch"]) == {batch}
    assert rows["row_id"].iloc[0] == f"gptbench:gpt_{size}_latency.csv:0:P100"


def test_autocast_is_bf16_where_the_device_has_it(tmp_path, graphs):
    rows = read(tmp_path, TEXT).steps
    found = dict(zip(rows["device"], rows["dtype"], strict=True))
    assert found == {
        "nvidia-p100-pcie-16gb": "amp-fp16", "nvidia-a100-sxm-40gb": "amp-bf16",
        "nvidia-rtx-2080": "amp-fp16",
    }  # fmt: skip


def test_devices_come_from_the_columns(tmp_path, graphs):
    rows = read(tmp_path, TEXT.replace("a100_", "h100_")).steps
    assert "nvidia-h100-sxm-80gb" in set(rows["device"])


def test_graphs_are_those_of_the_same_architecture(tmp_path, graphs):
    rows = read(tmp_path, TEXT).steps
    rows = rows[rows["device"] == "nvidia-a100-sxm-40gb"]
    assert rows["graph"].tolist() == ["gptbench-aa", ""]
    assert rows["flag"].tolist() == ["", "not_sampled"]


def test_the_rtx_2080_may_be_another_device(tmp_path, graphs):
    rows = read(tmp_path, TEXT).steps
    rows = rows[rows["device"] == "nvidia-rtx-2080"]
    assert rows["flag"].tolist() == ["device_uncertain", "not_sampled+device_uncertain"]


def test_unknown_devices_are_dropped_and_named(tmp_path, graphs):
    data = read(tmp_path, TEXT.replace("a100_", "cpu_alldlc_"))
    assert data.dropped == {"unknown_device": 2}
    assert data.rejects[0]["value"] == "cpu_alldlc"
    assert len(data.steps) == 4


@pytest.mark.parametrize(
    ("old", "new", "rule", "rows"),
    [
        (",12.9,", ",0,", "latency_not_positive", 1),
        (",12.9,", ",,", "latency_not_positive", 1),
        ("0,192,2,4 8,", "0,192,2,4 x,", "architecture_not_understood", 3),
        ("0,192,2,4 8,2 4", "0,192,3,4 8,2 4", "architecture_not_understood", 3),
        ("20558208", "20558209", "parameters_disagree", 3),
        ("0,192,2,4 8,2 4", "0,192,inf,4 8,2 4", "architecture_not_understood", 3),
        ("20558208", "many", "architecture_not_understood", 3),
        ("20558208", "inf", "architecture_not_understood", 3),
        ("0,192,2,4 8,2 4,1,", "0,192,2,4 8,2 4,yes,", "architecture_not_understood", 3),
        ("0,192,2,4 8,2 4,1,", "inf,192,2,4 8,2 4,1,", "architecture_not_understood", 3),
        ("0,192,2,4 8,2 4,1,", ",192,2,4 8,2 4,1,", "architecture_not_understood", 3),
    ],
)
def test_rows_that_break_a_rule_are_dropped(tmp_path, graphs, old, new, rule, rows):
    data = read(tmp_path, TEXT.replace(old, new))
    assert data.dropped == {rule: rows}
    assert len(data.steps) == 6 - rows


def test_the_folder_one_file_and_nothing(tmp_path, graphs):
    folder = tmp_path / "hw_gpt_bench"
    folder.mkdir()
    read(folder, TEXT)
    for place in (tmp_path, folder, folder / "gpt_s_latency.csv"):
        data = merged(gptbench.parts(place))
        assert list(data.files) == ["gpt_s_latency.csv"]
        assert len(data.steps) == 6
    other = folder / "notes.csv"
    other.write_text("a\n")
    with pytest.raises(LayoutNotFoundError, match="gpt_s_latency"):
        next(gptbench.parts(other))
