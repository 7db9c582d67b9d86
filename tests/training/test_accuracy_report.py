"""The accuracy page: its numbers recomputed from made-up rows by other means."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from predictor.fit.groups import summarise

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]


def made_up(seed: int = 0) -> pd.DataFrame:
    """Rows of all kinds, parts and phases: steps, kernels inside and alone, on two devices."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for part, n in (("train", 20), ("development", 30), ("test", 40)):
        for kind in ("step", "in_step", "isolated"):
            for i in range(n):
                phases = ("total", "forward", "backward") if kind == "step" else ("forward",)
                rows += [_row(rng, part, kind, phase, i) for phase in phases]
    frame = pd.DataFrame(rows)
    frame.loc[frame["target"] == "step", "neusight_us"] = frame["measured_us"] * 1.1
    inside = frame.index[(frame["mode"] == "in_step") & (frame["part"] == "test")]
    frame.loc[inside[:10], "neusight_us"] = frame["measured_us"] * 0.5
    frame.loc[inside[-2:], ["predicted_us", "lower_us", "upper_us"]] = np.nan
    frame.loc[inside[-1], "scored"] = False
    return frame


def _row(rng: np.random.Generator, part: str, kind: str, phase: str, i: int) -> Row:
    step = kind == "step"
    measured = float(10 ** rng.uniform(0.5, 5))
    predicted = measured * float(np.exp(rng.normal(0.05, 0.3)))
    half = float(rng.uniform(0.1, 0.6))
    return {
        "row_id": f"toy:{part}/{kind}.csv:{i}", "device": f"device-{i % 2}", "node_name": None,
        "op": "step" if step else ("linear", "add")[i % 2], "phase": phase,
        "dtype": None if kind == "in_step" else ("fp32", "bf16")[i % 3 == 0],
        "mode": ("infer", "train")[i % 2] if step else kind, "flag": "noisy" if i % 7 == 3 else "",
        "target": "step" if step else "kernel",
        "op_class": "all" if step else ("matmul", "elementwise")[i % 2],
        "label": ("learned", "roofline")[i % 11 == 5], "part": part, "scored": True,
        "trained": part == "train", "fitted": part == "train", "seen": i % 2 == 0,
        "measured_us": measured, "predicted_us": predicted,
        "lower_us": predicted * math.exp(-half), "upper_us": predicted * math.exp(half),
        "roofline_us": measured * 0.5, "gradient_boosting_us": measured * float(rng.uniform(1, 2)),
        "learned": 0.0 if i % 11 == 5 else 1.0, "in_distribution": 0.0 if i % 4 == 1 else 1.0,
        "outside": 0.3 * (i % 4), "spread_us": measured * 0.02 * (i % 9), "model": "toy",
        "batch": 8.0, "scheme": None if step else ("", "fp8_block")[i % 2], "framework": "pytorch",
    }  # fmt: skip


def write(folder: Path, rows: pd.DataFrame, name: str = "toy", **changed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    rows.to_parquet(folder / f"{name}.rows.parquet")
    report = {
        "suite": "neusight", "split": "neusight-protocol", "checkpoint": "toy-v1", "adapter": None,
        "groups": summarise(rows[rows["scored"]]), "notes": ["a note"],
        "unscored": {"step_odd": 3, "step_never": 0}, **changed,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(report))
    return folder


@pytest.fixture
def rows() -> pd.DataFrame:
    return made_up()


@pytest.fixture
def read(accuracy: SimpleNamespace, tmp_path: Path) -> Callable[[pd.DataFrame], Any]:
    """Rows as the script reads them back."""

    def reading(rows: pd.DataFrame, **changed: Any) -> Any:
        folder = write(tmp_path / "folder", rows, **changed)
        (scored,) = accuracy.suites.read_folder(folder, accuracy.suites.read_facts())
        return scored

    return reading


def table(text: str) -> list[dict[str, str]]:
    """Rows of a Markdown table; columns of one name get numbers."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    head = [f"{c}{cells[0][:i].count(c) or ''}" for i, c in enumerate(cells[0])]
    assert all(len(row) == len(head) for row in cells)
    return [dict(zip(head, row, strict=True)) for row in cells[2:]]


def chosen(rows: pd.DataFrame, mode: str, part: str = "test") -> pd.DataFrame:
    """Scored rows of one kind; steps as a whole."""
    found = rows[(rows["part"] == part) & rows["scored"]]
    if mode == "step":
        return found[(found["target"] == "step") & (found["phase"] == "total")]
    return found[found["mode"] == mode]


def score_by_hand(row: Row, low: float, high: float) -> float:
    x = math.log(row["measured_us"])
    low, high = math.log(low), math.log(high)
    return high - low + (20 * (low - x) if x < low else 20 * (x - high) if x > high else 0.0)


def expected(part: pd.DataFrame) -> dict[str, str]:
    """The error columns, by a loop."""
    there = [r for r in part.to_dict("records") if not math.isnan(r["predicted_us"])]
    off = [100 * (r["predicted_us"] / r["measured_us"] - 1) for r in there]
    size = sorted(abs(o) for o in off)
    at = 0.9 * (len(size) - 1)
    low, high = size[math.floor(at)], size[math.ceil(at)]
    inside = [r["lower_us"] <= r["measured_us"] <= r["upper_us"] for r in there]
    scores = [score_by_hand(r, r["lower_us"], r["upper_us"]) for r in there]
    middle = (size[(len(size) - 1) // 2] + size[len(size) // 2]) / 2
    n = f"{len(part)}" + (f" ({len(there)} predicted)" if len(there) < len(part) else "")
    return {
        "n": n, "MAPE": f"{sum(size) / len(size):.1f}", "median": f"{middle:.1f}",
        "p90": f"{low + (high - low) * (at - math.floor(at)):.1f}",
        "bias": f"{sum(off) / len(off):+.1f}",
        "covers": f"{100 * (sum(inside) / len(inside)):.0f}",
        "score": f"{sum(scores) / len(scores):.2f}",
    }  # fmt: skip


KINDS = {"step": "whole steps", "in_step": "kernels inside steps", "isolated": "kernels alone"}
NAMED = {"step": "step", "in_step": "in_step", "isolated": "alone"}


def test_the_summary_holds_the_test_rows_of_every_kind(accuracy, read, rows):
    lines = table(accuracy.tables.summary([read(rows)]))
    assert [line["rows"] for line in lines] == list(KINDS.values())
    for line, mode in zip(lines, KINDS, strict=True):
        part = chosen(rows, mode)
        assert expected(part).items() <= line.items()
        boosted = 100 * (part["gradient_boosting_us"] / part["measured_us"] - 1).abs().mean()
        assert (line["roofline"], line["gradient boosting"]) == ("50.0", f"{boosted:.1f}")
        assert (line["FLOPs law"], line["part"]) == ("–", "test")
    has = chosen(rows, "in_step")[:10]
    own = 100 * (has["predicted_us"] / has["measured_us"] - 1).abs().mean()
    assert lines[0]["published peers"] == "NeuSight 10.0"
    assert lines[1]["published peers"] == f"NeuSight 50.0 (n = 10; this {own:.1f})"
    assert lines[2]["published peers"] == "–"


@pytest.mark.parametrize("mode", KINDS)
def test_every_cut_of_a_kind_is_what_its_rows_say(accuracy, read, rows, mode):
    scored = read(rows)
    lines = table(accuracy.tables.breakdown(scored, scored.tested, NAMED[mode]))
    part = chosen(rows, mode)
    every = rows[(rows["part"] == "test") & (rows["target"] == "step")]
    there = part[part["predicted_us"].notna()]
    cuts = {
        ("all", ""): part,
        **{("device", d): g for d, g in part.groupby("device")},
        **{("op class", c): g for c, g in part.groupby("op_class") if c != "all"},
        **{("dtype", d): g for d, g in part.fillna({"dtype": "not stated"}).groupby("dtype")},
        **(
            {}
            if mode == "step"
            else {("scheme", s or "not stated"): g for s, g in part.groupby("scheme")}
        ),
        **{("phase", p): g for p, g in (every if mode == "step" else part).groupby("phase")},
        **({("mode", m): g for m, g in part.groupby("mode")} if mode == "step" else {}),
        ("measured time", "below 10 µs"): there[there["measured_us"] < 10],
        ("measured time", "10 to 100 µs"): there[there["measured_us"].between(10, 100)],
        ("measured time", "0.1 to 1 ms"): there[there["measured_us"].between(100, 1000)],
        ("measured time", "1 to 10 ms"): there[there["measured_us"].between(1e3, 1e4)],
        ("measured time", "10 to 100 ms"): there[there["measured_us"].between(1e4, 1e5)],
        ("in distribution", "none of the time"): there[there["in_distribution"] == 0],
        ("in distribution", "all"): there[there["in_distribution"] == 1],
        ("outside training", "0"): there[there["outside"] == 0],
        ("outside training", "0.1 to 0.5"): there[there["outside"] == 0.3],
        ("outside training", "0.5 to 1"): there[there["outside"].between(0.5, 1)],
    }
    cuts = {key: group for key, group in cuts.items() if len(group)}
    assert {(line["by"], line[""]) for line in lines} == set(cuts)
    for line in lines:
        assert expected(cuts[line["by"], line[""]]).items() <= line.items(), line


def test_baselines_stand_beside_the_own_error_on_the_same_rows(accuracy, read, rows):
    lines = table(accuracy.tables.baselines(read(rows)))
    (line,) = [
        row for row in lines if row["rows"] == KINDS["in_step"] and row["baseline"] == "NeuSight"
    ]
    own = expected(chosen(rows, "in_step")[:10])
    assert [line[c] for c in ("n", "its MAPE", "median", "p90", "bias")] == [
        "10", "50.0", "50.0", "50.0", "-50.0",
    ]  # fmt: skip
    assert [line[c] for c in ("this: MAPE", "median1", "p901", "bias1")] == [
        own[c] for c in ("MAPE", "median", "p90", "bias")
    ]
    phases = {row["phase"] for row in lines if row["rows"] == KINDS["step"]}
    assert phases == {"total", "forward", "backward"}


def test_errors_stand_by_the_distance_from_training(accuracy, read, rows):
    lines = table(accuracy.tables.by_distance(read(rows)))
    part = rows[rows["scored"] & ~rows["trained"] & rows["predicted_us"].notna()]
    for mode, title in KINDS.items():
        of = part[(part["target"] == "step") & (part["phase"] == "total")]
        of = of if mode == "step" else part[part["mode"] == mode]
        # distance and device take turns by fours and by twos
        cuts = {("seen", "0"): 0.0, ("unseen", "0.1 to 0.5"): 0.3, ("seen", "0.5 to 1"): 0.6,
                ("unseen", "0.5 to 1"): 0.9}  # fmt: skip
        found = {(x["device"], x["outside by"]): x for x in lines if x["rows"] == title}
        assert set(found) == set(cuts)
        for key, distance in cuts.items():
            group = of[np.isclose(of["outside"], distance)]
            off = np.exp(np.abs(np.log(group["predicted_us"] / group["measured_us"]))) - 1
            held = group["measured_us"].between(group["lower_us"], group["upper_us"]).mean()
            assert found[key]["n"] == str(len(group))
            assert found[key]["off by: median"] == f"{100 * off.median():.1f}"
            assert found[key]["covers"] == f"{100 * held:.0f}"


def test_interval_score_of_three_rows_by_hand(accuracy):
    scores = accuracy.calibration.interval_scores(
        np.array([100.0, 400.0, 25.0]), np.array([50.0] * 3), np.array([200.0] * 3)
    )
    two = math.log(2)
    np.testing.assert_allclose(scores, [2 * two, 2 * two + 20 * two, 2 * two + 20 * two])


def test_a_constant_width_covers_as_many_development_rows(accuracy, read, rows):
    scored = read(rows)
    lines = table(accuracy.tables.calibration(scored))
    for mode, title in KINDS.items():
        develop = chosen(rows, mode, "development").to_dict("records")
        covered = sum(r["lower_us"] <= r["measured_us"] <= r["upper_us"] for r in develop)
        factors = [r["predicted_us"] / r["measured_us"] for r in develop]
        (factor,) = [
            f for f in (max(x, 1 / x) for x in factors)
            if sum(max(x, 1 / x) <= f * (1 + 1e-12) for x in factors) == covered
        ]  # fmt: skip
        of = [line for line in lines if line["rows"] == title]
        for line, device in ((of[0], None), (of[1], "device-0"), (of[2], "device-1")):
            part = chosen(rows, mode)
            part = part[part["predicted_us"].notna()]
            part = part if device is None else part[part["device"] == device]
            own = expected(part)
            held = part.to_dict("records")
            other = np.mean([
                score_by_hand(r, r["predicted_us"] / factor, r["predicted_us"] * factor)
                for r in held
            ])  # fmt: skip
            in_it = np.mean([
                r["predicted_us"] / factor <= r["measured_us"] <= r["predicted_us"] * factor
                for r in held
            ])  # fmt: skip
            assert line[""] == ("all" if device is None else f"device {device}")
            assert (line["covers"], line["score"]) == (own["covers"], own["score"])
            assert line["score1"] == f"{other:.2f}"
            assert line["constant: covers"] == f"{100 * in_it:.0f}"
            assert line["width1"] == f"{factor**2:.2f}"
            assert line["chosen on"] == "development"


def test_without_development_rows_the_constant_has_the_coverage_of_the_tested(accuracy, read, rows):
    lines = table(accuracy.tables.calibration(read(rows[rows["part"] != "development"])))
    for line in (line for line in lines if line[""] == "all"):
        assert line["chosen on"] == "test"
        assert line["covers"] == line["constant: covers"]


RULE_ROWS: dict[str, Row] = {
    "unexplained": {},
    "flagged in the source (odd)": {"flag": "odd"},
    "spread of the source above 10%": {"spread_us": 11.0},
    "measured below the launch time": {"host_us": 101.0},
    "10 times off its like": {"stray": 2.4},
    "kind never learned": {"label": "roofline", "learned": 0.0, "in_distribution": 0.0},
    "in part kinds never learned": {"label": "mixed", "learned": 0.5, "in_distribution": 0.5},
    "device never seen": {"seen": False},
    "outside the training range": {"in_distribution": 0.0},
    "kernel below 10 µs": {"measured_us": 9.0, "spread_us": 0.0, "host_us": 1.0},
    "flagged in the source (odd), device never seen": {"flag": "odd", "seen": False},
}
SOUND: Row = {
    "flag": "", "spread_us": 1.0, "measured_us": 100.0, "host_us": 5.0, "label": "learned",
    "learned": 1.0, "in_distribution": 1.0, "seen": True, "target": "kernel", "mode": "isolated",
    "stray": 2.3,
}  # fmt: skip


def test_strays_are_told_by_rows_alike(accuracy):
    n = 12
    like = pd.DataFrame({
        "kind": "alone", "device": ["a"] * n + ["b"] * 3, "op": "matmul", "dtype": "bf16",
        "phase": "forward", "framework": "pytorch", "roofline_us": 10.0,
        "measured_us": [20.0] * (n - 1) + [500.0] + [20.0, 20.0, 900.0],
    })  # fmt: skip
    stray = accuracy.suites._strays(like)
    assert stray[: n - 1].tolist() == [0.0] * (n - 1)
    assert stray[n - 1] == pytest.approx(math.log(25))
    assert stray[n:].tolist() == [0.0] * 3  # too few to tell
    assert accuracy.suites._strays(like.assign(kind="step")).max() == 0.0
    assert accuracy.suites._strays(like.assign(roofline_us=np.nan)).max() == 0.0


def test_each_cause_holds_by_its_rule_alone(accuracy):
    rows = pd.DataFrame([{**SOUND, **changed} for changed in RULE_ROWS.values()])
    assert accuracy.causes.cause_texts(rows) == list(RULE_ROWS)
    inside = rows.assign(mode="step", spread_us=np.nan).drop(columns="host_us")
    texts = accuracy.causes.cause_texts(inside)
    assert texts[2] == texts[3] == "unexplained"  # no spread is told, no launch is in the time


def test_the_worst_rows_are_off_by_the_largest_factor(accuracy, read, rows):
    scored = read(rows)
    lines = table(accuracy.tables.worst_table(scored, 7))
    every = pd.concat([chosen(rows, mode) for mode in KINDS]).dropna(subset="predicted_us")
    ratio = every["predicted_us"] / every["measured_us"]
    factor = np.maximum(ratio, 1 / ratio).sort_values(ascending=False)
    assert [line["factor"] for line in lines] == [f"{f:.2f}" for f in factor[:7]]
    ids = [f"`{every.loc[i, 'row_id']}`" for i in factor.index[:7]]
    assert [line["row"] for line in lines] == ids
    sides = ["long" if ratio[i] > 1 else "short" for i in factor.index[:7]]
    assert [line["prediction"] for line in lines] == sides
    shares = {line["cause"]: line for line in table(accuracy.tables.cause_table(scored))}
    flagged = shares["flagged in the source"]
    assert flagged["rows"] == str((every["flag"] != "").sum())
    worst = every.loc[factor.index[: math.ceil(len(every) / 10)]]
    assert flagged["% of the worst tenth"] == f"{100 * (worst['flag'] != '').mean():.1f}"


def test_noise_is_what_the_suite_tells_else_the_spread_of_sound_rows(accuracy, read, rows):
    scored = read(rows)
    assert accuracy.suites.floor_of(scored, "alone").median == 0.009  # suites.toml
    steps = rows[(rows["target"] == "step") & (rows["phase"] == "total") & (rows["flag"] == "")]
    shares = [r["spread_us"] / r["measured_us"] for r in steps.to_dict("records")]
    told = accuracy.suites.floor_of(scored, "step")
    assert told.median == pytest.approx(np.median([s for s in shares if s > 0]))
    silent = read(rows.assign(spread_us=np.nan))
    assert accuracy.suites.floor_of(silent, "step") is None
    assert accuracy.cells.noise_cell(None) == "unknown"


def test_a_figure_shows_the_distribution_and_the_noise_floor(accuracy, read, rows):
    scored = read(rows)
    ((_, steps, _), (_, inside, _), (_, alone, noise)) = accuracy.figures.panels_of(scored)
    part = chosen(rows, "isolated")
    off = sorted(abs(part["predicted_us"] / part["measured_us"] - 1))
    assert (alone["this"][0], alone["this"][-1]) == (off[0], off[-1])
    assert alone["this"][50] == pytest.approx(np.median(off))
    assert set(alone) == {"this", "roofline", "gradient_boosting"}
    assert set(steps) == {*alone, "neusight"}
    assert set(inside) == set(alone)  # NeuSight lacks some of the rows
    drawing = ElementTree.fromstring(accuracy.figures.figure(scored))
    kinds = [e.tag.rpartition("}")[2] for e in drawing]
    assert kinds.count("polyline") == 3 + 4 + 3
    dashed = [e for e in drawing if e.get("stroke-dasharray")]
    assert len(dashed) == 3
    figures = accuracy.figures
    left = figures.LEFT + 2 * (figures.WIDTH + figures.GAP)
    share = (math.log10(noise.median) + 3) / 4  # of an axis from 0.1% to 1000%
    assert float(dashed[2].get("x1")) == pytest.approx(left + share * figures.WIDTH, abs=0.06)
    width, height = float(drawing.get("width")), float(drawing.get("height"))
    for e in drawing:
        for point in (e.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_where_nothing_is_held_out_the_rows_not_trained_on_are_scored(accuracy, read, rows):
    rows = rows.assign(part="train")
    scored = read(rows)
    assert scored.part == "not trained on"
    line = table(accuracy.tables.summary([scored]))[0]
    part = rows[~rows["trained"] & (rows["target"] == "step") & (rows["phase"] == "total")]
    assert expected(part).items() <= line.items()


def made(accuracy: SimpleNamespace, folder: Path, out: Path, *more: str) -> dict[str, bytes]:
    """Files that the command wrote."""
    assert accuracy.report.main([str(folder), "--out", str(out), *more]) == 0
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_the_same_files_give_the_same_page(accuracy, rows, tmp_path, capsys):
    folder = write(tmp_path / "folder", rows)
    write(folder, made_up(1), "another", suite="own")
    first = made(accuracy, folder, tmp_path / "a")
    assert set(first) == {
        "accuracy.md", "figures/accuracy-toy.svg", "figures/accuracy-another.svg",
    }  # fmt: skip
    assert made(accuracy, folder, tmp_path / "b") == first
    page = first["accuracy.md"].decode()
    assert page.index('<a id="another">') < page.index('<a id="toy">')
    assert "- without a prediction or score: 3 step_odd\n- a note\n" in page
    assert "step_never" not in page
    assert "development\n" not in page
    whole = made(accuracy, folder, tmp_path / "c", "--development")["accuracy.md"].decode()
    section = whole.split("### toy: whole steps, development\n")[1].split("\n### ")[0]
    assert expected(chosen(rows, "step", "development")).items() <= table(section)[0].items()


@pytest.mark.parametrize(
    "column", ["in_distribution", "outside", "roofline_us", "spread_us", "seen"]
)
def test_a_missing_column_is_named_in_one_line(accuracy, rows, tmp_path, capsys, column):
    folder = write(tmp_path / "folder", rows)
    rows.drop(columns=column).to_parquet(folder / "toy.rows.parquet")
    assert accuracy.report.main([str(folder), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert f"no column '{column}'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def fewer(folder: Path, rows: pd.DataFrame) -> None:
    rows[5:].to_parquet(folder / "toy.rows.parquet")


def all_trained(folder: Path, rows: pd.DataFrame) -> None:
    write(folder, rows.assign(part="train", trained=True))


BROKEN: dict[str, Callable[[Path, pd.DataFrame], object]] = {
    "no *.rows.parquet in": lambda folder, rows: (folder / "toy.rows.parquet").unlink(),
    "toy.json: not readable as JSON": lambda folder, rows: (folder / "toy.json").unlink(),
    "not readable as JSON": lambda folder, rows: (folder / "toy.json").write_text("{"),
    "toy.json: no 'suite'": lambda folder, rows: (folder / "toy.json").write_text("[]"),
    "not readable as Parquet": lambda folder, rows: (folder / "toy.rows.parquet").write_text("x"),
    "no suite 'odd' in suites.toml": lambda folder, rows: write(folder, rows, suite="odd"),
    "they are of two evaluations": fewer,
    "toy-v1 was not trained on": all_trained,
}


@pytest.mark.parametrize("words", BROKEN)
def test_what_cannot_be_read_is_refused_in_one_line(accuracy, rows, tmp_path, capsys, words):
    folder = write(tmp_path / "folder", rows)
    BROKEN[words](folder, rows)
    assert accuracy.report.main([str(folder), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text", ["[own]\ntitle = 1", "[own]\ntitle = 'a'\nodd = 1", "[own.noise.odd]", "[own"]
)
def test_suite_facts_are_strict(accuracy, tmp_path, text):
    (tmp_path / "suites.toml").write_text(text)
    with pytest.raises(accuracy.suites.DataError, match=r"suites\.toml"):
        accuracy.suites.read_facts(tmp_path / "suites.toml")


def test_figures_of_the_page_in_docs_are_there_and_it_is_linked():
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    figures = re.findall(r"\]\((figures/[^)]+\.svg)\)", page)
    assert figures
    assert all((ROOT / "docs" / name).is_file() for name in figures)
    assert "docs/accuracy.md" in (ROOT / "README.md").read_text(encoding="utf-8")
