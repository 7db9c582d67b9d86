"""Noise of measured kernels: how far two measurements of one kernel on one device lie apart.

Kernels are the same when device, op, dimensions, dtype, scheme, phase, context and layout are, the
routing of experts, and what joins the ranks of a collective. What differs between two measurements
says what their ratio shows:

| pair | differs | the same |
|---|---|---|
| `repeat` | nothing that is published | source, framework, version, library, settings |
| `library` | library, execution or settings | source, framework, version |
| `release` | framework version, the next one that measured the kernel | all others |
| `framework` | framework, each in its newest version | source |
| `source` | source | |

Repeats and settings that are averaged before a comparison are averaged as logarithms. A row takes
16 bytes, so that nine million fit in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.graph.ops import DIM_NAMES, OPS
from predictor.traces.hashing import codes_of, hashed_columns

if TYPE_CHECKING:
    import pandas as pd

PAIRS: tuple[str, ...] = ("repeat", "unstated", "library", "release", "framework", "source")
SAME: tuple[str, ...] = (
    "device", "op", "phase", "dtype", "scheme", "context", "layout", "routing", "interconnect",
    "ranks_per_node",
)  # fmt: skip
"""Columns that make a kernel, besides its dimensions."""
SETTINGS: tuple[str, ...] = (
    "library", "execution", "amp", "tf32", "power_limit_w", "clock_mhz",
)  # fmt: skip
RELEASE: tuple[str, ...] = ("source", "framework", "framework_version", *SETTINGS)
NOISE_COLUMNS: tuple[str, ...] = (
    *SAME, *RELEASE, "latency_us", "flag", *(f"dim_{d}" for d in DIM_NAMES),
)  # fmt: skip
"""Columns of kernel rows that noise is measured from."""
CURVE: tuple[float, ...] = tuple(np.round(np.linspace(0.0, 1.0, 101), 2).tolist())
"""Levels of a distribution that is drawn."""

Longs: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Ratios between pairs, less one: 0.01 is one measurement 1% above the other."""

    groups: pd.DataFrame
    """A row by pair, op_class, dtype, scheme: n, median, p90."""
    details: pd.DataFrame
    """The same by device and the two sides (`a`, `b`) too."""
    curves: Mapping[tuple[str, str], NDArray[np.float64]]
    """By pair and op class: the ratio at each level of `CURVE`."""


@dataclass(slots=True, kw_only=True)
class NoiseMeter:
    """Takes kernel rows part by part, then pairs them."""

    unstated: frozenset[str] = frozenset()
    """Sources that publish facts of a kernel which rows have no column for: two of their rows that
    agree are the pair `unstated`, no repeat."""
    rows: int = 0
    flagged: int = 0
    """Rows with a flag: they are not compared."""
    _columns: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    _releases: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _cells: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def add(self, kernels: pd.DataFrame) -> None:
        """Take valid kernel rows that have at least `NOISE_COLUMNS`."""
        sound = (kernels["flag"] == "").to_numpy()
        self.flagged += int((~sound).sum())
        rows = kernels[sound]
        if rows.empty:
            return
        self.rows += len(rows)
        key = hashed_columns(rows, (*SAME, *(f"dim_{d}" for d in DIM_NAMES)), absent=-1)
        kinds = rows[["device", "dtype", "scheme"]].assign(op_class=measured_class(rows))
        self._columns.append((
            key, np.log(rows["latency_us"].to_numpy(dtype=np.float64)).astype(np.float32),
            _numbered(rows[list(RELEASE)], self._releases),
            _numbered(kinds[["device", "op_class", "dtype", "scheme"]], self._cells),
        ))  # fmt: skip

    def measured(self) -> Noise:
        """All pairs, summarised."""
        found = [(pair, p) for pair, p in self._pairs() if len(p[1])] if self._columns else []
        return _summarised(found, list(self._cells))

    def _pairs(self) -> Iterator[tuple[str, _Pairs]]:
        key, log_us, release, cell = (np.concatenate(c) for c in zip(*self._columns, strict=True))
        order = np.lexsort((release, key))
        key, log_us, release, cell = key[order], log_us[order], release[order], cell[order]
        sources = np.array(self._names(("source",)), dtype=object)
        whole = ~np.isin(sources.astype(str), list(self.unstated))[release]
        for pair, of in (("repeat", whole), ("unstated", ~whole)):
            sides = release[of]
            yield (
                pair,
                _neighbours(key[of], sides, sides, log_us[of], cell[of], self._names(RELEASE[:3])),
            )
        starts = _starts(key, release)
        mean = _means(log_us, starts)
        key, release, cell = key[starts], release[starts], cell[starts]
        shared = np.zeros(len(key), dtype=bool)  # kernels that one release only measured: no pair
        shared[1:] |= key[1:] == key[:-1]
        shared[:-1] |= key[1:] == key[:-1]
        key, release, cell, mean = key[shared], release[shared], cell[shared], mean[shared]

        def pairs(same: tuple[str, ...], differs: tuple[str, ...], newest: bool) -> _Pairs:
            return _between(
                key, self._ids(same)[release], self._ids(differs)[release],
                self._ranks()[release] if newest else None, mean, cell, self._names(differs),
            )  # fmt: skip

        yield "library", pairs(("source", "framework", "framework_version"), SETTINGS, False)
        stack = ("source", "framework", *SETTINGS)
        side = self._names(("framework", "framework_version"))
        group, rank = self._ids(stack)[release], self._ranks()[release]
        order = np.lexsort((rank, group, key))
        yield (
            "release",
            _neighbours(key[order], group[order], release[order], mean[order], cell[order], side),
        )
        yield "framework", pairs(("source",), ("source", "framework"), True)
        yield "source", pairs((), ("source",), False)

    def _ids(self, columns: tuple[str, ...]) -> Longs:
        """By release: number of its values in `columns`."""
        names = self._names(columns)
        numbers = {name: i for i, name in enumerate(sorted(set(names)))}
        return np.array([numbers[name] for name in names], dtype=np.int64)

    def _names(self, columns: tuple[str, ...]) -> list[str]:
        """By release: its values in `columns` as text."""
        index = [RELEASE.index(c) for c in columns]
        return [" ".join(str(r[i]) for i in index if str(r[i])) for r in self._releases]

    def _ranks(self) -> Longs:
        """By release: place of its version among all versions."""
        versions = [str(r[RELEASE.index("framework_version")]) for r in self._releases]
        places = {v: i for i, v in enumerate(sorted(set(versions), key=version_order))}
        return np.array([places[v] for v in versions], dtype=np.int64)


def measured_class(rows: pd.DataFrame) -> NDArray[np.object_]:
    """Op class of kernel rows; attention by its phase of serving (decode: one query a sequence)."""
    codes, ops = codes_of(rows["op"])
    classes = np.array(
        [OPS[str(op)].op_class if str(op) in OPS else "" for op in ops], dtype=object
    )
    found = classes[codes]
    decode = rows["dim_q_len"].to_numpy() == 1
    attention = found == "attention"
    found[attention & decode] = "attention decode"
    found[attention & ~decode] = "attention prefill"
    return np.asarray(found)


def version_order(version: str) -> tuple[tuple[int, int | str], ...]:
    """What sorts versions: numbers by value, candidates (`rc1`) before the release itself."""
    early = {"dev": -4, "a": -3, "b": -2, "rc": -1}
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    found: list[tuple[int, int | str]] = []
    for part in parts:
        if part.isdigit():
            found.append((2, int(part)))
        else:
            found.append((0, early[part]) if part in early else (3, part))
    return (*found, (1, 0))


# -- pairs --------------------------------------------------------------------------------------

_Pairs: TypeAlias = tuple[NDArray[np.uint16], NDArray[np.float32], Longs, Longs, list[str]]
"""Cell, |log ratio|, and the two sides as indices into names."""


def _starts(*keys: NDArray[Any]) -> Longs:
    """First index of every run of equal keys."""
    if len(keys[0]) == 0:
        return np.zeros(0, dtype=np.int64)
    change = np.zeros(len(keys[0]), dtype=bool)
    change[0] = True
    for key in keys:
        change[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(change)


def _means(values: NDArray[Any], starts: Longs) -> NDArray[np.float32]:
    """Mean of every run."""
    if len(starts) == 0:
        return np.zeros(0, dtype=np.float32)
    counts = np.diff(np.append(starts, len(values)))
    return (np.add.reduceat(values.astype(np.float64), starts) / counts).astype(np.float32)


def _neighbours(
    key: NDArray[Any], group: Longs, side: Longs, log_us: NDArray[Any], cell: NDArray[Any],
    names: list[str], step: int = 1,
) -> _Pairs:  # fmt: skip
    """Pairs of rows `step` apart with the same key and group."""
    same = (key[step:] == key[:-step]) & (group[step:] == group[:-step])
    left = np.flatnonzero(same)
    apart = np.abs(log_us[left + step] - log_us[left])
    return cell[left], apart, side[left], side[left + step], names


def _between(
    key: NDArray[Any], same: Longs, side: Longs, rank: Longs | None, log_us: NDArray[Any],
    cell: NDArray[Any], names: list[str],
) -> _Pairs:  # fmt: skip
    """Every pair of sides within a key and `same`; a side is the mean of its (newest) rows."""
    place = rank if rank is not None else np.zeros(len(key), dtype=np.int64)
    order = np.lexsort((-place, side, same, key))
    key, same, side, place = key[order], same[order], side[order], place[order]
    log_us, cell = log_us[order], cell[order]
    starts = _starts(key, same, side)
    lengths = np.diff(np.append(starts, len(key)))
    newest = place == np.repeat(place[starts], lengths)
    key, same, side, log_us, cell = (a[newest] for a in (key, same, side, log_us, cell))
    starts = _starts(key, same, side)
    mean = _means(log_us, starts)
    key, same, side, cell = key[starts], same[starts], side[starts], cell[starts]
    shown = sorted(set(names))  # as `_ids` numbers them
    most = int(np.diff(np.append(_starts(key, same), len(key))).max(initial=1))
    found = [
        _neighbours(key, same, side, mean, cell, shown, step) for step in range(1, most)
    ]  # fmt: skip
    if not found:
        empty = np.zeros(0, dtype=np.int64)
        return cell[:0], mean[:0], empty, empty, shown
    columns = [np.concatenate([pairs[i] for pairs in found]) for i in range(4)]
    return columns[0], columns[1], columns[2], columns[3], shown


def _numbered(rows: pd.DataFrame, numbers: dict[tuple[Any, ...], int]) -> NDArray[np.uint16]:
    """Number of each row's values; new ones are added to `numbers`."""
    coded = [codes_of(rows[c]) for c in rows.columns]
    mixed = np.zeros(len(rows), dtype=np.int64)
    for codes, values in coded:
        mixed = mixed * (len(values) + 1) + codes
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    found = [tuple(values[codes[i]] for codes, values in coded) for i in first]
    index = [numbers.setdefault(value, len(numbers)) for value in found]
    if len(numbers) > np.iinfo(np.uint16).max:
        raise OverflowError("more than 65,535 releases or kinds of kernels")
    return np.asarray(np.array(index, dtype=np.uint16)[inverse])


# -- summary ------------------------------------------------------------------------------------


def _summarised(found: list[tuple[str, _Pairs]], cells: list[tuple[Any, ...]]) -> Noise:
    import pandas as pd

    groups, details, curves = [], [], {}
    facts = pd.DataFrame(cells, columns=["device", "op_class", "dtype", "scheme"]).astype("str")
    for pair, (cell, apart, a, b, names) in found:
        frame = pd.DataFrame({"cell": cell.astype(np.int64), "a": a, "b": b, "ratio": apart})
        fine = _quantiles(frame, ["cell", "a", "b"])
        fine = fine.join(facts, on="cell").drop(columns="cell").assign(pair=pair)
        fine["a"] = [names[i] for i in fine["a"]]
        fine["b"] = [names[i] for i in fine["b"]]
        details.append(fine)
        for column in ("op_class", "dtype", "scheme"):
            frame[column] = pd.Categorical.from_codes(*_category(facts[column], cell))
        groups.append(_quantiles(frame, ["op_class", "dtype", "scheme"]).assign(pair=pair))
        for op_class, ratios in frame.groupby("op_class", observed=True)["ratio"]:
            values = np.expm1(np.quantile(ratios.to_numpy(dtype=np.float64), CURVE))
            curves[(pair, str(op_class))] = values
    return Noise(
        groups=_ordered(groups, ["pair", "op_class", "dtype", "scheme"]),
        details=_ordered(details, ["pair", "op_class", "dtype", "scheme", "device", "a", "b"]),
        curves=curves,
    )


def _category(column: pd.Series[Any], cell: NDArray[Any]) -> tuple[Any, Any]:
    codes, values = codes_of(column)
    return codes[cell], values


def _quantiles(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """n, median and 90th percentile of the ratio by group."""
    groups = frame.groupby(by, observed=True)["ratio"]
    median, p90 = (np.expm1(groups.quantile(q).astype("float64")) for q in (0.5, 0.9))
    return groups.size().to_frame("n").assign(median=median, p90=p90).reset_index()


def _ordered(frames: list[pd.DataFrame], by: list[str]) -> pd.DataFrame:
    import pandas as pd

    columns = [*by, "n", "median", "p90"]
    if not frames:
        return pd.DataFrame(columns=columns)
    joined = pd.concat([f.astype(dict.fromkeys(by, "str")) for f in frames], ignore_index=True)
    place = joined["pair"].map({p: i for i, p in enumerate(PAIRS)})
    joined = joined.assign(place=place).sort_values(["place", *by[1:]])
    return joined[columns].reset_index(drop=True)
