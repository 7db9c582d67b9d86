import dataclasses
import json

import pytest

from predictor.errors import UnknownDeviceError
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.describe import describe_device, list_devices


def test_list_has_one_row_a_device():
    rows = {row.id: row for row in list_devices()}
    assert list(rows) == list(load_catalogue())
    h100 = rows["nvidia-h100-sxm-80gb"]
    assert (h100.memory_gib, h100.memory_bw_gbps, h100.tdp_w) == (80, 3352, 700)
    assert (h100.peak_fp32_tflops, h100.peak_16bit_tflops) == (66.91, 989.4)
    assert rows["nvidia-v100-sxm2-32gb"].peak_16bit_tflops == 125  # fp16: no bf16
    assert rows["intel-gaudi3"].peak_fp32_tflops == 229  # matrix rate only
    assert rows["amd-epyc-9004-2vcpu"].memory_bw_gbps is None
    json.dumps([dataclasses.asdict(row) for row in rows.values()], allow_nan=False)


def test_one_device_with_its_sources():
    about = describe_device("NVIDIA A100-SXM4-80GB")
    assert about.id == "nvidia-a100-sxm-80gb"
    assert about.predictable
    assert "A100-SXM4-80GB" in about.aliases
    assert "peak_fp8_tflops" in about.unknown_fields
    facts = {fact.field: fact for fact in about.facts}
    bandwidth = facts["memory_bw_gbps"]
    assert (bandwidth.value, bandwidth.unit) == (2039, "GB/s")
    assert len(bandwidth.sources) >= 2
    assert all(source.source_url and source.how_read for source in bandwidth.sources)
    assert bandwidth.sources[0].how_read == "read"
    assert bandwidth.sources[0].note == ""
    notes = [source.note for source in bandwidth.sources]
    assert notes == sorted(notes, key=bool)
    json.dumps(dataclasses.asdict(about), allow_nan=False)


@pytest.mark.parametrize("device_id", load_catalogue())
def test_every_row_can_be_shown(device_id):
    about = describe_device(device_id)
    assert about.predictable == (load_catalogue()[device_id].scope != "package")
    known = {fact.field for fact in about.facts}
    assert not known & set(about.unknown_fields)


def test_disagreeing_sources_are_kept():
    facts = {f.field: f for f in describe_device("nvidia-l4").facts}
    disagreeing = [s for s in facts["units"].sources if s.note]
    assert [s.note for s in disagreeing] == ["differs, not used"] * len(disagreeing)
    assert {s.value for s in disagreeing} == {"60"}


def test_a_device_file_is_shown_without_sources(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('id = "mine"\nbase = "nvidia-t4"\ntdp_w = 60\n')
    about = describe_device(path)
    assert (about.id, about.aliases) == ("mine", ())
    assert {f.field: f.value for f in about.facts}["tdp_w"] == 60
    assert all(fact.sources == () for fact in about.facts)


def test_unknown_name():
    with pytest.raises(UnknownDeviceError):
        describe_device("no such thing")
