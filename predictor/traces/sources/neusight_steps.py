"""NeuSight's measured models: step rows, the op graphs behind them, and ops timed inside steps.

Every label gives a step row. One that cannot be scored says why in `flag`:

| flag | is |
|---|---|
| `compiled` | run under torch.compile (`-fusion`): other kernels than the op graph's |
| `distributed` | run on several devices (`-dp4`, `-tp4`, `-pp4_1`); phases were not told apart |
| `no_graph` | no op graph is published for it |
| `graph_not_understood` | the op graph has a cell that cannot be read |
| `no_layer_count` | its label does not say how often the layer of the graph repeats |
| `no_layer_stack` | no node of the graph is recognised as part of the repeated layer |
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.traces.files import csv_at
from predictor.traces.schema import Imported, MeasuredGraph, filled
from predictor.traces.sources.neusight_cells import GraphCellError, json_number
from predictor.traces.sources.neusight_graph import LayerStackError, build_graph, is_whole
from predictor.traces.sources.neusight_layout import LICENCE, SOURCE, Layout

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

OP_SUM_LIMIT = 1.15
"""Measured ops may exceed their own measured step by this factor before they are flagged."""
SHORT_OP_SUM_LIMIT = 1.4
"""The same for short steps, where the timer's own cost a call explains the excess."""
SHORT_STEP_US = 1e5
MODES: Mapping[str, str] = {"inf": "infer", "train": "train"}
_SCORABLE = ""
_SIZE = re.compile(r"[0-9]{1,9}")


def read_steps(layout: Layout, out: Imported) -> None:
    """Add step rows, their graphs and the ops measured inside them to `out`."""
    import pandas as pd

    steps: list[dict[str, Any]] = []
    layers: dict[str, int] = {}
    for path in layout.labels():
        label = layout.reader.json(path)
        row = step_row(path, layout, label, out)
        if row is not None:
            steps.append(row)
            count = json_number(label.get("num_layer"))
            if row["flag"] == _SCORABLE and count is not None and count >= 1 and count % 1 == 0:
                layers.setdefault(path.stem, int(count))
    reasons: dict[str, str] = {}
    for row in steps:
        name = str(row["graph"])
        if layout.graph(name) is None:
            row["flag"] = row["flag"] or "no_graph"
        elif row["flag"] == _SCORABLE:
            if name not in reasons:
                reasons[name] = _add_graph(name, layout, layers.get(name), out)
            row["flag"] = reasons[name]
    found = [rows for row in steps if (rows := _measured_ops(row, layout, out)) is not None]
    if steps:
        columns = pd.DataFrame(steps).to_dict("series")
        out.steps = filled("steps", {str(c): v for c, v in columns.items()}, len(steps))
    if found:
        out.ops = pd.concat(found, ignore_index=True)


def _add_graph(name: str, layout: Layout, layers: int | None, out: Imported) -> str:
    """Read a graph into `out`; the flag of its steps, empty when all is well."""
    if layers is None and not is_whole(name):
        logger.warning("%s: no label gives its number of layers", name)
        return "no_layer_count"
    try:
        out.graphs[name] = build_graph(name, layout, layers or 1)
    except GraphCellError as error:
        out.reject(
            file=error.file, row=error.row, column=error.column, value=error.value,
            rule="graph_cell_not_understood",
        )  # fmt: skip
        return "graph_not_understood"
    except LayerStackError as error:
        logger.warning("%s", error)
        return "no_layer_stack"
    return _SCORABLE


def step_row(
    path: Path, layout: Layout, label: Mapping[str, Any], out: Imported
) -> dict[str, Any] | None:
    """The step row of one label; None (and a reject) where it breaks a rule."""
    file = layout.reader.name(path)
    device = layout.device(path.parent.name)
    if device is None:
        out.reject(
            file=file, row=None, column="device", value=path.parent.name,
            rule="unknown_device_step",
        )  # fmt: skip
        return None
    fields = path.stem.split("-")
    if len(fields) < 4 or fields[1] not in MODES or not all(map(_SIZE.fullmatch, fields[2:4])):
        out.reject(
            file=file, row=None, column="name", value=path.stem, rule="step_name_not_understood"
        )
        return None
    option = "-".join(fields[4:])
    times = {}
    for column in ("e2e_latency", "fw_latency", "bwall_latency"):
        value = label.get(column, 0 if column == "bwall_latency" else None)
        times[column] = json_number(value)
        if times[column] is None:
            rule = "label_value_missing" if value is None else "label_value_not_a_number"
            out.reject(file=file, row=None, column=column, value=value, rule=rule)
            return None
    total, forward, backward = times.values()
    assert total is not None and forward is not None and backward is not None
    if total <= 0 or (forward <= 0 and not option):
        column = "e2e_latency" if total <= 0 else "fw_latency"
        out.reject(
            file=file, row=None, column=column, value=times[column],
            rule="step_latency_not_positive",
        )  # fmt: skip
        return None
    return {
        "row_id": f"{SOURCE}:{file}", "source": SOURCE, "file": file, "row": 0,
        "licence": LICENCE, "device": device, "dtype": "fp32", "measure": "wall",
        "execution": "compiled" if option == "fusion" else "eager", "framework": "pytorch",
        "devices": _devices(option), "graph": path.stem, "model": fields[0],
        "mode": MODES[fields[1]], "batch": int(fields[3]), "seq": int(fields[2]),
        "plan": option if option and option != "fusion" else "",
        "latency_us": total * 1e3, "forward_us": forward * 1e3 if forward > 0 else np.nan,
        "backward_us": backward * 1e3 if backward > 0 else np.nan,
        "flag": "compiled" if option == "fusion" else ("distributed" if option else _SCORABLE),
    }  # fmt: skip


def _devices(option: str) -> float:
    """Devices of a label's option: `dp4`, `tp4`, `pp4_1`; 1 without, NaN where not understood."""
    if not option or option == "fusion":
        return 1.0
    count = re.match(r"(?:dp|tp|pp)([0-9]+)", option)
    return float(count.group(1)) if count else np.nan


def _measured_ops(step: Mapping[str, Any], layout: Layout, out: Imported) -> pd.DataFrame | None:
    """Ops timed inside the step, one row a node of its graph; None where none were published."""
    import pandas as pd

    label = layout.root / str(step["file"])
    path = csv_at(label.parent, label.stem)
    if path is None:
        return None
    graph = out.graphs.get(str(step["graph"]))
    if graph is None:
        layout.left_out[layout.reader.name(path)] = "its op graph is not there or not read"
        return None
    raw = layout.reader.csv(path, columns=("Name", "fw_latency", "bw_latency"))
    shapes = layout.node_shapes.get(str(step["graph"]), {})
    raw = _clean_ops(raw, graph, shapes, layout.reader.name(path), out)
    index = {name: i for i, name in enumerate(graph.nodes)}
    node = raw["Name"].map(index).to_numpy(dtype=np.int64)
    weight = graph.node_weight[node]
    forward_us = raw["fw_latency"].to_numpy(dtype=np.float64) * 1e3
    return pd.DataFrame({
        "row_id": [f"{step['row_id']}:{n}" for n in raw["Name"]],
        "device": step["device"], "graph": step["graph"], "model": step["model"],
        "mode": step["mode"], "node": node,
        "node_class": [graph.node_class[i] for i in node],
        "forward_us": forward_us,
        "backward_us": raw["bw_latency"].to_numpy(dtype=np.float64) * 1e3,
        "weight": weight, "flag": _op_flag(float((forward_us * weight).sum()), step["forward_us"]),
    })  # fmt: skip


def _op_flag(op_sum_us: float, step_us: float) -> str:
    limit = SHORT_OP_SUM_LIMIT if step_us < SHORT_STEP_US else OP_SUM_LIMIT
    return "op_sum_above_step" if op_sum_us > limit * step_us else ""


def _clean_ops(
    raw: pd.DataFrame, graph: MeasuredGraph, shapes: Mapping[str, str], file: str, out: Imported
) -> pd.DataFrame:
    """Rows of known nodes with times that are numbers, each node once.

    A node whose published output shape is not the graph's is another op under the same running
    number (the AMD labels of BERT were traced with another release of the library).
    """
    import pandas as pd

    raw = raw.assign(row=np.arange(len(raw)))
    times = {c: pd.to_numeric(raw[c], errors="coerce") for c in ("fw_latency", "bw_latency")}
    checks = [
        ("Name", "op_not_in_graph", ~raw["Name"].isin(graph.nodes)),
        ("Name", "op_repeated", raw["Name"].duplicated()),
        ("Name", "op_not_of_graph", other_shape(raw, shapes)),
        *((c, "op_latency_not_a_number", ~np.isfinite(t) | (t < 0)) for c, t in times.items()),
    ]
    keep = np.ones(len(raw), dtype=bool)
    for column, rule, found in checks:
        bad = keep & found.to_numpy(dtype=bool)
        if bad.any():
            first = raw[bad].iloc[0]
            out.reject(
                file=file, row=int(first["row"]), column=column, value=first[column], rule=rule,
                rows=int(bad.sum()),
            )  # fmt: skip
            keep &= ~bad
    return raw.assign(**times)[keep]


def other_shape(raw: pd.DataFrame, shapes: Mapping[str, str]) -> pd.Series[bool]:
    """Whether a row's output shape differs from its node's; False where one is not published."""
    import pandas as pd

    if "output_shape" not in raw.columns:
        return pd.Series(False, index=raw.index)
    expected = raw["Name"].map(dict(shapes))
    published = raw["output_shape"]
    return expected.notna() & published.notna() & (expected != published.astype(str))
