"""What a checkpoint learned: of which kinds of kernel, and on which kinds of device."""

from __future__ import annotations

from predictor.nn.learned import entries_of, speaks, with_twins


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
