from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.twins import TWIN_GROUPS, twins


def test_groups_are_disjoint_and_in_the_catalogue():
    members = [device_id for group in TWIN_GROUPS for device_id in group]
    assert len(members) == len(set(members))
    assert set(members) <= set(load_catalogue())


def test_twins_are_symmetric_and_hold_the_device_itself():
    for device_id in load_catalogue():
        group = twins(device_id)
        assert device_id in group
        assert all(twins(other) == group for other in group)


def test_the_listed_groups():
    assert len(twins("nvidia-a100-sxm-80gb")) == 4
    assert len(twins("nvidia-v100-pcie-32gb")) == 4
    assert {"nvidia-h200-sxm-141gb", "nvidia-gh200-96gb"} <= twins("nvidia-h100-pcie-80gb")
    assert twins("nvidia-gb200") == {"nvidia-gb200", "nvidia-b200-sxm-180gb"}
    assert twins("nvidia-gb300") == {"nvidia-gb300", "nvidia-b300-sxm"}
    assert "amd-mi250-gcd" in twins("amd-mi210")
    assert twins("amd-mi300x") == {"amd-mi300x", "amd-mi325x"}
    assert twins("nvidia-p100-sxm2-16gb") == {"nvidia-p100-pcie-16gb", "nvidia-p100-sxm2-16gb"}
    assert twins("nvidia-a40") == {"nvidia-a40", "nvidia-rtx-a6000"}
    assert twins("nvidia-titan-xp") == {"nvidia-titan-xp", "nvidia-titan-x-pascal"}
    assert twins("google-tpu-v3-core") == {"google-tpu-v3-core", "google-tpu-v3-chip"}
    assert twins("nvidia-l4") == {"nvidia-l4"}
    assert twins("my-own-device") == {"my-own-device"}
