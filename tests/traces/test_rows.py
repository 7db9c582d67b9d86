"""Users' own rows: what a file may hold, what is refused, and how it says so."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor import cli
from predictor.errors import DataError
from predictor.traces.merge import merged
from predictor.traces.schema import Imported
from predictor.traces.sources import rows_files
from predictor.traces.sources.registry import read_source
from predictor.traces.sources.rows import parts

HEAD = "device,op,batch,m,n,k,dtype,context,latency_us"
GOOD = "Tesla T4,bmm,2,64,32,16,fp16,device,12"


@pytest.fixture
def write(tmp_path: Path):
    """Write a file of lines, or of bytes, and return its path."""

    def written(*lines: str, name: str = "my.csv", encoding: str = "utf-8") -> Path:
        content = "".join(f"{line}\n" for line in lines).encode(encoding)
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return written


def read(path: Path) -> Imported:
    return merged(parts(path))


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as error:
        read(path)
    return str(error.value)


@pytest.fixture
def heard(caplog, monkeypatch):
    """What the library logs, also where a third party silenced its loggers."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    for name in ("predictor", *(n for n in logging.root.manager.loggerDict)):
        if name.partition(".")[0] == "predictor":
            monkeypatch.setattr(logging.getLogger(name), "disabled", False)
            monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    caplog.set_level("WARNING", logger="predictor")
    return caplog


class TestKernelRows:
    def test_a_row_gets_id_device_dimensions_costs_and_phase(self, write):
        row = read(write(HEAD, GOOD)).kernels.iloc[0]
        assert row["row_id"] == "rows:my.csv:0"
        assert row["device"] == "nvidia-t4"
        assert [row[f"dim_{d}"] for d in ("batch", "m", "n", "k", "rows")] == [2, 64, 32, 16, -1]
        assert row["flops"] == 2 * 2 * 64 * 32 * 16
        assert row["read_bytes"] == 2 * 2 * (64 * 16 + 16 * 32)
        assert row["write_bytes"] == 2 * 2 * 64 * 32
        assert (row["phase"], row["licence"], row["execution"]) == ("forward", "unstated", "")
        assert np.isnan(row["repeats"])

    def test_plain_products_need_no_column_of_batches(self, write):
        head, line = HEAD.replace(",batch", ""), GOOD.replace("bmm,2", "linear")
        with_it = read(write(HEAD, GOOD.replace("bmm,2", "linear,1"))).kernels
        pd.testing.assert_frame_equal(read(write(head, line)).kernels, with_it)
        other = write(f"{head},rows,cols", f"{line},,", "Tesla T4,softmax,,,,fp16,device,9,64,32")
        assert read(other).kernels["dim_batch"].tolist() == [1, -1]
        message = refusal(write(head, line, line.replace("linear", "bmm")))
        assert "op 'bmm' needs column 'batch'" in message

    def test_given_costs_stay_and_missing_ones_follow_from_the_op(self, write):
        kernels = read(write(f"{HEAD},read_bytes", f"{GOOD},777", f"{GOOD},")).kernels
        assert kernels["read_bytes"].tolist() == [777, 2 * 2 * (64 * 16 + 16 * 32)]
        assert kernels["flops"].tolist() == [131072, 131072]

    def test_dimensions_may_carry_the_prefix(self, write):
        plain = read(write(HEAD, GOOD)).kernels
        prefixed = HEAD.replace(",m,n,k", ",dim_m,DIM_N,dim_k")
        pd.testing.assert_frame_equal(read(write(prefixed, GOOD)).kernels, plain)

    @pytest.mark.parametrize(
        ("op", "dims", "phase"),
        [("layer_norm_backward", "rows,cols", "backward"), ("adamw", "numel,tensors", "optimizer")],
    )
    def test_the_phase_of_an_op_that_has_one_only(self, write, op, dims, phase):
        path = write(
            f"device,op,{dims},dtype,context,latency_us", f"nvidia-t4,{op},9,9,fp32,step,5"
        )
        assert read(path).kernels["phase"].tolist() == [phase]

    def test_a_time_in_another_unit_is_noticed(self, write, heard):
        # 4096^3 in fp16 is 137 GFLOP: at 312 TFLOP/s at least 440 us
        line = "nvidia-a100-sxm-80gb,bmm,1,4096,4096,4096,fp16,device,{}"
        kernels = read(write(HEAD, line.format(0.64), line.format(640))).kernels
        assert kernels["flag"].tolist() == ["below_floor", ""]
        assert "are they microseconds?" not in heard.text
        read(write(HEAD, line.format(0.64)))
        assert "1 of 1 times are shorter than can be" in heard.text

    def test_nanoseconds_are_noticed_where_most_rows_are_far_too_long(self, write, heard):
        # 2 x 4096^3 FLOP at 312 TFLOP/s sustained: some 500 us, so 640,000 is beyond 100 times that
        line = "nvidia-a100-sxm-80gb,bmm,1,4096,4096,4096,fp16,device,{}"
        read(write(HEAD, line.format(640), line.format(640_000)))
        assert "longer than the device should need" not in heard.text  # half is not most
        assert read(write(HEAD, line.format(640_000))).kernels["flag"].tolist() == [""]
        assert "1 of 1 times are more than 100 times longer" in heard.text

    def test_small_kernels_in_nanoseconds_are_noticed(self, write, heard):
        line = "nvidia-a100-sxm-80gb,bmm,1,64,64,64,fp16,device,{}"
        read(write(HEAD, line.format(6), line.format(60)))
        assert "longer than the device should need" not in heard.text
        read(write(HEAD, line.format(6_000)))
        assert "are they microseconds?" in heard.text

    def test_seconds_are_noticed_where_all_rows_are_refused(self, write, heard):
        line = "nvidia-a100-sxm-80gb,bmm,1,64,64,64,fp16,device,{}"
        assert read(write(HEAD, line.format(6e-6), line.format(7e-6))).kernels.empty
        assert "2 of 2 times are shorter than can be, or beyond all; are they micro" in heard.text

    def test_a_name_that_is_none_is_told_with_those_near(self, write, heard):
        read(write(HEAD, GOOD.replace("fp16", "float16"), GOOD.replace("bmm", "bmmm")))
        assert "value 'float16'); known: fp64, fp32, tf32, fp16" in heard.text
        assert "value 'bmmm'); nearest: bmm" in heard.text
        read(write(HEAD, GOOD.replace("device", "gpu")))
        assert "value 'gpu'); known: step, in_step, isolated, device" in heard.text


class TestRefusedRows:
    @pytest.mark.parametrize(
        ("line", "column", "value", "rule"),
        [
            ("Tesla T4,bmm,2,64,32,16,,device,12", "dtype", "", "missing_value"),
            ("Tesla T4,bmm,2,64,32,16,fp16,device,n/a", "latency_us", "n/a", "not_a_number"),
            ("Tesla T4,bmm,2,64,x,16,fp16,device,12", "dim_n", "x", "not_a_number"),
            ("Tesla T5,bmm,2,64,32,16,fp16,device,12", "device", "Tesla T5", "unknown_device"),
            ("mine.toml,bmm,2,64,32,16,fp16,device,12", "device", "mine.toml", "unknown_device"),
            ("Tesla T4,bmm,2,64,32,,fp16,device,12", "dim_k", "nan", "dimension_missing"),
            ("Tesla T4,bmm,2,64,3.5,16,fp16,device,12", "dim_n", "3.5", "dimension_not_plausible"),
            ("Tesla T4,softmax,2,,,,fp16,device,12", "dim_batch", "2.0", "dimension_not_of_op"),
            ("Tesla T4,mm,2,64,32,16,fp16,device,12", "op", "mm", "unknown_op"),
            ("Tesla T4,bmm,2,64,32,16,half,device,12", "dtype", "half", "unknown_dtype"),
            ("Tesla T4,bmm,2,64,32,16,fp16,gpu,12", "context", "gpu", "unknown_context"),
            ("Tesla T4,bmm,2,64,32,16,fp16,device,-1", "latency_us", "-1.0",
             "latency_not_plausible"),
            ("Tesla T4,bmm,2,64,32,16,fp8,device,12", "dtype", "fp8", "dtype_not_supported"),
        ],
    )  # fmt: skip
    def test_bad_rows_are_counted_and_good_ones_stay(self, write, line, column, value, rule):
        head = f"{HEAD},rows,cols"
        softmax = ",4,4" if "softmax" in line else ",,"
        data = read(write(head, f"{GOOD},,", f"{line}{softmax}", f"{GOOD},,"))
        assert data.kernels["row"].tolist() == [0, 2]
        assert data.dropped == {rule: 1}
        assert data.rejects == [
            {"file": "my.csv", "row": 1, "column": column, "value": value, "rule": rule, "rows": 1}
        ]

    def test_a_refusal_says_where_and_what(self, write, heard):
        read(write(HEAD, GOOD, GOOD.replace("T4", "T5")))
        where = "row 1, column device, value 'Tesla T5'"
        assert f"my.csv: 1 rows dropped by rule unknown_device (first: {where})" in heard.text

    def test_kept_and_dropped_are_what_was_read(self, write):
        data = read(write(HEAD, GOOD, ",,,,,,,,", f"{GOOD}x", GOOD))
        assert len(data.kernels) + sum(data.dropped.values()) == data.files["my.csv"].rows == 4


class TestColumns:
    @pytest.mark.parametrize(
        ("head", "says"),
        [
            (HEAD.replace(",dtype", ""), "no column 'dtype'; kernel rows need device, op, dtype"),
            (f"{HEAD},framwork", "unknown column 'framwork' of kernel rows; did you mean 'framew"),
            (f"{HEAD},qqq", "unknown column 'qqq' of kernel rows; remove it"),
            (f"{HEAD},mode", "step rows have it"),
            (
                HEAD.replace("_us", "_ms"),
                "in milliseconds; times are microseconds: multiply by 1,0",
            ),
            (
                HEAD.replace("latency_us", "time_s"),
                "in seconds; times are microseconds: multiply b",
            ),
            (HEAD.replace("latency_us", "duration_ns"), "in nanoseconds"),
            (HEAD.replace("_us", ""), "column 'latency' has no unit"),
            (f"{HEAD},spread_ms", "name it 'spread_us'"),
            (f"{HEAD},row_id", "'row_id' is filled by the import"),
            (f",{HEAD}", "column 1 has no name"),
            (f"{HEAD},M", "column 'm' occurs twice"),
            (GOOD.replace(",32,", ",64,"), "the first line holds values; it must name"),
            (f"{HEAD},dim_k", "column 'k' occurs twice"),
            ("device,latency_us", "neither kernel rows (column 'op') nor step rows"),
            (HEAD.replace(",k", ""), "op 'bmm' needs column 'k'; it needs batch, m, n, k"),
        ],
    )
    def test_what_no_row_can_mend_is_one_error(self, write, head, says):
        fields = dict(zip(HEAD.split(","), GOOD.split(","), strict=True))
        line = ",".join(fields.get(c.lower(), "1") for c in head.split(","))
        message = refusal(write(head, line))
        assert message.startswith("my.csv: ")
        assert says in message

    def test_step_rows(self, write):
        head = "device,model,mode,batch,dtype,measure,latency_us,plan"
        step = read(write(head, "nvidia-t4,resnet50,train,32,fp32,wall,1500,dp=1")).steps.iloc[0]
        assert (step["model"], step["batch"], step["plan"]) == ("resnet50", 32, "dp=1")
        assert np.isnan(step["forward_us"]) and np.isnan(step["seq"])


class TestFiles:
    def test_variants_of_one_table_are_read_alike(self, write, tmp_path):
        first = read(write(HEAD, GOOD)).kernels
        for name, encoding in (("bom.csv", "utf-8-sig"), ("zip.csv.gz", "utf-8")):
            other = read(write(HEAD, GOOD, name=name, encoding=encoding))
            pd.testing.assert_frame_equal(
                other.kernels.drop(columns=["row_id", "file"]),
                first.drop(columns=["row_id", "file"]),
            )
        assert other.kernels["row_id"].tolist() == ["rows:zip.csv:0"]
        typed = pd.read_csv(tmp_path / "my.csv")
        typed.to_parquet(tmp_path / "my.parquet")
        rows = read(tmp_path / "my.parquet").kernels
        pd.testing.assert_frame_equal(
            rows.drop(columns=["row_id", "file"]), first.drop(columns=["row_id", "file"])
        )

    @pytest.mark.parametrize(
        ("lines", "encoding", "says"),
        [
            ((HEAD.replace(",", ";"), GOOD), "utf-8", "separated by semicolons"),
            ((HEAD.replace(",", "\t"), GOOD), "utf-8", "separated by tabs"),
            ((HEAD, GOOD), "utf-16", "UTF-16"),
            ((HEAD, GOOD.replace("T4", "T4é")), "latin-1", "not UTF-8"),
            ((HEAD, f"{GOOD},5"), "utf-8", "more fields than the header"),
            ((), "utf-8", "the first line must name the columns"),
        ],
    )
    def test_what_a_spreadsheet_may_write_is_named(self, write, lines, encoding, says):
        assert says in refusal(write(*lines, encoding=encoding))

    def test_other_files(self, write, tmp_path):
        assert "neither CSV" in refusal(write("a", name="my.xlsx"))
        assert "not readable as Parquet" in refusal(write("a", name="my.parquet"))
        (tmp_path / "my.parquet").unlink()
        write(HEAD, GOOD), write(HEAD, GOOD, name="my.csv.gz")
        data = read(tmp_path)
        assert len(data.kernels) == 1
        assert set(data.left_out) == {"my.xlsx", "my.csv.gz"}

    def test_bytes_of_a_parquet_file_are_text_or_refused(self, write, tmp_path):
        table = pd.read_csv(write(HEAD, GOOD))
        path = tmp_path / "typed.parquet"
        table.assign(device=[table["device"][0].encode()]).to_parquet(path)
        assert len(read(path).kernels) == 1
        table.assign(device=[b"\xff\xfe"]).to_parquet(path)
        assert "not readable as Parquet" in refusal(path)

    @pytest.mark.parametrize("content", ["3", "[1]", "{", "null"])
    def test_a_report_of_something_else_makes_no_import(self, write, tmp_path, content):
        write(HEAD, GOOD)
        (tmp_path / "report.json").write_text(content)
        assert len(read(tmp_path).kernels) == 1

    def test_a_long_file_comes_in_chunks(self, write, monkeypatch):
        path = write(HEAD, *[GOOD] * 5)
        whole = read(path)
        monkeypatch.setattr(rows_files, "CHUNK_ROWS", 2)
        assert [len(part.kernels) for part in parts(path)] == [2, 2, 1]
        chunked = read(path)
        pd.testing.assert_frame_equal(chunked.kernels, whole.kernels)
        assert chunked.files == whole.files
        assert chunked.files["my.csv"].rows == 5

    def test_two_files_of_one_name_and_other_content_are_told_apart(self, write, tmp_path):
        write(HEAD, GOOD)
        other = tmp_path / "other"
        other.mkdir()
        (other / "my.csv").write_text(f"{HEAD}\n{GOOD}\n{GOOD}\n")
        with pytest.raises(DataError, match=r"my\.csv.*other content"):
            read_source("rows", [tmp_path, other])


def test_import_and_read_back(write, tmp_path, capsys):
    path = write(HEAD, GOOD, "Tesla T5,bmm,2,64,32,16,fp16,device,12")
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as done:
        cli.main(["import", "rows", str(path), "--out", str(out)])
    assert done.value.code == 0
    printed = capsys.readouterr().out
    assert "1  kernel rows" in printed
    assert "dropped: 1 unknown_device" in printed
    assert read_source("rows", [out]).kernels["device"].tolist() == ["nvidia-t4"]
    first = json.loads((out / "rejects.json").read_text())["first_of_file_and_rule"]
    assert first[0]["value"] == "Tesla T5"
