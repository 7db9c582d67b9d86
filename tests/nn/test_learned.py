"""What a checkpoint learned: of which kinds of kernel, and on which kinds of device."""

from __future__ import annotations

from predictor.nn.learned import Measured, by_device, entries_of, measured_of, speaks, with_twins


def test_a_pair_speaks_for_any_device_and_a_triple_for_its_own() -> None:
    learned = with_twins([["gemm", "fp32"], ["adamw", "fp32", "cpu"]])
    assert speaks(learned, "gemm", "fp32", "gpu") and speaks(learned, "gemm", "fp32", "cpu")
    assert speaks(learned, "adamw", "fp32", "cpu")
    assert not speaks(learned, "adamw", "fp32", "gpu")


def test_the_halves_speak_for_each_other() -> None:
    learned = with_twins([["gemm", "fp16"], ["conv", "bf16", "gpu"], ["gemm", "fp8"]])
    assert speaks(learned, "gemm", "bf16", "gpu")
    assert speaks(learned, "conv", "fp16", "gpu") and not speaks(learned, "conv", "fp16", "cpu")
    assert len(learned) == 5


def test_kinds_of_device_stand_where_there_are_several() -> None:
    gpu, cpu = ("gemm", "fp32", "gpu"), ("gemm", "fp32", "cpu")
    assert entries_of({gpu}) == [["gemm", "fp32"]]
    assert entries_of({gpu, cpu}) == [list(cpu), list(gpu)]


T4, A100, A100_TWIN, L4 = (
    "nvidia-t4", "nvidia-a100-pcie-40gb", "nvidia-a100-sxm-80gb", "nvidia-l4",
)  # fmt: skip


def test_measured_is_by_device_and_class_and_by_dtype_where_it_decides_the_units() -> None:
    pairs = [["gemm", "fp16"], ["gelu_backward", "fp32"]]
    measured = measured_of({"devices": [T4, A100], "measured": {T4: pairs}})
    assert measured.here(T4, "bmm", "fp16") and measured.here(T4, "gemm", "bf16")  # one class
    assert not measured.here(T4, "gemm", "fp32") and not measured.here(T4, "conv", "fp16")
    assert measured.here(T4, "pointwise", "int8")  # moves bytes: any dtype of the class
    assert not measured.here(T4, "softmax", "fp32")
    assert not measured.here(A100, "gemm", "fp16")  # measured, but not that


def test_a_twin_of_a_known_device_counts_as_the_device() -> None:
    measured = measured_of({"devices": [A100, A100_TWIN], "measured": {A100: [["conv", "fp32"]]}})
    assert measured.here(A100_TWIN, "conv", "fp32")
    alone = measured_of({"devices": [A100], "measured": {A100: [["conv", "fp32"]]}})
    assert not alone.here(A100_TWIN, "conv", "fp32")  # of the device itself nothing is known


def test_a_release_that_tells_devices_alone_measured_all_on_each() -> None:
    measured = measured_of({"devices": [T4]})
    assert measured == Measured(devices=frozenset({T4}))
    assert measured.here(T4, "conv", "fp8") and not measured.here(L4, "conv", "fp8")


def test_pairs_by_device() -> None:
    found = {("gemm", "fp32", T4), ("conv", "fp32", T4), ("gemm", "fp16", A100)}
    assert by_device(found) == {
        A100: [["gemm", "fp16"]], T4: [["conv", "fp32"], ["gemm", "fp32"]],
    }  # fmt: skip
    assert by_device(set()) == {}


def test_pooling_sorting_and_reductions_are_measured_each_for_itself() -> None:
    measured = measured_of({"devices": [T4], "measured": {T4: [["reduction", "fp32"]]}})
    assert measured.here(T4, "reduction", "fp16")
    for other in ("pool", "pool_backward", "sort"):
        assert not measured.here(T4, other, "fp32")
