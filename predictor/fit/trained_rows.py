"""The rows whose times a release learns from: counted, hashed and told to its reader."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from predictor.fit.data import training_models, usable_kernels, usable_steps
from predictor.fit.recipe import Recipe
from predictor.fit.splits import Split
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

_TIMES: Mapping[str, tuple[str, ...]] = {
    "kernels": ("latency_us",),
    "ops": ("forward_us", "backward_us"),
    "steps": ("latency_us", "forward_us", "backward_us"),
}
"""Columns that are labels, by table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRows:
    """Rows that a final fit sees, each with its `source`."""

    kernels: pd.DataFrame
    ops: pd.DataFrame
    """Rows of ops timed inside the steps that train."""
    steps: pd.DataFrame

    def facts(self, source: str) -> dict[str, Any]:
        """What a checkpoint says of one of its sources, as plain values.

        Rows (of the kernel rows those timed inside steps, where there are any), devices, how
        programs were run, licences, and a hash of identities and times: it changes with any label,
        and with nothing that does not train.
        """
        digest = hashlib.sha256()
        tables = dict(self._tables(source))
        for name, rows in tables.items():
            columns = ("row_id", *_TIMES[name])
            for row_id, *times in zip(*(rows[c].tolist() for c in columns), strict=True):
                digest.update("|".join([name, row_id, *(f"{t:.6g}" for t in times)]).encode())
                digest.update(b"\n")
        measured = [tables["kernels"], tables["steps"]]
        inside = int((tables["kernels"]["context"] == "step").sum())
        return {
            **{f"{name[:-1]}_rows": len(rows) for name, rows in tables.items()},
            **({"in_step_kernel_rows": inside} if inside else {}),
            **{
                f"{column}s": sorted({v for rows in measured for v in rows[column].unique() if v})
                for column in ("device", "execution", "licence")
            },
            "modes": sorted(tables["steps"]["mode"].unique().tolist()),
            "sha256": digest.hexdigest(),
        }  # fmt: skip

    def _tables(self, source: str) -> Iterator[tuple[str, pd.DataFrame]]:
        for name in _TIMES:
            rows = getattr(self, name)
            yield name, rows[rows["source"] == source]


def trained_rows(data: Imported, recipe: Recipe, split: Split) -> TrainedRows:
    """Rows of `data` that the final fit of a recipe sees.

    Args:
        data: rows that the split lets training see (`predictor.fit.data.training_rows`).
        recipe: flags that are left out.
        split: training devices, and those that only fit backward factors.
    """
    import pandas as pd

    factors = usable_steps(data, split.backward_factors - split.train)
    with_ops = pd.concat(
        [usable_steps(data, split.train), factors[factors["mode"] == "train"]], ignore_index=True
    )
    steps = pd.concat([with_ops, training_models(data, recipe, split.train)], ignore_index=True)
    inside = with_ops[["device", "graph", "source"]].drop_duplicates()
    ops = data.ops[~data.ops["flag"].isin(recipe.exclude_flags)]
    ops = ops[(ops["forward_us"] > 0) | (ops["backward_us"] > 0)]
    return TrainedRows(
        kernels=usable_kernels(data, recipe, split.train), steps=steps,
        ops=ops.merge(inside, on=["device", "graph"]),
    )  # fmt: skip
