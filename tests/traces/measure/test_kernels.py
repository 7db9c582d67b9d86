"""A run over a grid: rows, flags, refusals, and going on where it stopped."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from predictor.errors import DataError
from predictor.hardware.catalogue import resolve_device
from predictor.traces.measure.conditions import Load
from predictor.traces.measure.flags import flag_of
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kernels import RETRIES, KernelRun
from predictor.traces.measure.rows_file import META, RowsFile, read_rows
from predictor.traces.measure.timer import Timing
from predictor.traces.merge import merged
from predictor.traces.sources.rows import parts

QUIET = Load(seconds=1.0, other_share=0.01, stolen=0.0)
BUSY = Load(seconds=1.0, other_share=0.9, stolen=0.0)
STEADY = Timing(median_us=100.0, spread_us=1.0, half_width=0.01, samples=9, calls=1)
WILD = Timing(median_us=100.0, spread_us=9.0, half_width=0.2, samples=9, calls=1)
POINTS = [
    Point(kind="linear", dtype="fp32", sizes={"m": 8, "n": 4, "k": 16}),
    Point(kind="add", dtype="bf16", sizes={"numel": 4096}, cold=True),
    Point(kind="conv", dtype="fp32", sizes={"batch": 1, "c_in": 4, "c_out": 4, "size": 8}),
    Point(kind="attention_backward", dtype="fp32",
          sizes={"batch": 1, "heads": 2, "q_len": 4, "head_dim": 8}),
    Point(kind="adamw", dtype="fp32", sizes={"numel": 64, "tensors": 2}),
]  # fmt: skip


class Watch:
    """A load that is told beforehand, window by window; quiet after that."""

    def __init__(self, *loads: Load) -> None:
        self.loads = list(loads)

    def seconds(self) -> float:
        return math.inf

    def look(self) -> Load:
        return self.loads.pop(0) if self.loads else QUIET


def run(device, limits, path: Path, points, *, resume=False, watch=None) -> RowsFile:
    rows = RowsFile(path, "kernels", resume=resume)
    kernel_run = KernelRun(device, rows, limits)
    kernel_run._watch = watch or Watch()
    assert kernel_run.run(points)
    return rows


def passes_behind(rows: RowsFile) -> int:
    """Passes behind the first row: each takes seven samples of two calls here."""
    (row,) = rows.rows_of(POINTS[0].key)
    return row["repeats"] // 14


def test_rows_are_own_rows_that_the_importer_keeps(device, limits, tmp_path):
    run(device, limits, tmp_path / "rows.parquet", POINTS)
    data = merged(parts(tmp_path))
    assert not data.dropped
    rows = data.kernels
    assert rows["op"].tolist() == ["linear", "add", "conv", "attention_backward", "adamw"]
    assert rows["phase"].tolist() == ["forward"] * 3 + ["backward", "optimizer"]
    assert (rows["latency_us"] == 100.0).all() and (rows["context"] == "isolated").all()
    assert rows["flag"].tolist() == ["", "cold_cache", "", "", ""]
    assert rows["layout"].tolist() == ["", "", "nchw", "", ""]
    assert (rows["framework"] == "pytorch").all() and (rows["repeats"] == 3 * 14).all()
    assert (rows["device"] == "amd-epyc-9004-2vcpu").all()
    linear = rows.iloc[0]
    assert [linear[f"dim_{d}"] for d in ("batch", "m", "n", "k")] == [1, 8, 4, 16]
    assert linear["flops"] == 2 * 8 * 4 * 16 and linear["dim_rows"] == -1


@pytest.mark.parametrize(
    ("timing", "loaded", "cold", "flag"),
    [(STEADY, False, False, ""), (STEADY, False, True, "cold_cache"), (WILD, False, True, "noisy"),
     (WILD, True, False, "other_load"), (STEADY, True, True, "other_load")],
)  # fmt: skip
def test_the_gravest_flag_is_written(limits, timing, loaded, cold, flag):
    assert flag_of(timing, limits, loaded=loaded, cold=cold) == flag


@pytest.mark.parametrize(
    ("load", "disturbed"),
    [(QUIET, False), (BUSY, True), (Load(seconds=1.0, other_share=0.0, stolen=0.1), True)],
)
def test_what_others_compute_disturbs(load, disturbed):
    assert load.disturbed is disturbed


def test_a_point_is_visited_again_until_most_passes_were_quiet(device, limits, tmp_path):
    rows = run(device, limits, tmp_path / "a.parquet", POINTS[:1], watch=Watch(BUSY))
    assert rows.flags() == {"": 1} and passes_behind(rows) == 2  # of three
    rows = run(device, limits, tmp_path / "b.parquet", POINTS[:1], watch=Watch(BUSY, BUSY))
    assert rows.flags() == {"": 1} and passes_behind(rows) == 2  # of four
    watch = Watch(*[BUSY] * (limits.passes + RETRIES))
    rows = run(device, limits, tmp_path / "c.parquet", POINTS[:1], watch=watch)
    assert rows.flags() == {"other_load": 1}


def test_a_disturbed_point_has_a_row_before_it_is_visited_again(device, limits, tmp_path):
    rows = RowsFile(tmp_path / "rows.parquet", "kernels")
    kernel_run = KernelRun(device, rows, limits)
    kernel_run._watch = Watch(*[BUSY] * 20)
    for _ in range(limits.passes):
        kernel_run._visit(POINTS[0])
    assert rows.flags() == {"other_load": 1}
    (early,) = rows.rows_of(POINTS[0].key)
    kernel_run.run(POINTS[:1])
    (late,) = rows.rows_of(POINTS[0].key)
    assert late["repeats"] > early["repeats"]  # replaced by what all passes say


def test_passes_of_a_point_lie_a_block_apart(device, limits, tmp_path, monkeypatch):
    monkeypatch.setattr("predictor.traces.measure.kernels.BLOCK", 2)
    monkeypatch.setattr("predictor.traces.measure.kernels.BLOCK_SECONDS", math.inf)
    visit, seen = KernelRun._visit, []
    monkeypatch.setattr(
        KernelRun, "_visit", lambda self, point: (seen.append(point.kind), visit(self, point))
    )
    run(device, limits, tmp_path / "rows.parquet", POINTS[:3])
    assert seen == ["linear", "add"] * limits.passes + ["conv"] * limits.passes


def test_what_cannot_be_measured_is_counted_with_its_reason(device, limits, tmp_path):
    points = [
        Point(kind="adamw", dtype="fp32", sizes={"numel": 2, "tensors": 2}, cold=True),
        Point(kind="conv", dtype="fp32",
              sizes={"batch": 1, "c_in": 4, "c_out": 4, "size": 8, "groups": 3}),
        POINTS[0],
    ]  # fmt: skip
    rows = run(device, limits, tmp_path / "rows.parquet", points)
    assert rows.rows == 1
    assert rows.refused_points == {
        points[0].key: "too_small_for_a_cold_cache", points[1].key: "CaptureError",
    }  # fmt: skip


def test_a_run_goes_on_where_it_stopped(device, limits, tmp_path):
    path = tmp_path / "rows.parquet"
    run(device, limits, path, POINTS[:2])
    before, _ = read_rows(path)
    rows = run(device, limits, path, POINTS, resume=True)
    after, kept = read_rows(path)
    assert rows.rows == len(POINTS) == len(after)
    assert after.iloc[:2].equals(before)
    assert set(kept["keys"]) == {p.key for p in POINTS}


def test_a_file_is_not_written_over(device, limits, tmp_path):
    path = tmp_path / "rows.parquet"
    run(device, limits, path, POINTS[:1])
    with pytest.raises(DataError, match="--resume"):
        RowsFile(path, "kernels")
    with pytest.raises(DataError, match="not a file of steps"):
        RowsFile(path, "steps", resume=True)


@pytest.mark.parametrize(
    "meta",
    [
        b"{", b"[]", b"{}", b'{"keys": 3, "refused": {}, "facts": {}}',
        b'{"keys": {"a": 99}, "refused": {}, "facts": {}}',
        b'{"keys": {"a": "b"}, "refused": {}, "facts": {}}',
    ],
)  # fmt: skip
def test_damaged_metadata_is_refused(device, limits, tmp_path, meta):
    path = tmp_path / "rows.parquet"
    run(device, limits, path, POINTS[:1])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({META: meta}), path)
    with pytest.raises(DataError, match=r"rows\.parquet: its metadata .*another file"):
        RowsFile(path, "kernels", resume=True)


def stopping(monkeypatch, kernel_run: KernelRun, after: int, error: BaseException) -> None:
    """Have a run's visit raise once so many have gone well."""
    visit, calls = KernelRun._visit, []

    def stopped(self, point: Point) -> None:
        if len(calls) == after:
            raise error
        calls.append(point)
        visit(self, point)

    monkeypatch.setattr(KernelRun, "_visit", stopped)


def test_an_interrupted_run_keeps_points_of_two_passes(device, limits, tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    kernel_run = KernelRun(device, RowsFile(path, "kernels"), limits)
    kernel_run._watch = Watch()
    stopping(monkeypatch, kernel_run, len(POINTS) + 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        kernel_run.run(POINTS)
    frame, _ = read_rows(path)
    assert frame["op"].tolist() == ["linear", "add"]  # two passes; the others have one
    assert frame["flag"].tolist() == ["", "cold_cache"]  # two quiet passes of two are enough
    assert frame["repeats"].tolist() == [28, 28]


def test_a_deadline_ends_a_run(device, limits, tmp_path):
    rows = RowsFile(tmp_path / "rows.parquet", "kernels")
    assert not KernelRun(device, rows, limits, deadline=0.0).run(POINTS)
    assert rows.rows == 0 and not rows.path.exists()


class Time:
    """A clock that a visit moves on by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_short_runs_that_go_on_reach_the_end(device, limits, tmp_path, monkeypatch):
    time, visit = Time(), KernelRun._visit
    monkeypatch.setattr("predictor.traces.measure.kernels.time", time)

    def slow(self: KernelRun, point: Point) -> None:
        time.now += 1.0
        visit(self, point)

    monkeypatch.setattr(KernelRun, "_visit", slow)
    path, done = tmp_path / "rows.parquet", []
    for _ in POINTS:  # half a second each: less than a single visit
        rows = RowsFile(path, "kernels", resume=True)
        kernel_run = KernelRun(device, rows, limits, deadline=time.now + 0.5)
        kernel_run._watch = Watch()
        kernel_run.run(POINTS)
        done.append(rows.rows)
    assert done == [1, 2, 3, 4, 5]
    assert set(rows.flags()) == {"", "cold_cache"}


def test_a_block_takes_some_seconds(device, limits, tmp_path, monkeypatch):
    time, visit, seen = Time(), KernelRun._visit, []
    monkeypatch.setattr("predictor.traces.measure.kernels.time", time)
    monkeypatch.setattr("predictor.traces.measure.kernels.BLOCK_SECONDS", 6.0)  # two a pass

    def slow(self: KernelRun, point: Point) -> None:
        time.now += 1.0
        seen.append(point.kind)
        visit(self, point)

    monkeypatch.setattr(KernelRun, "_visit", slow)
    run(device, limits, tmp_path / "rows.parquet", POINTS[:3])
    assert seen == ["linear", "add"] * 3 + ["conv"] * 3


def timings(monkeypatch, *told: Timing | Exception) -> None:
    """What the passes of a run say or raise, one after the other; steady after that."""
    left = list(told)

    def next_one(calls, clock, limits) -> Timing:
        one = left.pop(0) if left else STEADY
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr("predictor.traces.measure.kernels.time_calls", next_one)


SPREAD = Timing(median_us=300.0, spread_us=200.0, half_width=0.6, samples=9, calls=1)
TINY = Timing(median_us=0.01, spread_us=0.0, half_width=0.0, samples=9, calls=1)


@pytest.mark.parametrize(
    "told",
    [(SPREAD,), (STEADY, SPREAD), (TINY, STEADY), (RuntimeError("once"),),
     (STEADY, RuntimeError("once")), (STEADY, STEADY, SPREAD)],
)  # fmt: skip
def test_one_bad_pass_refuses_no_point(device, limits, tmp_path, monkeypatch, told):
    timings(monkeypatch, *told)
    rows = run(device, limits, tmp_path / "rows.parquet", POINTS[:1])
    assert rows.flags() == {"": 1} and not rows.refused
    (row,) = rows.rows_of(POINTS[0].key)
    assert row["latency_us"] == 100.0


def test_a_pass_that_waits_for_its_load_counts_as_one_that_succeeded(
    device, limits, tmp_path, monkeypatch
):
    class Slow(Watch):
        def seconds(self) -> float:
            return 0.39  # short of a window all the time: passes wait until the end

    timings(monkeypatch, STEADY, STEADY, RuntimeError("once"))
    rows = run(device, limits, tmp_path / "rows.parquet", POINTS[:1], watch=Slow())
    assert rows.flags() == {"": 1}


@pytest.mark.parametrize(
    ("told", "reason"),
    [((SPREAD,) * 9, "spread_too_large"), ((TINY,) * 3, "below_resolution"),
     ((RuntimeError("always"),) * 3, "RuntimeError")],
)  # fmt: skip
def test_a_point_without_a_sound_time_is_refused(
    device, limits, tmp_path, monkeypatch, told, reason
):
    timings(monkeypatch, *told)
    rows = run(device, limits, tmp_path / "rows.parquet", POINTS[:1])
    assert rows.refused == {reason: 1} and rows.rows == 0 and not rows.path.exists()


def test_refused_and_flagged_points_are_tried_again(device, limits, tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    busy = Watch(*[BUSY] * 2 * (limits.passes + RETRIES))
    timings(monkeypatch, *[SPREAD, STEADY] * limits.passes, *[SPREAD, STEADY] * RETRIES)
    rows = run(device, limits, path, [POINTS[1], POINTS[0]], watch=busy)
    assert rows.refused == {"spread_too_large": 1} and rows.flags() == {"other_load": 1}
    rows = run(device, limits, path, POINTS[:3], resume=True)
    assert rows.rows == 3 and not rows.refused
    assert rows.flags() == {"": 2, "cold_cache": 1}
    _, kept = read_rows(path)
    assert next(iter(kept["keys"])) == POINTS[2].key  # what is new comes before what has been tried


def test_a_row_is_not_replaced_by_one_that_is_no_better(device, limits, tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    run(device, limits, path, POINTS[:1], watch=Watch(*[BUSY] * (limits.passes + RETRIES)))
    before, _ = read_rows(path)
    timings(monkeypatch, *[SPREAD] * 9)
    run(device, limits, path, POINTS[:1], resume=True)
    after, kept = read_rows(path)
    assert after.equals(before) and not kept["refused"]


def test_the_device_is_the_catalogues(device):
    assert device.facts()["device"] == resolve_device("amd-epyc-9004-2vcpu").id
