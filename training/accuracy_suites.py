"""Scored suites read back: the rows and the report of each evaluation in a folder, checked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from predictor.errors import DataError
from predictor.fit.evaluation_view import INSIDE

SUITES = Path(__file__).with_name("suites.toml")
ROWS = ".rows.parquet"
Kind = Literal["step", "in_step", "alone"]
KINDS: Mapping[Kind, str] = {
    "step": "whole steps", "in_step": "kernels inside steps", "alone": "kernels alone",
}  # fmt: skip
COLUMNS: tuple[str, ...] = (
    "row_id", "device", "op", "dtype", "phase", "mode", "flag", "target", "op_class", "label",
    "part", "scored", "trained", "fitted", "seen", "measured_us", "predicted_us", "lower_us",
    "upper_us", "roofline_us", "learned", "in_distribution", "outside", "spread_us",
)  # fmt: skip
"""Columns that a report needs of every suite."""
FIELDS: tuple[str, ...] = ("suite", "split", "checkpoint", "groups", "notes", "unscored")
"""Keys that it needs of an evaluation's JSON."""
TEXTS: tuple[str, ...] = ("dtype", "flag", "op", "phase", "mode", "label")
OF_SOME: tuple[str, ...] = ("scheme", "framework", "library", "execution")
"""Texts of kernel rows, or of step rows, alone."""
ALIKE: tuple[str, ...] = ("kind", "device", "op", "dtype", "phase", "framework")
"""Rows that agree in these are expected to stand to their roofline alike."""
FEWEST_ALIKE = 10
"""Rows below which a group tells of no stray."""
DEVELOPMENT, TURNS = "development", "held out in turn"
_Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NoiseFloor(_Strict):
    """How far two measurements of the same thing lie apart, as fractions."""

    median: _Share | None = None
    p90: _Share | None = None
    text: str


class SuiteFacts(_Strict):
    """What is said of a suite beside its figures."""

    title: str
    peers: tuple[str, ...] = ()
    """Published predictions among the baselines."""
    noise: dict[Kind, NoiseFloor] = {}
    """Where the rows do not tell it themselves (`spread_us`)."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One evaluation: its scored rows, each with its kind, and what was said of it."""

    name: str
    facts: SuiteFacts
    split: str
    checkpoint: str
    notes: tuple[str, ...]
    unscored: Mapping[str, int]
    rows: pd.DataFrame

    @property
    def part(self) -> str:
        """What `tested` holds: the test part, or rows not trained on where nothing is held out."""
        if (self.rows["part"] == TURNS).all():
            return TURNS
        return "test" if (self.rows["part"] == "test").any() else "not trained on"

    @property
    def tested(self) -> pd.DataFrame:
        """Rows that tell how good the checkpoint is."""
        rows = self.rows
        return rows[rows["part"] == "test"] if self.part == "test" else rows[~rows["trained"]]

    @property
    def development(self) -> pd.DataFrame:
        """Rows of the development part; none where it is every group in turn."""
        return self.rows[self.rows["part"] == DEVELOPMENT]


def of_kind(rows: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Rows of one kind; of steps the whole, so that no step counts once a phase."""
    found = rows[rows["kind"] == kind]
    return found[found["phase"] == "total"] if kind == "step" else found


def predicted(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a prediction."""
    return rows[rows["predicted_us"].notna()]


def floor_of(scored: Scored, kind: Kind) -> NoiseFloor | None:
    """Noise floor of a kind of row: as told, else the spread that the source states of sound rows.

    None where the source tells neither.
    """
    if kind in scored.facts.noise:
        return scored.facts.noise[kind]
    rows = of_kind(scored.rows, kind)
    sound = rows[(rows["flag"] == "") & (rows["spread_us"] > 0)]
    if sound.empty:
        return None
    share = sound["spread_us"] / sound["measured_us"]
    return NoiseFloor(
        median=float(share.median()), p90=float(share.quantile(0.9)),
        text=f"standard deviation that the source states of {len(sound):,} sound rows, any part",
    )  # fmt: skip


def read_facts(path: Path = SUITES) -> dict[str, SuiteFacts]:
    """`suites.toml`.

    Raises:
        DataError: it is no TOML, or has an unknown key or a value out of range.
    """
    try:
        with path.open("rb") as file:
            return TypeAdapter(dict[str, SuiteFacts]).validate_python(tomllib.load(file))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: not readable as TOML ({error})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise DataError(f"{path}: {where}: {first['msg']}") from error


def of_suite(facts: Mapping[str, SuiteFacts], suite: str, place: str) -> SuiteFacts:
    """What is said of a suite.

    Raises:
        DataError: nothing; names `place`, which holds rows of it.
    """
    if suite not in facts:
        raise DataError(f"{place}: no suite {suite!r} in {SUITES.name}; known: {', '.join(facts)}")
    return facts[suite]


def read_folder(folder: Path, facts: Mapping[str, SuiteFacts]) -> list[Scored]:
    """Every evaluation in a folder, by name: `NAME.rows.parquet` beside `NAME.json`.

    Raises:
        DataError: there is none, a file is missing or unreadable, lacks a column or a key, is of
            a suite that `facts` lack, holds no row to score, or the two are of different
            evaluations.
    """
    names = sorted(path.name.removesuffix(ROWS) for path in folder.glob(f"*{ROWS}"))
    if not names:
        raise DataError(
            f"no *{ROWS} in {str(folder)!r}: write them with `predictor evaluate SUITE --data DIR "
            f"--rows {folder}/NAME{ROWS} --json {folder}/NAME.json`"
        )
    return [_read(folder, name, facts) for name in names]


def _read(folder: Path, name: str, facts: Mapping[str, SuiteFacts]) -> Scored:
    path = folder / f"{name}{ROWS}"
    report = _report(folder / f"{name}.json")
    told = of_suite(facts, report["suite"], f"{name}.json")
    try:
        rows = pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet ({error})") from error
    missing = [c for c in COLUMNS if c not in rows.columns]
    if missing:
        raise DataError(
            f"{path}: no column {missing[0]!r}; write the file again with `predictor evaluate`"
        )
    rows = rows[rows["scored"].to_numpy(dtype=bool)]
    counted = sum(g["n"] for g in report["groups"] if _counts_all(g))
    if counted != len(rows):
        raise DataError(
            f"{name}.json tells of {counted:,} scored rows and {path.name} holds {len(rows):,}: "
            "they are of two evaluations"
        )
    scored = Scored(
        name=name, facts=told, split=report["split"],
        checkpoint=report["checkpoint"], notes=tuple(report["notes"]),
        unscored=report["unscored"], rows=with_kinds(rows),
    )  # fmt: skip
    if predicted(scored.tested).empty:
        raise DataError(f"{path}: no predicted row that {scored.checkpoint} was not trained on")
    return scored


def _report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from error
    missing = [f for f in FIELDS if not isinstance(report, dict) or f not in report]
    if missing:
        raise DataError(f"{path}: no {missing[0]!r}; write it with `predictor evaluate --json`")
    return dict(report)


def _counts_all(group: Mapping[str, Any]) -> bool:
    """Whether a group is one of those that hold every row once."""
    whole = "mode" if group["target"] == "step" else "op_class"
    return group["device"] == "all" and group[whole] == "all"


def with_kinds(rows: pd.DataFrame) -> pd.DataFrame:
    """Scored rows with `kind`, `log_ratio` of the prediction, `stray`, and texts where absent."""
    inside = rows["mode"].isin(INSIDE)
    kind = np.where(rows["target"] == "step", "step", np.where(inside, "in_step", "alone"))
    ratio = np.log(rows["predicted_us"].to_numpy(float) / rows["measured_us"].to_numpy(float))
    texts = {c: rows[c].astype(object).fillna("").astype(str) for c in TEXTS}
    for column in OF_SOME:
        there = rows[column] if column in rows.columns else pd.Series("", index=rows.index)
        texts[column] = there.astype(object).fillna("").astype(str)
    rows = rows.assign(kind=kind, log_ratio=ratio, **texts).reset_index(drop=True)
    return rows.assign(stray=_strays(rows))


def _strays(rows: pd.DataFrame) -> pd.Series[float]:
    """How far time over roofline lies from the middle of rows alike, log; 0 where few are."""
    over = np.log(rows["measured_us"] / rows["roofline_us"].where(rows["roofline_us"] > 0))
    groups = over.groupby([rows[c] for c in ALIKE])
    off = (over - groups.transform("median")).abs()
    enough = groups.transform("count") >= FEWEST_ALIKE
    return off.where(enough & (rows["kind"] != "step"), 0.0).fillna(0.0)
