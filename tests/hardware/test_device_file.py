import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.errors import DeviceFileError
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.device import Device
from predictor.hardware.device_file import REQUIRED, load_device_file
from predictor.hardware.fields import FIELDS, PEAK_FIELDS, unit_hint

DOCS = Path(__file__).parents[2] / "docs" / "devices.md"

MINIMAL = {
    "id": '"my-gpu"',
    "vendor": '"acme"',
    "kind": '"gpu"',
    "units": "80",
    "memory_bw_gbps": "900",
    "peak_fp32_tflops": "15.7",
}


def toml(values):
    return "".join(f"{key} = {value}\n" for key, value in values.items())


@pytest.fixture
def load(tmp_path):
    def load_text(text):
        path = tmp_path / "device.toml"
        path.write_text(text, encoding="utf-8")
        return load_device_file(path)

    return load_text


def test_minimal_file_works_where_a_name_does(tmp_path):
    path = tmp_path / "my-gpu.TOML"
    path.write_text(toml(MINIMAL))
    device = resolve_device(path)
    assert device == resolve_device(str(path))
    assert device == Device(
        id="my-gpu", vendor="acme", kind="gpu", units=80.0, memory_bw_gbps=900.0,
        peak_fp32_tflops=15.7,
    )  # fmt: skip


def test_whole_numbers_may_be_written_with_a_point(load):
    device = load(toml(MINIMAL | {"units": "80.0", "year": "2024.0"}))
    assert (device.units, device.year) == (80.0, 2024)


def test_documented_examples_are_valid(load):
    text = DOCS.read_text(encoding="utf-8")
    complete, variant = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    device = load(complete)
    assert (device.id, device.units, device.year) == ("acme-a1-48gb", 142.0, 2024)
    assert device.unsupported_dtypes == ("fp4",)
    shown = set(re.findall(r"^(?:# )?(\w+) =", complete, flags=re.MULTILINE))
    rare = {"peak_fp64_matrix_tflops", "peak_fp4_tflops", "peak_fp16_fp16acc_tflops"}
    assert set(FIELDS) - shown <= {*rare, "scaleout_default"}
    assert load(variant).tdp_w == 250


def test_documented_ranges_are_those_checked():
    lines = DOCS.read_text(encoding="utf-8").partition("### Ranges")[2].splitlines()
    documented = {}
    for line in lines:
        if line.startswith("| `"):
            names, _, low, high = (cell.strip() for cell in line.strip("|").split("|"))
            for name in re.findall(r"`([^`]+)`", names):
                documented[name] = (float(low), float(high.replace(",", "")))
    general = documented.pop("peak_*_tflops")
    for name, spec in FIELDS.items():
        if spec.numeric:
            assert (spec.low, spec.high) == documented.get(name, general), name


def test_base_gives_what_the_file_does_not(load):
    device = load('id = "capped"\nbase = "H100 PCIe"\ntdp_w = 250\nunknown = ["l2_mib"]\n')
    base = load_catalogue()["nvidia-h100-pcie-80gb"]
    assert device == dataclasses.replace(
        base, id="capped", tdp_w=250.0, l2_mib=None, name=None, notes=None, confidence=None
    )


@pytest.mark.parametrize(
    "device_id", [i for i, d in load_catalogue().items() if d.scope != "package"]
)
def test_every_catalogue_device_can_be_a_base(load, device_id):
    base = load_catalogue()[device_id]
    text = f'id = "variant"\nbase = "{device_id}"\n'
    if all(getattr(base, name) is None for name in PEAK_FIELDS):
        with pytest.raises(DeviceFileError, match="no peak rate"):
            load(text)
        text += "peak_fp16_tflops = 40\n"
    assert load(text).units == base.units


@pytest.mark.parametrize("name", [name for name in REQUIRED if name != "id"])
def test_missing_required_field(load, name):
    with pytest.raises(DeviceFileError, match=f"device.toml: missing required field {name}"):
        load(toml({key: value for key, value in MINIMAL.items() if key != name}))


def test_missing_id_and_missing_peak(load):
    with pytest.raises(DeviceFileError, match="missing required field 'id'"):
        load(toml({key: value for key, value in MINIMAL.items() if key != "id"}))
    with pytest.raises(DeviceFileError, match="no peak rate"):
        load(toml({key: value for key, value in MINIMAL.items() if "peak" not in key}))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        # B13: GB/s against B/s and TB/s, TFLOPS against GFLOPS and FLOPS
        ("memory_bw_gbps", "3.35", "from 10 to 20000 GB/s (looks like TB/s: write 3350)"),
        ("memory_bw_gbps", "1.555e12", "(looks like B/s: write 1555)"),
        ("memory_bw_gbps", "20001", "from 10 to 20000 GB/s"),
        ("memory_bw_gbps", "9.9", "from 10 to 20000 GB/s"),
        ("peak_fp32_tflops", "66900", "from 0.1 to 50000 TFLOPS (looks like GFLOPS: write 66.9)"),
        ("peak_fp32_tflops", "19.5e12", "(looks like FLOPS: write 19.5)"),
        ("peak_fp32_tflops", "0.0195", "(looks like PFLOPS: write 19.5)"),
        ("peak_bf16_tflops", "0", "from 0.1 to 50000"),
        ("peak_int8_tops", "-1", "from 0.1 to 50000 TOPS"),
        ("clock_boost_mhz", "1.98", "(looks like GHz: write 1980)"),
        ("clock_boost_mhz", "1980000000", "(looks like Hz: write 1980)"),
        ("memory_gib", "81920", "(looks like MiB: write 80)"),
        ("l2_mib", "51200", "(looks like KiB: write 50)"),
        ("tdp_w", "0.7", "(looks like kW: write 700)"),
        ("units", "0", "units = 0: must be a whole number from 1 to 10000"),
        ("year", "24", "must be a whole number from 2000 to 2100"),
        ("memory_bw_gbps", "nan", "from 10 to 20000"),
        ("memory_bw_gbps", "inf", "from 10 to 20000"),
        ("memory_bw_gbps", "1" + "0" * 400, "a number beyond any size"),
        # wrong types
        ("memory_bw_gbps", '"900"', "must be a number"),
        ("memory_bw_gbps", "true", "must be a number"),
        ("units", "[80]", "must be a whole number"),
        ("year", "2024.5", "must be a whole number"),
        ("units", "1e400", "must be a whole number"),
        ("kind", '"fpga"', "kind = 'fpga'"),
        ("scope", '"package"', "scope = 'package'"),
        ("vendor", '""', "vendor = ''"),
        ("vendor", "1979-05-27", "vendor ="),
        ("unsupported_dtypes", '["bf17"]', "bf17"),
        ("unsupported_dtypes", '"bf16"', "unsupported_dtypes ="),
        ("id", '"My GPU"', "id = 'My GPU'"),
        ("id", '"nvidia-t4"', "is a catalogue id"),
        ("unknown", '["vendor"]', "unknown ="),
    ],
)  # fmt: skip
def test_bad_values_name_file_field_and_range(load, field, value, says):
    with pytest.raises(DeviceFileError) as caught:
        load(toml({**MINIMAL, field: value}))
    message = str(caught.value)
    assert "device.toml" in message
    assert field in message
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("mem_bw_gbps", "memory_bw_gbps"), ("l2_mb", "l2_mib"), ("peak_fp16", "peak_fp16_tflops")],
)
def test_unknown_key_names_the_nearest(load, key, nearest):
    with pytest.raises(DeviceFileError, match=f"unknown key '{key}'; nearest: {nearest}"):
        load(toml({**MINIMAL, key: "5"}))


def test_all_faults_are_reported_at_once(load):
    with pytest.raises(DeviceFileError) as caught:
        load(toml({**MINIMAL, "tdp_w": "0", "l2_mb": "4", "year": "1"}))
    for field in ("tdp_w", "l2_mb", "year"):
        assert field in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        # in range alone, but no device has such a ridge point
        ({"peak_fp32_tflops": "15700", "memory_bw_gbps": "900"}, "is the peak in GFLOPS"),
        ({"peak_fp32_tflops": "0.4", "memory_bw_gbps": "900"}, "is the peak in PFLOPS"),
        ({"fp32_flop_per_clk_unit": "128", "clock_boost_mhz": "150"}, "makes 1.536 TFLOPS"),
        ({"peak_bf16_tflops": "60", "unsupported_dtypes": '["bf16"]'}, "lists bf16"),
        ({"memory_gib": 48, "memory_reported_gib": 60}, "memory_reported_gib = 60 is above"),
        ({"peak_fp32_tflops": 60, "peak_fp16_tflops": 24, "units": 240}, "fp32_tflops = 60 is"),
    ],
)  # fmt: skip
def test_contradictions(load, extra, says):
    with pytest.raises(DeviceFileError, match=says):
        load(toml({**MINIMAL, **extra}))


def test_changed_units_need_their_own_peaks(load):
    text = 'id = "cut"\nbase = "NVIDIA H100 PCIe"\nunits = 100\n'
    with pytest.raises(DeviceFileError, match=r"units changed, but .*peak_fp32_tflops") as caught:
        load(text)
    assert "peak_fp8_tflops" in str(caught.value)
    text += "peak_fp32_tflops = 44.9\npeak_fp16_tflops = 663\npeak_bf16_tflops = 663\n"
    with pytest.raises(DeviceFileError, match="peak_tf32_tflops, peak_fp8_tflops, peak_int8_tops"):
        load(text)
    left = "peak_fp64_tflops peak_fp64_matrix_tflops peak_fp16_vector_tflops peak_tf32_tflops"
    fields = [*left.split(), "peak_fp8_tflops", "peak_int8_tops"]
    device = load(f"{text}unknown = {fields}\n")
    assert (device.peak_fp16_tflops, device.peak_fp8_tflops) == (663, None)
    same = load('id = "same"\nbase = "NVIDIA H100 PCIe"\nunits = 114\n')
    assert same.peak_fp8_tflops == 1513


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("H100", "does not say which device"),
        ("amd-mi250x-package", "amd-mi250x-gcd"),
        ("other.toml", "must be a catalogue device"),
        ("no-such", "no device 'no-such'"),
    ],
)
def test_bad_base(load, base, says):
    with pytest.raises(DeviceFileError, match=says):
        load(f'id = "x"\nbase = "{base}"\n')


def test_files_that_are_no_device_file(tmp_path, load):
    with pytest.raises(DeviceFileError, match=r"gone\.toml: cannot be read: No such file"):
        load_device_file(tmp_path / "gone.toml")
    with pytest.raises(DeviceFileError, match=r"ends in \.toml"):
        resolve_device(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(DeviceFileError, match="cannot be read"):
        resolve_device(str(tmp_path / "folder.toml"))
    with pytest.raises(DeviceFileError, match="not a TOML file"):
        load('id = "x')
    with pytest.raises(DeviceFileError, match="not a TOML file"):
        load("a = " + "[" * 3000)
    with pytest.raises(DeviceFileError, match="not a TOML file"):
        load("a = " + "1" * 5000)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeviceFileError, match="not a TOML file"):
        load_device_file(tmp_path / "binary.toml")
    with pytest.raises(DeviceFileError, match="larger than"):
        load("# " + "x" * 1_000_001)


scalars = st.one_of(
    st.booleans().map(lambda b: str(b).lower()),
    st.integers().map(str),
    st.floats().map(str),
    st.floats(0.05, 30_000).map(str),
    st.sampled_from(["gpu", "nvidia-t4", "fp8", "die", "my-gpu", ""]).map(lambda s: f'"{s}"'),
    st.just("1979-05-27"),
    st.just("{ a = 1 }"),
)
values = scalars | st.lists(scalars, max_size=3).map(lambda items: f"[{', '.join(items)}]")
keys = st.sampled_from([*FIELDS, "base", "unknown", "mem_bw"])


def valid_device_or_error(path):
    try:
        device = load_device_file(path)
    except DeviceFileError as error:
        assert str(path) in str(error)
        return
    assert device.id not in load_catalogue()
    for name, spec in FIELDS.items():
        value = getattr(device, name)
        if spec.numeric and value is not None:
            assert value > 0
            assert value <= spec.high
    assert any(getattr(device, name) is not None for name in PEAK_FIELDS)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.booleans(), st.dictionaries(keys, values, max_size=6))
def test_any_toml_gives_a_device_or_a_device_file_error(tmp_path, start_valid, changes):
    path = tmp_path / "device.toml"
    path.write_text(toml({**(MINIMAL if start_valid else {}), **changes}), encoding="utf-8")
    valid_device_or_error(path)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8")))
def test_any_bytes_give_a_device_file_error(tmp_path, junk):
    path = tmp_path / "device.toml"
    path.write_bytes(junk)
    with pytest.raises(DeviceFileError):
        load_device_file(path)


@given(st.sampled_from([n for n, s in FIELDS.items() if s.numeric]), st.floats(1e-12, 1e15))
def test_hints_convert_into_the_range(field, value):
    hint = unit_hint(field, value)
    if hint is not None:
        spec = FIELDS[field]
        converted = float(hint.rpartition(" ")[2])
        assert spec.low * 0.999 <= converted <= spec.high * 1.001
