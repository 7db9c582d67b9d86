"""Where time went: unions, steps, launch gaps, and a brute force beside them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.traces.kineto.activity import activities
from predictor.traces.kineto.intervals import common_ns, covered_at_least, union
from predictor.traces.kineto.steps import steps_of
from predictor.traces.kineto.summary import summaries
from predictor.traces.kineto.table import summary_text
from predictor.traces.kineto.trace import read_trace

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def union_of(spans):
    starts = np.array([a for a, _ in spans], dtype=np.int64)
    return union(starts, starts + np.array([d for _, d in spans], dtype=np.int64))


def covered(spans):
    return {t for a, d in spans for t in range(a, a + d)}


@given(SPANS, SPANS)
def test_unions_count_each_nanosecond_once(a, b):
    first, second = union_of(a), union_of(b)
    assert first.length_ns == len(covered(a))
    assert common_ns(first, second) == len(covered(a) & covered(b))
    assert covered_at_least([first, second], 2).length_ns == len(covered(a) & covered(b))
    assert first.within(10, 40).length_ns == len(covered(a) & set(range(10, 40)))
    assert first.gaps(10, 40).length_ns == len(set(range(10, 40)) - covered(a))
    assert (first.starts[1:] > first.ends[:-1]).all()


def only(trace, **more):
    (summary,) = summaries(read_trace(trace), **more)
    return summary


def test_two_streams_are_a_union_not_a_sum(writer):
    writer.kernel("a", 0, 10, stream=7)
    writer.kernel("b", 5, 10, stream=8)
    s = only(writer.write())
    assert (s.busy_us, s.concurrent_us, s.idle_us) == (15, 5, 0)
    assert s.streams == {"7": 10, "8": 10}


def test_communication_copies_and_idle_are_told_apart(writer):
    writer.kernel("gemm", 0, 10, launched=-5)
    writer.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6, 10, stream=20, launched=-4)
    writer.kernel("Memcpy DtoH (Device -> Pinned)", 14, 6, stream=9, cat="gpu_memcpy", launched=-3)
    writer.kernel("gemm", 30, 10, launched=23)  # the host is late: issued at 24
    writer.kernel("gemm", 50, 10, launched=24)  # issued long before: it waits
    writer.kernel("gemm", 65, 5)  # nobody knows
    s = only(writer.write())
    assert (s.compute_us, s.communication_us, s.copy_us) == (35, 10, 6)
    assert (s.overlap_us, s.exposed_communication_us, s.concurrent_us) == (4, 4, 6)
    assert (s.busy_us, s.idle_us) == (45, 25)
    assert (s.launch_gap_us, s.waiting_us, s.unexplained_us) == (4, 16, 5)
    assert s.busy_us + s.idle_us == s.step_us == 70


def test_communication_beside_compute_beside_copies_and_alone_adds_up(writer):
    writer.kernel("gemm", 0, 10)
    writer.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6, 10, stream=20)
    writer.kernel("Memcpy DtoH (Device -> Pinned)", 14, 6, stream=9, cat="gpu_memcpy")
    text = summary_text(only(writer.write()))
    assert (
        "communication 10.0 µs (4.0 µs beside compute, 2.0 µs beside copies only, 4.0 µs alone)"
        in text
    )


def test_all_times_of_a_step_are_means_and_the_median_is_said(writer):
    at = 0
    for i, length in enumerate((100, 100, 100, 1100, 100)):
        writer.step(i, at, length)
        writer.kernel("a", at + 20, 30, launched=at + 5)
        at += length
    s = only(writer.write())
    assert (s.step_us, s.median_step_us, s.busy_us, s.idle_us) == (350, 100, 30, 320)
    assert s.spread_us == pytest.approx((3 * 250**2 / 4 + 750**2 / 4) ** 0.5)
    text = summary_text(s)
    assert "step         350.0 µs, mean of 4 as all times here (median 100.0 µs, spread" in text
    assert ", noisy)" in text


def test_metadata_makes_a_kernel_a_collective_whatever_its_name(writer):
    writer.kernel("generic_kernel", 0, 3, **{"Collective name": "allreduce", "In msg nelems": 8})
    assert only(writer.write()).communication_us == 3


def loop(writer, steps, *, annotate=True, cut=0, names=("embed", "layer", "layer", "head")):
    """Steps of 100 us on the host, launched 10 us before the device runs them."""
    for i in range(steps):
        if annotate:
            writer.step(i, 100 * i, 100)
        for j, name in enumerate(names[: len(names) - (cut if i == steps - 1 else 0)]):
            at = 100 * i + 20 * j + 1
            writer.kernel(name, at + 10 + 40, 10, launched=at)


def test_steps_follow_the_launch_and_last_from_first_event_to_first_event(writer):
    loop(writer, 3)
    trace = read_trace(writer.write())
    steps = steps_of(trace, activities(trace)[0])
    assert [s.name for s in steps.all] == [f"ProfilerStep#{i}" for i in range(3)]
    assert [s.length_us for s in steps.all] == [100, 100, 70]
    assert [s.last for s in steps.all] == [False, False, True]


def test_a_cut_last_step_is_left_out_unless_asked_for(writer):
    loop(writer, 3, cut=3)
    path = writer.write()
    s = only(path)
    assert (s.steps, s.steps_left_out, s.step_us, s.busy_us) == (2, 1, 100, 40)
    assert any("last step left out" in note for note in s.notes)
    assert only(path, keep_last=True).steps == 3


def test_iterations_are_inferred_from_what_repeats(writer):
    loop(writer, 5, annotate=False, cut=2)
    s = only(writer.write())
    assert (s.steps_found, s.steps, s.step_us, s.busy_us) == ("repetition", 4, 100, 40)
    assert any("repetitions" in note for note in s.notes)


def test_layers_of_one_step_are_no_iterations(writer):
    loop(writer, 1, annotate=False, names=("embed", *("mm", "norm") * 12, "head"))
    assert only(writer.write()).steps_found == "whole"


def test_iterations_are_inferred_from_the_optimizer(writer):
    loop(writer, 3, annotate=False, names=("a", "b", "c", "d"))
    for i in range(3):
        writer.add("user_annotation", "Optimizer.step#SGD.step", 100 * i + 85, 10)
    s = only(writer.write())
    assert (s.steps_found, s.steps, s.step_us) == ("optimizer", 2, 100)


def test_a_graph_replay_is_one_launch_of_many_kernels(writer):
    for i in range(3):
        writer.step(i, 100 * i, 100)
        writer.add("cuda_runtime", "cudaGraphLaunch", 100 * i + 5, 3, args={"correlation": i + 1})
        for j in range(4):
            writer.add(
                "kernel", f"gemm{j}", 100 * i + 20 + 10 * j, 8, tid=7,
                args={"device": 0, "stream": 7, "correlation": i + 1, "graph id": 1},
            )  # fmt: skip
    s = only(writer.write())
    assert (s.kernels, s.replayed, s.busy_us, s.step_us) == (8, 8, 32, 100)
    assert "by graph replay" in summary_text(s)


def test_each_device_of_a_process_has_its_own_summary(writer):
    writer.head["deviceProperties"].append({"id": 1, "name": "NVIDIA A100-SXM4-40GB"})
    writer.kernel("a", 0, 10, device=0)
    writer.kernel("a", 0, 30, device=1)
    trace = read_trace(writer.write())
    assert [s.busy_us for s in summaries(trace)] == [10, 30]


def test_busy_time_equals_a_brute_force(writer):
    draw = random.Random(0)
    spans = []
    for _ in range(300):
        start, dur = draw.randrange(0, 3000), draw.randrange(1, 30)
        spans.append((start, dur))
        writer.kernel("k", start, dur, stream=draw.randrange(4))
    assert only(writer.write()).busy_us == len(covered(spans))


def test_a_trace_of_the_host_alone(torch_trace):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU())
    path = torch_trace(lambda: model(torch.ones(4, 16)), steps=3)
    s = only(path)
    assert (s.device, s.steps, s.steps_left_out) == ("host", 2, 1)
    assert 0 < s.busy_us < s.step_us
    assert s.idle_us == pytest.approx(s.busy_us * 0 + s.unexplained_us)
    assert {t.name for t in s.top} & {"aten::addmm", "aten::clamp_min", "aten::ones", "aten::relu"}


def test_the_table_says_what_a_reader_must_know(writer):
    loop(writer, 3)
    writer.kernel("bad", 1, 0)
    text = summary_text(only(writer.write()))
    assert "NVIDIA A100-SXM4-40GB, rank 0 of 1" in text
    assert "2 (ProfilerStep, 1 left out)" in text
    assert "step         100.0 µs, mean of 2 as all times here (median 100.0 µs, spread 0" in text
    assert "noisy" not in text
    assert "top kernels  shares of the sum over all streams, 40.0 µs a step; calls of all 2" in text
    assert "busy         40.0 µs  40.0%" in text
    assert "no distributedInfo" in text
    assert "1 device_event_without_duration" in text
