import os
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.errors import UnknownDeviceError
from predictor.hardware.catalogue import load_aliases, load_catalogue, resolve_device
from predictor.hardware.fields import FIELDS
from predictor.hardware.names import FAMILY_NAMES, PACKAGE_DIES, SHARED_NAMES, key
from predictor.hardware.sources import load_sources

CATALOGUE = load_catalogue()

NEUSIGHT_FOLDERS = {
    "AMD_Instinct_MI100": "amd-mi100",
    "AMD_Instinct_MI210": "amd-mi210",
    "AMD_Instinct_MI250": "amd-mi250-gcd",
    "NVIDIA_A100-PCIE-40GB": "nvidia-a100-pcie-40gb",
    "NVIDIA_A100-SXM4-40GB": "nvidia-a100-sxm-40gb",
    "NVIDIA_A100_80GB_PCIe": "nvidia-a100-pcie-80gb",
    "NVIDIA_H100_80GB_HBM3": "nvidia-h100-sxm-80gb",
    "NVIDIA_H100_80GB_HBM3_TP": "nvidia-h100-sxm-80gb",
    "NVIDIA_L4": "nvidia-l4",
    "Tesla_P100-PCIE-16GB": "nvidia-p100-pcie-16gb",
    "Tesla_P4": "nvidia-tesla-p4",
    "Tesla_T4": "nvidia-t4",
    "Tesla_V100-PCIE-32GB": "nvidia-v100-pcie-32gb",
}


def test_catalogue_has_every_device_and_is_read_only():
    assert len(CATALOGUE) == 98
    assert load_catalogue() is CATALOGUE
    with pytest.raises(TypeError):
        CATALOGUE["new"] = CATALOGUE["nvidia-t4"]


def test_fields_table_covers_device_in_order():
    device = CATALOGUE["nvidia-t4"]
    assert tuple(FIELDS) == tuple(device.__slots__)


@pytest.mark.parametrize("device", CATALOGUE.values(), ids=CATALOGUE)
def test_values_have_their_types_and_are_never_zero(device):
    for name, spec in FIELDS.items():
        value = getattr(device, name)
        if value is None:
            continue
        if spec.whole:
            assert type(value) is int
        elif spec.numeric:
            assert type(value) is float
            assert value > 0
            assert value <= spec.high
        elif name == "unsupported_dtypes":
            assert type(value) is tuple
        else:
            assert type(value) is str
            assert value


def test_names_are_unique_across_rows_ignoring_case():
    owner = {}
    aliases = load_aliases()
    for device_id, device in CATALOGUE.items():
        for label in {device_id, device.name, *aliases[device_id]} - {None}:
            assert owner.setdefault(label.lower(), device_id) == device_id
            scope = label.partition("/")[0] if "/" in label else ""
            assert owner.setdefault((scope.lower(), key(label)), device_id) == device_id


@pytest.mark.parametrize("device_id", CATALOGUE)
def test_every_label_of_a_row_means_that_row(device_id):
    device = CATALOGUE[device_id]
    names = [device_id, *load_aliases()[device_id]]
    if device.name is not None and device.name not in SHARED_NAMES:
        names.append(device.name)
    for name in names:
        assert resolve_device(name, allow_package=True) is device
        assert resolve_device(f"  {name.upper()} ", allow_package=True) is device


@pytest.mark.parametrize(
    ("name", "device_id"),
    [
        # as torch.cuda.get_device_name prints them
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "nvidia-h100-nvl-94gb"),
        ("NVIDIA H200", "nvidia-h200-sxm-141gb"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm-80gb"),
        ("A100-SXM4-40GB", "nvidia-a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "nvidia-a100-pcie-80gb"),
        ("NVIDIA GH200 480GB", "nvidia-gh200-96gb"),
        ("NVIDIA B200", "nvidia-b200-sxm-180gb"),
        ("Tesla V100-SXM2-32GB", "nvidia-v100-sxm2-32gb"),
        ("Tesla T4", "nvidia-t4"),
        ("NVIDIA GeForce RTX 4090", "nvidia-rtx-4090"),
        ("A40", "nvidia-a40"),
        ("MI350X", "amd-mi350x"),
        # HIP, torch.xpu, JAX, /proc/cpuinfo
        ("AMD Instinct MI300X", "amd-mi300x"),
        ("AMD Instinct MI250", "amd-mi250-gcd"),
        ("Intel(R) Data Center GPU Max 1550", "intel-max-1550-stack"),
        ("TPU v2", "google-tpu-v2-core"),
        ("TPU v3", "google-tpu-v3-core"),
        ("TPU v4", "google-tpu-v4"),
        ("TPU v5 lite", "google-tpu-v5e"),
        ("TPU v5", "google-tpu-v5p"),
        ("TPU v6 lite", "google-tpu-v6e"),
        ("TPU7x", "google-tpu7x-device"),
        ("Intel(R) Xeon(R) Gold 6240 CPU @ 2.60GHz", "intel-xeon-gold-6240"),
        # tolerance
        ("nvidia® h100™  pcie", "nvidia-h100-pcie-80gb"),
        ("Intel® Data Center GPU Max 1550", "intel-max-1550-stack"),
        ("rtx4090", "nvidia-rtx-4090"),
        ("RTX 2080", "nvidia-rtx-2080"),
        ("h100-sxm-80gb", "nvidia-h100-sxm-80gb"),
        ("MI300X", "amd-mi300x"),
    ],
)
def test_runtime_names_resolve(name, device_id):
    assert resolve_device(name).id == device_id


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("RTX 6000", {"nvidia-rtx-a6000", "nvidia-rtx-pro-6000-blackwell-ws"}),
        ("NVIDIA RTX 6000", {"nvidia-rtx-a6000", "nvidia-rtx-pro-6000-blackwell-maxq"}),
        ("RTX PRO 6000", {"nvidia-rtx-pro-6000-blackwell-server"}),
        ("H100", {"nvidia-h100-pcie-80gb", "nvidia-h100-sxm-80gb", "nvidia-h100-nvl-94gb"}),
        ("H100 SXM", {"nvidia-h100-sxm-80gb", "nvidia-h100-sxm-96gb-hbm2e"}),
        ("h200", {"nvidia-h200-sxm-141gb", "nvidia-h200-nvl-141gb"}),
        ("A100", {"nvidia-a100-pcie-40gb", "nvidia-a100-sxm-80gb"}),
        ("NVIDIA A100 80GB", {"nvidia-a100-pcie-80gb", "nvidia-a100-sxm-80gb"}),
        ("V100", {"nvidia-v100-pcie-16gb", "nvidia-v100-sxm2-32gb"}),
        ("P100", {"nvidia-p100-pcie-16gb", "nvidia-p100-sxm2-16gb"}),
        ("TITAN X", {"nvidia-gtx-titan-x-maxwell", "nvidia-titan-x-pascal"}),
        ("GH200", {"nvidia-gh200-96gb", "nvidia-gh200-144gb"}),
        ("Orin", {"nvidia-jetson-agx-orin-64gb", "nvidia-jetson-orin-nano-8gb"}),
        ("AMD Instinct MI250X/MI250", {"amd-mi250-gcd", "amd-mi250x-gcd"}),
        ("Max 1550", {"intel-max-1550-stack"}),
    ],
)
def test_ambiguous_names_list_the_candidates(name, candidates):
    with pytest.raises(UnknownDeviceError) as caught:
        resolve_device(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "device file" in message
    for candidate in candidates:
        assert candidate in message


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("NVIDIA RTX 6000 Ada Generation", "nvidia-rtx-a6000"),
        ("Quadro RTX 6000", "nvidia-quadro-rtx-8000"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "nvidia-rtx-4090"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "nvidia-a100-sxm-40gb"),
        ("AMD Instinct MI300A", "amd-mi300x"),
        ("nvidia-h100-sxm-80g", "nvidia-h100-sxm-80gb"),
        ("Tesla M40 24GB", "nvidia-tesla-m40"),
        ("RTX A6000 Ti", "nvidia-rtx-a6000"),
    ],
)
def test_unknown_names_list_the_nearest_and_never_resolve(name, nearest):
    with pytest.raises(UnknownDeviceError, match="no device") as caught:
        resolve_device(name)
    assert nearest in str(caught.value)
    assert "predictor devices" in str(caught.value)


@pytest.mark.parametrize("name", ["", "   ", "foo", "?", "gpu", "cuda:0", "a/b", "neusight/"])
def test_junk_is_no_device(name):
    with pytest.raises(UnknownDeviceError):
        resolve_device(name)


def test_part_of_a_name_is_a_suggestion_only():
    with pytest.raises(UnknownDeviceError, match="did you mean nvidia-rtx-a6000"):
        resolve_device("A6000")


@pytest.mark.parametrize(("name", "device_id"), NEUSIGHT_FOLDERS.items())
def test_neusight_folders_resolve(name, device_id):
    assert resolve_device(name, source="neusight").id == device_id
    assert resolve_device(f"neusight/{name}").id == device_id


def test_data_set_names_count_only_within_their_data_set():
    assert resolve_device("a100", source="hw_gpt_bench").id == "nvidia-a100-sxm-40gb"
    assert resolve_device("a100", source="vidur").id == "nvidia-a100-pcie-80gb"
    assert resolve_device("vidur/a100").id == "nvidia-a100-pcie-80gb"
    for source in (None, "timm_bench", "no_such_set"):
        with pytest.raises(UnknownDeviceError):
            resolve_device("a100", source=source)
    assert resolve_device("Tesla T4", source="timm_bench").id == "nvidia-t4"


def test_unit_count_tells_shared_names_apart():
    assert resolve_device("AMD Instinct MI250X/MI250", units=104).id == "amd-mi250-gcd"
    assert resolve_device("AMD Instinct MI250X/MI250", units=110).id == "amd-mi250x-gcd"
    assert resolve_device("Orin", units=16).id == "nvidia-jetson-agx-orin-64gb"
    assert resolve_device("Xavier", units=8).id == "nvidia-jetson-agx-xavier"
    for name, units in (("Xavier", 6), ("Orin", 14), ("A100", 108)):
        with pytest.raises(UnknownDeviceError):
            resolve_device(name, units=units)


def test_a_device_passes_through_and_packages_do_not():
    t4 = CATALOGUE["nvidia-t4"]
    assert resolve_device(t4) is t4
    assert {d.id for d in CATALOGUE.values() if d.scope == "package"} == set(PACKAGE_DIES)
    for package, die in PACKAGE_DIES.items():
        assert CATALOGUE[die].scope == "die"
        assert CATALOGUE[die].units * 2 == CATALOGUE[package].units
        for asked in (package, CATALOGUE[package]):
            with pytest.raises(UnknownDeviceError, match=die):
                resolve_device(asked)
            assert resolve_device(asked, allow_package=True).id == package
    with pytest.raises(UnknownDeviceError, match="google-tpu-v3-core"):
        resolve_device("TPU v3", source="tpu_mlperf_training")


def test_name_tables_point_into_the_catalogue():
    for ids in (*(ids for ids, _ in SHARED_NAMES.values()), *FAMILY_NAMES.values()):
        assert set(ids) <= set(CATALOGUE)


def test_every_number_keeps_its_source():
    sources = load_sources()
    assert sum(len(s) for fields in sources.values() for s in fields.values()) == 3664
    for device in CATALOGUE.values():
        for name, spec in FIELDS.items():
            if spec.numeric and getattr(device, name) is not None:
                found = sources[device.id][name]
                assert all(s.how_read in {"read", "derived", "memory", "measured"} for s in found)
                agreeing = [s for s in found if not s.note and s.how_read != "measured"]
                assert agreeing
                for source in agreeing:  # 2%, and rounding of the source's last digit
                    assert float(source.value) == pytest.approx(getattr(device, name), rel=0.0205)


def test_a_source_with_a_comma_is_whole():
    units = load_sources()["amd-epyc-9004-2vcpu"]["units"][0]
    assert (units.source_url, units.how_read, units.note) == (
        "lscpu and free, 2-vCPU virtual machine",
        "read",
        "",
    )


def test_resolving_loads_neither_pydantic_nor_sources():
    code = (
        "import sys; from predictor.hardware.catalogue import resolve_device\n"
        "resolve_device('Tesla T4')\n"
        "assert 'pydantic' not in sys.modules and 'predictor.hardware.sources' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ}, timeout=60)


def test_a_device_that_came_with_rows_is_named_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownDeviceError, match="see `predictor devices`"):
        resolve_device("my-lab-chip")
    file = Path("datasets/my-lab-chip/my-lab-chip.device.toml")
    file.parent.mkdir(parents=True)
    file.write_text('id = "my-lab-chip"\n')
    with pytest.raises(UnknownDeviceError, match=f"beside its measured rows.*pass {file}"):
        resolve_device("my-lab-chip")
    with pytest.raises(UnknownDeviceError, match="see `predictor devices`"):
        resolve_device("../my-lab-chip/my-lab-chip")  # a name, no path


@pytest.mark.parametrize("given", [None, 5, ["nvidia-t4"]])
def test_what_is_no_name_is_told(given: object) -> None:
    with pytest.raises(UnknownDeviceError, match="given by name or by its file"):
        resolve_device(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "device_id"),
    [
        ("Trillium", "google-tpu-v6e"), ("ironwood", "google-tpu7x-device"),
        ("TPU v5litepod", "google-tpu-v5e"), ("tpu-v5p", "google-tpu-v5p"),
        ("TPU v5", "google-tpu-v5p"), ("TPU v5 lite", "google-tpu-v5e"),
        ("TPU v3", "google-tpu-v3-core"), ("TPU7x", "google-tpu7x-device"),
    ],
)  # fmt: skip
def test_tpus_answer_to_runtime_and_product_names(name: str, device_id: str) -> None:
    assert resolve_device(name).id == device_id


@pytest.mark.parametrize(
    ("name", "chips", "counts", "device_id"),
    [
        ("v5p-8", "4 chips", "TensorCores, 2 a chip", "google-tpu-v5p"),
        ("v4-8", "4 chips", "TensorCores, 2 a chip", "google-tpu-v4"),
        ("v3-8", "4 chips", "TensorCores, 2 a chip", "google-tpu-v3-core"),
        ("TPU v6e-8", "8 chips", "counts chips", "google-tpu-v6e"),
        ("v5litepod-1", "1 chip ", "counts chips", "google-tpu-v5e"),
    ],
)
def test_slices_of_tpus_say_what_they_count(
    name: str, chips: str, counts: str, device_id: str
) -> None:
    with pytest.raises(UnknownDeviceError, match="is a slice of") as caught:
        resolve_device(name)
    for part in (chips, counts, device_id):
        assert part in str(caught.value)
    assert resolve_device(device_id).id == device_id
