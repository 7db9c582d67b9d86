"""Kinds of devices by id, in words."""

from __future__ import annotations

from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.kinds import KIND_NAMES, and_list, kinds_of


def test_kinds_in_words_and_devices_of_none() -> None:
    found = kinds_of(["nvidia-t4", "intel-xeon-phi-7250", "nvidia-l4", "nobodys-device"])
    assert (found.known, found.undescribed) == ({"cpu", "gpu"}, ("nobodys-device",))
    assert found.text == "CPUs, GPUs and nobodys-device"
    assert kinds_of([]).text == "no device"


def test_every_kind_of_the_catalogue_has_a_name() -> None:
    assert {d.kind for d in load_catalogue().values()} <= set(KIND_NAMES)


def test_lists() -> None:
    assert [and_list(w) for w in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "", "a", "a and b", "a, b and c",
    ]  # fmt: skip
