"""The catalogue builder, on two small tables."""

import csv
import importlib.util
import tomllib
from pathlib import Path

import pytest

from predictor.hardware.catalogue import device_from_row, load_aliases, load_catalogue
from predictor.hardware.fields import FIELDS

SCRIPT = Path(__file__).parents[2] / "training" / "build_catalogue.py"
SPEC = importlib.util.spec_from_file_location("build_catalogue", SCRIPT)
build = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(build)

COLUMNS = [*FIELDS, "aliases"]
ROW = {
    "id": "acme-one", "vendor": "acme", "kind": "gpu", "scope": "device", "name": 'ACME "One"',
    "aliases": "One;set/one", "units": "10", "year": "2024", "memory_bw_gbps": "898.0",
    "peak_fp32_tflops": "2.5", "unsupported_dtypes": "bf16;fp8",
}  # fmt: skip
SOURCED = ("name", "units", "year", "memory_bw_gbps", "peak_fp32_tflops")


def write(folder, rows, source_lines=None):
    devices, sources = folder / "devices.csv", folder / "sources.csv"
    with devices.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    if source_lines is None:
        source_lines = [f"acme-one,{name},1,https://example.org,read," for name in SOURCED]
    header = "device,field,value,source_url,how_read,note"
    sources.write_text("\n".join([header, *source_lines]) + "\n")
    return [str(devices), str(sources), "--out", str(folder)]


def test_builds_the_same_bytes_twice_and_reads_back(tmp_path):
    arguments = write(tmp_path, [ROW])
    build.main(arguments)
    first = (tmp_path / "catalogue.toml").read_bytes()
    build.main(arguments)
    assert (tmp_path / "catalogue.toml").read_bytes() == first
    row = tomllib.loads(first.decode())["acme-one"]
    assert row.pop("aliases") == ["One", "set/one"]
    device = device_from_row("acme-one", row)
    assert (device.name, device.units, device.year) == ('ACME "One"', 10.0, 2024)
    assert device.unsupported_dtypes == ("bf16", "fp8")
    assert device.peak_bf16_tflops is None


def test_a_source_with_an_unquoted_comma_is_mended(tmp_path):
    lines = [f"acme-one,{name},1,one, two,read,why" for name in SOURCED]
    build.main(write(tmp_path, [ROW], lines))
    with (tmp_path / "catalogue_sources.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["source_url"] for row in rows] == ["one, two"] * len(SOURCED)
    assert [row["field"] for row in rows] == [name for name in FIELDS if name in SOURCED]
    assert rows[0]["note"] == "why"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "Acme One"}, "kebab-case"),
        ({"unsupported_dtypes": "fp17"}, "unknown dtype"),
        ({"units": "0"}, "unknown is empty"),
        ({"memory_gib": "16"}, "no source for acme-one memory_gib"),
    ],
)
def test_rules_of_the_tables(tmp_path, change, says):
    with pytest.raises(ValueError, match=says):
        build.main(write(tmp_path, [{**ROW, **change}]))


def test_names_must_be_unique(tmp_path):
    with pytest.raises(ValueError, match="'ONE' names acme-one and acme-two"):
        build.main(write(tmp_path, [ROW, {**ROW, "id": "acme-two", "aliases": "ONE"}]))


def test_shipped_catalogue_is_what_the_builder_writes():
    def cell(value):
        return "" if value is None else ";".join(value) if isinstance(value, tuple) else str(value)

    rows = [
        {**{name: cell(getattr(device, name)) for name in FIELDS}, "aliases": cell(names)}
        for device, names in zip(load_catalogue().values(), load_aliases().values(), strict=True)
    ]
    text = build.catalogue_text(rows)
    shipped = (SCRIPT.parents[1] / "predictor" / "hardware" / "catalogue.toml").read_text("utf-8")
    assert tomllib.loads(text) == tomllib.loads(shipped)
    assert text.partition("\n[")[0] == shipped.partition("\n[")[0]


def _additions(tmp_path, row):
    path = tmp_path / "additions.csv"
    path.write_text("device,field,value,source_url,how_read,note\n" + row + "\n")
    return ["--additions", str(path)]


def test_additions_fill_empty_cells_with_their_sources(tmp_path):
    more = _additions(tmp_path, "acme-one,peak_bf16_tflops,40,a paper,memory,")
    build.main([*write(tmp_path, [ROW]), *more])
    row = tomllib.loads((tmp_path / "catalogue.toml").read_text())["acme-one"]
    assert row["peak_bf16_tflops"] == 40
    with (tmp_path / "catalogue_sources.csv").open(newline="") as handle:
        last = list(csv.DictReader(handle))[-1]
    assert (last["field"], last["source_url"]) == ("peak_bf16_tflops", "a paper")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("acme-one,peak_fp32_tflops,40,a paper,memory,", "is known already"),
        ("acme-two,peak_bf16_tflops,40,a paper,memory,", "no cell"),
        ("acme-one,speed,40,a paper,memory,", "no cell"),
        ("acme-one,peak_bf16_tflops,40,a paper,guessed,", "how_read"),
    ],
)
def test_additions_are_checked(tmp_path, row, said):
    with pytest.raises(ValueError, match=said):
        build.main([*write(tmp_path, [ROW]), *_additions(tmp_path, row)])
