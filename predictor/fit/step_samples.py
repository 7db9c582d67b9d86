"""Samples of measured steps of published op graphs: kernels, edges, op labels and totals.

Legend: N kernels, F features, G step graphs, R op labels, K kernels behind op labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from predictor.features.columns import NodeFeatures, node_features, scalar_argument
from predictor.features.table import KernelTable, with_context
from predictor.fit.coverage import coverage_of, joined
from predictor.fit.samples import NodeSamples, tensor_of
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.nn.ensemble import effect_index
from predictor.traces.schema import Imported, MeasuredGraph

if TYPE_CHECKING:
    import pandas as pd

SOURCE_SOFTWARE = {"neusight": Software(framework_version="2.1.0", conv_tf32=False)}
"""Software context of the step graphs of a source: NeuSight's name no tensor-core path anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples(NodeSamples):
    """G measured steps: their kernels, edges, op labels and totals."""

    weight_N: Tensor
    """Repetitions of the kernel in its step."""
    graph_N: Tensor
    """Which of the G steps each kernel belongs to."""
    phase_N: Tensor
    edge_index_2E: Tensor
    forward_us_G: Tensor
    backward_us_G: Tensor
    """NaN for inference."""
    op_us_R: Tensor
    kernel_K: Tensor
    label_K: Tensor
    """Which op label each of the K kernels belongs to."""
    ratio_2P: Tensor
    """(forward label, backward label) pairs of ops long enough to trust their ratio."""
    steps: pd.DataFrame
    ops: pd.DataFrame
    """One row an op label, in the order of `op_us_R`."""

    @property
    def graphs(self) -> int:
        """Number of steps."""
        return int(self.forward_us_G.shape[0])


def op_device_us(steps: StepSamples, kernel_us_N: Tensor) -> Tensor:
    """(R,) device time of each op label: the sum over its kernels."""
    out_R = torch.zeros(len(steps.op_us_R))
    return out_R.index_add(0, steps.label_K, kernel_us_N[steps.kernel_K])


def featurise(table: KernelTable, device_id: str, source: str) -> NodeFeatures:
    """Features of a table on a catalogue device under a source's software context."""
    return node_features(table, resolve_device(device_id), SOURCE_SOFTWARE[source])


def step_samples(
    data: Imported, steps: pd.DataFrame, hosts: Sequence[str], exclude_flags: Sequence[str] = ()
) -> StepSamples | None:
    """Samples of the step rows whose graph is known; None when there are none."""
    import pandas as pd

    steps = steps[steps["graph"].isin(list(data.graphs))].reset_index(drop=True)
    if steps.empty:
        return None
    nodes, labels, ops, offset = [], [], [], 0
    for g, step in enumerate(steps.to_dict("records")):
        graph = data.graphs[str(step["graph"])]
        nodes.append(_graph_nodes(graph, str(step["device"]), str(step["source"]), hosts, g))
        if len(data.ops):
            of_step = data.ops[
                (data.ops["device"] == step["device"]) & (data.ops["graph"] == step["graph"])
            ]
            of_step = of_step[~of_step["flag"].isin(list(exclude_flags))]
            kernels, rows = _op_labels(graph, of_step, g)
            labels.append((kernels, offset))
            ops.append(rows)
        offset += len(graph.table)
    coverage = joined([n.pop("coverage") for n in nodes])
    columns = {k: np.concatenate([n[k] for n in nodes]) for k in nodes[0] if k != "edges"}
    starts = np.cumsum([0, *(len(n["token_N"]) for n in nodes)])[:-1]
    edges = np.concatenate([n["edges"] + s for n, s in zip(nodes, starts, strict=True)], axis=1)
    ops = [part for part in ops if not part.empty]
    frame = (
        pd.concat(ops, ignore_index=True) if ops else pd.DataFrame(columns=list(OP_LABEL_COLUMNS))
    )
    kernel_K, label_K = _join(labels)
    return StepSamples(
        **{k: tensor_of(v) for k, v in columns.items()},
        edge_index_2E=torch.as_tensor(edges, dtype=torch.long),
        forward_us_G=tensor_of(steps["forward_us"].to_numpy(dtype=float)),
        backward_us_G=tensor_of(steps["backward_us"].to_numpy(dtype=float)),
        op_us_R=tensor_of(frame["measured_us"].to_numpy(dtype=float)),
        kernel_K=kernel_K, label_K=label_K, ratio_2P=_ratio_pairs(frame), steps=steps, ops=frame,
        coverage=coverage,
    )  # fmt: skip


OP_LABEL_COLUMNS: tuple[str, ...] = (
    "row_id", "device", "graph", "model", "mode", "node", "node_name", "node_class", "phase",
    "graph_index", "measured_us", "weight", "flag",
)  # fmt: skip
RATIO_FLOOR_US = 60.0
"""Below this the host's launch time hides the ratio of backward to forward."""
_NO_RATIO = ("linear", "batched_matmul", "other_gather")


def _graph_nodes(
    graph: MeasuredGraph, device: str, source: str, hosts: Sequence[str], index: int
) -> dict[str, Any]:
    table = with_context(graph.table, "in_step")
    features = featurise(table, device, source)
    n = len(table)
    return {
        "x_NF": features.x, "token_N": features.token, "base_us_N": features.roofline.base_us,
        "datasheet_us_N": features.roofline.datasheet_us, "op_N": table.op.astype(np.int64),
        "scalar_arg_N": scalar_argument(table),
        "host_N": np.full(n, hosts.index(device) if device in hosts else -1),
        "device_N": np.full(n, effect_index(device, hosts)),
        "weight_N": graph.weight, "graph_N": np.full(n, index),
        "phase_N": table.phase.astype(np.int64), "edges": graph.edge_index,
        "coverage": coverage_of(table, features, resolve_device(device)),
    }  # fmt: skip


def _op_labels(
    graph: MeasuredGraph, rows: pd.DataFrame, index: int
) -> tuple[list[np.ndarray], pd.DataFrame]:
    """Kernels behind each measured node and phase, and the label rows, aligned."""
    import pandas as pd

    kernels: list[np.ndarray] = []
    out: list[dict[str, object]] = []
    for row in rows.to_dict("records"):
        for phase, name in ((0, "forward"), (1, "backward")):
            measured = float(row[f"{name}_us"])
            found = np.flatnonzero((graph.node == row["node"]) & (graph.table.phase == phase))
            if measured > 0 and len(found):
                kernels.append(found)
                out.append(
                    {
                        "row_id": f"{row['row_id']}:{name}", "device": row["device"],
                        "graph": row["graph"], "model": row["model"], "mode": row["mode"],
                        "node": row["node"], "node_name": graph.nodes[int(row["node"])],
                        "node_class": row["node_class"], "phase": name, "graph_index": index,
                        "measured_us": measured, "weight": row["weight"], "flag": row["flag"],
                    }
                )  # fmt: skip
    return kernels, pd.DataFrame(out, columns=list(OP_LABEL_COLUMNS))


def _join(labels: Sequence[tuple[list[np.ndarray], int]]) -> tuple[Tensor, Tensor]:
    kernels, owner, label = [], [], 0
    for groups, offset in labels:
        for found in groups:
            kernels.append(found + offset)
            owner.append(np.full(len(found), label))
            label += 1
    if not kernels:
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    return (
        torch.as_tensor(np.concatenate(kernels), dtype=torch.long),
        torch.as_tensor(np.concatenate(owner), dtype=torch.long),
    )


def _ratio_pairs(ops: pd.DataFrame) -> Tensor:
    if ops.empty:
        return torch.zeros(2, 0, dtype=torch.long)
    usable = ops[(ops["measured_us"] > RATIO_FLOOR_US) & ~ops["node_class"].isin(_NO_RATIO)]
    pairs = []
    for _, rows in usable.groupby(["graph_index", "node"]):
        phases = dict(zip(rows["phase"], rows.index, strict=True))
        if len(phases) == 2:
            pairs.append((phases["forward"], phases["backward"]))
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
