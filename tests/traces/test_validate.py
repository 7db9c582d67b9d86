"""Rules that rows of every source keep to."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest

from predictor.errors import DataError
from predictor.traces.schema import TABLES, column_kind, empty_table
from predictor.traces.sources import neusight
from predictor.traces.validate import _COUNTS, READINGS, _findings, _numbers, keep_valid

LINEAR = 0
"""A row of a linear layer in the sample below."""


@pytest.fixture(scope="module")
def sample(complete_root):
    return neusight.read(complete_root)


@pytest.fixture
def data(sample):
    found = deepcopy(sample)
    first = found.kernels[found.kernels["op"] == "linear"]
    rest = found.kernels[found.kernels["op"] != "linear"]
    found.kernels = pd.concat([first, rest], ignore_index=True)
    return found


@pytest.mark.parametrize(
    ("table", "column", "value", "rule"),
    [
        ("kernels", "latency_us", 0.05, "latency_not_plausible"),
        ("kernels", "latency_us", 2e9, "latency_not_plausible"),
        ("kernels", "latency_us", np.nan, "not_a_number"),
        ("kernels", "flops", np.inf, "not_a_number"),
        ("kernels", "flops", -1.0, "work_not_plausible"),
        ("kernels", "device", "gpu-of-dreams", "unknown_device"),
        ("kernels", "device", "amd-mi250x-package", "unknown_device"),
        ("kernels", "device", None, "unknown_device"),
        ("kernels", "op", "flash_everything", "unknown_op"),
        ("kernels", "phase", "sideways", "unknown_phase"),
        ("kernels", "dtype", "fp7", "unknown_dtype"),
        ("kernels", "dtype", "fp8", "dtype_not_supported"),
        ("kernels", "context", "dream", "unknown_context"),
        ("kernels", "dim_m", 0, "dimension_not_plausible"),
        ("kernels", "dim_k", -1, "dimension_not_plausible"),
        ("kernels", "dim_n", 2**41, "dimension_not_plausible"),
        ("steps", "latency_us", -1.0, "latency_not_plausible"),
        ("steps", "forward_us", np.inf, "not_a_number"),
        ("steps", "batch", 0, "count_not_plausible"),
        ("steps", "batch", 3.7, "count_not_plausible"),
        ("kernels", "ranks_per_node", 0.0, "count_not_plausible"),
        ("steps", "mode", "tune", "unknown_mode"),
        ("ops", "forward_us", -1.0, "latency_not_plausible"),
        ("ops", "weight", -1.0, "work_not_plausible"),
        ("peers", "latency_us", np.nan, "not_a_number"),
    ],
)
def test_a_row_that_breaks_a_rule_is_counted_and_the_others_stay(data, table, column, value, rule):
    rows = getattr(data, table)
    before = len(rows)
    rows[column] = rows[column].astype(object)
    rows.loc[LINEAR, column] = value
    keep_valid(data)
    kept = getattr(data, table)
    assert len(kept) == before - 1
    assert data.dropped == {rule: 1}
    reject = data.rejects[0]
    assert (reject["column"], reject["rule"], reject["rows"]) == (column, rule, 1)
    if column_kind(column) != "text":
        assert kept[column].dtype == {"integer": "int64", "number": "float64"}[column_kind(column)]
    assert kept.index.tolist() == list(range(before - 1))


def test_fp8_vectors_are_no_matrix_products(data):
    # a V100 has no fp8 matrix path, but its lanes can read any bytes
    elementwise = data.kernels["op"] == "add"
    data.kernels.loc[elementwise, "dtype"] = "fp8"
    keep_valid(data)
    assert not data.dropped


def test_repeated_rows_are_dropped_by_id(data):
    data.kernels = pd.concat([data.kernels, data.kernels.iloc[:2]], ignore_index=True)
    before = len(data.kernels)
    keep_valid(data)
    assert len(data.kernels) == before - 2
    assert data.dropped == {"row_id_repeated": 2}


def test_the_first_rule_that_a_row_breaks_counts_it_in_every_run(data):
    numbers = {c: _numbers(data.steps[c]) for c in TABLES["steps"] if column_kind(c) != "text"}
    found = [(rule, column) for rule, column, _ in _findings(data.steps, numbers, "steps")]
    counts = [c for rule, c in found if rule == "count_not_plausible"]
    assert counts == [c for c in _COUNTS if c in TABLES["steps"]] and len(counts) > 3
    readings = [c for c in READINGS if c in TABLES["steps"]]
    assert [c for rule, c in found if rule == "reading_not_plausible"] == readings
    data.steps["batch"], data.steps["repeats"] = 0.0, 0.0
    keep_valid(data)
    assert {r["column"] for r in data.rejects if r["rule"] == "count_not_plausible"} == {"batch"}


def test_rows_are_counted_by_file(data):
    data.kernels.loc[:, "latency_us"] = -1.0
    rows, files = len(data.kernels), data.kernels["file"].nunique()
    keep_valid(data)
    assert data.kernels.empty
    assert sum(r["rows"] for r in data.rejects) == rows
    assert len(data.rejects) == files


def test_unknown_times_of_a_phase_are_kept(data):
    data.steps["backward_us"] = np.nan
    keep_valid(data)
    assert not data.dropped


def test_a_table_without_a_column_is_our_fault_not_a_row(data):
    data.steps = data.steps.drop(columns="plan")
    with pytest.raises(DataError, match="'steps' has no column 'plan'"):
        keep_valid(data)


@pytest.mark.parametrize("table", sorted(TABLES))
def test_empty_tables_are_typed(table):
    frame = empty_table(table)
    assert tuple(frame.columns) == TABLES[table]
    numeric = [c for c in frame if column_kind(c) != "text"]
    assert all(frame[c].dtype.kind in "if" for c in numeric)
