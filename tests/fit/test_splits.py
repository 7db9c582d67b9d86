"""Splits by device: no device crosses, and a device takes its twins with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import RecipeError
from predictor.fit.splits import device_groups, device_split, split_names
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.twins import TWIN_GROUPS, twins

DEVICES = tuple(sorted(load_catalogue()))
SUBSETS = st.sets(st.sampled_from(DEVICES), min_size=1, max_size=12)
PROTOCOL_TRAIN = {
    "nvidia-tesla-p4", "nvidia-p100-pcie-16gb", "nvidia-v100-pcie-32gb", "nvidia-t4",
    "nvidia-a100-pcie-40gb",
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["unseen-", "timm-families-unseen-"])
def test_an_unseen_device_and_its_twins_are_in_no_training_part(name: str, device: str) -> None:
    split = device_split(f"{name}{device}", DEVICES)
    unseen = twins(device) | {device}
    assert split.test == {device}
    assert split.train == frozenset(DEVICES) - unseen
    assert not split.backward_factors & unseen
    assert split.part(device) == "test"
    assert {split.part(d) for d in unseen - {device}} <= {"unused"}
    for group in TWIN_GROUPS:  # a group is wholly in or wholly out
        assert group <= split.train or not group & split.train


@given(present=SUBSETS, data=st.data())
def test_parts_never_overlap(present, data):
    device = data.draw(st.sampled_from(sorted(present)))
    for name in ("neusight-protocol", f"unseen-{device}", "all"):
        split = device_split(name, present)
        for each in (split, *split.developments()):
            assert each.train | each.test | each.backward_factors | each.development <= present
            assert not each.train & each.test
            assert not each.development & (each.train | each.test | each.backward_factors)


@given(present=SUBSETS)
def test_development_leaves_out_every_training_group_once(present):
    split = device_split("all", present)
    found = split.developments()
    assert sorted(d for s in found for d in s.development) == sorted(present)
    for each in found:
        held = next(iter(each.development))
        assert each.development == twins(held) & present
        assert each.train == frozenset(present) - each.development
        assert each == device_split(each.name, present)  # its name alone makes it again


def test_the_protocol_develops_on_each_of_its_five_devices() -> None:
    found = device_split("neusight-protocol", DEVICES).developments()
    assert {s.name for s in found} == {f"neusight-protocol/develop-{d}" for d in PROTOCOL_TRAIN}
    for each in found:
        assert len(each.train) == 4
        assert each.train | each.development == PROTOCOL_TRAIN
        assert each.test == {"nvidia-a100-pcie-80gb", "nvidia-l4"}


def test_only_a_training_device_can_be_left_out() -> None:
    with pytest.raises(RecipeError, match=r"does not train on 'nvidia-l4' .* trains on nvidia-t4"):
        device_split("unseen-nvidia-l4/develop-nvidia-l4", ["nvidia-l4", "nvidia-t4"])


@given(present=SUBSETS)
def test_groups_of_cross_validation_divide_the_devices_by_twins(present):
    groups = device_groups(present)
    assert sorted(d for group in groups for d in group) == sorted(present)
    group_of = {d: i for i, group in enumerate(groups) for d in group}
    for device in present:
        assert {d for d in present if group_of[d] == group_of[device]} == twins(device) & present
    assert device_groups(sorted(present, reverse=True)) == groups


def test_all_trains_on_everything_and_tests_nothing() -> None:
    split = device_split("all", ["nvidia-t4", "nvidia-l4"])
    assert split.train == split.backward_factors == {"nvidia-t4", "nvidia-l4"}
    assert split.test == frozenset()


def test_protocol_is_the_published_one_and_exempt_from_the_twin_rule() -> None:
    split = device_split("neusight-protocol", DEVICES)
    assert split.train == PROTOCOL_TRAIN
    assert split.test == {"nvidia-a100-pcie-80gb", "nvidia-l4"}
    assert split.backward_factors == {"nvidia-v100-pcie-32gb", "amd-mi100", "amd-mi210"}
    assert twins("nvidia-a100-pcie-80gb") & split.train == {"nvidia-a100-pcie-40gb"}
    assert not twins("nvidia-l4") & split.train
    assert split.part("amd-mi210") == "unused"


def test_protocol_over_a_part_of_the_data() -> None:
    split = device_split("neusight-protocol", ["nvidia-t4", "amd-mi100"])
    assert (split.train, split.test) == ({"nvidia-t4"}, frozenset())
    assert split.backward_factors == {"amd-mi100"}


@pytest.mark.parametrize("name", ["random", "", "unseen", "neusight", "ALL", "all-but-one"])
def test_unknown_names_say_which_are_known(name: str) -> None:
    with pytest.raises(RecipeError, match=r"unknown split .*; known: all, neusight-protocol, "):
        device_split(name, DEVICES)


def test_an_unknown_source_says_which_are_known() -> None:
    with pytest.raises(RecipeError, match=r"no source 'nobody'; known: neusight, "):
        device_split("unseen-source-nobody", DEVICES)


@pytest.mark.parametrize("name", ["unseen-nvidia-t4", "unseen-", "unseen-warp-drive"])
def test_an_unseen_device_without_rows(name: str) -> None:
    with pytest.raises(RecipeError, match=r"no rows of device .*; present: nvidia-l4"):
        device_split(name, ["nvidia-l4"])


def test_part_of_the_data_may_lack_a_device_of_the_catalogue_but_no_other() -> None:
    split = device_split("unseen-nvidia-a100-pcie-80gb", ["nvidia-l4"], partial=True)
    assert (split.train, split.test) == ({"nvidia-l4"}, frozenset())
    with pytest.raises(RecipeError, match="no rows of device 'nvidia-b52'"):
        device_split("unseen-nvidia-b52", ["nvidia-l4"], partial=True)


def test_every_name_that_errors_list_makes_a_split() -> None:
    for name in split_names():
        asked = name.replace("<device>", "nvidia-l4").replace("<source>", "timm")
        assert device_split(asked, DEVICES).name == asked
