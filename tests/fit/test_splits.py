"""Splits by group: no device crosses, and a device takes its twins with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import RecipeError
from predictor.fit.splits import (
    BACKWARD_FACTOR_DEVICES,
    PROTOCOL_TEST,
    PROTOCOL_TRAIN,
    device_groups,
    device_split,
    hold_out,
)
from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.twins import TWIN_GROUPS, twins

DEVICES = tuple(sorted(load_catalogue()))
SUBSETS = st.sets(st.sampled_from(DEVICES), min_size=1, max_size=12)


@pytest.mark.parametrize("device", DEVICES)
def test_an_unseen_device_and_its_twins_are_in_no_training_part(device: str) -> None:
    split = device_split(f"unseen-{device}", DEVICES)
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
    for split in (hold_out(device, present), device_split("neusight-protocol", present)):
        assert not split.train & split.test
        assert split.train | split.test | split.backward_factors <= present
        for name in present:
            assert split.part(name) in ("train", "test", "unused")


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
    assert split.train == set(PROTOCOL_TRAIN)
    assert split.test == set(PROTOCOL_TEST) == {"nvidia-a100-pcie-80gb", "nvidia-l4"}
    assert split.backward_factors == set(BACKWARD_FACTOR_DEVICES)
    assert not split.backward_factors & split.test
    assert twins("nvidia-a100-pcie-80gb") & split.train == {"nvidia-a100-pcie-40gb"}
    assert not twins("nvidia-l4") & split.train
    assert split.part("amd-mi210") == "unused"


def test_protocol_over_a_part_of_the_data() -> None:
    split = device_split("neusight-protocol", ["nvidia-t4", "amd-mi100"])
    assert (split.train, split.test) == ({"nvidia-t4"}, frozenset())
    assert split.backward_factors == {"amd-mi100"}


@pytest.mark.parametrize("name", ["random", "", "unseen", "neusight", "ALL"])
def test_unknown_names_say_which_are_known(name: str) -> None:
    with pytest.raises(RecipeError, match=r"unknown split .*; known: all, neusight-protocol, "):
        device_split(name, DEVICES)


@pytest.mark.parametrize("name", ["unseen-nvidia-t4", "unseen-", "unseen-warp-drive"])
def test_an_unseen_device_without_rows(name: str) -> None:
    with pytest.raises(RecipeError, match=r"no rows of device .*; present: nvidia-l4"):
        device_split(name, ["nvidia-l4"])
