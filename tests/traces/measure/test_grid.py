"""Grids: named ones, files, combinations and draws, and what is wrong with a grid."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from predictor.errors import DataError
from predictor.traces.measure.cases import kernel_of
from predictor.traces.measure.grid import Point, grid_names, read_grid
from predictor.traces.measure.kinds import kind_of


def write(folder: Path, text: str, name: str = "grid.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_every_combination_once(tmp_path):
    grid = write(
        tmp_path,
        '[[points]]\nkind = ["add", "mul"]\ndtype = ["fp32", "bf16"]\ncache = ["warm", "cold"]\n'
        "numel = [8, 8, 16]\n",
    )
    points = read_grid(grid)
    assert len(points) == 2 * 2 * 2 * 2
    assert len({p.key for p in points}) == 16
    assert points[0] == Point(kind="add", dtype="fp32", sizes={"numel": 8}, cold=False)


def test_shapes_belong_together(tmp_path):
    grid = write(
        tmp_path,
        '[[points]]\nkind = "linear"\nm = [1, 2]\nshapes = [{n = 3, k = 4}, {n = 5, k = 6}]\n',
    )
    assert [(p.sizes["m"], p.sizes["n"], p.sizes["k"]) for p in read_grid(grid)] == [
        (1, 3, 4), (2, 3, 4), (1, 5, 6), (2, 5, 6),
    ]  # fmt: skip


def test_draws_stay_within_range_and_bound_and_are_the_same_again(tmp_path):
    grid = write(
        tmp_path,
        '[[points]]\nkind = "linear"\ncount = 200\nmost = 1e6\nbounded = ["m", "n"]\n'
        "m = {from = 1, to = 4096}\nn = {from = 8, to = 4096}\nk = [64, 100]\n",
    )
    points = read_grid(grid)
    assert points == read_grid(grid)
    assert len(points) > 190
    assert all(p.sizes["m"] * p.sizes["n"] <= 1e6 for p in points)
    assert all(1 <= p.sizes["m"] <= 4096 and 8 <= p.sizes["n"] <= 4096 for p in points)
    assert {p.sizes["k"] for p in points} == {64, 100}
    odd = sum(p.sizes["n"] % 8 != 0 for p in points)
    assert 0.2 < odd / len(points) < 0.8


def test_csv(tmp_path):
    grid = write(tmp_path, "kind,dtype,cache,m,n,k,numel\nlinear,bf16,,2,3,4,\nadd,,cold,,,,9\n",
                 "grid.csv")  # fmt: skip
    assert read_grid(grid) == [
        Point(kind="linear", dtype="bf16", sizes={"m": 2, "n": 3, "k": 4}),
        Point(kind="add", dtype="fp32", sizes={"numel": 9}, cold=True),
    ]


@pytest.mark.parametrize("name", grid_names())
def test_each_kind_of_a_named_grid_is_one_kernel(name):
    """The largest and the smallest point of a kind: work may depend on sizes."""
    by_kind: dict[str, list[Point]] = {}
    for point in read_grid(name):
        by_kind.setdefault(point.kind, []).append(point)
    device = "cuda" if name == "cuda" else "cpu"
    for points in by_kind.values():
        ordered = sorted(points, key=lambda p: math.prod(p.sizes.values()))
        for point in (ordered[0], ordered[-1]):
            case = kind_of(point.kind).case(point.sizes, point.dtype, device)
            assert kernel_of(case).op == case.op, point.key


def test_the_gradient_of_a_table_counts_the_sort_of_many_indices():
    sizes = {"cols": 8, "table": 100}
    few, many = (kernel_of(kind_of("embedding_backward").case({**sizes, "rows": n}, "fp32"))
                 for n in (3072, 3073))  # fmt: skip
    assert many.write_bytes > few.write_bytes + 2 * 8 * 3072


@pytest.mark.parametrize("name", grid_names())
def test_named_grids_are_sound(name):
    assert len(read_grid(name)) > 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[points]]\nkind = "ad"\nnumel = 8\n', r"points 1: no kind of kernel 'ad'"),
        ('[[points]]\nkind = "add"\nsize = 8\n', r"points 1: kind 'add' has no size 'size'"),
        ('[[points]]\nkind = "linear"\nm = 8\nn = 8\n', "points 1: kind 'linear' needs size 'k'"),
        (f'[[points]]\nkind = "add"\nnumel = 1{"0" * 400}\n', r"\.\.\.: sizes are whole .* to 1,0"),
        (
            f'[[points]]\nkind = "add"\ncount = 1\nnumel = {{from=1, to=1{"0" * 400}}}\n',
            "a range is",
        ),
        ('[[points]]\nkind = "add"\ndtype = "fp8"\nnumel = 8\n', "does not run in 'fp8'"),
        ('[[points]]\nkind = "add"\ncache = "hot"\nnumel = 8\n', "cache 'hot' is unknown"),
        ('[[points]]\nkind = "add"\nnumel = {from = 1, to = 8}\n', "numel is a range: give count"),
        ('[[points]]\nkind = "add"\ncount = 1\nmost = 1\nnumel = [8]\n', "no draw is within most"),
        ("[points]\n", "a grid is a list"),
        ("points = []\n", "no points"),
        ("points = [\n", "not TOML"),
        ("points = [1]\n", "points 1: 1 is no table of sizes"),
        (f'[[points]]\nkind = "add"\nnumel = {"9" * 5000}\n', "not TOML"),
        *[
            (f'[[points]]\nkind = "add"\nnumel = {value}\n', "sizes are whole numbers from 0")
            for value in ("-1", "1.5", '"a"', "true", "2020-01-01", "[[1]]", "[]")
        ],
        *[
            (f'[[points]]\nkind = "add"\ncount = 2\nnumel = {value}\n', "a range is {from")
            for value in ("{from = 0, to = 4}", "{from = 9, to = 4}", "{low = 1}", '{from = "a"}')
        ],
        ('[[points]]\nkind = "add"\nshapes = 3\n', "shapes is a list of tables"),
        ('[[points]]\nkind = "add"\nshapes = [1]\n', "shapes is a list of tables"),
        ('[[points]]\nkind = "add"\ncount = 2\nshapes = []\n', "shapes is a list of tables"),
        ('[[points]]\nkind = "add"\nshapes = [{numel = "a"}]\n', "sizes are whole numbers"),
        ('[[points]]\nkind = "add"\ncount = "x"\nnumel = 8\n', "count = 'x' is no whole"),
        ('[[points]]\nkind = "add"\ncount = 1000000000\nnumel = 8\n', "1,000,000,000 points"),
        ('[[points]]\nkind = "add"\ncount = 1\nmost = "a"\nnumel = 8\n', "most = 'a' is no nu"),
        ('[[points]]\nkind = "add"\ncount = 1\nbounded = 3\nnumel = 8\n', "bounded is a list"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_grid(write(tmp_path, text))


def test_more_combinations_than_anyone_measures_are_refused(tmp_path):
    many = list(range(1, 2000))
    with pytest.raises(DataError, match="3,996,001 points are more than 1,000,000"):
        read_grid(write(tmp_path, f'[[points]]\nkind = "linear"\nm = {many}\nn = {many}\nk = 3\n'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind,numel\nadd,8,9\n", "line 2: more fields than the header"),
        (f"kind,numel\n{'x' * 200_000},8\n", "line 2: not CSV"),
        ("kind,numel\nadd,8.5\n", r"line 2: numel = '8.5'; sizes are integers$"),
        ("kind,numel\nadd,1_0\n", "line 2: numel = '1_0'; sizes are integers"),
        (
            f"kind,numel\nadd,{'9' * 5000}\n",
            "line 2: numel = '9{70,80}\\.\\.\\.; sizes are integers",
        ),
        ("kind,m,n,k\nlinear,2,3,\n", "line 2: kind 'linear' needs size 'k'"),
        ("kind,numel\nadd,-8\n", "line 2: numel = -8: sizes are whole numbers from 0"),
    ],
)
def test_what_is_wrong_in_a_csv_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_grid(write(tmp_path, text, "grid.csv"))


def test_a_byte_order_mark_is_no_column(tmp_path):
    (point,) = read_grid(write(tmp_path, "\ufeffkind,numel\nadd,8\n", "grid.csv"))
    assert point.sizes == {"numel": 8}


def test_unknown_grids_are_named():
    with pytest.raises(DataError, match=r"no grid 'ful'; known: .*quick"):
        read_grid("ful")
