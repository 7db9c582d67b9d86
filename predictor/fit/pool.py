"""What could be measured on a device for some programs: whole steps, and kernels alone.

Steps come from what `predictor measure` can run: bundled models and timm models whose graphs come
with the library, and the programs themselves at smaller sizes. Kernels come from a grid and from
the programs. A step tells of the kernels inside as well.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor import zoo
from predictor.calibrate.adapted import program_reading
from predictor.calibrate.readings import Indices, Readings, joined
from predictor.calibrate.suggest import Candidates
from predictor.errors import PredictorError
from predictor.features.table import CONTEXTS, OP_NAMES, KernelTable, table_from_graph
from predictor.fit.model_samples import half_of, model_samples, shipped_bank
from predictor.fit.readings import kernel_readings, model_readings
from predictor.fit.samples import kernel_samples
from predictor.graph.ir import PHASES, KernelGraph, autocast_of
from predictor.graph.ops import DIM_NAMES
from predictor.hardware.device import Device, Software
from predictor.nn.latency import LatencyPredictor
from predictor.program import DEFAULT_OPTIMIZER
from predictor.traces.measure.cases import kernel_of
from predictor.traces.measure.grid import Point
from predictor.traces.measure.kernels import kernel_facts
from predictor.traces.measure.kinds import kind_of
from predictor.traces.measure.plan import PlannedProgram
from predictor.traces.schema import filled

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

PROGRAM_SECONDS = 4.0
"""To build a program, to capture it and to read its profile."""
PARAMETER_SECONDS = 2e-8
"""To fill one parameter with a random number."""
STEPS = 25
"""Runs of a step: warm-up, watched and not watched."""
KERNEL_SECONDS = 0.6
CALLS = 40
"""Calls of a kernel that is long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """C measurements that could be made, and what they would tell."""

    entries: tuple[PlannedProgram | Point, ...]
    candidates: Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """On what, and by which checkpoint, readings are predicted."""

    base: LatencyPredictor
    device: Device
    """In the catalogue, or adopted."""
    framework_version: str

    @property
    def software(self) -> Software:
        """Of an eager step."""
        return Software(framework_version=self.framework_version or None)

    def software_in(self, dtype: str) -> Software:
        """Of an eager step in a dtype, autocast or not."""
        return replace(self.software, amp=autocast_of(dtype))

    def shared(self) -> dict[str, Any]:
        """Columns that all rows to be predicted share."""
        return {"device": self.device.id, "framework": "pytorch", "execution": "eager",
                "framework_version": self.framework_version}  # fmt: skip


def pool_of(
    context: Context,
    *,
    banked: pd.DataFrame,
    captured: Sequence[tuple[PlannedProgram, KernelGraph]],
    points: Sequence[Point],
) -> Pool:
    """The pool of some programs and kernels; what the device has no rate for is left out.

    Args:
        context: device and checkpoint.
        banked: rows of `bank_programs`.
        captured: further programs.
        points: kernels alone.
    """
    parts = [
        part
        for part in (
            _banked(context, banked), _captured(context, captured), _points(context, points),
        )
        if part is not None
    ]  # fmt: skip
    entries = tuple(entry for part in parts for entry in part.entries)
    offsets = np.cumsum([0, *(len(part.entries) for part in parts)])
    owner_N = np.concatenate([p.owner_N + o for p, o in zip(parts, offsets, strict=False)])
    order = np.argsort(owner_N, kind="stable")
    readings = joined([part.readings for part in parts]).take(order)
    return Pool(
        entries=entries,
        candidates=Candidates(
            readings=readings, owner_N=owner_N[order],
            seconds_C=np.concatenate([part.seconds_C for part in parts]),
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    entries: list[PlannedProgram | Point]
    readings: Readings
    owner_N: Indices
    seconds_C: np.ndarray[Any, np.dtype[np.float64]]


def _banked(context: Context, programs: pd.DataFrame) -> _Part | None:
    """Programs whose graphs stand in a bank."""
    if programs.empty:
        return None
    n, refused = len(programs), Counter[str]()
    rows = filled("steps", {
        **context.shared(), "row_id": [f"{i:06d}" for i in range(n)], "measure": "wall",
        **{c: programs[c].to_numpy() for c in ("source", "graph", "model", "mode", "batch",
                                               "dtype")},
        "latency_us": np.ones(n),
    }, n)  # fmt: skip
    networks = context.base.networks
    banks = {str(source): shipped_bank(str(source)) for source in programs["source"].unique()}
    models = model_samples(rows, banks, networks.devices, networks.message_layers, refused)
    _tell(refused)
    if models is None:
        return None
    kept = programs.iloc[models.rows["row_id"].astype(int).to_numpy()]
    each: list[dict[Any, Any]] = kept.to_dict("records")
    tables = [
        banks[row["source"]].graph(row["graph"]).table(int(row["batch"]), half_of(row["dtype"]))
        for row in each
    ]
    whole = model_readings(networks, models, context.base.learned)
    entries: list[PlannedProgram | Point] = [_planned(row) for row in each]
    return _with_inside(
        context, whole, tables, entries, kept["parameters"].to_numpy(dtype=np.float64)
    )


def _planned(row: Mapping[Any, Any]) -> PlannedProgram:
    """A program of a bank as it is measured; images have no sequence length."""
    entry = zoo.ZOO.get(row["model"])
    return PlannedProgram(
        target=row["target"], mode=row["mode"], dtype=row["dtype"], batch=int(row["batch"]),
        seq=int(row["size"]) if entry is not None and entry.seq is not None else None,
        optimizer=DEFAULT_OPTIMIZER if row["mode"] == "train" else None,
    )  # fmt: skip


def _captured(
    context: Context, programs: Sequence[tuple[PlannedProgram, KernelGraph]]
) -> _Part | None:
    """Programs that were captured."""
    entries: list[PlannedProgram | Point] = []
    readings, tables, parameters = [], [], []
    refused: Counter[str] = Counter()
    for program, graph in programs:
        software = context.software_in(program.dtype)
        try:
            reading = program_reading(context.base, graph, context.device, software)
        except PredictorError as error:
            refused[type(error).__name__] += 1
            continue
        entries.append(program)
        readings.append(reading)
        tables.append(table_from_graph(graph))
        parameters.append(float(graph.workload.parameters))
    _tell(refused)
    if not entries:
        return None
    return _with_inside(context, joined(readings), tables, entries, np.array(parameters))


def _with_inside(
    context: Context,
    whole: Readings,
    tables: Sequence[KernelTable],
    entries: list[PlannedProgram | Point],
    parameters: np.ndarray[Any, np.dtype[np.float64]],
) -> _Part:
    """Steps with the kernels inside, each kind of kernel once a step."""
    import pandas as pd

    frames = [_inside(context, table).assign(row=i) for i, table in enumerate(tables)]
    inside, owner = _kernels(context, pd.concat(frames, ignore_index=True))
    step_s = np.exp(whole.log_predicted_N) * 1e-6
    return _Part(
        entries=entries, readings=joined([whole, *inside]),
        owner_N=np.concatenate([np.arange(len(entries)), owner]),
        seconds_C=PROGRAM_SECONDS + PARAMETER_SECONDS * parameters + STEPS * step_s,
    )  # fmt: skip


def _inside(context: Context, table: KernelTable) -> pd.DataFrame:
    """Rows of the distinct kernels of a step."""
    _, dtype = np.unique(table.dtype, return_inverse=True)
    key = np.column_stack([table.op, table.phase, dtype.reshape(-1), table.dims])
    once = table.take(np.sort(np.unique(key, axis=0, return_index=True)[1]))
    return filled("kernels", {
        **context.shared(), "row_id": [str(i) for i in range(len(once))], "dtype": once.dtype,
        "op": [OP_NAMES[i] for i in once.op], "phase": [PHASES[i] for i in once.phase],
        "context": CONTEXTS[0], "flops": once.flops, "read_bytes": once.read_bytes,
        "write_bytes": once.write_bytes, "latency_us": np.ones(len(once)),
        **{f"dim_{d}": once.dims[:, i] for i, d in enumerate(DIM_NAMES)},
    }, len(once))  # fmt: skip


def _points(context: Context, points: Sequence[Point]) -> _Part | None:
    """Kernels alone."""
    import pandas as pd

    found = list(_kernels_of(context.device, points))
    if not found:
        return None
    blank = {f"dim_{d}": -1 for d in DIM_NAMES}
    rows = pd.concat([
        filled("kernels", {
            **context.shared(), **blank, **kernel_facts(kernel), "row_id": str(i), "row": i,
            "context": "isolated", "layout": layout, "latency_us": 1.0,
        }, 1)
        for i, (_, kernel, layout) in enumerate(found)
    ], ignore_index=True)  # fmt: skip
    readings, owner = _kernels(context, rows)
    if not readings:
        return None
    places, owner = np.unique(owner, return_inverse=True)
    whole = joined(readings)
    return _Part(
        entries=[found[i][0] for i in places],
        readings=whole,
        owner_N=owner,
        seconds_C=KERNEL_SECONDS + CALLS * 1e-6 * np.exp(whole.log_predicted_N),
    )


def _kernels_of(device: Device, points: Sequence[Point]) -> Iterator[tuple[Point, Any, str]]:
    place = "cpu" if device.kind == "cpu" else "cuda"
    for point in points:
        if place not in kind_of(point.kind).devices:
            continue
        case = kind_of(point.kind).case(point.sizes, point.dtype, place)
        try:
            yield point, kernel_of(case), case.layout
        except (PredictorError, RuntimeError, ValueError, TypeError) as error:
            logger.debug("%s is left out: %s", point.key, error)


def _kernels(context: Context, rows: pd.DataFrame) -> tuple[list[Readings], Indices]:
    """Readings of kernel rows, and which program (column `row`) each belongs to."""
    refused: Counter[str] = Counter()
    samples = kernel_samples(rows, context.base.networks.devices, refused)
    _tell(refused)
    owner = rows["row"].to_numpy(dtype=np.int64)[samples.row_N]
    if not len(owner):
        return [], owner
    return [kernel_readings(context.base.networks, samples, context.base.learned)], owner


def _tell(refused: Counter[str]) -> None:
    for reason, count in sorted(refused.items()):
        logger.debug("%d of what could be measured is left out: %s", count, reason)
